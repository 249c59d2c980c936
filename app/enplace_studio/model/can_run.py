"""Whether the open model can run on this machine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from enplace.frameworks.registry import framework_of, kind_of, suffixes
from enplace_studio.model.document import Document


def is_model(path: Path) -> bool:
    """Return whether a path is a model that a framework opens, not a profile."""
    return os.path.isdir(path) or path.suffix.lower() in suffixes()


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
    profile = document.current.schedule.problem.profile
    kind, framework = kind_of(profile), framework_of(profile)
    if kind is not None and kind.why_no_run:
        return kind.why_no_run
    if not framework.is_installed:
        return f"{framework.state}\nThen start the studio again."
    path = str(source["path"])
    if source.get("kind") != "module" and not os.path.exists(path):
        return f"{path} no longer exists. Put it back, or open the model from its new location."
    return ""
