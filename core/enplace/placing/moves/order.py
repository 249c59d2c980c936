"""The schedule of a placement and one order of all ops, computed without events or heaps.

If ops that share a channel are ordered by when they end, it equals the simulator's schedule with
devices in strict order and channels first come, first served. Otherwise it comes close.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from enplace.compiling import kernel, loop, step
from enplace.machine.layout import Machine, transfer_us
from enplace.machine.timing import Timing, new_timing
from enplace.values.arrays import FloatArray, IntArray


class PrefixSchedule(NamedTuple):
    """The schedule of the first ops of an order.

    Attributes
    ----------
    timing : Timing
        Of these ops and of the tensors that they make.
    lane_free_us, channel_free_us : float arrays, shapes (n_lanes,) and (n_channels,)
        When each becomes free.
    last_start_us : float array, shape (n_devices,)
        When the last op of each device starts: the next one does not start earlier.
    """

    timing: Timing
    lane_free_us: FloatArray
    channel_free_us: FloatArray
    last_start_us: FloatArray


class Tails(NamedTuple):
    """Inclusive tails: how long the schedule goes on after the first ops of an order.

    The order and the devices of the later ops stay as they are.

    Attributes
    ----------
    op_us : float array, shape (n_ops,)
        From the start of an op to the end of the schedule.
    lane_us, channel_us : float arrays, shapes (n_lanes,) and (n_channels,)
        From the next use of a device (stored at its first lane) or channel to the end.
    """

    op_us: FloatArray
    lane_us: FloatArray
    channel_us: FloatArray


def empty_schedule(machine: Machine) -> PrefixSchedule:
    """Make the schedule before the first op."""
    return PrefixSchedule(
        new_timing(machine),
        np.zeros(machine.lane_end.max()),
        np.zeros(machine.n_channels),
        np.zeros(len(machine.lanes)),
    )


def new_tails(machine: Machine) -> Tails:
    """Make the tails after the last op."""
    n_ops = len(machine.time_us)
    return Tails(
        np.zeros(n_ops), np.zeros(machine.lane_end.max()), np.zeros(machine.n_channels)
    )  # fmt: skip


@loop
def first_free(lane_free: FloatArray, first: int, end: int) -> int:  # pragma: no cover - compiled
    """Return the lane of a device that is free first."""
    best = first
    for lane in range(first + 1, end):
        if lane_free[lane] < lane_free[best]:
            best = lane
    return int(best)


@step
def send(
    m: Machine, tensor: int, home: int, to: int, made_us: float, channel_free_us: FloatArray
) -> tuple[float, float]:  # pragma: no cover - compiled
    """Send a tensor once its channels are free; return when the transfer begins and ends."""
    link = home * len(m.lane_ptr) + to
    start = made_us
    for hop in range(m.route_ptr[link], m.route_ptr[link + 1]):
        start = max(start, channel_free_us[m.route[hop]])
    end = start + transfer_us(m, m.tensor_bytes[tensor], home, to)
    for hop in range(m.route_ptr[link], m.route_ptr[link + 1]):
        channel_free_us[m.route[hop]] = end
    return start, end


@kernel
def simulate_order(
    machine: Machine, order: IntArray, upto: int, device: IntArray, prefix: PrefixSchedule
) -> float:  # pragma: no cover - compiled
    """Simulate the first ops of an order, each as soon as its inputs and its device are ready.

    Parameters
    ----------
    order : int array, shape (n_ops,)
        Topological.
    upto : int
        How many ops to simulate.
    prefix : PrefixSchedule, written

    Returns
    -------
    float
        When the last op or transfer ends, in µs.
    """
    return _simulate_order(machine, order, upto, device, prefix)


@loop
def _simulate_order(
    m: Machine, order: IntArray, upto: int, device: IntArray, p: PrefixSchedule
) -> float:  # pragma: no cover - compiled
    """Do the work of :func:`simulate_order` without counting references."""
    p.lane_free_us[:] = 0.0
    p.channel_free_us[:] = 0.0
    p.last_start_us[:] = 0.0
    last = 0.0
    for at in range(upto):
        op = order[at]
        d = device[op]
        ready = max(p.last_start_us[d], _inputs_us(m, op, device, p.timing))
        lane = first_free(p.lane_free_us, m.lane_ptr[d], m.lane_end[d])
        start = max(ready, p.lane_free_us[lane])
        finish = start + m.time_us[op, d]
        p.last_start_us[d] = start
        p.lane_free_us[lane] = finish
        p.timing.start_us[op], p.timing.finish_us[op] = start, finish
        last = max(last, finish)
        # Tensors leave as soon as they are made, whoever asks first: no event queue is needed.
        for tensor in range(m.tensor_ptr[op], m.tensor_ptr[op + 1]):
            p.timing.arrival_us[tensor, :] = -1.0
            for edge in range(m.edge_ptr[tensor], m.edge_ptr[tensor + 1]):
                to = device[m.edge_op[edge]]
                if to != d and p.timing.arrival_us[tensor, to] < 0.0:
                    begin, end = send(m, tensor, d, to, finish, p.channel_free_us)
                    p.timing.sent_us[tensor, to], p.timing.arrival_us[tensor, to] = begin, end
                    last = max(last, end)
    return last


@step
def _inputs_us(
    m: Machine, op: int, device: IntArray, timing: Timing
) -> float:  # pragma: no cover - compiled
    """Return when the last input of an op is on its device."""
    ready = 0.0
    for i in range(m.in_ptr[op], m.in_ptr[op + 1]):
        tensor = m.in_tensor[i]
        maker = m.tensor_op[tensor]
        here = device[maker] == device[op]
        ready = max(
            ready, timing.finish_us[maker] if here else timing.arrival_us[tensor, device[op]]
        )
    return ready


@kernel
def find_tails(
    machine: Machine, order: IntArray, first: int, device: IntArray, tails: Tails
) -> None:  # pragma: no cover - compiled
    """Find how long the schedule goes on from each op at position ``first`` or later."""
    _find_tails(machine, order, first, device, tails, np.zeros(len(machine.lanes)))


@loop
def _find_tails(
    m: Machine, order: IntArray, first: int, device: IntArray, t: Tails, waits: FloatArray
) -> None:  # pragma: no cover - compiled
    """Do the work of :func:`find_tails`; ``waits`` is scratch, with an entry for each device."""
    t.lane_us[:] = 0.0
    t.channel_us[:] = 0.0
    for at in range(len(order) - 1, first - 1, -1):
        op = order[at]
        d = device[op]
        one_lane = m.lane_end[d] - m.lane_ptr[d] == 1
        # With several lanes, the next op of the device may run at the same time.
        tail = t.lane_us[m.lane_ptr[d]] if one_lane else 0.0
        for tensor in range(m.tensor_ptr[op + 1] - 1, m.tensor_ptr[op] - 1, -1):
            waits[:] = -1.0  # the longest tail on each device that consumes the tensor
            for edge in range(m.edge_ptr[tensor], m.edge_ptr[tensor + 1]):
                user = m.edge_op[edge]
                waits[device[user]] = max(waits[device[user]], t.op_us[user])
            tail = max(tail, waits[d])
            for to in range(len(waits)):
                if to != d and waits[to] >= 0.0:
                    tail = max(tail, _send_before(m, tensor, d, to, waits[to], t.channel_us))
        t.op_us[op] = tail + m.time_us[op, d]
        t.lane_us[m.lane_ptr[d]] = max(t.lane_us[m.lane_ptr[d]], t.op_us[op])


@step
def _send_before(
    m: Machine, tensor: int, home: int, to: int, tail_us: float, channel_tail_us: FloatArray
) -> float:  # pragma: no cover - compiled
    """Send a tensor before the later transfers of its channels; return how long before the end."""
    link = home * len(m.lane_ptr) + to
    after = tail_us
    for hop in range(m.route_ptr[link], m.route_ptr[link + 1]):
        after = max(after, channel_tail_us[m.route[hop]])
    after += transfer_us(m, m.tensor_bytes[tensor], home, to)
    for hop in range(m.route_ptr[link], m.route_ptr[link + 1]):
        channel_tail_us[m.route[hop]] = after
    return after
