"""The critical path of a schedule: what its step time consists of."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from enplace.profile import FloatArray, IntArray
from enplace.schedule import Schedule


@dataclass(frozen=True)
class Step:
    """One op or transfer, ``number`` of the schedule, on the critical path."""

    kind: str
    number: int
    start_us: float
    finish_us: float


@dataclass(frozen=True)
class CriticalPath:
    """Ops and transfers that determine the step time, in time order.

    Each starts when the one before ends, because it needs its result, its lane or its channel.
    ``waiting_us`` is what no single op or transfer explains (an order that held a free lane back).
    """

    steps: tuple[Step, ...]
    compute_us: float
    transfer_us: float
    waiting_us: float


def critical_path(schedule: Schedule) -> CriticalPath:
    """Walk back from what ends last to what it waited for."""
    tracer = _Tracer(schedule)
    steps = [tracer.last()]
    while steps[-1].start_us > 0 and (cause := tracer.cause(steps[-1])) is not None:
        steps.append(cause)
    steps.reverse()
    spent = {"op": 0.0, "transfer": 0.0}
    for step in steps:
        spent[step.kind] += step.finish_us - step.start_us
    waiting = schedule.makespan_us - spent["op"] - spent["transfer"]
    return CriticalPath(
        tuple(steps), spent["op"], spent["transfer"], waiting if waiting > 1e-6 else 0.0
    )


class _Tracer:
    """Finds what an op or transfer waited for; sorts finish times once."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.op_order = np.argsort(schedule.op_finish_us, kind="stable")
        self.op_finish = schedule.op_finish_us[self.op_order]
        self.transfer_order = np.argsort(schedule.transfer_finish_us, kind="stable")
        self.transfer_finish = schedule.transfer_finish_us[self.transfer_order]
        profile = schedule.problem.profile
        keys = zip(schedule.transfer_tensor.tolist(), schedule.transfer_to.tolist(), strict=True)
        self.transfer_of = {key: number for number, key in enumerate(keys)}
        self.profile = profile
        self.seen = set[int]()
        cluster = schedule.problem.cluster
        self.link = schedule.transfer_from * cluster.n_devices + schedule.transfer_to
        self.channels = [
            set(cluster.route[low:high].tolist())
            for low, high in zip(cluster.route_ptr[:-1], cluster.route_ptr[1:], strict=True)
        ]

    def last(self) -> Step:
        return self.op_step(int(self.op_order[-1]))

    def op_step(self, op: int) -> Step:
        schedule = self.schedule
        return Step("op", op, float(schedule.op_start_us[op]), float(schedule.op_finish_us[op]))

    def transfer_step(self, transfer: int) -> Step:
        schedule = self.schedule
        start, finish = schedule.transfer_start_us, schedule.transfer_finish_us
        return Step("transfer", transfer, float(start[transfer]), float(finish[transfer]))

    def cause(self, step: Step) -> Step | None:
        if step.kind == "transfer":
            return self._cause_of_transfer(step)
        return self._cause_of_op(step)

    def _cause_of_op(self, step: Step) -> Step | None:
        """The input that came last; if the op was ready before, the op that freed its lane."""
        inputs = self._inputs(step.number)
        latest = max(inputs, key=lambda i: i.finish_us, default=None)
        if latest is not None and latest.finish_us >= step.start_us:
            return latest
        device = self.schedule.plan.device
        for op in _ended_at(step.start_us, self.op_order, self.op_finish):
            if device[op] == device[step.number] and self.schedule.op_start_us[op] < step.start_us:
                return self.op_step(op)
        return latest

    def _inputs(self, op: int) -> list[Step]:
        profile, device = self.profile, self.schedule.plan.device
        found = []
        for edge in profile.in_edges[profile.in_ptr[op] : profile.in_ptr[op + 1]].tolist():
            source = int(profile.edge_source[edge])
            if device[source] == device[op]:
                found.append(self.op_step(source))
            else:
                key = (int(profile.edge_tensor[edge]), int(device[op]))
                found.append(self.transfer_step(self.transfer_of[key]))
        return found

    def _cause_of_transfer(self, step: Step) -> Step | None:
        """The producer; if it ended before, the transfer that freed a channel."""
        schedule = self.schedule
        producer = self.op_step(int(self.profile.tensor_op[schedule.transfer_tensor[step.number]]))
        if producer.finish_us >= step.start_us:
            return producer
        self.seen.add(step.number)
        channels = self.channels[int(self.link[step.number])]
        rivals = [
            self.transfer_step(rival)
            for rival in _ended_at(step.start_us, self.transfer_order, self.transfer_finish)
            if rival not in self.seen and channels & self.channels[int(self.link[rival])]
        ]
        return min(rivals, key=lambda rival: rival.start_us, default=producer)


def _ended_at(time_us: float, order: IntArray, finish: FloatArray) -> list[int]:
    """Numbers of what finished at exactly this time; ``finish`` is sorted by ``order``."""
    low, high = np.searchsorted(finish, [time_us, np.nextafter(time_us, np.inf)])
    return [int(number) for number in order[low:high]]
