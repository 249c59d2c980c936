"""Decide where every op of a model runs, and in what order, on several GPUs."""

from __future__ import annotations

import importlib
import os
from typing import Any

__version__ = "0.1.0"


def apply(path: str | os.PathLike[str], order: bool = True) -> Any:
    """Run the training of this process according to ``plan.json``.

    Call it at the start of a training script, which needs no other change. If several frameworks
    are installed, import the script's one before. For TensorFlow, see
    :func:`enplace.frameworks.tensorflow.apply.apply`.
    """
    # Import the frameworks' interface, and then the framework, only for those who call this.
    registry = importlib.import_module("enplace.frameworks.registry")
    return registry.framework_in_use().apply(path, order)
