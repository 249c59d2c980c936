"""The event loop of the simulator, compiled.

The machine model is that of the design: devices run one op per lane without pre-emption, a tensor
is sent once to each device that needs it, a transfer occupies every channel of its link.
``slow_simulator.py`` of the tests implements the same in plain Python; its results are equal to the
last bit.

Time advances in rounds; there may be several at one instant. In a round, (1) everything that is due
ends: ops by number, then transfers by number; (2) devices with a free lane start ready ops: those
that take no time first, and others only in a round without any such op; (3) transfers that wait for
a free channel start.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from enplace.compiling import kernel, loop, step
from enplace.machine.heaps import pop_event, pop_key, push_event, push_key
from enplace.machine.layout import Machine
from enplace.machine.placement import (
    FIFO,
    LINK_FIFO,
    LINK_ORDERED,
    LINK_PRIORITY,
    STRICT,
    Placement,
)
from enplace.values.arrays import BoolArray, FloatArray, IntArray


class Times(NamedTuple):
    """When ops and transfers run; if ``n_finished`` is below n_ops, the order deadlocks.

    ``waiting`` is the number of inputs of each op that have not arrived.
    """

    start_us: FloatArray
    finish_us: FloatArray
    lane: IntArray
    sent_start_us: FloatArray
    sent_finish_us: FloatArray
    waiting: IntArray
    n_finished: int


class _State(NamedTuple):
    """The arrays that the loop writes in addition to the times.

    Attributes
    ----------
    ready, ready_size : int arrays, shapes (n_ops,) and (n_devices,)
        Heaps of the keys of ready ops, one for each chip. If devices follow their lists,
        ``ready_size`` is the number of ops that each has started.
    op_of_key : int array, shape (n_ops,)
    free_lanes, lane_busy : arrays, shapes (n_devices,) and (n_lanes,)
    channel_free_us : float array, shape (n_channels,)
    queue, queue_size : int arrays
        Heaps of the ranks of waiting transfers, one for each channel. If channels follow a given
        order, ``queue_size`` is the number of transfers that each has started.
    requested : bool array, shape (n_transfers,)
        Whether the tensor has been made.
    awake : bool array, shape (n_channels,)
        Channels whose next transfer may have become able to start since they were last checked.
    event_us, event_code : arrays, shape (n_ops + n_transfers,)
        Heap of all ends to come: ops by number, then transfers.
    counts : int array
        The counters named below.
    """

    ready: IntArray
    ready_size: IntArray
    op_of_key: IntArray
    free_lanes: IntArray
    lane_busy: BoolArray
    channel_free_us: FloatArray
    queue: IntArray
    queue_size: IntArray
    requested: BoolArray
    awake: BoolArray
    event_us: FloatArray
    event_code: IntArray
    counts: IntArray


EVENTS, WAITING, KEYS, CHANGED = range(4)
"""Indices into ``counts``: events in the heap, waiting transfers, keys given out, and whether a
channel may have something to start."""


@kernel
def run(machine: Machine, placement: Placement) -> Times:  # pragma: no cover - compiled
    """Simulate a plan to its end, or until its order deadlocks."""
    n_devices, n_lanes, n_channels, n_ops, n_transfers, n_queued = _sizes(machine, placement)
    state = _State(
        ready=np.empty(n_ops, np.int64),
        ready_size=np.zeros(n_devices, np.int64),
        op_of_key=np.empty(n_ops, np.int64),
        free_lanes=np.empty(n_devices, np.int64),
        lane_busy=np.zeros(n_lanes, np.bool_),
        channel_free_us=np.zeros(n_channels),
        queue=np.empty(n_queued, np.int64),
        queue_size=np.zeros(n_channels, np.int64),
        requested=np.zeros(n_transfers, np.bool_),
        awake=np.zeros(n_channels, np.bool_),
        event_us=np.empty(n_ops + n_transfers),
        event_code=np.empty(n_ops + n_transfers, np.int64),
        counts=np.zeros(4, np.int64),
    )
    start_us, finish_us, lane = np.zeros(n_ops), np.zeros(n_ops), np.zeros(n_ops, np.int64)
    sent_us, arrival_us = np.zeros(n_transfers), np.zeros(n_transfers)
    waiting = np.empty(n_ops, np.int64)
    times = Times(start_us, finish_us, lane, sent_us, arrival_us, waiting, 0)
    n_finished = _run(machine, placement, times, state)
    return Times(start_us, finish_us, lane, sent_us, arrival_us, waiting, n_finished)


@loop
def _sizes(m: Machine, p: Placement) -> tuple[int, ...]:  # pragma: no cover - compiled
    """Return the numbers of devices, lanes, channels, ops, transfers and queue entries."""
    n_lanes = 0
    for device in range(len(m.lanes)):
        n_lanes = max(n_lanes, m.lane_end[device])
    n_transfers = len(p.transfers.tensor)
    return len(m.lanes), n_lanes, m.n_channels, len(p.device), n_transfers, len(p.channel_queue)


@loop
def _run(m: Machine, p: Placement, t: Times, s: _State) -> int:  # pragma: no cover - compiled
    """Run until nothing is left to end; return how many ops have ended."""
    n_ops, n_finished = len(p.device), 0
    for device in range(len(m.lanes)):
        s.free_lanes[device] = m.lanes[device]
    for op in range(n_ops):
        t.waiting[op] = m.in_ptr[op + 1] - m.in_ptr[op]
        if t.waiting[op] == 0:
            _make_ready(m, p, s, op)
    now = 0.0
    while True:
        instant = _start_ops(m, p, t, s, now)
        # Ops that take no time may make more ops ready at this instant, which should request
        # their transfers too before a channel picks the most urgent one.
        if not instant:
            if s.counts[WAITING] > 0 and s.counts[CHANGED]:
                _start_transfers(m, p, t, s, now)
            s.counts[CHANGED] = 0
        if s.counts[EVENTS] == 0:
            return n_finished
        now = s.event_us[0]
        while s.counts[EVENTS] > 0 and s.event_us[0] == now:
            code = pop_event(s.event_us, s.event_code, s.counts[EVENTS])
            s.counts[EVENTS] -= 1
            if code < n_ops:
                _end_op(m, p, t, s, code, now)
                n_finished += 1
            else:
                _end_transfer(m, p, t, s, code - n_ops)


@step
def _start_ops(
    m: Machine, p: Placement, t: Times, s: _State, now: float
) -> bool:  # pragma: no cover - compiled
    """Start ops on all free lanes; return whether any of them takes no time.

    Ops that take time start in a second pass, and only if the first pass started nothing.
    """
    instant = False
    for second in range(2):
        if instant or (second == 1 and p.policy == STRICT):
            break
        for device in range(len(m.lanes)):
            while s.free_lanes[m.lane_owner[device]] > 0:
                op = _next_op(p, t, s, device, second == 1)
                if op < 0:
                    break
                _start_op(m, p, t, s, op, now)
                instant |= p.duration_us[op] == 0.0
    return instant


@step
def _next_op(
    p: Placement, t: Times, s: _State, device: int, any_op: bool
) -> int:  # pragma: no cover - compiled
    """Take the op that a device starts next, or -1: one without duration, or on request any op."""
    op = -1
    if p.policy == STRICT:
        at = p.device_ptr[device] + s.ready_size[device]
        if at < p.device_ptr[device + 1] and t.waiting[p.device_queue[at]] == 0:
            op = p.device_queue[at]
            s.ready_size[device] += 1
    # A negative key is an op that takes no time; the heap has it on top if there is one.
    elif s.ready_size[device] > 0 and (any_op or s.ready[p.heap_ptr[device]] < 0):
        key = pop_key(s.ready, p.heap_ptr[device], s.ready_size[device])
        s.ready_size[device] -= 1
        op = s.op_of_key[key if key >= 0 else key + len(p.device)]
    return op


@step
def _start_op(
    m: Machine, p: Placement, t: Times, s: _State, op: int, now: float
) -> None:  # pragma: no cover - compiled
    """Start an op on the first free lane of its device; one without duration takes no lane."""
    device = p.device[op]
    lane = 0
    # Lanes are few, so a scan is cheaper than a list of free ones.
    while s.lane_busy[m.lane_ptr[device] + lane]:
        lane += 1
    t.lane[op] = lane
    t.start_us[op] = now
    t.finish_us[op] = now + p.duration_us[op]
    if p.duration_us[op] > 0.0:
        s.lane_busy[m.lane_ptr[device] + lane] = True
        s.free_lanes[m.lane_owner[device]] -= 1
    push_event(s.event_us, s.event_code, s.counts[EVENTS], t.finish_us[op], op)
    s.counts[EVENTS] += 1


@step
def _end_op(
    m: Machine, p: Placement, t: Times, s: _State, op: int, now: float
) -> None:  # pragma: no cover - compiled
    """Free the lane of an op, deliver its tensors to its own device and request the transfers."""
    device = p.device[op]
    if p.duration_us[op] > 0.0:
        s.lane_busy[m.lane_ptr[device] + t.lane[op]] = False
        s.free_lanes[m.lane_owner[device]] += 1
    for tensor in range(m.tensor_ptr[op], m.tensor_ptr[op + 1]):
        _deliver(m, p, t, s, tensor, device)
        for transfer in range(p.transfers.ptr[tensor], p.transfers.ptr[tensor + 1]):
            _request(m, p, t, s, transfer, now)


@step
def _end_transfer(
    m: Machine, p: Placement, t: Times, s: _State, transfer: int
) -> None:  # pragma: no cover - compiled
    """Deliver a tensor, and wake the channels that may have waited for this transfer."""
    # If nothing waits, no channel need be looked at.
    if s.counts[WAITING] > 0:
        s.counts[CHANGED] = 1
        _wake(m, s, p.transfers.link[transfer])
    _deliver(m, p, t, s, p.transfers.tensor[transfer], p.transfers.target[transfer])


@step
def _deliver(
    m: Machine, p: Placement, t: Times, s: _State, tensor: int, device: int
) -> None:  # pragma: no cover - compiled
    """Count a tensor as arrived for all its consumers on a device."""
    for edge in range(m.edge_ptr[tensor], m.edge_ptr[tensor + 1]):
        consumer = m.edge_op[edge]
        if p.device[consumer] == device:
            t.waiting[consumer] -= 1
            if t.waiting[consumer] == 0:
                _make_ready(m, p, s, consumer)


@step
def _make_ready(m: Machine, p: Placement, s: _State, op: int) -> None:  # pragma: no cover
    """Queue an op whose inputs have all arrived; keys of ops that take no time are negative."""
    if p.policy != STRICT:
        key = p.position[op]
        if p.policy == FIFO:
            key = s.counts[KEYS]
            s.counts[KEYS] += 1
        s.op_of_key[key] = op
        if p.duration_us[op] == 0.0:
            key -= len(p.device)
        chip = m.lane_owner[p.device[op]]
        push_key(s.ready, p.heap_ptr[chip], s.ready_size[chip], key)
        s.ready_size[chip] += 1


@step
def _request(
    m: Machine, p: Placement, t: Times, s: _State, transfer: int, now: float
) -> None:  # pragma: no cover - compiled
    """Queue a transfer of a tensor that was just made; if first come, first served, send it."""
    link = p.transfers.link[transfer]
    # First come, first served: what comes later cannot overtake, so the start is known now.
    if p.links == LINK_FIFO:
        start = now
        for hop in range(m.route_ptr[link], m.route_ptr[link + 1]):
            start = max(start, s.channel_free_us[m.route[hop]])
        _send(m, p, t, s, transfer, start)
    else:
        channel = m.route[m.route_ptr[link]]
        if p.links == LINK_PRIORITY:
            base, size = p.channel_ptr[channel], s.queue_size[channel]
            push_key(s.queue, base, size, p.rank[transfer])
            s.queue_size[channel] += 1
        else:
            s.requested[transfer] = True
        s.awake[channel] = True
        s.counts[CHANGED] = 1
        s.counts[WAITING] += 1


@step
def _send(
    m: Machine, p: Placement, t: Times, s: _State, transfer: int, start: float
) -> None:  # pragma: no cover - compiled
    """Occupy all channels of a transfer's link."""
    link = p.transfers.link[transfer]
    end = start + p.transfers.duration_us[transfer]
    t.sent_start_us[transfer], t.sent_finish_us[transfer] = start, end
    for hop in range(m.route_ptr[link], m.route_ptr[link + 1]):
        s.channel_free_us[m.route[hop]] = end
    push_event(s.event_us, s.event_code, s.counts[EVENTS], end, len(p.device) + transfer)
    s.counts[EVENTS] += 1


