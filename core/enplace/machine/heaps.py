"""Binary heaps in arrays, for compiled loops; the caller keeps their sizes."""

from __future__ import annotations

from enplace.compiling import loop
from enplace.values.arrays import FloatArray, IntArray


@loop
def push_key(heap: IntArray, base: int, size: int, key: int) -> None:  # pragma: no cover - compiled
    """Add a key to the heap of ``size`` keys that begins at ``base``."""
    at = size
    while at > 0:
        parent = (at - 1) >> 1
        if heap[base + parent] <= key:
            break
        heap[base + at] = heap[base + parent]
        at = parent
    heap[base + at] = key


@loop
def pop_key(heap: IntArray, base: int, size: int) -> int:  # pragma: no cover - compiled
    """Remove the smallest key of a heap and return it."""
    top = heap[base]
    size -= 1
    key = heap[base + size]
    at = 0
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        if child + 1 < size and heap[base + child + 1] < heap[base + child]:
            child += 1
        if key <= heap[base + child]:
            break
        heap[base + at] = heap[base + child]
        at = child
    heap[base + at] = key
    return int(top)


@loop
def push_event(
    times: FloatArray, codes: IntArray, size: int, time: float, code: int
) -> None:  # pragma: no cover - compiled
    """Add a code to a heap of ``size`` codes that is sorted by time, then by code."""
    at = size
    while at > 0:
        parent = (at - 1) >> 1
        if times[parent] < time or (times[parent] == time and codes[parent] <= code):
            break
        times[at], codes[at] = times[parent], codes[parent]
        at = parent
    times[at], codes[at] = time, code


@loop
def pop_event(times: FloatArray, codes: IntArray, size: int) -> int:  # pragma: no cover - compiled
    """Remove the first code of a heap and return it."""
    top = codes[0]
    size -= 1
    time, code = times[size], codes[size]
    at = 0
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        right = child + 1
        if right < size and (
            times[right] < times[child]
            or (times[right] == times[child] and codes[right] < codes[child])
        ):
            child = right
        if time < times[child] or (time == times[child] and code <= codes[child]):
            break
        times[at], codes[at] = times[child], codes[child]
        at = child
    times[at], codes[at] = time, code
    return int(top)
