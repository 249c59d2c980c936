"""Rows of the list of constraints: a check mark and a description, what it costs below.

An order has a line for each of its two names, which may be alike but for a word.
"""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QModelIndex, QPersistentModelIndex, QRectF, QSize, Qt
from PySide6.QtGui import QColor, QFont, QFontMetricsF, QPainter
from PySide6.QtWidgets import (
    QApplication,
    QListWidgetItem,
    QStyle,
    QStyledItemDelegate,
    QStyleOptionViewItem,
)

from enplace.text import count, ms
from enplace.values.constraints import KINDS
from enplace_studio.explain.shortened import brief, by_ends
from enplace_studio.widgets.labels import plain_tip
from enplace_studio.widgets.theme import theme

HEIGHT, LINE, GAP = 40, 17, 8
BEFORE, OF = " before ", " of "
NOTHING = 1e-9
"""A smaller share of the step time is an error of rounding."""
ABOUT_COST = (
    "the best of the moves tried of these ops alone, once the constraint is gone; to undo the edit "
    "may gain less"
)
ABOUT_NO_GAIN = (
    "Once it is gone, changing only these ops gains nothing; switch it off and solve again to see "
    "what a new plan would gain"
)
UNKNOWN = "–"
ABOUT_UNKNOWN = "What it costs is known once the plan keeps all constraints; press Solve"

MOST_NAMED = 2
"""Most ops that the tip names in full."""

_OPS, _COST, _WAYS, _NAMES = (Qt.ItemDataRole.UserRole + number for number in range(4))
_Index = QModelIndex | QPersistentModelIndex


def cost_text(kind: str, now_us: float, step_us: float | None, per: str = "") -> str:
    """Describe what a constraint costs: ``−0.31 ms from moving it alone``; ``–`` if not known."""
    if step_us is None:
        return UNKNOWN
    is_gain = now_us - step_us > NOTHING * now_us
    gain = f"{ms(step_us - now_us, signed=True)}{per}" if is_gain else "no gain"
    return f"{gain} from {KINDS[kind].tried}"


def make_row(ways: Sequence[str], n_ops: int, on: bool, names: Sequence[str]) -> QListWidgetItem:
    """Make the row of a constraint on some ops, of which the first text that fits is shown.

    What it costs is not known yet.

    Parameters
    ----------
    names
        The names of the ops for the tip, if they are at most :data:`MOST_NAMED`.
    """
    made = QListWidgetItem(ways[0])
    made.setData(_WAYS, ways)
    made.setData(_NAMES, BEFORE.join(names) if BEFORE in ways[0] else "")
    made.setCheckState(Qt.CheckState.Checked if on else Qt.CheckState.Unchecked)
    made.setData(_OPS, count(n_ops, "op") if n_ops else "")
    show_cost(made, "" if on else "off")
    return made


def texts_of(row: QListWidgetItem) -> list[str]:
    """Return what a row shows: the constraint, its ops, and what it costs."""
    return [row.text(), row.data(_OPS), row.data(_COST)]


def show_cost(row: QListWidgetItem, text: str) -> None:
    """Show what a constraint costs in its row."""
    row.setData(_COST, text)
    parts = list(filter(None, [row.text(), row.data(_OPS)]))
    known = [text] if text.strip(UNKNOWN) else []
    row.setData(Qt.ItemDataRole.AccessibleTextRole, ", ".join([*parts, *known]))
    row.setToolTip(plain_tip("\n".join(filter(None, [*parts, row.data(_NAMES), _about(text)]))))


def lines_of(text: str) -> list[str]:
    """Break what a row says into its lines."""
    first, before, then = text.partition(BEFORE)
    return [first, f"{before.lstrip()}{then}"] if before else [text]


def height_of(text: str) -> int:
    """Return the height of the row that says this."""
    return round((HEIGHT + LINE * (len(lines_of(text)) - 1)) * theme.scale)


def _about(cost: str) -> str:
    """Explain what a row says a constraint costs."""
    if cost == UNKNOWN:
        return ABOUT_UNKNOWN
    if cost.startswith("no gain"):
        return ABOUT_NO_GAIN
    return f"{cost}: {ABOUT_COST}" if cost.startswith("−") else ""


