"""Plots of a few curves: two axes with texts, lines with marks, and names at their ends."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from PySide6.QtCore import QLineF, QPointF, QRectF, QSize, Qt
from PySide6.QtGui import QColor, QFontMetricsF, QPainter, QPaintEvent, QPen, QPolygonF
from PySide6.QtWidgets import QWidget

from enplace_studio.explain.shortened import shorten_among
from enplace_studio.widgets.drawing import draw_text
from enplace_studio.widgets.labels import TipWidget
from enplace_studio.widgets.theme import theme

LEAST_PX = 138
_BELOW, _BESIDE, _NAMES, _LINE = 18, 64, 112, 14
"""Room for the texts below and beside the curves, for their names, and from name to name."""
_SAMPLE = 20
"""Room for the piece of a curve before its name."""
_NARROW = 240
"""A plot that is not wider has no names."""


@dataclass(frozen=True)
class Axis:
    """The values along a side of a plot.

    Attributes
    ----------
    ticks : sequence of (float, str)
        The values to write, rising; an axis without any takes no room.
    is_log : bool
        Whether equal ratios, and not differences, are equally far apart.
    has_lines : bool
        Whether a line crosses the plot at each tick.
    """

    low: float
    high: float
    ticks: Sequence[tuple[float, str]] = ()
    is_log: bool = False
    has_lines: bool = True

    def share(self, value: float) -> float:
        """Return where a value is: 0 at the low end, 1 at the high one."""
        if self.is_log:
            return math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def shown(self) -> list[tuple[float, str]]:
        """Return the ticks within the axis."""
        span = self.high - self.low
        slack = 1e-9 * max(abs(self.low), abs(self.high))
        return [each for each in self.ticks if -slack <= each[0] - self.low <= span + slack]


@dataclass(frozen=True)
class Mark:
    """What stands at the points of a curve.

    Attributes
    ----------
    corners : int
        0 for a circle.
    turn : float
        In turns, the direction of the first corner from the right.
    edge, fill : QColor, optional
        By default, the colour of the curve, and none.
    """

    corners: int
    radius: float
    turn: float = -0.25
    edge: QColor | None = None
    fill: QColor | None = None


@dataclass(frozen=True)
class PlotCurve:
    """A line through points, rising along the lower axis; NaN where none is known."""

    xs: Sequence[float]
    ys: Sequence[float]
    color: QColor
    width: float = 1.6
    pen: Qt.PenStyle = Qt.PenStyle.SolidLine
    mark: Mark | None = None
    name: str = ""


class Plot(TipWidget):
    """Draws what :meth:`curves_now` returns, anew in the colours of another theme."""

    across = up = Axis(0.0, 1.0)
    tip = ""

    def __init__(self, name: str = "", parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setAccessibleName(name)
        self.setMinimumHeight(round(LEAST_PX * theme.scale))
        theme.changed.connect(self.update)

    def curves_now(self) -> Sequence[PlotCurve]:
        """Return the curves in the colours of the theme; subclasses provide it."""
        raise NotImplementedError

    def tip_at(self, at: QPointF) -> str:
        return self.tip

    # Geometry

    def height_for(self, n_names: int) -> int:
        """Return the height with room for every name beside the curves."""
        return round(max(LEAST_PX, n_names * _LINE + _BELOW + 12) * theme.scale)

    def sizeHint(self) -> QSize:
        return QSize(_NARROW, self.minimumHeight())

    def area(self, has_names: bool) -> QRectF:
        """Return the area of the curves."""
        scale, area = theme.scale, QRectF(self.rect())
        names_px = _NAMES * scale if has_names and self.width() > _NARROW * scale else 8
        if not self.across.ticks:
            return area.adjusted(4, 0, -4, 0)
        return area.adjusted(_BESIDE * scale, 6, -names_px, -_BELOW * scale)

    # Painting

    def paintEvent(self, event: QPaintEvent) -> None:
        curves = self.curves_now()
        if curves:
            with QPainter(self) as painter:
                painter.setRenderHint(QPainter.RenderHint.Antialiasing)
                painter.setFont(theme.font(11))
                area = self.area(any(curve.name for curve in curves))
                self._paint_up(painter, area)
                self._paint_across(painter, area)
                self.paint_more(painter, area)
                for curve in curves:
                    paint_curve(painter, self._points(curve, area), curve)
                self._paint_names(painter, area, curves)

    def paint_more(self, painter: QPainter, area: QRectF) -> None:
        """Paint what else lies below the curves."""

    def at(self, x: float, y: float, area: QRectF) -> QPointF:
        """Return the place of a point."""
        return QPointF(
            area.left() + self.across.share(x) * area.width(),
            area.bottom() - self.up.share(y) * area.height(),
        )

    def _points(self, curve: PlotCurve, area: QRectF) -> list[QPointF]:
        """Return the points that are known."""
        pairs = zip(curve.xs, curve.ys, strict=True)
        return [self.at(x, y, area) for x, y in pairs if not math.isnan(y)]

    def _paint_up(self, painter: QPainter, area: QRectF) -> None:
        right = Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter
        for value, text in self.up.shown():
            y = self.at(self.across.low, value, area).y()
            painter.setPen(theme.tokens.line)
            painter.drawLine(QLineF(area.left(), y, area.right(), y))
            painter.setPen(theme.tokens.dim)
            middle = min(y, area.bottom() - 6)  # clear of the numbers below
            painter.drawText(QRectF(0, middle - 8, area.left() - 6, 16), right, text)

    def _paint_across(self, painter: QPainter, area: QRectF) -> None:
        metrics, free = QFontMetricsF(painter.font()), 0.0
        for value, text in self.across.shown():
            x = self.at(value, self.up.low, area).x()
            if self.across.has_lines:
                painter.setPen(theme.tokens.line)
                painter.drawLine(QLineF(x, area.top(), x, area.bottom()))
            half = metrics.horizontalAdvance(text) / 2 + 3
            if x - half < free:
                continue  # it would touch the one before
            free = x + half
            box = QRectF(x - half, area.bottom() + 3, 2 * half, _BELOW * theme.scale - 2)
            painter.setPen(theme.tokens.dim)
            painter.drawText(box, Qt.AlignmentFlag.AlignCenter, text)

    def _paint_names(self, painter: QPainter, area: QRectF, curves: Sequence[PlotCurve]) -> None:
        """Write the names beside the ends of the curves, each with a piece of its curve."""
        ends = [(self._points(curve, area), curve) for curve in curves if curve.name]
        known = sorted(
            ((points[-1].y(), curve) for points, curve in ends if points), key=lambda one: one[0]
        )
        step, left = _LINE * theme.scale, area.right() + 8
        middles = spread([y for y, _ in known], step, area.bottom() - step / 2)
        metrics, names = QFontMetricsF(painter.font()), [curve.name for curve in curves]
        for (_, curve), middle in zip(known, middles, strict=True):
            line = [QPointF(left + share * (_SAMPLE - 6), middle) for share in (0, 0.5, 1)]
            paint_curve(painter, line, curve, marks=line[1:2])
            box = QRectF(left + _SAMPLE, middle - 8, self.width() - left - _SAMPLE, 16)
            name = shorten_among(curve.name, names, metrics.horizontalAdvance, box.width())
            shown = metrics.elidedText(name, Qt.TextElideMode.ElideRight, box.width())
            draw_text(painter, box, shown, painter.font(), theme.tokens.text)


def paint_curve(
    painter: QPainter,
    points: Sequence[QPointF],
    curve: PlotCurve,
    marks: Sequence[QPointF] | None = None,
) -> None:
    """Paint a line with a mark at each point, or only at some."""
    painter.setPen(QPen(curve.color, curve.width, curve.pen, Qt.PenCapStyle.FlatCap))
    painter.setBrush(Qt.BrushStyle.NoBrush)
    painter.drawPolyline(QPolygonF(points))
    if (mark := curve.mark) is None:
        return
    painter.setPen(QPen(mark.edge or curve.color, 1.0 if mark.fill else 1.3))
    painter.setBrush(mark.fill or Qt.BrushStyle.NoBrush)
    turns = [2 * math.pi * (at / mark.corners + mark.turn) for at in range(mark.corners)]
    ways = [QPointF(math.cos(turn), math.sin(turn)) * mark.radius for turn in turns]
    for point in points if marks is None else marks:
        if ways:
            painter.drawPolygon(QPolygonF([point + way for way in ways]))
        else:
            painter.drawEllipse(point, mark.radius, mark.radius)


def spread(wanted: Sequence[float], step: float, lowest: float) -> list[float]:
    """Move ascending places apart to at least a step, none of them below the lowest place."""
    places: list[float] = []
    for place in wanted:
        places.append(max(place, places[-1] + step) if places else place)
    for at in reversed(range(len(places))):
        below = lowest if at == len(places) - 1 else places[at + 1] - step
        places[at] = min(places[at], below)
    return places
