"""A model of any kind as one step that a session can repeat."""

from __future__ import annotations

from collections.abc import Callable

from enplace.frameworks.source import Source
from enplace.frameworks.tensorflow.open.keras_models import load_keras
from enplace.frameworks.tensorflow.open.saved_models import load_saved_model
from enplace.frameworks.tensorflow.open.scripts import load_script
from enplace.frameworks.tensorflow.open.tf1 import load_tf1
from enplace.frameworks.tensorflow.step import LoadError, Step
from enplace.processes.worker import Report, ignore

_LOADERS: dict[str, Callable[[Source], Step]] = {
    "script": load_script,
    "module": load_script,
    "keras": load_keras,
    "saved-model": load_saved_model,
    "tf1": load_tf1,
}


def load(source: Source, progress: Report = ignore) -> Step:
    """Extract the training step, or else the inference, from a model.

    Raises
    ------
    LoadError
        With the reason why there is no step, and the fix.
    """
    if source.kind not in _LOADERS:
        raise LoadError(f"{source.path}: a recorded trace cannot run; open the model itself")
    runs = source.kind in ("script", "module")
    progress(f"Running {source.name} until it trains" if runs else f"Reading {source.name}", None)
    step = _LOADERS[source.kind](source)
    progress(f"Read {source.name}: {len(step.graph_def.node)} ops", None)
    return step
