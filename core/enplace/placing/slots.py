"""Free slots of lanes and channels, for placers that insert work into gaps.

The busy time of each is a sorted list of intervals. Intervals that touch are merged, which keeps
the lists short however many ops have been placed.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from enplace.compiling import kernel
from enplace.values.profile import FloatArray, IntArray

_FIRST_WIDTH = 64


class Slots(NamedTuple):
    """Busy intervals ``begin[r, i] .. end[r, i]`` of each resource r, for i below ``used[r]``."""

    begin: FloatArray
    end: FloatArray
    used: IntArray


@kernel
def empty_slots(n_resources: int) -> Slots:  # pragma: no cover - compiled
    """Make resources that are never busy."""
    begin = np.zeros((n_resources, _FIRST_WIDTH))
    return Slots(begin, np.zeros_like(begin), np.zeros(n_resources, dtype=np.int64))


@kernel
def free_from(
    slots: Slots, r: int, ready: float, duration: float
) -> float:  # pragma: no cover - compiled
    """Find the earliest time from ``ready`` on at which resource r is free for ``duration``.

    An op that takes no time needs no slot.
    """
    if duration <= 0:
        return ready
    i = np.searchsorted(slots.end[r, : slots.used[r]], ready, side="right")
    start = ready
    while i < slots.used[r] and start + duration > slots.begin[r, i]:
        start = max(start, slots.end[r, i])
        i += 1
    return start


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
    begin, end, used = slots
    if finish <= start:
        return slots
    n = used[r]
    i = np.searchsorted(begin[r, :n], start, side="right")  # intervals before i begin earlier
    joins_left, joins_right = i > 0 and end[r, i - 1] >= start, i < n and begin[r, i] <= finish
    if joins_left and joins_right:
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
            begin, end = _widened(begin), _widened(end)
        for k in range(n, i, -1):
            begin[r, k], end[r, k] = begin[r, k - 1], end[r, k - 1]
        begin[r, i], end[r, i] = start, finish
        used[r] += 1
    return Slots(begin, end, used)


@kernel
def _widened(table: FloatArray) -> FloatArray:  # pragma: no cover - compiled
    """Copy a table into one with twice the columns."""
    wider = np.zeros((table.shape[0], 2 * table.shape[1]))
    for r in range(table.shape[0]):  # assigning a slice takes seconds to compile
        for i in range(table.shape[1]):
            wider[r, i] = table[r, i]
    return wider
