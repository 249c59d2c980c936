"""T_comm = b0 + b1 * bytes (Pesto, section 3.1), through what was measured."""

from __future__ import annotations

import numpy as np
from scipy.stats import theilslopes

from enplace.values.profile import FloatArray

SIZES = tuple(1 << power for power in range(12, 29, 2))
"""How many bytes are sent to measure a link: 4 KiB to 256 MiB."""


def fit_line(sizes: FloatArray, times_us: FloatArray) -> tuple[float, float, float]:
    """Latency, time per byte and R² of a line that stray measurements do not bend (Theil-Sen).

    The latency is that of the smaller half of the sizes, which it matters for; in times of the
    larger ones it is lost.
    """
    slope = max(float(theilslopes(times_us, sizes)[0]), 0.0)
    small = sizes <= np.median(sizes)
    intercept = max(float(np.median((times_us - slope * sizes)[small])), 0.0)
    left = times_us - (intercept + slope * sizes)
    spread = times_us - times_us.mean()
    r2 = 1.0 - float((left**2).sum() / max((spread**2).sum(), 1e-12))
    return intercept, slope, r2
