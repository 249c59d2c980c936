"""Names of groups over bars that are too narrow for names of their own."""

from dataclasses import replace

import numpy as np

from enplace_studio.timelines.paint import GROUP_PX, LABEL_PX, _narrow_stretches
from enplace_studio.timelines.rows import Row
from enplace_studio.timelines.scale import TimeScale


def row_of(lengths_us, odd):
    """Make a row of bars one after the other."""
    finish_us = np.cumsum(lengths_us, dtype=float)
    return Row(
        name="GPU 0",
        lane=0,
        title="GPU 0",
        note="",
        device=0,
        thin=False,
        numbers=np.arange(len(lengths_us)),
        start_us=finish_us - lengths_us,
        finish_us=finish_us,
        odd=np.array(odd, dtype=bool),
    )


def stretches(row, us_per_px, least_px=0.0):
    width_px = 1000.0
    scale = TimeScale.fit(width_px * us_per_px, width_px)
    return list(_narrow_stretches(row, scale, row.odd, least_px))


def test_narrow_bars_of_a_group_are_named_together():
    n = GROUP_PX
    row = row_of([2.0] * 2 * n, [False] * n + [True] * n)
    found = stretches(row, 1.0)
    assert [first for first, _, _ in found] == [0, n]
    assert found[0][1:] == (0.0, 2.0 * n)


def test_a_group_with_a_bar_that_has_a_name_of_its_own_is_not_named_again():
    row = row_of([2.0] * 30 + [LABEL_PX + 1.0], [False] * 31)
    assert not stretches(row, 1.0)


def test_a_group_too_narrow_for_a_name_is_left_alone():
    assert not stretches(row_of([2.0] * 20, [False] * 20), 1.0)
    assert not stretches(row_of([], []), 1.0)


def test_a_name_does_not_reach_over_idle_time():
    row = row_of([2.0] * 60 + [200.0] + [2.0] * 60, [False] * 121)
    kept = np.arange(121) != 60
    parts = {name: getattr(row, name)[kept] for name in ("start_us", "finish_us", "odd")}
    spread = replace(row, numbers=np.arange(120), **parts)
    assert stretches(spread, 1.0) == [(0, 0.0, 120.0), (60, 320.0, 440.0)]


def test_bars_that_leave_most_of_the_time_idle_are_not_named_as_one():
    row = row_of([2.0, 3.0] * 60, [False] * 120)
    busy = np.arange(0, 120, 2)
    parts = {name: getattr(row, name)[busy] for name in ("start_us", "finish_us", "odd")}
    assert stretches(row, 1.0) == [(0, 0.0, 300.0)]
    assert not stretches(replace(row, numbers=np.arange(60), **parts), 1.0)


def test_bars_too_narrow_to_end_a_stretch_are_no_idle_time():
    row = row_of(([2.0] + [0.05] * 120) * 20, ([False] + [True] * 120) * 20)
    ((first, start_us, finish_us),) = stretches(row, 1.0, least_px=0.1)
    assert (first, start_us, round(finish_us, 6)) == (0, 0.0, 154.0)
