"""Clocks: the time of each plain step, and of each call while a step is recorded.

On a CPU a call's time is the shortest on the wall of several recordings, and a step's that of
several steps, because other programs only make them longer. A script with few steps gives few of
both, so a call's wait is left out if it is as long as the turn of another program: a thread that
shares its work with others computes its own part meanwhile. A step may also wait for its data, so
only the time is left out in which the thread that waited longest was ready but had no core.
Threads that wait for each other sleep soon: on a busy machine, they would compute nothing for a
turn each. On a GPU, kernels run long after the call that launched them, so PyTorch's profiler
traces them; plain steps are timed by events on the GPU itself, without ever waiting for it.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from enplace.frameworks.torch.record.kernels import MARK, join_kernels
from enplace.frameworks.torch.step import Timing
from enplace.system import waited_s

Shapes = tuple[tuple[int, ...], ...]


class _Plain(NamedTuple):
    """A plain step: its time, the shapes of its batch, and what kind of step it was."""

    took_us: float
    shapes: Shapes
    kind: Hashable


class Clock:
    """Measures nothing: the clock of a step on fake tensors."""

    def start(self) -> None:
        """Prepare to record a step."""

    def begin(self, call: int) -> None:
        """Note that a call begins."""

    def end(self, call: int) -> None:
        """Note that it has returned."""

    def stop(self) -> None:
        """Note that the step has ended."""

    def forget(self) -> None:
        """Forget the step that was recorded last."""

    def forget_others(self) -> None:
        """Forget the steps that were recorded before the last."""

    def begin_plain(self) -> None:
        """Note that a plain step begins."""

    def end_plain(self, shapes: Shapes = (), kind: Hashable = None) -> None:
        """Note that it has ended, on which shapes, and of which kind it was."""

    def timing(self, warm_ups: int, shapes: Shapes = (), kind: Hashable = None) -> Timing:
        """Return what was measured; of the plain steps like these, without the first ones."""
        return Timing()


_TURN_US, _TURN = 1000.0, 3.0
"""A wait that is longer than this, and longer than this times what was computed, is the turn of
another program."""

_computed = time.thread_time if os.name == "posix" else time.perf_counter
"""On Windows, the time of a thread is far too coarse."""


class CpuClock(Clock):
    """Measures calls and steps on the wall.

    Parameters
    ----------
    wall, computed : callable
        Return the seconds that passed, and those that this thread computed.
    waited : callable
        Returns the seconds that each thread waited for a core.
    """

    def __init__(
        self,
        wall: Callable[[], float] = time.perf_counter,
        computed: Callable[[], float] = _computed,
        waited: Callable[[], Mapping[str, float]] = waited_s,
    ) -> None:
        self._wall, self._computed, self._waited = wall, computed, waited
        self._began = self._began_computing = 0.0
        self._recordings: list[list[float]] = []
        self._plain: list[_Plain] = []
        self._waited_before: Mapping[str, float] = {}

    def start(self) -> None:
        self._recordings.append([])

    def begin(self, call: int) -> None:
        self._began_computing = self._computed()
        self._began = self._wall()

    def end(self, call: int) -> None:
        took_us = (self._wall() - self._began) * 1e6
        computed_us = (self._computed() - self._began_computing) * 1e6
        is_turn = took_us - computed_us > max(_TURN_US, _TURN * computed_us)
        self._recordings[-1].append(computed_us if is_turn else took_us)

    def forget(self) -> None:
        self._recordings.pop()

    def forget_others(self) -> None:
        del self._recordings[:-1]

    def begin_plain(self) -> None:
        self._waited_before = self._waited()
        self._began_computing = self._computed()
        self._began = self._wall()

    def end_plain(self, shapes: Shapes = (), kind: Hashable = None) -> None:
        took = self._wall() - self._began
        computed = self._computed() - self._began_computing
        before = self._waited_before
        waits = (each - before.get(thread, 0.0) for thread, each in self._waited().items())
        waited = max(waits, default=0.0)  # those of several threads may be at the same time
        self._plain.append(_Plain(max(took - waited, computed) * 1e6, shapes, kind))

    def timing(self, warm_ups: int, shapes: Shapes = (), kind: Hashable = None) -> Timing:
        last = self._recordings[-1]
        alike = [each for each in self._recordings if len(each) == len(last)]
        calls = [min(each) for each in zip(*alike, strict=True)]
        return _timed(Timing(call_us=dict(enumerate(calls))), self._plain, warm_ups, shapes, kind)


class GpuClock(Clock):
    """Measures kernels, memory and steps of one GPU."""

    def __init__(self, device: int) -> None:
        self._device = device
        self._ranges: dict[int, Any] = {}
        self._extra: dict[int, int] = {}
        self._allocated: dict[int, int] = {}
        self._kernels = join_kernels(())
        self._profiler: Any = None
        self._plain: list[tuple[Any, Any, Shapes, Hashable]] = []
        self._mark: Any = None
        self._ran_plain = False
        self._peak_bytes = self._allocated_bytes = 0
        self._before = self._kernels, self._extra, self._allocated_bytes

    def start(self) -> None:
        self._note_peak()
        self._before = self._kernels, self._extra, self._allocated_bytes
        self._extra = {}
        torch.cuda.synchronize(self._device)
        self._allocated_bytes = torch.cuda.memory_allocated(self._device)
        activity = torch.profiler.ProfilerActivity
        self._profiler = torch.profiler.profile(activities=[activity.CPU, activity.CUDA])
        self._profiler.start()

    def begin(self, call: int) -> None:
        self._allocated[call] = torch.cuda.memory_allocated(self._device)
        torch.cuda.reset_peak_memory_stats(self._device)
        self._ranges[call] = torch.profiler.record_function(f"{MARK}{call}")
        self._ranges[call].__enter__()

    def end(self, call: int) -> None:
        self._ranges.pop(call).__exit__(None, None, None)
        before, after = self._allocated.pop(call), torch.cuda.memory_allocated(self._device)
        most = torch.cuda.max_memory_allocated(self._device)
        if (extra := most - max(before, after)) > 0:
            self._extra[call] = extra

    def stop(self) -> None:
        torch.cuda.synchronize(self._device)
        profiler, self._profiler = self._profiler, None
        profiler.stop()
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "trace.json")
            profiler.export_chrome_trace(path)
            with open(path, encoding="utf-8", errors="replace") as file:
                self._kernels = join_kernels(json.load(file, strict=False)["traceEvents"])

    def forget(self) -> None:
        self._kernels, self._extra, self._allocated_bytes = self._before

    def begin_plain(self) -> None:
        if not self._ran_plain:
            torch.cuda.reset_peak_memory_stats(self._device)
        self._mark = self._event()

    def end_plain(self, shapes: Shapes = (), kind: Hashable = None) -> None:
        self._plain.append((self._mark, self._event(), shapes, kind))
        self._ran_plain = True

    def _note_peak(self) -> None:
        """Note what plain steps needed at most, if any ran since the last note."""
        if self._ran_plain:
            self._peak_bytes = torch.cuda.max_memory_allocated(self._device)
        self._ran_plain = False

    def _event(self) -> Any:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def timing(self, warm_ups: int, shapes: Shapes = (), kind: Hashable = None) -> Timing:
        self._note_peak()
        torch.cuda.synchronize(self._device)
        plain = [
            _Plain(began.elapsed_time(ended) * 1e3, on, of) for began, ended, on, of in self._plain
        ]
        card = torch.cuda.get_device_properties(self._device)
        found = Timing(
            call_us=self._kernels.call_us,
            call_kernels=self._kernels.call_kernels,
            call_extra_bytes=self._extra,
            peak_bytes={f"GPU:{self._device}": self._peak_bytes} if self._peak_bytes else {},
            gpu=card.name,
            gpu_bytes=card.total_memory,
            unjoined_us=self._kernels.unjoined_us,
            allocated_bytes=self._allocated_bytes,
        )
        return _timed(found, plain, warm_ups, shapes, kind)


_FEW, _NEAR = 5, 0.1
"""If fewer steps were on the shapes of the recorded one, so many on batches of nearly its size
count with them: of up to such a share more or fewer numbers."""


def _timed(
    found: Timing, plain: Sequence[_Plain], warm_ups: int, shapes: Shapes, kind: Hashable
) -> Timing:
    """Add the plain steps of a kind on these shapes, or on any if the recorded step has none.

    Where batches vary, few are as large as the recorded one, or none: those nearest to it count.
    """
    own = [each for each in plain if each.kind == kind]
    alike = [each for each in own if each.shapes == shapes or not shapes]
    counted, n_near = _without_first(alike, warm_ups), 0
    if len(counted) < _FEW and len(alike) < len(own):
        size = size_of(shapes)
        others = [each for each in _without_first(own, warm_ups) if each.shapes != shapes]
        others = [each for each in others if abs(size_of(each.shapes) - size) <= _NEAR * size]
        others.sort(key=lambda each: abs(size_of(each.shapes) - size))
        others = others[: _FEW - len(counted)]
        counted, n_near = counted + others, len(others)
    return replace(
        found,
        step_times_us=tuple(each.took_us for each in counted),
        n_near=n_near,
        n_unlike=len(own) - len(alike) - n_near,
        n_others=len(plain) - len(own),
    )


def _without_first(steps: list[_Plain], warm_ups: int) -> list[_Plain]:
    """Leave out warm-ups, but keep the later half if a script has too few steps."""
    return steps[min(warm_ups, len(steps) // 2) :]


def size_of(shapes: Shapes) -> int:
    """Return how many numbers a batch has."""
    return sum(map(math.prod, shapes))
