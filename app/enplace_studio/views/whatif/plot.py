"""Curves of step time over speed, or over the number of GPUs or their memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from operator import attrgetter

from PySide6.QtCore import QLineF, QPointF, QRectF, Qt
from PySide6.QtGui import QPainter, QPen
from PySide6.QtWidgets import QWidget

from enplace.text import ms
from enplace_studio.views.whatif.speed_curves import COMPUTE, Axis, Curve
from enplace_studio.widgets import plot
from enplace_studio.widgets.plot import Mark, Plot, PlotCurve
from enplace_studio.widgets.theme import theme

STYLES = (
    (0, 3.6, Qt.PenStyle.SolidLine, Mark(0, 4.6)),
    (1, 2.6, Qt.PenStyle.DashLine, Mark(4, 4.2)),
    (2, 1.8, Qt.PenStyle.DotLine, Mark(3, 3.8)),
    (5, 1.2, Qt.PenStyle.DashDotLine, Mark(0, 2.0)),
)
"""Number of a device's colour, width, pen and mark of each curve.

Where curves coincide, each leaves the wider ones below it visible."""
_GRID = 3
"""Labelled lines across the curves, if there are no round values for them."""


def _round_values(low: float, high: float) -> list[float]:
    """Return round values between two, in about equal ratios; the ends, if there are too few."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for mantissas in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 5, 7)):
        found = [each * 10.0**n for n in decades for each in mantissas]
        inside = [value for value in found if low <= value <= high]
        if len(inside) >= _GRID:
            return inside
    return [low * (high / low) ** (n / (_GRID - 1)) for n in range(_GRID)]


class CurvePlot(Plot):
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
        super().__init__(parent=parent)
        self._of, self._text = of, text
        self.curves: Sequence[Curve] = ()
        self.over = COMPUTE
        self.now = 1.0
        """Where the project is on the axis, marked by a line."""

    def show_curves(self, curves: Sequence[Curve], over: Axis, now: float) -> None:
        """Draw these curves."""
        self.curves, self.over, self.now = curves, over, now
        ticks = [(tick, over.tick(tick)) for tick in over.ticks]
        self.across = plot.Axis(over.values[0], over.values[-1], ticks, True, has_lines=False)
        if known := self._known:
            low, high = min(known), max(*known, 1.1 * min(known))
            ticks = [(us, self._text(us).replace(".0 ", " ")) for us in _round_values(low, high)]
            self.up = plot.Axis(low, high, ticks, True)
        self.setMinimumHeight(self.height_for(len(curves)))
        self.setAccessibleName(f"Curves over {over.title}")
        nearest = min(range(len(over.values)), key=lambda i: abs(math.log(over.values[i] / now)))
        self.setAccessibleDescription("; ".join(self._texts(nearest)))
        self.update()

    @property
    def _known(self) -> list[float]:
        return [us for each in self.curves for us in self._of(each) if us > 0]

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
        values, area = self.over.values, self.area(True)
        share = (at.x() - area.left()) / area.width()
        near = min(range(len(values)), key=lambda i: abs(self.across.share(values[i]) - share))
        return "\n".join([f"at {self.over.text(values[near])}", *self._texts(near)])

    def curves_now(self) -> list[PlotCurve]:
        found = []
        for number, curve in enumerate(self.curves if self._known else ()):
            device, width, pen, mark = STYLES[number % len(STYLES)]
            color, ys = theme.device_color(device), self._of(curve)
            found.append(PlotCurve(self.over.values, ys, color, width, pen, mark, curve.name))
        return found

    def paint_more(self, painter: QPainter, area: QRectF) -> None:
        if self.over.values[0] <= self.now <= self.over.values[-1]:
            x = self.at(self.now, self.up.low, area).x()
            painter.setPen(QPen(theme.tokens.faint, 1, Qt.PenStyle.DashLine))
            painter.drawLine(QLineF(x, area.top(), x, area.bottom()))
