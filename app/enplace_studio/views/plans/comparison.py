"""A table that compares two plans."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QFrame, QGridLayout, QLabel, QPushButton, QVBoxLayout, QWidget

from enplace.text import count
from enplace.values.schedule import Schedule
from enplace_studio.explain.differences import count_whole, moved_ops
from enplace_studio.model.bounds import Bounds
from enplace_studio.model.open_project import OpenProject, PlanEntry
from enplace_studio.model.plan_facts import compare
from enplace_studio.widgets.labels import ElidedLabel, label
from enplace_studio.widgets.layouts import hbox, vbox
from enplace_studio.widgets.messages import button
from enplace_studio.widgets.panel import NO_LIMIT
from enplace_studio.widgets.tables import copy_on_request


class Comparison(QFrame):
    """A small table with a column for each plan and a line for each fact."""

    closed = Signal()
    side_by_side_wanted = Signal()
    moved_wanted = Signal(object)
    """Emitted with the ops that the plans place differently, to select them."""

    def __init__(
        self,
        project: OpenProject,
        bounds: Bounds,
        first: PlanEntry,
        second: PlanEntry,
        parent: QWidget | None = None,
    ) -> None:
        super().__init__(parent)
        self.differences = compare(project, bounds, first, second)
        self._names = (first.name, second.name)
        self.setFocusPolicy(Qt.FocusPolicy.ClickFocus)
        copy_on_request(self, self.rows)
        self._grid = QGridLayout()
        self._grid.setHorizontalSpacing(8)
        self._grid.setVerticalSpacing(4)
        self._grid.setColumnStretch(0, 1)
        self._add_head(first, second)
        for line, difference in enumerate(self.differences, start=1):
            self._grid.addWidget(_elided(difference.label, "dim"), line, 0)
            for side, value in enumerate(difference.values):
                role = "good" if difference.better == side else "small"
                self._add_right(label(value, role), line, side)
        links = self._links(first.schedule, second.schedule)
        vbox(self._grid, links, on=self, margins=(0, 4, 0, 0))

    def _links(self, first: Schedule, second: Schedule) -> QVBoxLayout:
        """Make the links below the table; ``first`` is the current plan's."""
        links, last = vbox(), hbox()
        moved = moved_ops(first, second)
        if moved is not None and len(moved):
            n_moved = count_whole(moved, first.problem, second.problem)
            text = f"Select {count(n_moved, 'op')} elsewhere"
            select = _link(text, lambda: self.moved_wanted.emit(moved.tolist()))
            links.addWidget(select, 0, Qt.AlignmentFlag.AlignLeft)
        if moved is not None:
            last.addWidget(_link("Side by side", self.side_by_side_wanted.emit))
        last.addStretch(1)
        last.addWidget(_link("Close", self.closed.emit))
        links.addLayout(last)
        return links

    def rows(self) -> list[tuple[str, ...]]:
        """Return all lines as texts, with the names of the plans first."""
        lines = [(difference.label, *difference.values) for difference in self.differences]
        return [("", *self._names), *lines]

    def _add_head(self, first: PlanEntry, second: PlanEntry) -> None:
        for side, entry in enumerate((first, second)):
            self._add_right(_elided(entry.name, "strong", self._names), 0, side)

    def _add_right(self, made: QLabel, line: int, side: int) -> None:
        made.setAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
        self._grid.addWidget(made, line, side + 1)


def _elided(text: str, role: str, among: Sequence[str] = ()) -> ElidedLabel:
    made = ElidedLabel(role, among)
    made.ensurePolished()
    made.set_text(text)
    made.setMaximumWidth(NO_LIMIT)  # as wide as its column
    return made


def _link(text: str, clicked: Callable[[], object]) -> QPushButton:
    made = button(text, clicked, kind="link")
    made.setProperty("flush", True)
    return made
