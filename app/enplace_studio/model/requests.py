"""Requests from views to the rest of the studio; the part that can fulfil one listens."""

from __future__ import annotations

from dataclasses import dataclass

from PySide6.QtCore import QObject, Signal


@dataclass(frozen=True)
class Wanted:
    """A table that a view asks for.

    Attributes
    ----------
    what : str
        ``"ops"``, ``"transfers"`` or ``"memory"``.
    by : str
        What it is summed by: ``"type"``, ``"layer"``, ``"device"``, or nothing.
    where : tuple of int and float, optional
        Of memory, the device and the moment in µs; without it, each device at its peak.
    """

    what: str
    by: str = ""
    where: tuple[int, float] | None = None


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
    list_rows = Signal(object)
    """A table, as a :class:`Wanted`."""
    save_picture = Signal(object)
    """A :class:`Drawing` that the user wants in a file."""
    run_action = Signal(str)
    """The id of an action."""
