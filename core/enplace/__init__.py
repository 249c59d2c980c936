"""Decide where every op of a TensorFlow model runs, and in what order, on several GPUs."""

from __future__ import annotations

import importlib
import os
from typing import Any

__version__ = "0.1.0"


def apply(path: str | os.PathLike[str], order: bool = True) -> Any:
    """Run the training of this process as ``plan.json`` says.

    See :func:`enplace.frameworks.tensorflow.apply.apply`.

    Call it at the beginning of a training script, which needs no other change.
    """
    # TensorFlow is imported now, and by nobody who does not call this; before
    # enplace.frameworks.tensorflow, which asks for other kernels: the script keeps those that it
    # has without a plan.
    kernels = "TF_ENABLE_ONEDNN_OPTS"
    wanted = os.environ.get(kernels)
    importlib.import_module("tensorflow")
    placing = importlib.import_module("enplace.frameworks.tensorflow.apply")
    if wanted is None:
        os.environ.pop(kernels, None)
    return placing.apply(path, order)
