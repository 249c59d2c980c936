"""The jobs behind the running one: how many, how long they take, and a button to drop each."""

from __future__ import annotations

from functools import partial

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QGridLayout, QWidget

from enplace_studio.explain.titles import short_title
from enplace_studio.jobs.solver import Job, Solver
from enplace_studio.model.method_facts import time_text, whole_seconds
from enplace_studio.widgets.labels import label, paragraph
from enplace_studio.widgets.layouts import STRETCH, hbox, vbox
from enplace_studio.widgets.messages import button

_DIRECT = Qt.FindChildOption.FindDirectChildrenOnly


class WaitingJobs(QWidget):
    """One line that unfolds into a list."""

    def __init__(self, solver: Solver) -> None:
        super().__init__()
        self._solver = solver
        self._shown: tuple[Job, ...] = ()
        self.summary = button("", self._fold, kind="link")
        self.skip = button("Skip", self._skip, kind="link")
        self.skip.setToolTip("Stop the running method, keep its best plan, and go on to the next")
        self.list = QWidget()
        self._rows = vbox(on=self.list, margins=(0, 0, 0, 0))
        self.list.setVisible(False)
        line = hbox(self.summary, STRETCH, self.skip)
        vbox(line, self.list, on=self, margins=(0, 0, 0, 0))
        solver.changed.connect(self._refresh)
        self.hide()

    def _refresh(self) -> None:
        waiting = self._solver.waiting
        if waiting == self._shown:
            return
        self._shown = waiting
        self.setVisible(bool(waiting))
        self._show_summary()
        for old in self.list.findChildren(QWidget, options=_DIRECT):
            old.hide()
            old.setParent(None)
            old.deleteLater()
        table = QWidget(self.list)
        grid = QGridLayout(table)
        grid.setContentsMargins(0, 0, 0, 0)
        grid.setColumnStretch(0, 1)
        for row, job in enumerate(waiting):
            for column, widget in enumerate(self._make_row(job)):
                grid.addWidget(widget, row, column)
        self._rows.addWidget(table)

    def _show_summary(self) -> None:
        spent = whole_seconds(self._solver.expected_s(self._shown))
        arrow = "▸" if self.list.isHidden() else "▾"
        self.summary.setText(f"{arrow} {len(self._shown)} more, about {spent}")

    def _make_row(self, job: Job) -> tuple[QWidget, ...]:
        title = self._solver.title(job.method)
        method = self._solver.methods.get(job.method)
        drop = button("Drop", partial(self._solver.drop, job), kind="link")
        drop.setAccessibleName(f"Drop {title}")
        spent = time_text(method, job.time_limit_s or 0.0) if method else ""
        return paragraph(short_title(title)), label(spent, "dim"), drop

    def _fold(self) -> None:
        self.list.setVisible(self.list.isHidden())
        self._show_summary()

    def _skip(self) -> None:
        if self._solver.job is not None:
            self._solver.drop(self._solver.job)
