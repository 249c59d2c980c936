"""Free slots of lanes and channels, for placers that insert work into gaps.

The busy time of each is a sorted list of intervals. Intervals that touch are merged, which keeps
the lists short. In the schedule of a large graph, many gaps remain that are too small for anything:
the intervals are in blocks, and blocks whose gaps are all too small are skipped.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from enplace.compiling import kernel
from enplace.values.profile import FloatArray, IntArray

_BLOCK = 64
"""Intervals in a block; the tables have a whole number of blocks."""

_ROUNDING = 1e-12
"""Sums of times are exact to this share; a gap that is too small by less is tried."""


class Slots(NamedTuple):
    """Busy intervals ``begin[r, i] .. end[r, i]`` of each resource r, for i below ``used[r]``.

    ``largest[r, b]`` is at least as long as the gap before each interval of block b.
    """

    begin: FloatArray
    end: FloatArray
    used: IntArray
    largest: FloatArray


@kernel
def empty_slots(n_resources: int) -> Slots:  # pragma: no cover - compiled
    """Make resources that are never busy."""
    begin = np.zeros((n_resources, _BLOCK))
    used = np.zeros(n_resources, dtype=np.int64)
    return Slots(begin, np.zeros_like(begin), used, np.zeros((n_resources, 1)))


@kernel
def free_from(
    slots: Slots, r: int, ready: float, duration: float
) -> float:  # pragma: no cover - compiled
    """Find the earliest time from ``ready`` on at which resource r is free for ``duration``.

    An op that takes no time needs no slot.
    """
    if duration <= 0:
        return ready
    begin, end, n = slots.begin, slots.end, slots.used[r]
    i = np.searchsorted(end[r, :n], ready, side="right")
    start = ready
    while i < n:
        block, last = i // _BLOCK, min((i // _BLOCK + 1) * _BLOCK, n) - 1
        if slots.largest[r, block] + _ROUNDING * begin[r, last] < duration:
            start, i = end[r, last], last + 1
            continue
        is_whole, largest = i % _BLOCK == 0, 0.0
        while i <= last and start + duration > begin[r, i]:
            largest = max(largest, _gap(begin, end, r, i))
            start = max(start, end[r, i])
            i += 1
        if i <= last:
            break
        if is_whole:
            slots.largest[r, block] = largest
    return start


@kernel
def _gap(
    begin: FloatArray, end: FloatArray, r: int, i: int | np.intp
) -> float:  # pragma: no cover - compiled
    """Return the length of the gap before interval i."""
    return float(begin[r, i] - (end[r, i - 1] if i else 0.0))


@kernel
def all_free_from(
    slots: Slots, resources: IntArray, ready: float, duration: float
) -> float:  # pragma: no cover - compiled
    """Find the earliest time from ``ready`` at which all resources are free for ``duration``."""
    # Each resource may push the start back for all others, until they agree.
    start, settled = ready, 0
    while settled < len(resources):
        for r in resources:
            found = free_from(slots, r, start, duration)
            settled = settled + 1 if found == start else 1
            start = found
            if settled >= len(resources):
                break
    return start


@kernel
def occupy(
    slots: Slots, r: int, start: float, finish: float
) -> Slots:  # pragma: no cover - compiled
    """Mark resource r busy; use the returned slots from then on, as the tables may have grown."""
    begin, end, used, largest = slots
    if finish <= start:
        return slots
    n = used[r]
    i = np.searchsorted(begin[r, :n], start, side="right")  # intervals before i begin earlier
    joins_left, joins_right = i > 0 and end[r, i - 1] >= start, i < n and begin[r, i] <= finish
    if joins_left and joins_right:
        # The first interval of each later block moves into the block before it.
        for k in range((i // _BLOCK + 1) * _BLOCK, n, _BLOCK):
            largest[r, k // _BLOCK - 1] = max(largest[r, k // _BLOCK - 1], _gap(begin, end, r, k))
        end[r, i - 1] = end[r, i]
        for k in range(i, n - 1):
            begin[r, k], end[r, k] = begin[r, k + 1], end[r, k + 1]
        used[r] -= 1
    elif joins_left:
        end[r, i - 1] = max(end[r, i - 1], finish)
    elif joins_right:
        begin[r, i] = start
    else:
        if n == begin.shape[1]:
            begin, end, largest = _widened(begin), _widened(end), _widened(largest)
        # The last interval of each block moves into the block after it.
        for k in range((i // _BLOCK + 1) * _BLOCK, n + 1, _BLOCK):
            largest[r, k // _BLOCK] = max(largest[r, k // _BLOCK], _gap(begin, end, r, k - 1))
        for k in range(n, i, -1):
            begin[r, k], end[r, k] = begin[r, k - 1], end[r, k - 1]
        begin[r, i], end[r, i] = start, finish
        largest[r, i // _BLOCK] = max(largest[r, i // _BLOCK], _gap(begin, end, r, i))
        used[r] += 1
    return Slots(begin, end, used, largest)


@kernel
def _widened(table: FloatArray) -> FloatArray:  # pragma: no cover - compiled
    """Copy a table into one with twice the columns."""
    wider = np.zeros((table.shape[0], 2 * table.shape[1]))
    for r in range(table.shape[0]):  # assigning a slice takes seconds to compile
        for i in range(table.shape[1]):
            wider[r, i] = table[r, i]
    return wider
