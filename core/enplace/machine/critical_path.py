"""The critical path of a schedule: the ops and transfers that make up its step time."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from enplace.compiling import kernel, loop, step
from enplace.machine.layout import Machine, build_machine
from enplace.values.arrays import BoolArray, FloatArray, IntArray, csr_offsets
from enplace.values.schedule import Schedule

NOTHING = -1


@dataclass(frozen=True, eq=False)
class CriticalPath:
    """Ops and transfers that determine the step time, in time order.

    Each starts when the previous one ends, because it needs its result, its lane or its channel.

    Attributes
    ----------
    is_transfer : bool array, shape (n_steps,)
        Whether a step is a transfer and not an op.
    number : int array, shape (n_steps,)
        Number of the op, or of the transfer in the schedule.
    start_us, finish_us : float array, shape (n_steps,)
        When each step runs.
    waiting_us : float
        Time that no op or transfer on the path explains (if the order kept a lane idle).
    """

    is_transfer: BoolArray
    number: IntArray
    start_us: FloatArray
    finish_us: FloatArray
    waiting_us: float

    @property
    def compute_us(self) -> float:
        return float((self.finish_us - self.start_us)[~self.is_transfer].sum())

    @property
    def transfer_us(self) -> float:
        return float((self.finish_us - self.start_us)[self.is_transfer].sum())


@lru_cache(maxsize=4)
def critical_path(schedule: Schedule) -> CriticalPath:
    """Walk back from the op that ends last, each time to the op or transfer that it waited for."""
    last = np.flatnonzero(schedule.op_finish_us == schedule.op_finish_us.max())[-1]
    return path_to(schedule, int(last))


def path_to(schedule: Schedule, op: int) -> CriticalPath:
    """Walk back from an op as :func:`critical_path` does from the last."""
    codes = _walk_back(build_machine(schedule.problem), _flatten(schedule), op)[::-1]
    n_ops = schedule.problem.profile.n_ops
    is_transfer = codes >= n_ops
    start_us = np.concatenate([schedule.op_start_us, schedule.transfer_start_us])[codes]
    finish_us = np.concatenate([schedule.op_finish_us, schedule.transfer_finish_us])[codes]
    waiting_us = float(schedule.op_finish_us[op]) - float((finish_us - start_us).sum())
    return CriticalPath(
        is_transfer=is_transfer,
        number=np.where(is_transfer, codes - n_ops, codes),
        start_us=start_us,
        finish_us=finish_us,
        waiting_us=waiting_us if waiting_us > 1e-6 else 0.0,
    )


class _FlatSchedule(NamedTuple):
    """A schedule as flat arrays.

    Attributes
    ----------
    device, start_us, finish_us : arrays, shape (n_ops,)
    by_finish : int array, shape (n_ops,)
        Ops by their finish.
    tensor, target, link : int arrays, shape (n_transfers,)
        Tensor and destination of each transfer, and its pair of devices: source * n_devices +
        target.
    sent_us, arrival_us, by_arrival : arrays, shape (n_transfers,)
        Start and finish of each transfer; transfers by their finish.
    sent_ptr, sent : int arrays, shapes (n_tensors + 1,) and (n_transfers,)
        Transfers of tensor ``t`` are ``sent[sent_ptr[t] : sent_ptr[t + 1]]``.
    """

    device: IntArray
    start_us: FloatArray
    finish_us: FloatArray
    by_finish: IntArray
    tensor: IntArray
    target: IntArray
    link: IntArray
    sent_us: FloatArray
    arrival_us: FloatArray
    by_arrival: IntArray
    sent_ptr: IntArray
    sent: IntArray


def _flatten(schedule: Schedule) -> _FlatSchedule:
    by_tensor = np.argsort(schedule.transfer_tensor, kind="stable")
    n_tensors = schedule.problem.profile.n_tensors
    return _FlatSchedule(
        device=schedule.plan.device,
        start_us=schedule.op_start_us,
        finish_us=schedule.op_finish_us,
        by_finish=np.argsort(schedule.op_finish_us, kind="stable"),
        tensor=schedule.transfer_tensor,
        target=schedule.transfer_to,
        link=schedule.transfer_link,
        sent_us=schedule.transfer_start_us,
        arrival_us=schedule.transfer_finish_us,
        by_arrival=np.argsort(schedule.transfer_finish_us, kind="stable"),
        sent_ptr=csr_offsets(schedule.transfer_tensor[by_tensor], n_tensors),
        sent=by_tensor,
    )


@kernel
def _walk_back(m: Machine, s: _FlatSchedule, last: int) -> IntArray:  # pragma: no cover - compiled
    """List steps from last to first: numbers of ops, and n_ops + numbers of transfers."""
    path = np.empty(len(s.device) + len(s.tensor), dtype=np.int64)
    seen = np.zeros(len(s.tensor), dtype=np.bool_)
    return path[: _write_path(m, s, last, path, seen)]


@loop
def _write_path(
    m: Machine, s: _FlatSchedule, last: int, path: IntArray, seen: BoolArray
) -> int:  # pragma: no cover - compiled
    """Write the steps from last to first; return how many there are."""
    n_ops = len(s.device)
    code, length = last, 0
    while code != NOTHING:
        path[length] = code
        length += 1
        if code < n_ops:
            code = _before_op(m, s, code)
        else:
            seen[code - n_ops] = True
            code = _before_transfer(m, s, code - n_ops, seen)
    return length


@step
def _before_op(m: Machine, s: _FlatSchedule, op: int) -> int:  # pragma: no cover - compiled
    """Find what an op waited for: its latest input, or the op that left it a lane."""
    before, latest_us = NOTHING, -1.0
    if s.start_us[op] == 0:
        return before
    for at in range(m.in_ptr[op], m.in_ptr[op + 1]):
        code, finish_us = _input(m, s, m.in_tensor[at], s.device[op])
        if finish_us > latest_us:
            latest_us, before = finish_us, code
    if latest_us < s.start_us[op]:
        rival = _freed_lane(m, s, op)
        before = rival if rival != NOTHING else before
    return before


@step
def _input(
    m: Machine, s: _FlatSchedule, tensor: int, device: int
) -> tuple[int, float]:  # pragma: no cover - compiled
    """Return the op or transfer that makes a tensor available on a device, and when it ends."""
    code = m.tensor_op[tensor]
    finish_us = s.finish_us[code]
    if s.device[code] != device:
        for at in range(s.sent_ptr[tensor], s.sent_ptr[tensor + 1]):
            if s.target[s.sent[at]] == device:
                code, finish_us = len(s.device) + s.sent[at], s.arrival_us[s.sent[at]]
    return code, finish_us


@step
def _before_transfer(
    m: Machine, s: _FlatSchedule, transfer: int, seen: BoolArray
) -> int:  # pragma: no cover - compiled
    """Find what a transfer waited for: its tensor, or the transfer that left it a channel."""
    maker = m.tensor_op[s.tensor[transfer]]
    if s.finish_us[maker] < s.sent_us[transfer]:
        rival = _freed_channel(m, s, transfer, seen)
        if rival != NOTHING:
            return int(len(s.device) + rival)
    return int(maker)


@step
def _freed_lane(m: Machine, s: _FlatSchedule, op: int) -> int:  # pragma: no cover - compiled
    """Find an op that ran on the same lanes until this one started."""
    start_us, lanes = s.start_us[op], m.lane_owner[s.device[op]]
    at = _first_at(start_us, s.finish_us, s.by_finish)
    while at < len(s.by_finish) and s.finish_us[s.by_finish[at]] == start_us:
        rival = s.by_finish[at]
        if m.lane_owner[s.device[rival]] == lanes and s.start_us[rival] < start_us:
            return int(rival)
        at += 1
    return NOTHING


@step
def _freed_channel(
    m: Machine, s: _FlatSchedule, transfer: int, seen: BoolArray
) -> int:  # pragma: no cover - compiled
    """Find the longest transfer that held one of this transfer's channels until it started."""
    time_us, found = s.sent_us[transfer], NOTHING
    at = _first_at(time_us, s.arrival_us, s.by_arrival)
    while at < len(s.by_arrival) and s.arrival_us[s.by_arrival[at]] == time_us:
        rival = s.by_arrival[at]
        at += 1
        is_longer = found == NOTHING or s.sent_us[rival] < s.sent_us[found]
        if is_longer and not seen[rival] and share_channel(m, s.link[rival], s.link[transfer]):
            found = rival
    return found


@step
def share_channel(m: Machine, link: int, other: int) -> bool:  # pragma: no cover - compiled
    """Whether two links have a channel in common."""
    for i in range(m.route_ptr[link], m.route_ptr[link + 1]):
        for j in range(m.route_ptr[other], m.route_ptr[other + 1]):
            if m.route[i] == m.route[j]:
                return True
    return False


@step
def _first_at(time_us: float, finish: FloatArray, order: IntArray) -> int:  # pragma: no cover
    """Find the place in the order of the first that finishes at a time or later."""
    low, high = 0, len(order)
    while low < high:
        middle = (low + high) // 2
        if finish[order[middle]] < time_us:
            low = middle + 1
        else:
            high = middle
    return low
