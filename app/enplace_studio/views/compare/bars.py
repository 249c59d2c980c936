"""The waterfall: bars that lead from one plan's step time to another's."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from PySide6.QtCore import QLineF, QPointF, QRectF, QSize, Qt
from PySide6.QtGui import QColor, QFont, QFontMetricsF, QPainter, QPaintEvent, QPen

from enplace.text import ms
from enplace_studio.views.compare.compare_facts import DeviceRow, Waterfall
from enplace_studio.views.compare.paint import change_color
from enplace_studio.widgets.drawing import draw_text
from enplace_studio.widgets.labels import TipWidget
from enplace_studio.widgets.theme import theme

_WIDEST_PX = 84
_ROW_PX = 16
_CENTRE = Qt.AlignmentFlag.AlignCenter


class WaterfallBars(TipWidget):
    """Step time, changes of its parts, step time; and the bound, if one is known."""

    def __init__(self) -> None:
        super().__init__()
        self._fall: Waterfall | None = None
        self._tips: list[str] = []
        self._names = ("", "")
        self._bound_us: float | None = None
        self.rows: Sequence[DeviceRow] = ()
        self._fits = True
        theme.changed.connect(self.update)

    def show_fall(
        self,
        fall: Waterfall,
        names: tuple[str, str],
        tips: list[str],
        rows: Sequence[DeviceRow] = (),
        fits: bool = True,
    ) -> None:
        """Show what leads from one plan to the other, and below it the same by device.

        The parts have these tooltips. Less time is no gain if the other plan does not fit.
        """
        self._fits = fits
        self._fall, self._names, self._tips = fall, names, [names[0], *tips, names[1]]
        self.rows = rows
        self.setAccessibleName("; ".join([fall.sentence, *map(_spoken(fall), rows)]))
        self.updateGeometry()
        self.update()

    def show_bound(self, bound_us: float | None) -> None:
        """Show what no plan can beat."""
        self._bound_us = bound_us
        self.update()

    def sizeHint(self) -> QSize:
        return QSize(round(420 * theme.scale), round(150 * theme.scale))

    def minimumSizeHint(self) -> QSize:
        lines = _ROW_PX * len(self.rows)
        return QSize(round(300 * theme.scale), round((84 + lines) * theme.scale))

    def tip_at(self, at: QPointF) -> str:
        """Return the tooltip of the column at a point."""
        if self._fall is None:
            return ""
        tips = [*self._tips, "No plan can be shorter than this"]
        return tips[min(int(at.x() / self._step_px(self._fall)), len(tips) - 1)]

    def _step_px(self, fall: Waterfall) -> float:
        """Return the width of a column with its margins."""
        return self.width() / (len(fall.parts) + 2 + (self._bound_us is not None))

    def paintEvent(self, event: QPaintEvent) -> None:
        if self._fall is not None:
            with QPainter(self) as painter:
                painter.setRenderHint(QPainter.RenderHint.TextAntialiasing)
                self._paint(painter, self._fall)

    def _paint(self, painter: QPainter, fall: Waterfall) -> None:
        tokens, levels = theme.tokens, fall.levels_us
        step = self._step_px(fall)
        wide = min(step * 0.72, _WIDEST_PX * theme.scale)
        line = 16 * theme.scale
        below = round(_ROW_PX * theme.scale) * len(self.rows)
        base, room = self.height() - below - line - 4, self.height() - below - 2 * line - 8
        unit = room / max(*levels, 1e-9)

        def column(at: int, low_us: float, high_us: float) -> QRectF:
            top, bottom = base - high_us * unit, base - low_us * unit
            return QRectF(step * (at + 0.5) - wide / 2, top, wide, max(bottom - top, 2.0))

        self._paint_column(painter, column(0, 0, levels[0]), tokens.faint, fall.levels[0])
        self._paint_label(painter, step, 0, self._names[0])
        for at, (part, change) in enumerate(zip(fall.parts, fall.changes, strict=True)):
            low, high = sorted(levels[at : at + 2])
            color = change_color(change) if self._fits else tokens.dim
            self._paint_column(painter, column(at + 1, low, high), color, change)
            self._paint_link(painter, column(at, 0, levels[at]), column(at + 1, 0, levels[at]))
            self._paint_label(painter, step, at + 1, part)
        last = len(levels)
        self._paint_link(painter, column(last - 1, 0, levels[-1]), column(last, 0, levels[-1]))
        color = tokens.accent if self._fits else tokens.bad
        self._paint_column(painter, column(last, 0, levels[-1]), color, fall.levels[-1])
        name = self._names[1] if self._fits else f"{self._names[1][:1]} does not fit"
        self._paint_label(painter, step, last, name)
        if self._bound_us is not None:
            self._paint_bound(painter, column(last + 1, 0, self._bound_us))
            self._paint_label(painter, step, last + 1, "bound")
        for number, row in enumerate(self.rows):
            self._paint_row(painter, step, number, row)

    def _paint_column(self, painter: QPainter, box: QRectF, color: QColor, text: str) -> None:
        painter.fillRect(box, color)
        signed = text[:1] in "−+"
        self._paint_value(painter, box, text, color if signed else theme.tokens.text)

    def _paint_bound(self, painter: QPainter, box: QRectF) -> None:
        painter.setPen(QPen(theme.tokens.good, 1.3, Qt.PenStyle.DashLine))
        painter.drawRect(box)
        self._paint_value(painter, box, ms(self._bound_us or 0.0), theme.tokens.text)

    def _paint_value(self, painter: QPainter, box: QRectF, text: str, color: QColor) -> None:
        high = 16 * theme.scale
        line = QRectF(box.center().x() - 60, box.top() - high - 1, 120, high)
        draw_text(painter, line, text, theme.font(12, QFont.Weight.DemiBold), color, _CENTRE)

    def _paint_link(self, painter: QPainter, one: QRectF, other: QRectF) -> None:
        painter.setPen(QPen(theme.tokens.faint, 1, Qt.PenStyle.DotLine))
        painter.drawLine(QLineF(one.right(), other.top(), other.left(), other.top()))

    def _paint_label(self, painter: QPainter, step: float, at: int, text: str) -> None:
        font, high = theme.font(11), 16 * theme.scale
        below = round(_ROW_PX * theme.scale) * len(self.rows)
        area = QRectF(step * at + 2, self.height() - below - high, step - 4, high)
        width_of = QFontMetricsF(font).horizontalAdvance
        ways = (text, text.partition(", ")[0], text.partition(" ")[0])
        shown = next((way for way in ways if width_of(way) <= area.width()), ways[-1])
        draw_text(painter, area, shown, font, theme.tokens.dim, _CENTRE)

    def _paint_row(self, painter: QPainter, step: float, number: int, row: DeviceRow) -> None:
        """Paint how the parts change on a device, each below its column."""
        font, high = theme.font(11), round(_ROW_PX * theme.scale)
        top = self.height() - high * (len(self.rows) - number)
        chip = 8 * theme.scale
        title = QRectF(2, top, step - 4, high)
        if row.colour is not None:
            mark = QRectF(2, top + (high - chip) / 2, chip, chip)
            painter.fillRect(mark, theme.device_color(row.colour))
            title.setLeft(2 + chip + 4)
        draw_text(painter, title, row.name, font, theme.tokens.dim)
        for at, change in enumerate(row.changes, start=1):
            color = change_color(change) if change else theme.tokens.dim
            box = QRectF(step * at, top, step, high)
            draw_text(painter, box, change or "–", font, color, _CENTRE)


def _spoken(fall: Waterfall) -> Callable[[DeviceRow], str]:
    """Return a function that says how the parts change on a device."""

    def say(row: DeviceRow) -> str:
        pairs = zip(fall.parts, row.changes, strict=True)
        return f"{row.name}: " + ", ".join(f"{part} {each}" for part, each in pairs if each)

    return say
