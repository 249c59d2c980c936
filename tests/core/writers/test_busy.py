from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from enplace.pictures.busy import BusyCurve, highest_per_column

times = st.floats(0, 1000, allow_nan=False)
intervals = st.lists(st.tuples(times, times).map(sorted), max_size=30)


def by_hand(bars: list[list[float]], left: float, right: float) -> float:
    """Compute the busy share of one column, bar by bar."""
    return sum(max(min(f, right) - max(s, left), 0.0) for s, f in bars) / (right - left)


@given(intervals, st.floats(0, 500), st.floats(0.5, 300))
def test_a_columns_busy_share_is_what_its_bars_cover(bars, left, width):
    curve = BusyCurve(np.array([s for s, _ in bars]), np.array([f for _, f in bars]))
    edges = left + np.arange(5) * width
    wanted = [by_hand(bars, a, b) for a, b in pairwise(edges.tolist())]
    assert curve.fractions(edges) == pytest.approx(wanted, abs=1e-6)


def test_half_a_column_of_tiny_bars_is_half_busy():
    start = np.arange(0, 1000, 2.0)
    curve = BusyCurve(start, start + 1)
    assert curve.fractions(np.array([0.0, 500.0, 1000.0])) == pytest.approx([0.5, 0.5])


@given(
    st.lists(st.integers(0, 100), min_size=1, max_size=40),
    st.sets(st.integers(0, 400), min_size=2, max_size=30),
)
def test_no_peak_is_lost_between_columns(values, edges):
    """Step i of the curve lasts from 10 i to 10 (i + 1), the last one forever."""
    time_us = np.arange(len(values)) * 10.0
    ends = [*time_us[1:].tolist(), np.inf]
    columns = list(pairwise(sorted(edges)))
    wanted = [
        max(v for v, a, b in zip(values, time_us, ends, strict=True) if a < right and b > left)
        for left, right in columns
    ]
    found = highest_per_column(
        time_us, np.array(values, dtype=np.float64), np.array(sorted(edges), dtype=np.float64)
    )
    assert found.tolist() == wanted
