"""Where the costs of recorded ops come from: clocks, or the roofline of a GPU."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Protocol

from enplace.frameworks import roofline
from enplace.frameworks.torch.step import INPUT, RecordedOp, Timing

Times = tuple[float, float]
"""On a GPU and on a CPU."""

LIST_KERNELS = 0.1
"""Kernels that an op on lists, such as an optimiser's, launches for one tensor: it takes tens of
them at once."""


@dataclass(frozen=True)
class Cost:
    """What an op costs: its times, the kernels it launches, and memory only while it runs."""

    time_us: Times
    kernels: float = 0.0
    extra_bytes: int = 0


class Costs(Protocol):
    """Tells the cost of each op."""

    def of(self, op: RecordedOp) -> Cost:
        """Return the cost of an op."""
        ...

    def free(self, device: str) -> Times:
        """Return the times of what takes none, on a device of this kind."""
        ...


def on(device: str, time_us: float) -> Times:
    """Return a time on the kind of device that an op ran on, and none on the other."""
    return (math.nan, time_us) if device == "cpu" else (time_us, math.nan)


@dataclass(frozen=True)
class MeasuredCosts:
    """Costs as clocks measured them."""

    timing: Timing

    def of(self, op: RecordedOp) -> Cost:
        timing = self.timing
        is_cpu = op.device == "cpu"
        if op.crosses:
            return Cost(self.free(op.device))  # the edge costs what the copy takes
        took_us = timing.call_us.get(op.call, 0.0) * op.share
        if timing.gpu and is_cpu:
            took_us = 0.0  # the host works ahead of the GPU
        kernels = 1.0 if is_cpu else timing.call_kernels.get(op.call, 0) * op.share
        extra = 0 if is_cpu else int(timing.call_extra_bytes.get(op.call, 0) * op.share)
        return Cost(on(op.device, took_us), kernels, extra)

    def free(self, device: str) -> Times:
        return on(device, 0.0)


@dataclass(frozen=True)
class EstimatedCosts:
    """Costs that the roofline of a GPU allows; what loads the batch takes no time on the CPU."""

    gpu: roofline.Gpu

    def of(self, op: RecordedOp) -> Cost:
        own = op.work
        work = roofline.Work(
            own.flops * own.effort,
            own.matrix_flops * own.effort,
            own.n_bytes * own.effort,
            own.kernels,
            own.precision,
        )
        if op.place == INPUT and op.device == "cpu":
            return Cost((math.nan, 0.0))  # loaders work ahead of the GPU
        if op.step_call or op.share < 1:
            launched = replace(work, kernels=0)
            shared_us = self.gpu.speed * roofline.LAUNCH_US * LIST_KERNELS
            return Cost((roofline.gpu_us(launched, self.gpu) + shared_us, math.nan), 1.0)
        return Cost((roofline.gpu_us(work, self.gpu), math.nan), 1.0)

    def free(self, device: str) -> Times:
        return (0.0, 0.0)
