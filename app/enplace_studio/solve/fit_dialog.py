"""What would make a model fit: a row for each change as soon as it was tried, with its price."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QColor
from PySide6.QtWidgets import (
    QDialog,
    QHeaderView,
    QProgressBar,
    QTableWidget,
    QTableWidgetItem,
    QWidget,
)

from enplace.errors import EnplaceError
from enplace.option import Value
from enplace.processes.codecs import problem_to_json, profile_message
from enplace.processes.wire import DONE, FAILED, Message
from enplace.processes.worker import error_of, handler_program
from enplace.text import capital
from enplace.values.problem import Problem
from enplace_studio.explain.cluster_facts import cluster_title
from enplace_studio.explain.titles import model_title
from enplace_studio.files import session
from enplace_studio.jobs import fit_worker
from enplace_studio.jobs.background import Background
from enplace_studio.jobs.fit_worker import FOUND, PROVEN, TRYING, file_of
from enplace_studio.jobs.worker import StudioWorker
from enplace_studio.model.window_words import in_window_words
from enplace_studio.widgets.drawing import LEFT, RIGHT
from enplace_studio.widgets.labels import label, paragraph, plain_tip, set_role
from enplace_studio.widgets.layouts import STRETCH, hbox, vbox
from enplace_studio.widgets.messages import WHAT_MAKES_FIT, button
from enplace_studio.widgets.sizes import give_size
from enplace_studio.widgets.tables import copy_on_request, show_rows
from enplace_studio.widgets.theme import theme

PROGRAM = handler_program(f"{fit_worker.__name__}:{fit_worker.serve.__name__}", "fit")
SIZE, ROW_PX, OPEN_PX = (940, 500), 28, 64
CHANGE, FITS, PRICE, OPEN = 0, 1, 4, 6
NUMBERS = range(2, 5)
ABOUT = (
    "The price is how much longer a sample takes than in the fastest row that fits. Open adds the "
    "plan to your list; a model with another batch opens as a new project."
)


class FitDialog(QDialog):
    """Tries changes in a worker, and lists them; accepted once the plan of a row is opened.

    Parameters
    ----------
    problem : Problem
        The model on its cluster, as it does not fit.
    objective : str
    values : mapping
        Options of the method.
    folder : Path
        For the projects of the rows.

    Attributes
    ----------
    opened : Opened or None
        The project of the row that was chosen.
    is_same_model : bool
        Whether its plan is for the model as it is, with its whole batch.
    """

    proven = Signal()
    """No plan fits as it is."""

    def __init__(
        self,
        problem: Problem,
        objective: str,
        values: Mapping[str, Value],
        folder: Path,
        parent: QWidget | None = None,
    ) -> None:
        super().__init__(parent)
        self.setWindowTitle(WHAT_MAKES_FIT)
        give_size(self, SIZE)
        self.background, self._folder = Background(self), folder
        self.opened: session.Opened | None = None
        self.is_same_model = True
        name = model_title(problem.profile.name)
        self.headline = label(f"{name} on {cluster_title(problem.cluster)}", "heading")
        self.state, self.bar = paragraph("Trying it as it is"), QProgressBar(textVisible=False)
        self.bar.setAccessibleName("Progress of the search")
        self.bar.setRange(0, 0)
        self.table, self.notes = _make_table(), paragraph(ABOUT)
        self._cells: list[list[str]] = []
        self._keys: list[str] = []
        self._same_model: list[bool] = []
        copy_on_request(self.table, lambda: self._cells, self.table)
        self.stop = button("Stop", self._stop)
        close = button("Close", self.reject)
        last = hbox(self.stop, STRETCH, close)
        parts = self.headline, self.state, self.bar, (self.table, 1), self.notes, last
        vbox(*parts, on=self, spacing=10, margins=(16, 14, 16, 14))
        self.finished.connect(self._end)
        details = {"objective": objective, "values": dict(values), "folder": f"{folder}"}
        job = Message("fit", details | {"problem": problem_to_json(problem)})
        messages = (profile_message(problem.measured_profile), job)
        self._worker = StudioWorker(PROGRAM, messages, self)
        self._worker.received.connect(self._receive)

    def _receive(self, message: Message) -> None:
        if message.do == TRYING:
            self.state.setText(f"Trying: {message.details['title']}")
        elif message.do == FOUND:
            self._show(message.details)
        elif message.do == PROVEN:
            self.proven.emit()
        elif message.do == DONE:
            self._stop("")
        elif message.do == FAILED:
            self._fail(error_of(message))

    def _show(self, found: Mapping[str, Any]) -> None:
        self.headline.setText(found["headline"])
        self.notes.setText(in_window_words(" ".join([ABOUT, *found["notes"]])))
        rows = [[capital(row[1]), *row[2:]] for row in found["cells"][1:]]
        heading = [*map(capital, found["cells"][0][1:])]
        self._cells = [heading, *rows]
        for column, text in enumerate(heading):
            shown = QTableWidgetItem(text)
            shown.setTextAlignment(RIGHT if column in NUMBERS else LEFT)
            self.table.setHorizontalHeaderItem(column, shown)
        self._keys, self._same_model = found["keys"], found["same_model"]
        self.table.setRowCount(len(rows))
        for at, row in enumerate(rows):  # a price may be another once a faster row is found
            self._show_row(at, row, found["fits"][at])
            self._link_row(at, row[CHANGE], found["fits"][at])

    def _link_row(self, at: int, change: str, fits: bool) -> None:
        """Give a row that fits a link; others may fit once the fastest come first."""
        if not fits:
            self.table.removeCellWidget(at, OPEN)
            return
        if not self.table.cellWidget(at, OPEN):
            link = button("Open", partial(self.open_row, at), kind="link")
            self.table.setCellWidget(at, OPEN, link)
        self.table.cellWidget(at, OPEN).setAccessibleName(f"Open: {change}")

    def _show_row(self, at: int, row: list[str], fits: bool) -> None:
        tokens = theme.tokens
        tints: dict[int, QColor] = {FITS: tokens.good if fits else tokens.bad}
        if row[PRICE] == "best":
            tints[PRICE] = tokens.good
        for column, text in enumerate(row):
            item = QTableWidgetItem(text)
            item.setToolTip(plain_tip(text))
            item.setTextAlignment(RIGHT if column in NUMBERS else LEFT)
            item.setForeground(tints.get(column, tokens.text if fits else tokens.dim))
            self.table.setItem(at, column, item)

    def open_row(self, at: int) -> None:
        """Read the project of a row, and close."""
        path, is_same_model = file_of(self._folder, self._keys[at]), self._same_model[at]

        def take(opened: session.Opened) -> None:
            self.opened, self.is_same_model = opened, is_same_model
            self.accept()

        self._stop("Opening it")
        self.background.start(lambda: session.open_file(path), take, self._fail)

    def _fail(self, error: EnplaceError) -> None:
        self._stop(f"{error}", "bad")

    def _stop(self, text: str = "Stopped", role: str = "dim") -> None:
        """End the search; the rows stay."""
        self._end()
        set_role(self.state, role)
        self.state.setText(text)
        self.state.setVisible(bool(text))
        self.bar.hide()
        self.stop.hide()

    def _end(self) -> None:
        self._worker.close()


def _make_table() -> QTableWidget:
    made = QTableWidget(0, OPEN + 1)
    made.setAccessibleName("Changes")
    made.setHorizontalHeaderLabels([""] * (OPEN + 1))
    show_rows(made, ROW_PX, wide=CHANGE)
    made.setTextElideMode(Qt.TextElideMode.ElideRight)
    header = made.horizontalHeader()
    header.setSectionResizeMode(OPEN, QHeaderView.ResizeMode.Fixed)
    header.resizeSection(OPEN, round(OPEN_PX * theme.scale))
    return made
