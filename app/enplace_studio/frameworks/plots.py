"""Two plots of a profile: the variation of its ops, and the cost of its links."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyqtgraph as pg
from PySide6.QtCore import QSize, Qt
from PySide6.QtGui import QColor

from enplace.frameworks.link_fits import LinkFit
from enplace.text import ms, percent, size
from enplace.values.profile import FloatArray
from enplace_studio.frameworks.profile_facts import Deviations
from enplace_studio.widgets.theme import theme

LEAST_HEIGHT = 150
SHOWN_SHARE = 0.98
"""Share of the ops that the curve covers; the last outliers would squeeze it."""

Ticks = list[tuple[float, str]]


class Plot(pg.PlotWidget):
    """A quiet plot: ticks with units, faint grid, no handles."""

    def __init__(self, name: str) -> None:
        super().__init__(background=theme.tokens.panel)
        self.setAccessibleName(name)
        self.setMinimumHeight(round(LEAST_HEIGHT * theme.scale))
        self.setAntialiasing(True)
        self.setMenuEnabled(False)
        self.hideButtons()
        item = self.getPlotItem()
        item.setMouseEnabled(x=False, y=False)
        for side in ("bottom", "left"):
            axis = item.getAxis(side)
            axis.setPen(theme.tokens.line)
            axis.setTextPen(theme.tokens.dim)
            axis.setStyle(
                tickFont=theme.font(11), tickLength=0, tickTextOffset=6, hideOverlappingLabels=False
            )
            axis.setGrid(28)

    def sizeHint(self) -> QSize:
        return QSize(320, round(LEAST_HEIGHT * theme.scale))

    def set_ticks(self, bottom: Ticks, left: Ticks) -> None:
        for side, ticks in (("bottom", bottom), ("left", left)):
            self.getPlotItem().getAxis(side).setTicks([ticks])

    def draw_line(
        self, xs: FloatArray, ys: FloatArray, color: QColor, style: Qt.PenStyle, width: float = 1.6
    ) -> None:
        self.plot(xs, ys, pen=pg.mkPen(color, width=width, style=style))


class DeviationPlot(Plot):
    """The distribution of op deviations between steps, by number of ops and by compute time."""

    def __init__(self, found: Deviations) -> None:
        super().__init__("Deviation of ops between steps")
        most = max(float(np.quantile(found.deviation, SHOWN_SHARE)), 0.05)
        tokens = theme.tokens
        self.draw_line(*found.curve(found.time_us), tokens.dim, Qt.PenStyle.DashLine)
        self.draw_line(
            *found.curve(np.ones(len(found.deviation))), tokens.text, Qt.PenStyle.SolidLine
        )
        self.setXRange(0, most, padding=0.02)
        self.setYRange(0, 1, padding=0.03)
        step = _round_up(most / 5)
        bottom = [(x, f"{x * 100:g} %") for x in np.arange(0, most + step / 2, step).tolist()]
        self.set_ticks(
            bottom, [(y, percent(y).replace(".0", "")) for y in (0.0, 0.25, 0.5, 0.75, 1.0)]
        )


class LinkPlot(Plot):
    """Measured transfers and the line fitted to them; both axes are logarithmic."""

    def __init__(self, fits: Sequence[LinkFit]) -> None:
        super().__init__("Time of transfers by size")
        for fit in fits:
            self._draw(fit)
        sizes = np.concatenate([fit.size_bytes for fit in fits])
        times = np.concatenate([fit.time_us for fit in fits])
        bottom = [(np.log10(4096.0 * 16**i), size(4096 * 16**i)) for i in range(5)]
        low, high = np.floor(np.log10(times.min())), np.ceil(np.log10(times.max()))
        left = [(y, ms(10.0**y)) for y in np.arange(low, high + 1).tolist()]
        self.setXRange(np.log10(sizes.min()), np.log10(sizes.max()), padding=0.1)
        self.setYRange(np.log10(times.min()), np.log10(times.max()), padding=0.08)
        self.set_ticks(bottom, left)

    def _draw(self, fit: LinkFit) -> None:
        color = theme.device_color(fit.device)
        sizes = np.geomspace(fit.size_bytes.min(), fit.size_bytes.max(), 60)
        times = fit.b0_us + fit.b1_us_per_byte * sizes
        self.draw_line(
            np.log10(sizes), np.log10(np.maximum(times, 1e-3)), color, Qt.PenStyle.SolidLine
        )
        self.plot(
            np.log10(fit.size_bytes), np.log10(fit.time_us), pen=None, symbol="o", symbolSize=6,
            symbolBrush=color, symbolPen=pg.mkPen(theme.tokens.panel, width=1),
        )  # fmt: skip


def _round_up(value: float) -> float:
    """Round up to 1, 2, 5 or 10 times a power of ten."""
    power = 10.0 ** np.floor(np.log10(value))
    return float(next(m * power for m in (1, 2, 5, 10) if m * power >= value * (1 - 1e-9)))
