"""A list with a line to filter it: arrow keys move in the list while the user types."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import zip_longest

from PySide6.QtCore import (
    QEvent,
    QModelIndex,
    QObject,
    QPersistentModelIndex,
    QRect,
    QRectF,
    QSize,
    Qt,
    Signal,
)
from PySide6.QtGui import QFont, QFontMetrics, QKeyEvent, QPainter, QResizeEvent
from PySide6.QtWidgets import (
    QLineEdit,
    QListWidget,
    QListWidgetItem,
    QStyle,
    QStyledItemDelegate,
    QStyleOptionViewItem,
    QWidget,
)

from enplace_studio.explain.shortened import wrapped
from enplace_studio.widgets.drawing import RIGHT, draw_text
from enplace_studio.widgets.labels import plain_tip
from enplace_studio.widgets.layouts import vbox
from enplace_studio.widgets.theme import theme

COLUMN_GAP = 18
PADDING = 8
SLACK = 4
"""Room for a width that rounding leaves too small."""
_STEPS = {
    Qt.Key.Key_Down: 1, Qt.Key.Key_Up: -1, Qt.Key.Key_PageDown: 10, Qt.Key.Key_PageUp: -10,
}  # fmt: skip
_Index = QModelIndex | QPersistentModelIndex


@dataclass(frozen=True)
class Row:
    """A line of the list.

    Attributes
    ----------
    data : object
        What the line stands for; None for a heading, which cannot be chosen.
    columns : tuple of str
        Short texts on the right, aligned with those of the other rows.
    faint : bool
        Whether it is shown as unavailable.
    """

    title: str
    data: object = None
    columns: tuple[str, ...] = ()
    tip: str = ""
    faint: bool = False


def matches(typed: str, text: str) -> bool:
    """Return whether a text contains every typed word, whether a hyphen or a space is between them.

    Layers are shown with a space before their number, and typed without it: ``blk1``. A
    number with its unit is one word, and none begins inside a longer number.

    >>> matches("8 GB", "8 × GPU 8 GB"), matches("8 GB", "8 × V100 16 GB"), matches("8", "128")
    (True, False, False)
    >>> matches("what-if", "Open the pane What if"), matches("blk1 up", "net / blk 1 / up")
    (True, True)
    """
    text = text.lower()
    for word in re.findall(r"\d+ [kmgt]i?b|[^\s-]+", typed.lower()):
        start = r"(?<!\d)" if word[0].isdigit() else ""
        parts = map(re.escape, re.split(r"(?<=[a-z])(?=\d)", word))
        if not re.search(start + "[ _]?".join(parts), text):
            return False
    return True


def closeness(typed: str, text: str) -> int:
    """Rank a text that matches: 0 the very words, 1 begins with them, 2 has them, 3 has each."""
    wanted, text = " ".join(typed.lower().split()), text.lower()
    if not wanted or text == wanted:
        return 0
    if text.startswith(wanted):
        return 1
    return 2 if f" {wanted}" in f" {text}" else 3


class RowList(QListWidget):
    """A list of rows with aligned columns.

    Attributes
    ----------
    rows : sequence of Row
        What it shows.
    line_height : int
        The height of a row with one line.
    wraps : bool
        Whether a title that is too wide continues on the next line.
    """

    def __init__(self, name: str, wraps: bool = False) -> None:
        super().__init__()
        self.rows: Sequence[Row] = ()
        self.wraps = wraps
        self.line_height = 0
        self.setAccessibleName(name)
        self._delegate = _RowDelegate(self)
        self.setItemDelegate(self._delegate)
        self.setUniformItemSizes(not wraps)
        if wraps:
            self.setResizeMode(QListWidget.ResizeMode.Adjust)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)

    def fill(self, rows: Sequence[Row]) -> None:
        """Show these rows instead."""
        self.rows = ()  # a scroll bar that appears meanwhile has nothing to fit
        self.clear()
        self._delegate.widths = column_widths(rows)
        for row in rows:
            self._add(row)
        self.rows, self.line_height = rows, self.sizeHintForRow(0)
        self._fit_heights()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._fit_heights()
        if (current := self.currentItem()) is not None:
            self.scrollToItem(current)

    def _fit_heights(self) -> None:
        """Set the heights of wrapped rows; a delegate in Python would be asked too often."""
        if self.wraps:
            more = QFontMetrics(theme.font(12)).height()
            for at, row in enumerate(self.rows):
                high = self.line_height + (len(self.lines(row)) - 1) * more
                self.item(at).setSizeHint(QSize(0, high))

    def lines(self, row: Row) -> tuple[str, ...]:
        """Break the title of a row, if the list wraps titles."""
        if not self.wraps:
            return (row.title,)
        columns = sum(width + COLUMN_GAP for width in self._delegate.widths)
        room = self.viewport().width() - 2 * PADDING - SLACK
        return _wrapped(row.title, room - columns, room, theme.scale)

    def _add(self, row: Row) -> None:
        item = QListWidgetItem(row.title, self)
        item.setToolTip(plain_tip(row.tip))
        spoken = ", ".join(filter(None, (row.title, *row.columns)))
        item.setData(Qt.ItemDataRole.AccessibleTextRole, spoken)
        if row.data is None:
            item.setFlags(Qt.ItemFlag.NoItemFlags)


class SearchList(QWidget):
    """A line and the rows that it finds.

    Parameters
    ----------
    find : callable
        Returns the rows for what is typed.
    """

    moved = Signal()
    """Another row is current."""
    chosen = Signal()
    """The user pressed Enter or double-clicked a row."""

    def __init__(self, find: Callable[[str], Sequence[Row]], hint: str) -> None:
        super().__init__()
        self._find = find
        self.field = QLineEdit(placeholderText=hint)
        self.field.setAccessibleName(hint)
        self.field.textChanged.connect(lambda: self.fill(object()))  # what is found first
        self.field.installEventFilter(self)
        self.list = RowList(hint)
        self.list.currentItemChanged.connect(self.moved)
        self.list.itemActivated.connect(self.chosen)
        vbox(self.field, (self.list, 1), on=self, margins=(0, 0, 0, 0))
        self.setFocusProxy(self.field)

    @property
    def current(self) -> object:
        """What the current row stands for; None if there is none."""
        at = self.list.currentRow()
        return self.rows[at].data if at >= 0 else None

    @property
    def rows(self) -> Sequence[Row]:
        """The rows shown."""
        return self.list.rows

    def fill(self, current: object = None) -> None:
        """Show what is found; make one row current, or else the first that is no heading."""
        rows = self._find(self.field.text()) or [Row("Nothing found")]
        wanted = self.current if current is None else current
        blocked = self.list.blockSignals(True)
        self.list.fill(rows)
        known = [row.data for row in rows]
        first = next((n for n, data in enumerate(known) if data is not None), -1)
        at = known.index(wanted) if wanted is not None and wanted in known else first
        self.list.setCurrentRow(at)
        self.list.blockSignals(blocked)
        self.list.scrollToItem(self.list.item(at if at != first else 0))
        self.moved.emit()

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if not isinstance(event, QKeyEvent) or event.type() != QEvent.Type.KeyPress:
            return False
        if (step := _STEPS.get(Qt.Key(event.key()))) is not None:
            self._step(step)
            return True
        if event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter):
            if self.current is not None:
                self.chosen.emit()
            return True
        return False

    def _step(self, step: int) -> None:
        """Move by some rows, headings not counted; a single step goes round at the ends."""
        able = [n for n, row in enumerate(self.rows) if row.data is not None]
        if not able:
            return
        now = self.list.currentRow()
        at = (able.index(now) if now in able else -1) + step
        at = at % len(able) if abs(step) == 1 else max(0, min(at, len(able) - 1))
        self.list.setCurrentRow(able[at])


class _RowDelegate(QStyledItemDelegate):
    """Draws the title on the left and the columns on the right.

    Attributes
    ----------
    widths : sequence of int
        The width of each column.
    """

    def __init__(self, view: RowList) -> None:
        super().__init__(view)
        self._view = view
        self.widths: Sequence[int] = ()

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: _Index) -> None:
        row = self._view.rows[index.row()]
        self.initStyleOption(option, index)
        option.text = ""
        style = self._view.style()
        style.drawControl(QStyle.ControlElement.CE_ItemViewItem, option, painter, self._view)
        painter.save()
        area = option.rect.adjusted(PADDING, 0, -PADDING, 0)
        line = QRect(area.left(), area.top(), area.width(), self._view.line_height)
        right = area.right()
        for text, width in zip(reversed(row.columns), reversed(self.widths), strict=False):
            cell = QRect(right - width, line.top(), width, line.height())
            draw_text(painter, QRectF(cell), text, theme.font(11), theme.tokens.dim, RIGHT)
            right -= width + COLUMN_GAP
        line.setRight(right - 1)
        heading = row.data is None
        dim = heading or row.faint
        font = theme.font(
            11 if dim else 12, QFont.Weight.DemiBold if heading else QFont.Weight.Normal
        )
        color = theme.tokens.dim if dim else theme.tokens.text
        for text in self._view.lines(row):
            draw_text(painter, QRectF(line), text, font, color)
            line.translate(0, QFontMetrics(theme.font(12)).height())
            line.setRight(area.right())
        painter.restore()


@lru_cache(maxsize=1000)
def _wrapped(title: str, first: int, width: int, scale: float) -> tuple[str, ...]:
    """Break a title, of which only the first line shares its room with the columns.

    All rows of a list are filled in again whenever one is added.
    """
    length = QFontMetrics(theme.font(12)).horizontalAdvance
    begins = wrapped(title, length, first)[0]
    rest = title[len(begins) :].strip()
    return (begins, *(wrapped(rest, length, width) if rest else ()))


def column_widths(rows: Sequence[Row]) -> list[int]:
    """Return the widths of the columns, each as wide as its longest text."""
    metrics = QFontMetrics(theme.font(11))
    columns = zip_longest(*(row.columns for row in rows), fillvalue="")
    return [max(map(metrics.horizontalAdvance, texts)) + SLACK for texts in columns]
