"""What runs and what is sent in a part of the step. No Qt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from enplace.text import ms, size
from enplace.values.profile import FloatArray
from enplace.values.schedule import Schedule


@dataclass(frozen=True)
class Interval:
    """A part of the time axis."""

    start_us: float
    stop_us: float

    @property
    def length_us(self) -> float:
        return self.stop_us - self.start_us

    @property
    def title(self) -> str:
        """Its ends in words: ``40.0 to 60.0 ms``."""
        start, stop = ms(self.start_us), ms(self.stop_us)
        return f"{start.removesuffix(stop[stop.index(' ') :])} to {stop}"


def within_us(start_us: FloatArray, finish_us: FloatArray, interval: Interval) -> FloatArray:
    """Measure the part of each stretch that lies within an interval; 0 if none does."""
    start = np.maximum(start_us, interval.start_us)
    return np.maximum(np.minimum(finish_us, interval.stop_us) - start, 0.0)


def busy_us(schedule: Schedule, interval: Interval) -> FloatArray:
    """Measure how long each device computes within an interval, all its lanes together."""
    time_us = within_us(schedule.op_start_us, schedule.op_finish_us, interval)
    n_devices = schedule.problem.cluster.n_devices
    busy: FloatArray = np.bincount(schedule.plan.device, time_us, n_devices).astype(np.float64)
    return busy


def busy_shares(schedule: Schedule, interval: Interval, devices: Sequence[int]) -> list[float]:
    """Compute how much of an interval each device computes, all its lanes together."""
    busy, lanes = busy_us(schedule, interval), schedule.problem.cluster.lanes
    return [float(busy[d] / (lanes[d] * interval.length_us)) for d in devices]


def sent_within(schedule: Schedule, interval: Interval) -> tuple[FloatArray, FloatArray]:
    """Return for each transfer its time in an interval, and its bytes; of one that is cut, a share.

    Returns
    -------
    time_us, sent_bytes : float arrays, shape (n_transfers,)
    """
    start_us, finish_us = schedule.transfer_start_us, schedule.transfer_finish_us
    time_us = within_us(start_us, finish_us, interval)
    share = time_us / np.maximum(finish_us - start_us, 1e-9)
    return time_us, share * schedule.transfer_bytes


def bytes_within(schedule: Schedule, interval: Interval) -> float:
    """Sum the bytes sent in an interval; of a transfer that is cut, its share."""
    return float(sent_within(schedule, interval)[1].sum())


def describe_interval(schedule: Schedule, interval: Interval) -> list[str]:
    """Sum up a part of the step: all compute, all transfers, and how long GPUs are idle."""
    stop_us = min(interval.stop_us, schedule.makespan_us)
    step, busy = Interval(interval.start_us, stop_us), busy_us(schedule, interval)
    time_us, sent_bytes = sent_within(schedule, interval)
    facts = [
        f"{interval.title} ({ms(interval.length_us)})",
        f"compute {ms(float(busy.sum()))}",
        f"transfers {ms(float(time_us.sum()))}, {size(float(sent_bytes.sum()))}",
    ]
    gpus = list(schedule.problem.cluster.gpus)
    if gpus and step.length_us > 0:
        idle = step.length_us * schedule.problem.cluster.lanes[gpus] - busy[gpus]
        facts.append(f"GPUs idle {ms(max(float(idle.sum()), 0.0))}")
    return facts
