"""Kernels of a GPU, joined to the calls that launched them by correlation numbers.

PyTorch's profiler writes a trace with ranges that the recorder names ``enplace#7``, launches
(``cuda_runtime``, ``cuda_driver``) and kernels. A launch lies within a range of its thread, and
so does the op that launched it; a kernel has the launch's correlation number, and the op's external
one. So the gaps between kernels count for no op.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

MARK = "enplace#"
"""Begins the name of a call's range; the call's number follows."""

_ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
_LAUNCHES = ("cuda_runtime", "cuda_driver")
_RANGES = ("cpu_op", "user_annotation")


@dataclass
class KernelTimes:
    """Time and number of the kernels of each call; what runs beside another takes no time.

    Attributes
    ----------
    call_us, call_kernels : mapping
        By the number of the call.
    unjoined_us : float
        Time of kernels that no call launched.
    """

    call_us: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    call_kernels: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    unjoined_us: float = 0.0


def join_kernels(events: Iterable[Mapping[str, Any]]) -> KernelTimes:
    """Add up the kernels of each call in the events of a Chrome trace."""
    ranges: dict[Any, list[tuple[float, float, int]]] = defaultdict(list)
    launches: dict[int, tuple[Any, float]] = {}
    others: dict[int, tuple[Any, float]] = {}
    kernels: list[tuple[float, float, Any, Any]] = []
    for event in events:
        if event.get("ph") != "X":
            continue
        category, name = event.get("cat"), str(event.get("name", ""))
        details = event.get("args", {})
        correlation, outer = details.get("correlation"), details.get("External id")
        if category in _ON_GPU:
            began_us = float(event["ts"])
            kernels.append((began_us, began_us + float(event["dur"]), correlation, outer))
        elif category in _LAUNCHES and correlation is not None:
            launches[correlation] = event["tid"], float(event["ts"])
        elif category in _RANGES and name.startswith(MARK):
            start = float(event["ts"])
            ranges[event["tid"]].append((start, start + float(event["dur"]), _number(name)))
        if category in _RANGES and outer is not None:
            others[outer] = event["tid"], float(event["ts"])
    for each in ranges.values():
        each.sort()
    found = KernelTimes()
    until_us = -float("inf")
    for began_us, ended_us, correlation, outer in sorted(kernels, key=lambda each: each[:2]):
        # Kernels of several streams may run at the same time, which counts once.
        duration_us = max(ended_us - max(began_us, until_us), 0.0)
        until_us = max(until_us, ended_us)
        found_at = (launches.get(correlation), others.get(outer))
        calls = (_range_at(ranges.get(at[0], ()), at[1]) for at in found_at if at is not None)
        call = next((each for each in calls if each is not None), None)
        if call is None:
            found.unjoined_us += duration_us
        else:
            found.call_us[call] += duration_us
            found.call_kernels[call] += 1
    return found


def _number(name: str) -> int:
    return int(name.removeprefix(MARK))


def _range_at(ranges: Sequence[tuple[float, float, int]], when: float) -> int | None:
    """Return the number of the innermost range around a moment; ranges of a thread nest."""
    at = bisect_right(ranges, (when, float("inf"), 0))
    for start, end, number in reversed(ranges[max(at - _DEPTH, 0) : at]):
        if start <= when <= end:
            return number
    return None


_DEPTH = 8
"""Ranges nest at most so deep."""
