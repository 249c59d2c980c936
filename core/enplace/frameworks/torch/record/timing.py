"""Clocks: the time of each plain step, and of each call while a step is recorded.

On a CPU a call's time is that of the wall. On a GPU, kernels run long after the call that launched
them, so PyTorch's profiler traces them; plain steps are timed by events on the GPU itself, without
ever waiting for it.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from itertools import pairwise
from typing import Any

import torch

from enplace.frameworks.torch.record.kernels import MARK, join_kernels
from enplace.frameworks.torch.step import Timing


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

    def begin_plain(self) -> None:
        """Note that plain steps begin."""

    def end_plain(self) -> None:
        """Note that one has ended."""

    def timing(self, warm_ups: int) -> Timing:
        """Return what was measured; of the plain steps, without the first ones."""
        return Timing()


class CpuClock(Clock):
    """Measures calls and steps on the wall."""

    def __init__(self) -> None:
        self._began = 0.0
        self._recordings: list[list[float]] = []
        self._times_us: list[float] = []
        self._last = 0.0

    def start(self) -> None:
        self._recordings.append([])

    def begin(self, call: int) -> None:
        self._began = time.perf_counter()

    def end(self, call: int) -> None:
        self._recordings[-1].append((time.perf_counter() - self._began) * 1e6)

    def forget(self) -> None:
        self._recordings.pop()

    def begin_plain(self) -> None:
        self._last = time.perf_counter()

    def end_plain(self) -> None:
        now = time.perf_counter()
        self._times_us.append((now - self._last) * 1e6)
        self._last = now

    def timing(self, warm_ups: int) -> Timing:
        *earlier, last = self._recordings
        alike = [last, *(each for each in earlier[1:] if len(each) == len(last))]
        calls = [statistics.median(each) for each in zip(*alike, strict=True)]
        return Timing(_without_first(self._times_us, warm_ups), dict(enumerate(calls)))


class GpuClock(Clock):
    """Measures kernels, memory and steps of one GPU."""

    def __init__(self, device: int) -> None:
        self._device = device
        self._ranges: dict[int, Any] = {}
        self._extra: dict[int, int] = {}
        self._allocated: dict[int, int] = {}
        self._kernels = join_kernels(())
        self._profiler: Any = None
        self._events: list[Any] = []
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
        torch.cuda.reset_peak_memory_stats(self._device)
        self._mark()

    def end_plain(self) -> None:
        self._mark()

    def _note_peak(self) -> None:
        """Note what plain steps needed at most, if any ran since the last note."""
        if len(self._events) > 1 and not self._peak_bytes:
            self._peak_bytes = torch.cuda.max_memory_allocated(self._device)

    def _mark(self) -> None:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        self._events.append(event)

    def timing(self, warm_ups: int) -> Timing:
        self._note_peak()
        torch.cuda.synchronize(self._device)
        times_us = [a.elapsed_time(b) * 1e3 for a, b in pairwise(self._events)]
        card = torch.cuda.get_device_properties(self._device)
        return Timing(
            _without_first(times_us, warm_ups),
            self._kernels.call_us,
            self._kernels.call_kernels,
            self._extra,
            {f"GPU:{self._device}": self._peak_bytes} if self._peak_bytes else {},
            gpu=card.name,
            gpu_bytes=card.total_memory,
            unjoined_us=self._kernels.unjoined_us,
            allocated_bytes=self._allocated_bytes,
        )


def _without_first(times_us: list[float], warm_ups: int) -> tuple[float, ...]:
    """Leave out warm-ups, but keep the later half if a script has too few steps."""
    return tuple(times_us[min(warm_ups, len(times_us) // 2) :])
