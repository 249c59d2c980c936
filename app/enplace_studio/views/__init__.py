"""The table of views: one line for each folder, in the order of the View menu."""

from __future__ import annotations

import importlib

from enplace_studio.views.view import View

FOLDERS = [
    "graph",
    "compare",
    "tables",
    "plans",
    "constraints",
    "history",
    "timeline",
    "moves",
    "inspector",
    "memory",
    "whatif",
]


def all_views() -> tuple[View, ...]:
    """List all views of the table.

    Raises
    ------
    ValueError
        If a folder describes no view, or one that cannot be made, or two views have the same id;
        the message is for the developer.
    """
    found: dict[str, View] = {}
    for folder in FOLDERS:
        view = getattr(importlib.import_module(f"{__name__}.{folder}"), "VIEW", None)
        if not isinstance(view, View):
            raise ValueError(f"folder '{folder}': its __init__ must hold a View named VIEW")
        fault = "another view has this id; rename it" if view.id in found else view.fault
        if fault:
            raise ValueError(f"view '{view.id}': {fault}")
        found[view.id] = view
    return tuple(found.values())
