"""The event loop of the simulator, compiled.

The machine is that of the design: devices run one op a lane without pre-emption, a tensor is sent
once to each device that needs it, a transfer occupies every channel of its link. ``reference.py``
says the same in plain Python; the tests hold the two together to the last bit.

Time advances in rounds; there may be several at one instant. In a round (1) what ends now ends:
ops by number, then transfers by number; (2) devices with a free lane start ready ops: those that
take no time first, and only in a round that has none of them the others; (3) transfers that wait
for a free channel start. Arrays come one by one, not in a tuple: numba counts references at every
access to one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from enplace.values.problem import BoolArray
from enplace.values.profile import FloatArray, IntArray

PRIORITY, STRICT, FIFO = range(3)
LINK_FIFO, LINK_PRIORITY, LINK_ORDERED = range(3)


class Machine(NamedTuple):
    """What the loop reads: graph, plan and cluster as flat arrays.

    ``owner`` is the device whose lanes a device uses: its own, or the first of its chip. Ready ops
    wait in one heap for each owner, from ``heap_ptr[owner]`` on.

    Transfers are known beforehand: transfer ``x`` sends ``transfer_tensor[x]`` to
    ``transfer_to[x]``; those of tensor ``t`` are ``transfer_ptr[t] : transfer_ptr[t + 1]``.
    ``transfer_rank`` orders them by the position of their first consumer and ``ranked_transfer``
    is its inverse; ``channel_queue`` holds the transfers of each channel by rank. These three are
    empty where links are first come, first served.
    """

    device: IntArray
    position: IntArray
    duration_us: FloatArray
    in_degree: IntArray
    lanes: IntArray
    owner: IntArray
    heap_ptr: IntArray
    tensor_ptr: IntArray
    edge_ptr: IntArray
    edge_op: IntArray
    transfer_ptr: IntArray
    transfer_tensor: IntArray
    transfer_to: IntArray
    transfer_us: FloatArray
    transfer_link: IntArray
    route_ptr: IntArray
    route: IntArray
    device_ptr: IntArray
    device_queue: IntArray
    transfer_rank: IntArray
    ranked_transfer: IntArray
    channel_ptr: IntArray
    channel_queue: IntArray
    policy: int
    links: int


class Times(NamedTuple):
    """What the loop finds out; ``finished`` below n_ops means that the order deadlocks."""

    start_us: FloatArray
    finish_us: FloatArray
    lane: IntArray
    sent_start_us: FloatArray
    sent_finish_us: FloatArray
    waiting: IntArray
    finished: int


@njit(cache=True, nogil=True)
def _push(heap: IntArray, base: int, size: int, key: int) -> None:  # pragma: no cover - compiled
    at = size
    while at > 0:
        parent = (at - 1) >> 1
        if heap[base + parent] <= key:
            break
        heap[base + at] = heap[base + parent]
        at = parent
    heap[base + at] = key


@njit(cache=True, nogil=True)
def _pop(heap: IntArray, base: int, size: int) -> int:  # pragma: no cover - compiled
    top = heap[base]
    size -= 1
    key = heap[base + size]
    at = 0
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        if child + 1 < size and heap[base + child + 1] < heap[base + child]:
            child += 1
        if key <= heap[base + child]:
            break
        heap[base + at] = heap[base + child]
        at = child
    heap[base + at] = key
    return int(top)


@njit(cache=True, nogil=True)
def _push_event(
    times: FloatArray, codes: IntArray, size: int, time: float, code: int
) -> None:  # pragma: no cover - compiled
    at = size
    while at > 0:
        parent = (at - 1) >> 1
        if times[parent] < time or (times[parent] == time and codes[parent] <= code):
            break
        times[at], codes[at] = times[parent], codes[parent]
        at = parent
    times[at], codes[at] = time, code


@njit(cache=True, nogil=True)
def _pop_event(times: FloatArray, codes: IntArray, size: int) -> int:  # pragma: no cover - compiled
    top = codes[0]
    size -= 1
    time, code = times[size], codes[size]
    at = 0
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        right = child + 1
        if right < size and (
            times[right] < times[child]
            or (times[right] == times[child] and codes[right] < codes[child])
        ):
            child = right
        if time < times[child] or (time == times[child] and code <= codes[child]):
            break
        times[at], codes[at] = times[child], codes[child]
        at = child
    times[at], codes[at] = time, code
    return int(top)


@njit(cache=True, nogil=True)
def _make_ready(
    op: int,
    policy: int,
    device: IntArray,
    position: IntArray,
    duration_us: FloatArray,
    owner: IntArray,
    heap_ptr: IntArray,
    ready: IntArray,
    ready_size: IntArray,
    op_of_key: IntArray,
    n_keys: IntArray,
) -> None:  # pragma: no cover - compiled
    """Queue an op whose inputs are all there; keys of ops that take no time are negative."""
    if policy == STRICT:
        return
    key = position[op]
    if policy == FIFO:
        key = n_keys[0]
        n_keys[0] += 1
    op_of_key[key] = op
    if duration_us[op] == 0.0:
        key -= len(device)
    chip = owner[device[op]]
    _push(ready, heap_ptr[chip], ready_size[chip], key)
    ready_size[chip] += 1


@njit(cache=True, nogil=True)
def _next_transfer(
    channel: int,
    links: int,
    channel_ptr: IntArray,
    channel_queue: IntArray,
    ranked_transfer: IntArray,
    queue: IntArray,
    queue_size: IntArray,
    requested: IntArray,
) -> int:  # pragma: no cover - compiled
    """The transfer that a channel carries next, or -1 while that is not known."""
    base = channel_ptr[channel]
    if links == LINK_PRIORITY:
        return int(ranked_transfer[queue[base]]) if queue_size[channel] > 0 else -1
    if base + queue_size[channel] == channel_ptr[channel + 1]:
        return -1
    transfer = channel_queue[base + queue_size[channel]]
    return int(transfer) if requested[transfer] else -1


@njit(cache=True, nogil=True)
def _wakers(
    n_channels: int, route_ptr: IntArray, route: IntArray
) -> tuple[IntArray, IntArray]:  # pragma: no cover - compiled
    """For each channel, the first channels of all links that pass it; as CSR."""
    ptr = np.zeros(n_channels + 1, np.int64)
    for channel in route:
        ptr[channel + 1] += 1
    ptr = np.cumsum(ptr)
    waker, filled = np.empty(len(route), np.int64), ptr.copy()
    for link in range(len(route_ptr) - 1):
        for at in range(route_ptr[link], route_ptr[link + 1]):
            waker[filled[route[at]]] = route[route_ptr[link]]
            filled[route[at]] += 1
    return ptr, waker


@njit(cache=True, nogil=True)
def _wake(
    awake: BoolArray,
    link: int,
    route_ptr: IntArray,
    route: IntArray,
    waker_ptr: IntArray,
    waker: IntArray,
) -> None:  # pragma: no cover - compiled
    """Have all channels looked at whose next transfer may have waited for one of a link's."""
    for at in range(route_ptr[link], route_ptr[link + 1]):
        for to in range(waker_ptr[route[at]], waker_ptr[route[at] + 1]):
            awake[waker[to]] = True


