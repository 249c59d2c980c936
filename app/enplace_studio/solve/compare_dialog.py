"""The question which methods to compare."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QDialog, QTableWidget, QTableWidgetItem, QWidget

from enplace.text import count
from enplace_studio.jobs.solver import Method, estimate_s
from enplace_studio.model.method_facts import by_purpose, time_text, whole_seconds
from enplace_studio.widgets.labels import label, paragraph, plain_tip
from enplace_studio.widgets.layouts import vbox
from enplace_studio.widgets.messages import DialogButtons, button
from enplace_studio.widgets.sizes import give_size
from enplace_studio.widgets.tables import show_rows

SIZE, ROW_PX = (820, 520), 30
COLUMNS = ("Method", "What it is", "Time")
_PER_PURPOSE = 1


def sensible(methods: Sequence[Method]) -> list[str]:
    """Name a few methods to begin with: the first of each purpose."""
    groups = by_purpose(methods).values()
    return [method.name for members in groups for method in members[:_PER_PURPOSE]]


class CompareDialog(QDialog):
    """A list of methods to tick, with a few words on each and how long it takes.

    Parameters
    ----------
    waiting : int
        The number of jobs that run or wait already.
    """

    def __init__(
        self,
        methods: Sequence[Method],
        time_limit_s: float,
        parent: QWidget | None = None,
        waiting: int = 0,
    ) -> None:
        super().__init__(parent)
        self.setWindowTitle("Try other methods")
        give_size(self, SIZE)
        self._methods, self._time_limit_s, self._waiting = methods, time_limit_s, waiting
        self._boxes: list[QTableWidgetItem] = []
        self.list = self._make_list(sensible(methods))
        self.estimate = paragraph("")
        self._every = button("All", self._tick_all_or_none)
        self.buttons = DialogButtons(self, "Try them", self._every)
        self.buttons.accept.setDefault(True)
        heading = label("Each method adds a plan to the list", "heading")
        parts = heading, (self.list, 1), self.estimate, self.buttons
        vbox(*parts, on=self, margins=(16, 16, 16, 14))
        self.list.itemChanged.connect(self._show_estimate)
        self._show_estimate()

    def _make_list(self, ticked: Sequence[str]) -> QTableWidget:
        """Make the table of methods; those named are ticked."""
        made = QTableWidget(len(self._methods), len(COLUMNS))
        made.setAccessibleName("Methods")
        made.setHorizontalHeaderLabels(list(COLUMNS))
        show_rows(made, ROW_PX, wide=1)
        for row, method in enumerate(self._methods):
            first = QTableWidgetItem(method.title)
            is_ticked = method.name in ticked
            first.setCheckState(Qt.CheckState.Checked if is_ticked else Qt.CheckState.Unchecked)
            self._boxes.append(first)
            words = method.summary or method.source
            texts = (words, time_text(method, self._time_limit_s))
            for column, item in enumerate([first, *map(QTableWidgetItem, texts)]):
                item.setToolTip(plain_tip(f"{method.title}\n{words}\n{method.source}"))
                made.setItem(row, column, item)
        return made

    @property
    def chosen(self) -> list[str]:
        """The names of the ticked methods."""
        return [method.name for method in self._ticked()]

    def _ticked(self) -> list[Method]:
        checked = Qt.CheckState.Checked
        boxes = zip(self._methods, self._boxes, strict=True)
        return [method for method, box in boxes if box.checkState() == checked]

    def _tick_all_or_none(self) -> None:
        every = len(self._ticked()) == len(self._methods)
        for box in self._boxes:
            box.setCheckState(Qt.CheckState.Unchecked if every else Qt.CheckState.Checked)

    def _show_estimate(self) -> None:
        ticked = self._ticked()
        spent = whole_seconds(estimate_s(ticked, self._time_limit_s))
        after = f", after the {count(self._waiting, 'job')} under way" if self._waiting else ""
        words = f"{count(len(ticked), 'method')}, about {spent}{after}"
        self.estimate.setText(words if ticked else "")
        self.buttons.accept.setEnabled(bool(ticked))
        self._every.setText("None" if len(ticked) == len(self._methods) else "All")
