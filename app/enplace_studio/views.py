"""The table of views: one line for each folder, in the order of the View menu."""

from __future__ import annotations

import importlib

from enplace_studio.view import View

FOLDERS = [
    "enplace_studio.graph",
    "enplace_studio.plans",
    "enplace_studio.timeline",
    "enplace_studio.inspector",
    "enplace_studio.memory",
    "enplace_studio.whatif",
]


def all_views() -> tuple[View, ...]:
    """List all views of the table."""
    return tuple(importlib.import_module(folder).VIEW for folder in FOLDERS)
