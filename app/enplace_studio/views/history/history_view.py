"""The widget of the history."""

from __future__ import annotations

from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import QWidget

from enplace.text import capital
from enplace_studio.jobs.call_later import call_later
from enplace_studio.jobs.solver import Solver
from enplace_studio.model.document import Document
from enplace_studio.model.history import State
from enplace_studio.model.prices import headline
from enplace_studio.widgets.panel import Need, Panel
from enplace_studio.widgets.search_list import Row, RowList
from enplace_studio.widgets.tables import copy_on_request

LEAST_ROWS, USUAL_ROWS = 3, 8


def make_view(document: Document, solver: Solver) -> HistoryView:
    """Make the pane."""
    return HistoryView(document)


class HistoryView(Panel):
    """A list of states, and of what was found, with their times; click one to go there.

    Attributes
    ----------
    list : RowList
        The first row is the state that was opened; states that were undone are faint.
    """

    def __init__(self, document: Document, parent: QWidget | None = None) -> None:
        super().__init__("History", parent=parent)
        self._document = document
        self.list = RowList("History", wraps=True)
        self.list.setProperty("bare", True)
        self.list.itemClicked.connect(self._go)
        self.list.itemActivated.connect(self._go)
        self.body.addWidget(self.list, 1)
        self.offer_picture(document.requests.save_picture.emit)
        copy_on_request(self.list, self.rows, self)
        call_later(self, self._fill, document.file_changed)

    def need(self) -> Need:
        row = max(self.list.sizeHintForRow(0), 1)
        wanted = self.around_height + self.contents_height()
        least, usual = (self.around_height + n * row for n in (LEAST_ROWS, USUAL_ROWS))
        return Need(self.title_height, min(wanted, least), min(wanted, usual), wanted)

    def contents_height(self) -> int:
        return sum(map(self.list.sizeHintForRow, range(self.list.count())))

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._fill()

    def _fill(self) -> None:
        if not self.isVisible():
            return
        history = self._document.undo_stack
        now, at = history.index(), history.row
        self.list.fill([_row(number, state, now) for number, state in enumerate(history.states())])
        self.list.setCurrentRow(at)
        self.list.scrollToItem(self.list.item(at))
        self.need_changed.emit()

    def rows(self) -> list[tuple[str, ...]]:
        """Return every state with its step time as texts."""
        return [(row.title, *row.columns) for row in self.list.rows]

    def _go(self) -> None:
        self._document.undo_stack.go_to(self.list.currentRow())


def _row(number: int, state: State, now: int) -> Row:
    title = capital(state.title)
    schedule = state.schedule
    step = "" if schedule is None else headline(schedule.plan, schedule)
    return Row(title, number, (step,), title, faint=state.index > now)
