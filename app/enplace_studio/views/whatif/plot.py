"""Curves of step time over speed, or over the number of GPUs or their memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter

from PySide6.QtCore import QLineF, QPointF, QRectF, QSize, Qt
from PySide6.QtGui import QFontMetricsF, QPainter, QPaintEvent, QPen, QPolygonF
from PySide6.QtWidgets import QWidget

from enplace.text import ms
from enplace_studio.explain.shortened import shorten_among
from enplace_studio.views.whatif.speed_curves import COMPUTE, Axis, Curve
from enplace_studio.widgets.panel import TipWidget
from enplace_studio.widgets.theme import theme


@dataclass(frozen=True)
class Style:
    """How a curve looks; where curves coincide, each leaves the wider ones below it visible.

    Attributes
    ----------
    color : int
        The number of one of the colours that everybody can tell apart.
    corners : int
        Of the mark at each point; 0 for a circle.
    """

    color: int
    width: float
    pen: Qt.PenStyle
    corners: int
    radius: float


STYLES = (
    Style(0, 3.6, Qt.PenStyle.SolidLine, 0, 4.6),
    Style(1, 2.6, Qt.PenStyle.DashLine, 4, 4.2),
    Style(2, 1.8, Qt.PenStyle.DotLine, 3, 3.8),
    Style(5, 1.2, Qt.PenStyle.DashDotLine, 0, 2.0),
)
_AXIS, _LEFT, _NAMES, _LINE, _LEAST = 18, 64, 112, 14, 138
_SAMPLE = 20
"""Room for the piece of a curve before its name."""
_GRID = 3
"""Labelled lines across the curves."""


class CurvePlot(TipWidget):
    """One line for each plan or method; the first is the current plan's.

    Parameters
    ----------
    of : callable
        Returns the values of a curve.
    text : callable
        Shows a value.
    """

    def __init__(
        self,
        parent: QWidget | None = None,
        of: Callable[[Curve], tuple[float, ...]] = attrgetter("steps_us"),
        text: Callable[[float], str] = ms,
    ) -> None:
        super().__init__(parent)
        self._of, self._text = of, text
        self.curves: Sequence[Curve] = ()
        self.over = COMPUTE
        self.now = 1.0
        """Where the project is on the axis, marked by a line."""
        theme.changed.connect(self.update)

    def show_curves(self, curves: Sequence[Curve], over: Axis, now: float) -> None:
        """Draw these curves."""
        self.curves, self.over, self.now = curves, over, now
        self.setMinimumHeight(self._least_height)
        self.setAccessibleName(f"Curves over {over.title}")
        self.setAccessibleDescription("; ".join(self._texts(self._nearest(now))))
        self.update()

    def _nearest(self, value: float) -> int:
        values = self.over.values
        return min(range(len(values)), key=lambda i: abs(math.log(values[i] / value)))

    def _texts(self, at: int) -> list[str]:
        return [f"{each.name}: {self._value_text(self._of(each)[at])}" for each in self.curves]

    def rows(self) -> list[list[str]]:
        """Return the values as texts: a head, and a row for each value of the axis."""
        head = [self.over.title, *(curve.name for curve in self.curves)]
        columns = [self._of(curve) for curve in self.curves]
        return [
            head,
            *(
                [self.over.text(value), *(self._value_text(column[at]) for column in columns)]
                for at, value in enumerate(self.over.values)
            ),
        ]

    def _value_text(self, value: float) -> str:
        return "–" if math.isnan(value) else self._text(value)

    def tip_at(self, at: QPointF) -> str:
        """Return the step times at the nearest value."""
        if not self.curves:
            return ""
        values = self.over.values
        near = min(range(len(values)), key=lambda i: abs(self._x(values[i]) - at.x()))
        return "\n".join([f"at {self.over.text(values[near])}", *self._texts(near)])

    # Geometry

    @property
    def _least_height(self) -> int:
        """The height with room for every name beside the curves."""
        return round(max(_LEAST, len(self.curves) * _LINE + _AXIS + 12) * theme.scale)

    def sizeHint(self) -> QSize:
        return QSize(240, self._least_height)

    @property
    def _area(self) -> QRectF:
        scale = theme.scale
        return QRectF(self.rect()).adjusted(
            _LEFT * scale, 6, -_NAMES * scale if self.width() > 240 * scale else -8, -_AXIS * scale
        )

    def _x(self, value: float) -> float:
        low, *_, high = self.over.values
        share = math.log(value / low) / math.log(high / low)
        return self._area.left() + share * self._area.width()

    @property
    def _known(self) -> list[float]:
        return [us for each in self.curves for us in self._of(each) if us > 0]

    @property
    def _range_us(self) -> tuple[float, float]:
        """The least and the largest step time, at least a tenth apart."""
        low, high = min(self._known), max(self._known)
        return low, max(high, 1.1 * low)

    def _y(self, step_us: float) -> float:
        """Return where a time is; equal ratios are equal distances, as on the axis below."""
        low, high = self._range_us
        share = math.log(max(step_us, low) / low) / math.log(high / low)
        return self._area.bottom() - share * self._area.height()

    # Painting

    def paintEvent(self, event: QPaintEvent) -> None:
        with QPainter(self) as painter:
            painter.setRenderHint(QPainter.RenderHint.Antialiasing)
            painter.setFont(theme.font(11))
            if self._known:
                self._paint_axes(painter)
                self._paint_curves(painter)

    def _paint_axes(self, painter: QPainter) -> None:
        area, tokens = self._area, theme.tokens
        right = Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter
        low, high = self._range_us
        for number in range(_GRID):
            step_us = low * (high / low) ** (number / (_GRID - 1))
            y = self._y(step_us)
            painter.setPen(tokens.line)
            painter.drawLine(QLineF(area.left(), y, area.right(), y))
            painter.setPen(tokens.dim)
            middle = min(y, area.bottom() - 6)  # clear of the numbers below
            painter.drawText(QRectF(0, middle - 8, area.left() - 6, 16), right, self._text(step_us))
        metrics, free = QFontMetricsF(painter.font()), 0.0
        for tick in self.over.ticks:
            half = metrics.horizontalAdvance(self.over.tick(tick)) / 2 + 3
            if self._x(tick) - half < free:
                continue  # it would touch the one before
            free = self._x(tick) + half
            box = QRectF(free - 2 * half, area.bottom() + 3, 2 * half, _AXIS * theme.scale - 2)
            painter.drawText(box, Qt.AlignmentFlag.AlignCenter, self.over.tick(tick))
        if self.over.values[0] <= self.now <= self.over.values[-1]:
            painter.setPen(QPen(tokens.faint, 1, Qt.PenStyle.DashLine))
            painter.drawLine(
                QLineF(self._x(self.now), area.top(), self._x(self.now), area.bottom())
            )

    def _paint_curves(self, painter: QPainter) -> None:
        area = self._area
        found = [(number, curve, self._points(curve)) for number, curve in enumerate(self.curves)]
        known = [each for each in found if each[2]]
        known.sort(key=lambda each: each[2][-1].y())
        step = _LINE * theme.scale
        middles = spread([each[2][-1].y() for each in known], step, area.bottom() - step / 2)
        for number, _, points in found:
            _paint_curve(painter, points, STYLES[number % len(STYLES)])
        for (number, curve, _), middle in zip(known, middles, strict=True):
            left, style = area.right() + 8, STYLES[number % len(STYLES)]
            line = [QPointF(left + share * (_SAMPLE - 6), middle) for share in (0, 0.5, 1)]
            _paint_curve(painter, line, style, marks=line[1:2])
            self._paint_name(painter, curve.name, left + _SAMPLE, middle)

    def _points(self, curve: Curve) -> list[QPointF]:
        """Return the points that are known."""
        values = zip(self.over.values, self._of(curve), strict=True)
        return [QPointF(self._x(at), self._y(us)) for at, us in values if not math.isnan(us)]

    def _paint_name(self, painter: QPainter, name: str, left: float, middle: float) -> None:
        box = QRectF(left, middle - 8, self.width() - left, 16)
        painter.setPen(theme.tokens.text)
        metrics, names = QFontMetricsF(painter.font()), [curve.name for curve in self.curves]
        name = shorten_among(name, names, metrics.horizontalAdvance, box.width())
        shown = metrics.elidedText(name, Qt.TextElideMode.ElideRight, box.width())
        painter.drawText(box, Qt.AlignmentFlag.AlignVCenter, shown)


def _paint_curve(
    painter: QPainter,
    points: Sequence[QPointF],
    style: Style,
    marks: Sequence[QPointF] | None = None,
) -> None:
    """Paint a line with a mark at each point, or only at some."""
    color = theme.device_color(style.color)
    painter.setPen(QPen(color, style.width, style.pen, Qt.PenCapStyle.FlatCap))
    painter.setBrush(Qt.BrushStyle.NoBrush)
    painter.drawPolyline(QPolygonF(points))
    painter.setPen(QPen(color, 1.3))
    for point in points if marks is None else marks:
        if style.corners:
            turns = [2 * math.pi * (at / style.corners - 0.25) for at in range(style.corners)]
            ways = [QPointF(math.cos(turn), math.sin(turn)) * style.radius for turn in turns]
            painter.drawPolygon(QPolygonF([point + way for way in ways]))
        else:
            painter.drawEllipse(point, style.radius, style.radius)


def spread(wanted: Sequence[float], step: float, lowest: float) -> list[float]:
    """Move ascending places apart to at least a step, none of them below the lowest place."""
    places: list[float] = []
    for place in wanted:
        places.append(max(place, places[-1] + step) if places else place)
    for at in reversed(range(len(places))):
        below = lowest if at == len(places) - 1 else places[at + 1] - step
        places[at] = min(places[at], below)
    return places
