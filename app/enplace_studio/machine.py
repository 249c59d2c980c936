"""Checks on whether TensorFlow can be used here, without importing it."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from enplace.frameworks.source import ADD_TENSORFLOW
from enplace_studio.document import Document

MODEL_SUFFIXES = (".py", ".keras", ".h5", ".hdf5", ".meta", ".pb", ".pbtxt")
"""Files that are models, not profiles."""


def has_tensorflow() -> bool:
    """Return whether TensorFlow is installed, without importing it."""
    return importlib.util.find_spec("tensorflow") is not None


def tensorflow_state() -> str:
    """Say in a sentence whether TensorFlow is installed."""
    return f"TensorFlow is {'' if has_tensorflow() else 'not '}installed with the studio."


def is_model(path: Path) -> bool:
    """Return whether TensorFlow opens this file: a script, a saved model or a graph."""
    return path.is_dir() or path.suffix.lower() in MODEL_SUFFIXES


def model_source(document: Document) -> Mapping[str, Any] | None:
    """Return the model that the open profile was measured on, if it names one."""
    problem = document.problem
    source = problem.profile.measured.source if problem is not None else {}
    return source if source.get("path") else None


def why_no_run(document: Document) -> str:
    """Explain why the current plan cannot run on this machine, and the fix; empty if it can."""
    source = model_source(document)
    if document.current is None:
        return "There is no plan to run yet. Press Solve first."
    if source is None:
        return (
            "This profile does not name the model it was measured on. "
            "Open the model itself with File › Open a model, then run its plans."
        )
    if source.get("kind") == "trace":
        return (
            "This profile is a recorded trace, which cannot run. "
            "Open the model itself with File › Open a model, then run its plans."
        )
    if not has_tensorflow():
        return (
            "TensorFlow is not installed with the studio. "
            f"To add it, run {ADD_TENSORFLOW} and start the studio again."
        )
    path = Path(str(source["path"]))
    if source.get("kind") != "module" and not path.exists():
        return f"{path} no longer exists. Put it back, or open the model from its new location."
    return ""