class Rows(QStyledItemDelegate):
    """Paints the rows."""

    def sizeHint(self, option: QStyleOptionViewItem, index: _Index) -> QSize:
        return QSize(0, height_of(index.data(_WAYS)[0]))

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: _Index) -> None:
        frame = QStyleOptionViewItem(option)
        self.initStyleOption(frame, index)
        style = QApplication.style()
        if frame.widget is not None:
            style = frame.widget.style()
        frame.text = ""
        style.drawControl(QStyle.ControlElement.CE_ItemViewItem, frame, painter, frame.widget)
        mark = style.subElementRect(
            QStyle.SubElement.SE_ItemViewItemCheckIndicator, frame, frame.widget
        )
        inner = QRectF(frame.rect).adjusted(0, 4, -GAP, -4)
        inner.setLeft(mark.right() + GAP)
        is_on = index.data(Qt.ItemDataRole.CheckStateRole) == Qt.CheckState.Checked.value
        painter.save()
        painter.setPen(theme.tokens.faint)  # the style's own box is hardly seen in the dark
        painter.drawRect(mark.adjusted(0, 0, -1, -1))
        text = first_fitting(index.data(_WAYS), QFontMetricsF(theme.font(12)), inner.width())
        self._paint_texts(painter, inner, [text, index.data(_OPS), index.data(_COST)], is_on)
        painter.restore()

    def _paint_texts(self, painter: QPainter, inner: QRectF, texts: list[str], is_on: bool) -> None:
        tokens, (text, ops, cost) = theme.tokens, texts
        upper, lower = QRectF(inner), QRectF(inner)
        lines = lines_of(text)
        upper.setHeight((inner.height() - (len(lines) - 1) * LINE * theme.scale) * 0.55)
        for line in lines:
            _draw(painter, upper, line, theme.font(12), tokens.text if is_on else tokens.dim)
            lower.setTop(upper.bottom())
            upper.translate(0, LINE * theme.scale)
        _draw(painter, lower, ops, theme.font(11), tokens.dim)
        lower.setLeft(lower.left() + QFontMetricsF(theme.font(11)).horizontalAdvance(ops) + GAP)
        costs_time = cost.startswith("−")
        font = theme.font(11, QFont.Weight.Medium if costs_time else QFont.Weight.Normal)
        color = tokens.text if costs_time else tokens.dim
        cost = fitted_cost(cost, QFontMetricsF(font), lower.width())
        _draw(painter, lower, cost, font, color, Qt.AlignmentFlag.AlignRight)


def first_fitting(ways: Sequence[str], metrics: QFontMetricsF, width: float) -> str:
    """Return the first of several texts that fits, abbreviated if need be; or else the last."""
    length = metrics.horizontalAdvance
    return next((way for way in ways if length(brief(way, length, width)) <= width), ways[-1])


def fitted_cost(cost: str, metrics: QFontMetricsF, width: float) -> str:
    """Leave out what was tried if it must be."""
    short = cost.partition(" from ")[0]
    return cost if metrics.horizontalAdvance(cost) <= width else short


def _draw(
    painter: QPainter,
    area: QRectF,
    text: str,
    font: QFont,
    color: QColor,
    side: Qt.AlignmentFlag = Qt.AlignmentFlag.AlignLeft,
) -> None:
    painter.setFont(font)
    painter.setPen(color)
    shown = shortened(text, QFontMetricsF(font), area.width())
    painter.drawText(area, side | Qt.AlignmentFlag.AlignVCenter, shown)


def shortened(text: str, metrics: QFontMetricsF, width: float) -> str:
    """Abbreviate a text that is too wide, then elide the group of its op, or else its middle."""
    length = metrics.horizontalAdvance
    what, of, group = (text := brief(text, length, width)).partition(OF)
    shown = f"{what}{of}{by_ends(group, length, width - length(what + of))}" if of else text
    return shown if length(shown) <= width else by_ends(text, length, width)
