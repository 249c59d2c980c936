"""Requests from views to the rest of the studio; the part that can fulfil one listens."""

from __future__ import annotations

from PySide6.QtCore import QObject, Signal


class Requests(QObject):
    """Signals that a view emits and never connects to."""

    export_plan = Signal(object)
    """A :class:`PlanEntry` that the user wants to export to a file."""
    renew_plan = Signal(object)
    """A :class:`PlanEntry` whose method should run again on the current problem."""
    polish_plan = Signal(object)
    """A :class:`Plan` from which to look for a better one."""
    compare_plans = Signal(object)
    """A list of :class:`PlanEntry` to show side by side, the reference first."""
    save_picture = Signal(object)
    """A :class:`Drawing` that the user wants in a file."""
    run_action = Signal(str)
    """The id of an action."""
