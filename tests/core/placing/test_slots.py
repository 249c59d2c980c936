"""Free slots, against a search through a list of busy intervals."""

import numpy as np
from hypothesis import given, settings
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


@settings(deadline=None)
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
