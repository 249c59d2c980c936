"""A table that compares two plans."""

from __future__ import annotations

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QFrame, QGridLayout, QLabel, QPushButton, QWidget

from enplace.text import count
from enplace_studio.bounds import Bounds
from enplace_studio.differences import moved_ops
from enplace_studio.panel import ElidedLabel, label
from enplace_studio.project import OpenProject, PlanEntry
from enplace_studio.tables import copy_on_request
from enplace_studio.views.plans.facts import compare


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
        self._grid = QGridLayout(self)
        self._grid.setContentsMargins(0, 4, 0, 0)
        self._grid.setHorizontalSpacing(8)
        self._grid.setVerticalSpacing(4)
        self._grid.setColumnStretch(0, 1)
        self._add_head(first, second)
        for line, difference in enumerate(self.differences, start=1):
            name = ElidedLabel("dim")
            name.ensurePolished()
            name.set_text(difference.label)
            self._grid.addWidget(name, line, 0)
            for side, value in enumerate(difference.values):
                role = "good" if difference.better == side else "plain"
                self._add_right(label(value, role), line, side)
        line = len(self.differences) + 1
        moved = moved_ops(first.schedule, second.schedule)
        if moved is not None:
            beside = QPushButton("Side by side")
            beside.setProperty("link", True)
            beside.clicked.connect(self.side_by_side_wanted)
            self._grid.addWidget(beside, line + 1, 0, 1, 3, Qt.AlignmentFlag.AlignLeft)
        if moved is not None and len(moved):
            select = QPushButton(f"Select {count(len(moved), 'op')} elsewhere")
            select.setProperty("link", True)
            select.clicked.connect(lambda: self.moved_wanted.emit(moved.tolist()))
            self._grid.addWidget(select, line, 0, 1, 3, Qt.AlignmentFlag.AlignLeft)

    def rows(self) -> list[tuple[str, ...]]:
        """Return all lines as texts, with the names of the plans first."""
        lines = [(difference.label, *difference.values) for difference in self.differences]
        return [("", *self._names), *lines]

    def _add_head(self, first: PlanEntry, second: PlanEntry) -> None:
        close = QPushButton("Close")
        close.setProperty("link", True)
        close.clicked.connect(self.closed)
        self._grid.addWidget(close, 0, 0, Qt.AlignmentFlag.AlignLeft)
        for side, entry in enumerate((first, second)):
            name = ElidedLabel("strong", self._names)
            name.ensurePolished()
            name.set_text(entry.name)
            self._add_right(name, 0, side)

    def _add_right(self, made: QLabel, line: int, side: int) -> None:
        made.setAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
        self._grid.addWidget(made, line, side + 1)
