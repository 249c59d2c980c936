"""Curves of step time over speed."""

from __future__ import annotations

import math
from collections.abc import Sequence

from PySide6.QtCore import QLineF, QPointF, QRectF, QSize, Qt
from PySide6.QtGui import QColor, QFontMetricsF, QPainter, QPaintEvent, QPen, QPolygonF
from PySide6.QtWidgets import QWidget

from enplace.text import factor, ms
from enplace_studio.panel import TipWidget
from enplace_studio.sweep import FACTORS, Curve
from enplace_studio.theme import theme

_TICKS = (0.25, 0.5, 1.0, 2.0, 4.0)
_STYLES = (Qt.PenStyle.SolidLine, Qt.PenStyle.DashLine, Qt.PenStyle.DotLine)
_AXIS, _LEFT, _NAMES, _LINE = 18, 64, 84, 13


class CurvePlot(TipWidget):
    """One line for each plan; the first is the current one."""

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        self.curves: Sequence[Curve] = ()
        self.now = 1.0
        """The factor at which the project is, marked by a line."""
        self.setMinimumHeight(round(110 * theme.scale))
        self.setAccessibleName("Step time over speed")
        theme.changed.connect(self.update)

    def show_curves(self, curves: Sequence[Curve], now: float) -> None:
        """Draw these curves."""
        self.curves, self.now = curves, now
        self.setAccessibleDescription("; ".join(self._texts(len(FACTORS) // 2)))
        self.update()

    def _texts(self, at: int) -> list[str]:
        return [f"{each.entry.name}: {ms(each.steps_us[at])}" for each in self.curves]

    def tip_at(self, at: QPointF) -> str:
        """Return the step times at the nearest factor."""
        if not self.curves:
            return ""
        near = min(range(len(FACTORS)), key=lambda i: abs(self._x(FACTORS[i]) - at.x()))
        return "\n".join([f"at {factor(FACTORS[near])}", *self._texts(near)])

    # Geometry

    def sizeHint(self) -> QSize:
        return QSize(240, round(120 * theme.scale))

    @property
    def _area(self) -> QRectF:
        scale = theme.scale
        return QRectF(self.rect()).adjusted(
            _LEFT * scale, 6, -_NAMES * scale if self.width() > 240 * scale else -8, -_AXIS * scale
        )

    def _x(self, value: float) -> float:
        share = math.log(value / FACTORS[0]) / math.log(FACTORS[-1] / FACTORS[0])
        return self._area.left() + share * self._area.width()

    def _y(self, step_us: float) -> float:
        highest = max(max(each.steps_us) for each in self.curves) or 1.0
        return self._area.bottom() - step_us / highest * self._area.height()

    # Painting

    def paintEvent(self, event: QPaintEvent) -> None:
        with QPainter(self) as painter:
            painter.setRenderHint(QPainter.RenderHint.Antialiasing)
            painter.setFont(theme.font(11))
            if self.curves:
                self._paint_axes(painter)
                self._paint_curves(painter)

    def _paint_axes(self, painter: QPainter) -> None:
        area, tokens = self._area, theme.tokens
        right = Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter
        highest = max(max(each.steps_us) for each in self.curves)
        for step_us in (0.0, highest):
            y = self._y(step_us)
            painter.setPen(tokens.line)
            painter.drawLine(QLineF(area.left(), y, area.right(), y))
            painter.setPen(tokens.dim)
            middle = min(y, area.bottom() - 6)  # clear of the numbers below
            painter.drawText(QRectF(0, middle - 8, area.left() - 6, 16), right, ms(step_us))
        for tick in _TICKS:
            box = QRectF(self._x(tick) - 24, area.bottom() + 1, 48, _AXIS * theme.scale)
            painter.drawText(box, Qt.AlignmentFlag.AlignCenter, factor(tick))
        if FACTORS[0] <= self.now <= FACTORS[-1]:
            painter.setPen(QPen(tokens.faint, 1, Qt.PenStyle.DashLine))
            painter.drawLine(
                QLineF(self._x(self.now), area.top(), self._x(self.now), area.bottom())
            )

    def _paint_curves(self, painter: QPainter) -> None:
        area, free = self._area, self._area.top()
        by_end = sorted(enumerate(self.curves), key=lambda each: self._y(each[1].steps_us[-1]))
        for number, curve in by_end:
            color = theme.tokens.text if number else theme.tokens.accent
            style = _STYLES[max(number - 1, 0) % len(_STYLES)]
            painter.setPen(QPen(QColor(color), 1.3 if number else 2.0, style))
            points = zip(FACTORS, curve.steps_us, strict=True)
            painter.drawPolyline(QPolygonF([QPointF(self._x(f), self._y(us)) for f, us in points]))
            middle = max(self._y(curve.steps_us[-1]), free)
            free = middle + _LINE * theme.scale
            self._paint_name(painter, curve.entry.name, area.right() + 6, middle, color)

    def _paint_name(
        self, painter: QPainter, name: str, left: float, middle: float, color: QColor
    ) -> None:
        box = QRectF(left, middle - 8, self.width() - left, 16)
        painter.setPen(color)
        metrics = QFontMetricsF(painter.font())
        shown = metrics.elidedText(name, Qt.TextElideMode.ElideMiddle, box.width())
        painter.drawText(box, Qt.AlignmentFlag.AlignVCenter, shown)