@step
def _start_transfers(
    m: Machine, p: Placement, t: Times, s: _State, now: float
) -> None:  # pragma: no cover - compiled
    """Start the next transfers of channels until no channel has one that may start."""
    progress = True
    while progress:
        progress = False
        for channel in range(m.n_channels):
            if not s.awake[channel]:
                continue
            s.awake[channel] = False
            transfer = _next_transfer(p, s, channel)
            if transfer < 0 or not _may_start(m, p, s, transfer, now):
                continue
            _send(m, p, t, s, transfer, now)
            _leave_queues(m, p, s, transfer, channel)
            if t.sent_finish_us[transfer] == now:  # even if only by rounding
                _wake(m, s, p.transfers.link[transfer])
            s.counts[WAITING] -= 1
            progress = s.counts[WAITING] > 0


@step
def _next_transfer(p: Placement, s: _State, channel: int) -> int:  # pragma: no cover - compiled
    """Find the transfer that a channel carries next; -1 while it is not known."""
    base, transfer = p.channel_ptr[channel], -1
    if p.links == LINK_PRIORITY:
        if s.queue_size[channel] > 0:
            transfer = p.ranked[s.queue[base]]
    elif base + s.queue_size[channel] < p.channel_ptr[channel + 1]:
        following = p.channel_queue[base + s.queue_size[channel]]
        if s.requested[following]:
            transfer = following
    return transfer


