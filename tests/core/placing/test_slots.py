"""Free slots, against a search through a list of busy intervals."""

from bisect import bisect_right

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from enplace.placing.slots import all_free_from, empty_slots, free_from, occupy


def overlaps(busy, start, duration):
    return any(start < end and begin < start + duration for begin, end in busy)


def slow_free_from(lists, ready, duration):
    """Return the first time at or after ``ready`` at which nothing overlaps."""
    if not duration:
        return ready
    candidates = [ready, *(end for busy in lists for _, end in busy if end > ready)]
    return min(c for c in candidates if not any(overlaps(busy, c, duration) for busy in lists))


work = st.tuples(st.integers(0, 2), st.integers(0, 300), st.integers(0, 9))


@given(st.integers(0, 2**32 - 1), st.sampled_from([0.01, 0.5, 3.0]))
def test_gaps_of_many_blocks_are_found(seed, spread):
    rng = np.random.default_rng(seed)
    slots, begins, ends = empty_slots(1), [], []
    for _ in range(1200):
        ready = float(rng.random() * 2000)
        duration = float(rng.random() ** 8 * spread + 0.001)
        start = free_from(slots, 0, ready, duration)
        at, expected = bisect_right(ends, ready), ready
        while at < len(begins) and expected + duration > begins[at]:
            at, expected = at + 1, ends[at]
        assert start == expected
        slots = occupy(slots, 0, start, start + duration)
        begins.insert(at, start)
        ends.insert(at, start + duration)


@given(st.lists(work, max_size=150))
def test_the_earliest_gap_is_found(tasks):
    slots, busy = empty_slots(3), [[], [], []]
    for resource, ready, duration in tasks:
        start = free_from(slots, resource, float(ready), float(duration))
        assert start == slow_free_from([busy[resource]], ready, duration)
        slots = occupy(slots, resource, start, start + duration)
        busy[resource] += [(start, start + duration)] if duration else []
    for _, ready, duration in tasks[:10]:
        both = all_free_from(slots, np.array([0, 2]), float(ready), float(duration))
        assert both == slow_free_from([busy[0], busy[2]], ready, duration)
