"""Decide where every op of a TensorFlow model runs, and in what order, on several GPUs."""

from __future__ import annotations

import importlib
import os
from typing import Any

__version__ = "0.1.0"


def apply(path: str | os.PathLike[str], order: bool = True) -> Any:
    """Run the training of this process according to ``plan.json``.

    See :func:`enplace.frameworks.tensorflow.apply.apply`.

    Call it at the start of a training script, which needs no other change.
    """
    # Import TensorFlow only for those who call this.
    return importlib.import_module("enplace.frameworks.tensorflow.apply").apply(path, order)
