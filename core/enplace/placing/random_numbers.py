"""Random numbers for compiled loops."""

from __future__ import annotations

import numpy as np

from enplace.compiling import helper


@helper
def draw_below(draw: np.random.Generator, n: int) -> int:  # pragma: no cover - compiled
    """Draw a number from 0 to ``n - 1``.

    Constants are given as ``int(np.int64(n))``: numba would compile again for each of them.
    """
    return int(draw.integers(0, n))
