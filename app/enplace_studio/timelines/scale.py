"""The part of the step on screen: moments to pixels and back."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from enplace.values.profile import FloatArray

MIN_US_PER_PX = 0.001
MARGIN = 1.02
"""Length shown, relative to the step, to leave a little space after it."""


@dataclass(frozen=True)
class TimeScale:
    """A window on the step.

    Attributes
    ----------
    start_us : float
        Moment at the left edge.
    us_per_px : float
        Length of one pixel.
    width_px : float
        Length of the window.
    end_us : float
        The last moment worth showing; the window stays within 0 and this.
    """

    start_us: float
    us_per_px: float
    width_px: float
    end_us: float

    @staticmethod
    def fit(end_us: float, width_px: float) -> TimeScale:
        """Return the scale that shows the whole step."""
        end_us = max(end_us, 1e-3) * MARGIN
        return TimeScale(0.0, end_us / max(width_px, 1.0), max(width_px, 1.0), end_us)

    @property
    def stop_us(self) -> float:
        """Moment at the right edge."""
        return self.start_us + self.us_per_px * self.width_px

    @property
    def is_fit(self) -> bool:
        """Whether the whole step is on screen."""
        return self.us_per_px * self.width_px >= self.end_us * (1 - 1e-9)

    def x(self, time_us: float) -> float:
        return (time_us - self.start_us) / self.us_per_px

    def xs(self, time_us: FloatArray) -> FloatArray:
        return (time_us - self.start_us) / self.us_per_px

    def time(self, x: float) -> float:
        return self.start_us + x * self.us_per_px

    def edges(self, columns_per_px: float = 1.0) -> FloatArray:
        """Compute the moments at the edges of the pixel columns; shape (n_columns + 1,)."""
        columns = math.ceil(self.width_px * columns_per_px)
        return self.start_us + np.arange(columns + 1, dtype=np.float64) * (
            self.us_per_px / columns_per_px
        )

    def zoomed(self, factor: float, at_px: float) -> TimeScale:
        """Zoom in by a factor above 1, keeping the moment at a pixel in place."""
        widest = self.end_us / self.width_px
        us_per_px = min(max(self.us_per_px / factor, min(MIN_US_PER_PX, widest)), widest)
        start = self.time(at_px) - at_px * us_per_px
        return self._within(start, us_per_px, self.width_px)

    def panned(self, pixels: float) -> TimeScale:
        """Move the window to the right."""
        return self._within(self.start_us + pixels * self.us_per_px, self.us_per_px, self.width_px)

    def resized(self, end_us: float, width_px: float) -> TimeScale:
        """Adapt to another window width or step; a full view stays full."""
        whole = TimeScale.fit(end_us, width_px)
        if self.is_fit:
            return whole
        us_per_px = min(self.us_per_px, whole.us_per_px)
        return whole._within(self.start_us, us_per_px, whole.width_px)

    def around(self, start_us: float, finish_us: float) -> TimeScale:
        """Show an interval with a tenth of its length on each side."""
        margin_us = max((finish_us - start_us) * 0.1, MIN_US_PER_PX * self.width_px / 4)
        us_per_px = (finish_us - start_us + 2 * margin_us) / self.width_px
        us_per_px = min(us_per_px, self.end_us / self.width_px)
        return self._within(start_us - margin_us, us_per_px, self.width_px)

    def _within(self, start_us: float, us_per_px: float, width_px: float) -> TimeScale:
        last = self.end_us - us_per_px * width_px
        return TimeScale(max(0.0, min(start_us, last)), us_per_px, width_px, self.end_us)

    def ticks(self, spacing_px: float = 90) -> FloatArray:
        """Choose round moments on screen, at least about this far apart."""
        step = round_up(self.us_per_px * spacing_px)
        first = math.ceil(self.start_us / step - 1e-9)
        last = math.floor(min(self.stop_us, self.end_us) / step + 1e-9)
        return np.arange(first, last + 1, dtype=np.float64) * step


def round_up(value: float) -> float:
    """Round up to 1, 2, 2.5, 5 or 10 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= value * (1 - 1e-9))


def tick_texts(ticks_us: FloatArray) -> list[str]:
    """Format ticks in ms, with just enough digits to distinguish neighbours."""
    if len(ticks_us) < 2:
        return [f"{t / 1000:,g} ms" for t in ticks_us]
    step_ms = (ticks_us[1] - ticks_us[0]) / 1000
    digits = max(0, -math.floor(math.log10(step_ms) + 1e-9))
    if round(step_ms, digits) != round(step_ms, digits + 1):
        digits += 1
    return [f"{t / 1000:,.{digits}f} ms" for t in ticks_us]
