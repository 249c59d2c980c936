"""The critical path of a schedule: the ops and transfers that make up its step time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from enplace.values.arrays import FloatArray, IntArray, csr_offsets
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

    is_transfer: NDArray[np.bool_]
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


def critical_path(schedule: Schedule) -> CriticalPath:
    """Walk back from the op that ends last, each time to the op or transfer that it waited for."""
    profile, cluster = schedule.problem.profile, schedule.problem.cluster
    by_tensor = np.argsort(schedule.transfer_tensor, kind="stable")
    codes = _walk_back(
        schedule.plan.device,
        cluster.lane_owner[schedule.plan.device],
        schedule.op_start_us,
        schedule.op_finish_us,
        np.argsort(schedule.op_finish_us, kind="stable"),
        profile.in_ptr,
        profile.edge_tensor[profile.in_edges],
        profile.tensor_op,
        csr_offsets(schedule.transfer_tensor[by_tensor], profile.n_tensors),
        by_tensor,
        schedule.transfer_tensor,
        schedule.transfer_to,
        schedule.transfer_start_us,
        schedule.transfer_finish_us,
        np.argsort(schedule.transfer_finish_us, kind="stable"),
        schedule.transfer_from * cluster.n_devices + schedule.transfer_to,
        cluster.route_ptr,
        cluster.route,
    )[::-1]
    is_transfer = codes >= profile.n_ops
    start_us = np.concatenate([schedule.op_start_us, schedule.transfer_start_us])[codes]
    finish_us = np.concatenate([schedule.op_finish_us, schedule.transfer_finish_us])[codes]
    waiting_us = schedule.makespan_us - float((finish_us - start_us).sum())
    return CriticalPath(
        is_transfer=is_transfer,
        number=np.where(is_transfer, codes - profile.n_ops, codes),
        start_us=start_us,
        finish_us=finish_us,
        waiting_us=waiting_us if waiting_us > 1e-6 else 0.0,
    )


@njit(cache=True, nogil=True)
def _walk_back(
    device: IntArray,
    lane_owner: IntArray,
    op_start: FloatArray,
    op_finish: FloatArray,
    op_order: IntArray,
    in_ptr: IntArray,
    in_tensor: IntArray,
    tensor_op: IntArray,
    sent_ptr: IntArray,
    sent: IntArray,
    transfer_tensor: IntArray,
    transfer_to: IntArray,
    transfer_start: FloatArray,
    transfer_finish: FloatArray,
    transfer_order: IntArray,
    transfer_link: IntArray,
    route_ptr: IntArray,
    route: IntArray,
) -> IntArray:  # pragma: no cover - compiled
    """List steps from last to first: numbers of ops, and n_ops + numbers of transfers."""
    n_ops = len(device)
    path = np.empty(n_ops + len(transfer_to), dtype=np.int64)
    seen = np.zeros(len(transfer_to), dtype=np.bool_)
    step, length = op_order[-1], 0
    while step != NOTHING:
        path[length] = step
        length += 1
        if step >= n_ops:
            transfer = step - n_ops
            seen[transfer] = True
            start = transfer_start[transfer]
            step = tensor_op[transfer_tensor[transfer]]
            if op_finish[step] < start:
                rival = _freed_channel(
                    transfer, start, transfer_start, transfer_finish, transfer_order,
                    transfer_link, route_ptr, route, seen,
                )  # fmt: skip
                step = n_ops + rival if rival != NOTHING else step
            continue
        op, start, latest, step = step, op_start[step], -1.0, NOTHING
        if start == 0:
            break
        for at in range(in_ptr[op], in_ptr[op + 1]):
            tensor = in_tensor[at]
            if device[tensor_op[tensor]] == device[op]:
                code, finish = tensor_op[tensor], op_finish[tensor_op[tensor]]
            else:
                transfer = _transfer_of(tensor, device[op], sent_ptr, sent, transfer_to)
                code, finish = n_ops + transfer, transfer_finish[transfer]
            if finish > latest:
                latest, step = finish, code
        if latest < start:
            before = _freed_lane(op, lane_owner, op_start, op_finish, op_order)
            step = before if before != NOTHING else step
    return path[:length]


@njit(cache=True, nogil=True)
def _transfer_of(
    tensor: int, to: int, sent_ptr: IntArray, sent: IntArray, transfer_to: IntArray
) -> int:  # pragma: no cover - compiled
    for at in range(sent_ptr[tensor], sent_ptr[tensor + 1]):
        if transfer_to[sent[at]] == to:
            return int(sent[at])
    return NOTHING


@njit(cache=True, nogil=True)
def _freed_lane(
    op: int, lane_owner: IntArray, start: FloatArray, finish: FloatArray, order: IntArray
) -> int:  # pragma: no cover - compiled
    """Find an op that ran on the same lanes until this one started."""
    at = _first_at(start[op], finish, order)
    while at < len(order) and finish[order[at]] == start[op]:
        other = order[at]
        if lane_owner[other] == lane_owner[op] and start[other] < start[op]:
            return int(other)
        at += 1
    return NOTHING


@njit(cache=True, nogil=True)
def _freed_channel(
    transfer: int,
    time_us: float,
    start: FloatArray,
    finish: FloatArray,
    order: IntArray,
    link: IntArray,
    route_ptr: IntArray,
    route: IntArray,
    seen: NDArray[np.bool_],
) -> int:  # pragma: no cover - compiled
    """Find the longest transfer that held one of this transfer's channels until it started."""
    at, found = _first_at(time_us, finish, order), NOTHING
    while at < len(order) and finish[order[at]] == time_us:
        rival = order[at]
        at += 1
        if seen[rival] or (found != NOTHING and start[rival] >= start[found]):
            continue
        for i in range(route_ptr[link[rival]], route_ptr[link[rival] + 1]):
            for j in range(route_ptr[link[transfer]], route_ptr[link[transfer] + 1]):
                if route[i] == route[j]:
                    found = rival
    return int(found)


@njit(cache=True, nogil=True)
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