@step
def _may_start(
    m: Machine, p: Placement, s: _State, transfer: int, now: float
) -> bool:  # pragma: no cover - compiled
    """Whether all channels of a transfer's link are free, and it is the next one on each."""
    link, may = p.transfers.link[transfer], True
    for hop in range(m.route_ptr[link], m.route_ptr[link + 1]):
        may &= s.channel_free_us[m.route[hop]] <= now
        if p.links == LINK_ORDERED:
            may &= _next_transfer(p, s, m.route[hop]) == transfer
    return may


@step
def _leave_queues(
    m: Machine, p: Placement, s: _State, transfer: int, channel: int
) -> None:  # pragma: no cover - compiled
    """Remove a transfer that starts from its first channel's queue, or if ordered, from all."""
    if p.links == LINK_PRIORITY:
        pop_key(s.queue, p.channel_ptr[channel], s.queue_size[channel])
        s.queue_size[channel] -= 1
    else:
        link = p.transfers.link[transfer]
        for hop in range(m.route_ptr[link], m.route_ptr[link + 1]):
            s.queue_size[m.route[hop]] += 1


@step
def _wake(m: Machine, s: _State, link: int) -> None:  # pragma: no cover - compiled
    """Mark all channels whose next transfer may have waited for one of a link's channels."""
    for hop in range(m.route_ptr[link], m.route_ptr[link + 1]):
        channel = m.route[hop]
        for at in range(m.waker_ptr[channel], m.waker_ptr[channel + 1]):
            s.awake[m.waker[at]] = True
