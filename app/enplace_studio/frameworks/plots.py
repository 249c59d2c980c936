"""Two plots of a profile: the variation of its ops, and the cost of its links."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PySide6.QtCore import Qt

from enplace.frameworks.link_fits import LinkFit
from enplace.text import ms, percent, size
from enplace.values.profile import FloatArray
from enplace_studio.frameworks.profile_facts import Deviations
from enplace_studio.timelines.scale import round_up
from enplace_studio.widgets.plot import Axis, Mark, Plot, PlotCurve
from enplace_studio.widgets.theme import theme

SHOWN_SHARE = 0.98
"""Share of the ops that the curve covers; the last outliers would squeeze it."""


class DeviationPlot(Plot):
    """The distribution of op deviations between steps, by number of ops and by compute time."""

    def __init__(self, found: Deviations) -> None:
        super().__init__("Deviation of ops between steps")
        self._found = found
        most = max(float(np.quantile(found.deviation, SHOWN_SHARE)), 0.05)
        step = round_up(most / 5)
        ticks = [(x, f"{x * 100:g} %") for x in np.arange(0, most + step / 2, step).tolist()]
        self.across = Axis(-0.02 * most, 1.02 * most, ticks)
        shares = [(y, percent(y).replace(".0", "")) for y in (0.0, 0.25, 0.5, 0.75, 1.0)]
        self.up = Axis(-0.03, 1.03, shares)

    def curves_now(self) -> list[PlotCurve]:
        found, tokens = self._found, theme.tokens
        return [
            PlotCurve(*self._shown(found.time_us), tokens.dim, pen=Qt.PenStyle.DashLine),
            PlotCurve(*self._shown(np.ones(len(found.deviation))), tokens.text),
        ]

    def _shown(self, weights: FloatArray) -> tuple[list[float], list[float]]:
        """Return the curve up to the right edge, where a line to the next point leaves the plot."""
        xs, ys = self._found.curve(weights)
        edge = self.across.high
        inside = xs <= edge
        at_edge = [] if inside.all() else [float(np.interp(edge, xs, ys))]
        return [*xs[inside].tolist(), *[edge] * len(at_edge)], [*ys[inside].tolist(), *at_edge]


class LinkPlot(Plot):
    """Measured transfers and the line fitted to them; both axes are logarithmic."""

    def __init__(self, fits: Sequence[LinkFit]) -> None:
        super().__init__("Time of transfers by size")
        self._fits = fits
        sizes = [(4096.0 * 16**i, size(4096 * 16**i)) for i in range(5)]
        self.across = _around(np.concatenate([fit.size_bytes for fit in fits]), 0.1, sizes)
        times = [(10.0**y, ms(10.0**y)) for y in range(-3, 10)]
        self.up = _around(np.concatenate([fit.time_us for fit in fits]), 0.08, times)

    def curves_now(self) -> list[PlotCurve]:
        found = []
        for fit in self._fits:
            color = theme.device_color(fit.colour)
            sizes = np.geomspace(fit.size_bytes.min(), fit.size_bytes.max(), 60)
            times = np.maximum(fit.b0_us + fit.b1_us_per_byte * sizes, 1e-3)
            dot = Mark(0, 3.0, edge=theme.tokens.panel, fill=color)
            found += [
                PlotCurve(sizes.tolist(), times.tolist(), color),
                PlotCurve(
                    fit.size_bytes.tolist(), fit.time_us.tolist(), color, 1, Qt.PenStyle.NoPen, dot
                ),
            ]
        return found


def _around(values: FloatArray, margin: float, ticks: Sequence[tuple[float, str]]) -> Axis:
    """Make a logarithmic axis around values; the margin is a share of its length."""
    low, high = float(values.min()), float(values.max())
    beyond = (high / low) ** margin or 1.0
    return Axis(low / beyond, max(high * beyond, 1.01 * low), ticks, is_log=True)
