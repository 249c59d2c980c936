"""Tables that can be sorted by a click on a column; copying what any view lists as text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from PySide6.QtCore import Qt
from PySide6.QtGui import QAction, QGuiApplication, QKeySequence, QShortcut
from PySide6.QtWidgets import (
    QAbstractItemView,
    QHeaderView,
    QTableView,
    QTableWidget,
    QTableWidgetItem,
    QWidget,
)

from enplace.text import cell_text, one_line
from enplace_studio.widgets.drawing import LEFT, RIGHT
from enplace_studio.widgets.labels import plain_tip
from enplace_studio.widgets.theme import theme

ROW_PX = 26
COPY = "Copy as text"


def to_text(rows: Iterable[Sequence[str]]) -> str:
    """Return rows as a spreadsheet takes them: tabs between the cells, a line for each row."""
    return "\n".join(
        "\t".join(cell_text(one_line(cell), keep_amounts=True) for cell in row) for row in rows
    )


def copy_on_request(
    widget: QWidget,
    rows: Callable[[], Iterable[Sequence[str]]],
    offered_by: QWidget | None = None,
) -> None:
    """Copy rows as text at Ctrl+C while a widget, or one within it, has the focus.

    The menu of ``offered_by`` offers it too.
    """

    def copy() -> None:
        QGuiApplication.clipboard().setText(to_text(rows()))

    keys = QShortcut(QKeySequence.StandardKey.Copy, widget)
    keys.setContext(Qt.ShortcutContext.WidgetWithChildrenShortcut)
    keys.activated.connect(copy)
    if offered_by is not None:
        action = QAction(COPY, offered_by)
        action.triggered.connect(copy)
        offered_by.addAction(action)
        offered_by.setContextMenuPolicy(Qt.ContextMenuPolicy.ActionsContextMenu)


def show_rows(table: QTableView, row_px: int = ROW_PX, wide: int | None = None) -> None:
    """Show each row as a line without a grid; a click selects the whole row, and edits nothing.

    Parameters
    ----------
    wide : int, optional
        The column that takes the room that the others, as wide as their texts, leave.
    """
    table.verticalHeader().hide()
    table.verticalHeader().setDefaultSectionSize(round(row_px * theme.scale))
    table.setShowGrid(False)
    table.setWordWrap(False)
    table.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
    table.setSelectionBehavior(QAbstractItemView.SelectionBehavior.SelectRows)
    if wide is not None:
        header = table.horizontalHeader()
        header.setSectionResizeMode(QHeaderView.ResizeMode.ResizeToContents)
        header.setSectionResizeMode(wide, QHeaderView.ResizeMode.Stretch)


class Number(NamedTuple):
    """A cell that shows a number as text and is sorted by its value."""

    text: str
    value: float


Cell = str | Number


class Table(QTableWidget):
    """Rows of texts and numbers; the first column takes the room that the others leave.

    Ctrl+C copies the selected rows, or all if none is selected, with tabs between the columns.
    """

    def __init__(
        self, columns: Sequence[str], rows: Sequence[Sequence[Cell]], parent: QWidget | None = None
    ) -> None:
        super().__init__(len(rows), len(columns), parent)
        for column, title in enumerate(columns):
            head = QTableWidgetItem(title)
            is_number = bool(rows) and isinstance(rows[0][column], Number)
            head.setTextAlignment(RIGHT if is_number else LEFT)
            self.setHorizontalHeaderItem(column, head)
        show_rows(self, wide=0)
        self.setTextElideMode(Qt.TextElideMode.ElideLeft)
        for row, cells in enumerate(rows):
            for column, cell in enumerate(cells):
                self.setItem(row, column, _Item(cell))
        # In the order given.
        self.horizontalHeader().setSortIndicator(-1, Qt.SortOrder.AscendingOrder)
        self.setSortingEnabled(True)
        copy_on_request(self, self.shown_rows, self)

    def shown_rows(self) -> list[list[str]]:
        """Return the heads and the selected rows, or all if none is selected."""
        chosen = sorted({index.row() for index in self.selectedIndexes()})
        columns, model = range(self.columnCount()), self.model()
        rows = [
            [model.index(row, column).data() for column in columns]
            for row in chosen or range(self.rowCount())
        ]
        heads = [model.headerData(column, Qt.Orientation.Horizontal) for column in columns]
        return [heads, *rows]


class _Item(QTableWidgetItem):
    def __init__(self, cell: Cell) -> None:
        super().__init__(cell.text if isinstance(cell, Number) else cell)
        self._key: float | str = cell.value if isinstance(cell, Number) else cell
        self.setToolTip(plain_tip(self.text()))
        if isinstance(cell, Number):
            self.setTextAlignment(RIGHT)

    def __lt__(self, other: QTableWidgetItem) -> bool:
        if isinstance(other, _Item) and type(self._key) is type(other._key):
            return self._key < other._key  # type: ignore[operator]
        return super().__lt__(other)
