"""Decide where every op of a model runs, and in what order, on several GPUs.

In a notebook or a script::

    import enplace as ep

    result = ep.place("model.enplace", cluster="h100-4-nvlink")
    result.step_time_us

:mod:`enplace.api` describes every name. It is imported with its first use, so that
``import enplace`` is quick.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from enplace.api import *

__version__ = "0.2.0"

__all__ = [
    "Cluster",
    "Comparison",
    "EnplaceError",
    "EnplaceWarning",
    "Fit",
    "NextMove",
    "Plan",
    "Problem",
    "Profile",
    "Progress",
    "Result",
    "Schedule",
    "Serving",
    "apply",
    "clusters",
    "compare",
    "fit",
    "from_networkx",
    "methods",
    "next_moves",
    "place",
    "plan_serving",
    "read",
    "read_cluster",
    "read_onnx",
    "read_plan",
    "samples",
    "simulate",
    "to_networkx",
    "write",
]


if not TYPE_CHECKING:  # a type checker would take any name for one of these

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module 'enplace' has no attribute '{name}'")
        if "enplace.api" not in sys.modules:
            importlib.import_module("enplace.system").check_compiler_settings()
        return getattr(importlib.import_module("enplace.api"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


def apply(path: str | os.PathLike[str], **wishes: Any) -> Any:
    """Run the training of this process according to ``plan.json``.

    Call it at the start of a training script, which needs no other change. The plan names its
    framework. If an older one does not and several are installed, import the script's one before.
    With TensorFlow, sums may be rounded differently from the plain script's, because TensorFlow
    does not rewrite a placed function.

    Parameters
    ----------
    path : str or path
        The plan's file.
    **wishes
        What the framework declares as its ``apply_options``, such as ``order=False``, which leaves
        the order of the ops to the framework; a ``pipeline`` such as ``"1f1b"``, for which each
        batch is cut into so many ``microbatches``, 8 by default; and ``own_statistics=True``, with
        which these take their own means and sums in batch normalisation.

    Raises
    ------
    EnplaceError
        If the plan cannot be applied, or the framework has no such wish; the line says why. If
        nobody catches it, that line is all that is shown, with the script's own.
    """
    from enplace.errors import EnplaceError, check_name, show_in_one_line

    show_in_one_line()
    if not isinstance(path, str | os.PathLike):
        raise EnplaceError(f"path is {path!r:.60}; use a file's name")
    check_name(path)
    # Import the frameworks' interface, and then the framework, only for those who call this.
    registry = importlib.import_module("enplace.frameworks.registry")
    return registry.framework_that_applies(path).apply(path, **wishes)
