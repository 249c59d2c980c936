"""A listing as Qt's views of tables read it."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from PySide6.QtCore import QAbstractTableModel, QModelIndex, QObject, QPersistentModelIndex, Qt
from PySide6.QtGui import QColor, QPixmap

from enplace.values.profile import IntArray
from enplace_studio.explain.listings import Amounts, Column, Listing, Names
from enplace_studio.widgets.drawing import LEFT, RIGHT
from enplace_studio.widgets.labels import plain_tip
from enplace_studio.widgets.theme import theme

_Index = QModelIndex | QPersistentModelIndex
_Role = Qt.ItemDataRole
CHIP_PX = (4, 14)
_UNITS = {"ms": ", ms", "%": ", %"}


class RowsModel(QAbstractTableModel):
    """The rows of a listing, in the order of a column; a text is made only once it is on screen.

    Attributes
    ----------
    listing : Listing or None
    order : int array, shape (n_rows,)
        The rows of the listing from top to bottom.
    """

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.listing: Listing | None = None
        self.order: IntArray = np.zeros(0, dtype=np.int64)
        self._sorted: tuple[str, Qt.SortOrder] | None = None

    def show(self, listing: Listing) -> None:
        """Show another listing, in the order that the user has chosen if it has that column."""
        self.beginResetModel()
        self.listing = listing
        self._arrange()
        self.endResetModel()

    def _arrange(self) -> None:
        self.order = np.arange(self.listing.n_rows if self.listing is not None else 0)
        at = self.sorted_column
        if self.listing is not None and self._sorted is not None and at >= 0:
            sign = 1 if self._sorted[1] == Qt.SortOrder.AscendingOrder else -1
            self.order = np.argsort(sign * self.listing.columns[at].rank, kind="stable")

    @property
    def sorted_column(self) -> int:
        """The column that the rows are sorted by; −1 for none."""
        titles = [column.title for column in self.listing.columns] if self.listing else []
        wanted = self._sorted[0] if self._sorted is not None else ""
        return titles.index(wanted) if wanted in titles else -1

    def sort(self, column: int, order: Qt.SortOrder = Qt.SortOrder.AscendingOrder) -> None:
        if self.listing is not None and 0 <= column < len(self.listing.columns):
            self._sorted = self.listing.columns[column].title, order
            self.layoutAboutToBeChanged.emit()
            self._arrange()
            self.layoutChanged.emit()

    def rowCount(self, parent: _Index = QModelIndex()) -> int:  # noqa: B008
        return 0 if parent.isValid() else len(self.order)

    def columnCount(self, parent: _Index = QModelIndex()) -> int:  # noqa: B008
        return 0 if parent.isValid() or self.listing is None else len(self.listing.columns)

    def data(self, index: _Index, role: int = _Role.DisplayRole) -> Any:
        if self.listing is None or not index.isValid():
            return None
        column = self.listing.columns[index.column()]
        if role == _Role.TextAlignmentRole:
            return _alignment(column)
        if role == _Role.DisplayRole:
            return column.shown(int(self.order[index.row()]))
        if role == _Role.ToolTipRole and not isinstance(column, Amounts):
            return plain_tip(column.shown(int(self.order[index.row()])))
        if role == _Role.DecorationRole and isinstance(column, Names) and column.colours:
            number = column.number[self.order[index.row()]]
            return _chip(theme.device_color(column.colours[number]).rgb(), theme.scale)
        return None

    def headerData(self, section: int, side: Qt.Orientation, role: int = _Role.DisplayRole) -> Any:
        if self.listing is None or side != Qt.Orientation.Horizontal:
            return None
        column = self.listing.columns[section]
        if role == _Role.TextAlignmentRole:
            return _alignment(column)
        if role == _Role.DisplayRole:
            unit = column.unit if isinstance(column, Amounts) else ""
            return column.title + _UNITS.get(unit, "")
        return None

    def copied(self, rows: list[int]) -> list[list[str]]:
        """Return the heads and some rows, or all if there are none, as a spreadsheet takes them."""
        if self.listing is None:
            return []
        shown = self.order[rows] if rows else self.order
        columns = self.listing.columns
        cells = [[column.copied(row) for column in columns] for row in shown.tolist()]
        return [[column.head for column in columns], *cells]


@lru_cache(maxsize=64)
def _chip(rgb: int, scale: float) -> QPixmap:
    """Draw the sign of a device's colour before its name."""
    chip = QPixmap(*(round(px * scale) for px in CHIP_PX))
    chip.fill(QColor.fromRgb(rgb))
    return chip


def _alignment(column: Column) -> Qt.AlignmentFlag:
    return RIGHT if isinstance(column, Amounts) else LEFT
