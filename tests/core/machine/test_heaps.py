"""The heaps of compiled loops, against those of the standard library."""

import heapq

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from enplace.machine import heaps

# Compiled, they can only be called by kernels.
pop_event, pop_key = heaps.pop_event.py_func, heaps.pop_key.py_func
push_event, push_key = heaps.push_event.py_func, heaps.push_key.py_func

keys = st.lists(st.one_of(st.none(), st.integers(0, 9)), max_size=30)


@given(changes=keys, base=st.integers(0, 2))
def test_keys_leave_in_order(changes, base):
    """A number enters; None takes the smallest out."""
    heap, size, expected = np.zeros(base + len(changes) + 1, dtype=np.int64), 0, []
    for key in changes:
        if key is not None:
            push_key(heap, base, size, key)
            heapq.heappush(expected, key)
            size += 1
        elif expected:
            assert pop_key(heap, base, size) == heapq.heappop(expected)
            size -= 1


@given(changes=keys)
def test_events_leave_by_time_and_code(changes):
    times, codes = np.zeros(len(changes) + 1), np.zeros(len(changes) + 1, dtype=np.int64)
    size, expected = 0, []
    for number, time in enumerate(changes):
        if time is not None:
            code = number * 7 % 5
            push_event(times, codes, size, float(time), code)
            heapq.heappush(expected, (time, code))
            size += 1
        elif expected:
            assert pop_event(times, codes, size) == heapq.heappop(expected)[1]
            size -= 1
