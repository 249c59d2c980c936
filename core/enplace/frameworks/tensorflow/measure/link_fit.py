"""The line T_comm = b0 + b1 * bytes (Pesto, section 3.1) fitted to measured times."""

from __future__ import annotations

import numpy as np
from scipy.stats import theilslopes

from enplace.values.profile import FloatArray

SIZES = tuple(1 << power for power in range(12, 29, 2))
"""Sizes of the copies that measure a link, in bytes: 4 KiB to 256 MiB."""


def fit_line(sizes: FloatArray, times_us: FloatArray) -> tuple[float, float, float]:
    """Fit latency, time per byte and R² by Theil-Sen, which outliers do not bend.

    The latency comes from the smaller half of the sizes: it matters there, and is lost in the
    noise of the larger ones.
    """
    slope = max(float(theilslopes(times_us, sizes)[0]), 0.0)
    small = sizes <= np.median(sizes)
    intercept = max(float(np.median((times_us - slope * sizes)[small])), 0.0)
    left = times_us - (intercept + slope * sizes)
    spread = times_us - times_us.mean()
    r2 = 1.0 - float((left**2).sum() / max((spread**2).sum(), 1e-12))
    return intercept, slope, r2