@njit(cache=True, nogil=True)
def _run(  # type: ignore[no-untyped-def]
    device, position, duration_us, waiting, lanes, owner, heap_ptr, tensor_ptr, edge_ptr, edge_op,
    transfer_ptr, transfer_tensor, transfer_to, transfer_us, transfer_link, route_ptr, route,
    device_ptr, device_queue, transfer_rank, ranked_transfer, channel_ptr, channel_queue,
    policy, links, start_us, finish_us, lane, sent_start_us, sent_finish_us,
):  # fmt: skip  # pragma: no cover - compiled
    n, n_transfers, n_channels = len(device), len(transfer_tensor), len(channel_ptr) - 1
    ready, op_of_key = np.empty(n, np.int64), np.empty(n, np.int64)
    ready_size = np.zeros(len(lanes), np.int64)
    n_keys = np.zeros(1, np.int64)
    free_lanes = lanes.copy()
    lane_ptr = np.zeros(len(lanes) + 1, np.int64)
    lane_ptr[1:] = np.cumsum(lanes)
    lane_busy = np.zeros(lane_ptr[-1], np.bool_)
    channel_free_us = np.zeros(n_channels)
    queue, queue_size = np.empty(len(channel_queue), np.int64), np.zeros(n_channels, np.int64)
    requested = np.zeros(n_transfers, np.int64)
    event_us, event_code = np.empty(n + n_transfers), np.empty(n + n_transfers, np.int64)
    n_events, n_waiting, finished = 0, 0, 0
    # Channels whose next transfer may have become free to start since they were last looked at.
    waker_ptr, waker = _wakers(n_channels, route_ptr, route)
    awake, changed = np.zeros(n_channels, np.bool_), False
    now = 0.0

    for op in range(n):
        if waiting[op] == 0:
            _make_ready(op, policy, device, position, duration_us, owner, heap_ptr, ready,
                        ready_size, op_of_key, n_keys)  # fmt: skip
    while True:
        # (2) start ops; the second pass, for ops that take time, only if the first started none
        instant = False
        for others in range(2):
            if instant or (others and policy == STRICT):
                break
            for d in range(len(lanes)):
                chip = owner[d]
                while free_lanes[chip] > 0:
                    if policy == STRICT:
                        at = device_ptr[d] + ready_size[d]
                        if at == device_ptr[d + 1] or waiting[device_queue[at]] > 0:
                            break
                        op = device_queue[at]
                        ready_size[d] += 1
                    else:
                        if ready_size[d] == 0 or (not others and ready[heap_ptr[d]] >= 0):
                            break
                        key = _pop(ready, heap_ptr[d], ready_size[d])
                        ready_size[d] -= 1
                        op = op_of_key[key if key >= 0 else key + n]
                    free = 0
                    while lane_busy[lane_ptr[chip] + free]:
                        free += 1
                    lane[op] = free
                    start_us[op] = now
                    finish_us[op] = now + duration_us[op]
                    if duration_us[op] == 0.0:
                        instant = True
                    else:
                        lane_busy[lane_ptr[chip] + free] = True
                        free_lanes[chip] -= 1
                    _push_event(event_us, event_code, n_events, finish_us[op], op)
                    n_events += 1
        # (3) start transfers that wait for a channel
        progress = n_waiting > 0 and changed and not instant
        changed = changed and instant
        while progress:
            progress = False
            for channel in range(n_channels):
                if not awake[channel]:
                    continue
                awake[channel] = False
                if links == LINK_PRIORITY and queue_size[channel] == 0:
                    continue
                transfer = _next_transfer(
                    channel, links, channel_ptr, channel_queue,
                    ranked_transfer, queue, queue_size, requested,
                )  # fmt: skip
                if transfer < 0:
                    continue
                link = transfer_link[transfer]
                may_start = True
                for at in range(route_ptr[link], route_ptr[link + 1]):
                    may_start &= channel_free_us[route[at]] <= now
                    if links == LINK_ORDERED:
                        turn = _next_transfer(
                            route[at], links, channel_ptr, channel_queue,
                            ranked_transfer, queue, queue_size, requested,
                        )  # fmt: skip
                        may_start &= turn == transfer
                if not may_start:
                    continue
                if links == LINK_PRIORITY:
                    _pop(queue, channel_ptr[channel], queue_size[channel])
                    queue_size[channel] -= 1
                sent_start_us[transfer] = now
                sent_finish_us[transfer] = now + transfer_us[transfer]
                for at in range(route_ptr[link], route_ptr[link + 1]):
                    channel_free_us[route[at]] = sent_finish_us[transfer]
                    if links == LINK_ORDERED:
                        queue_size[route[at]] += 1
                if sent_finish_us[transfer] == now:  # if only by rounding
                    _wake(awake, link, route_ptr, route, waker_ptr, waker)
                _push_event(event_us, event_code, n_events, sent_finish_us[transfer], n + transfer)
                n_events += 1
                n_waiting -= 1
                progress = n_waiting > 0
        if n_events == 0:
            return finished
        # (1) of the next round: everything that ends at the next instant
        now = event_us[0]
        while n_events > 0 and event_us[0] == now:
            code = _pop_event(event_us, event_code, n_events)
            n_events -= 1
            if code >= n:
                if n_waiting > 0:
                    changed = True
                    _wake(awake, transfer_link[code - n], route_ptr, route, waker_ptr, waker)
                first, last = transfer_tensor[code - n], transfer_tensor[code - n] + 1
                where = transfer_to[code - n]
            else:
                first, last, where = tensor_ptr[code], tensor_ptr[code + 1], device[code]
                finished += 1
                if duration_us[code] > 0.0:
                    lane_busy[lane_ptr[owner[where]] + lane[code]] = False
                    free_lanes[owner[where]] += 1
            for tensor in range(first, last):
                for edge in range(edge_ptr[tensor], edge_ptr[tensor + 1]):
                    op = edge_op[edge]
                    if device[op] == where:
                        waiting[op] -= 1
                        if waiting[op] == 0:
                            _make_ready(op, policy, device, position, duration_us, owner, heap_ptr,
                                        ready, ready_size, op_of_key, n_keys)  # fmt: skip
                if code >= n:
                    continue
                for transfer in range(transfer_ptr[tensor], transfer_ptr[tensor + 1]):
                    link = transfer_link[transfer]
                    if links == LINK_FIFO:
                        start = now
                        for at in range(route_ptr[link], route_ptr[link + 1]):
                            start = max(start, channel_free_us[route[at]])
                        sent_start_us[transfer] = start
                        sent_finish_us[transfer] = start + transfer_us[transfer]
                        for at in range(route_ptr[link], route_ptr[link + 1]):
                            channel_free_us[route[at]] = sent_finish_us[transfer]
                        _push_event(event_us, event_code, n_events, sent_finish_us[transfer],
                                    n + transfer)  # fmt: skip
                        n_events += 1
                    elif links == LINK_PRIORITY:
                        channel = route[route_ptr[link]]
                        _push(
                            queue,
                            channel_ptr[channel],
                            queue_size[channel],
                            transfer_rank[transfer],
                        )
                        queue_size[channel] += 1
                        awake[channel] = changed = True
                        n_waiting += 1
                    else:
                        requested[transfer] = 1
                        awake[route[route_ptr[link]]] = changed = True
                        n_waiting += 1


def run(m: Machine) -> Times:
    """Play a plan to its end, or to where its order deadlocks."""
    n, n_transfers = len(m.device), len(m.transfer_tensor)
    waiting = m.in_degree.copy()
    start_us, finish_us, lane = np.zeros(n), np.zeros(n), np.zeros(n, dtype=np.int64)
    sent_start_us, sent_finish_us = np.zeros(n_transfers), np.zeros(n_transfers)
    finished = _run(
        *m._replace(in_degree=waiting), start_us, finish_us, lane, sent_start_us, sent_finish_us
    )
    return Times(start_us, finish_us, lane, sent_start_us, sent_finish_us, waiting, finished)
