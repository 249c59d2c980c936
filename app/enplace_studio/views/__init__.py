"""The table of views: one line for each folder, in the order of the View menu."""

from __future__ import annotations

import importlib

from enplace_studio.view import View

FOLDERS = [
    "graph",
    "plans",
    "timeline",
    "inspector",
    "memory",
    "whatif",
]


def all_views() -> tuple[View, ...]:
    """List all views of the table."""
    return tuple(importlib.import_module(f"{__name__}.{folder}").VIEW for folder in FOLDERS)
