"""The order of a placement's ops that keeps memory within bounds as it goes.

A list schedule by upward ranks: a device that is free takes the op with the highest rank of those
that are ready and whose outputs have room, on the device itself and wherever copies go. If none has
room, it takes the one that adds least beyond the bounds, less what it frees. Nothing waits for
room, because a plan has no way to say so. The times are nearly those of the machine: channels
serve first come, first served. Views, and what is held besides, count only once it is simulated.
"""

from __future__ import annotations

import numpy as np

from enplace.compiling import kernel, step
from enplace.machine.heaps import pop_event, push_event
from enplace.machine.layout import Machine, transfer_us
from enplace.values.arrays import FloatArray, IntArray

ROOMS = (1.0, 0.97, 0.93)
"""Shares of the memory that count as room: not all is known as ops are put in order, and those with
less room may fit where others do not."""


@kernel
def thrifty_start_us(
    machine: Machine, device: IntArray, rank_us: FloatArray, room: float
) -> FloatArray:  # pragma: no cover - compiled
    """Return when each op starts, about, as a key to sort by; shape (n_ops,).

    Parameters
    ----------
    rank_us : float array, shape (n_ops,)
        Of ops that have room, the one with the highest rank is first.
    room : float
        Share of the memory that counts as room.
    """
    m = machine
    start_us = np.zeros(len(device))
    n_ops, n_tensors, n_devices = len(device), len(m.tensor_op), len(m.lanes)
    left = np.zeros((n_tensors, n_devices), np.int64)  # readers that have not ended, by device
    sending = np.zeros(n_tensors, np.int64)
    waits, ready_us = np.zeros(n_ops, np.int64), np.zeros(n_ops)
    used, free_lanes = np.zeros(n_devices), m.lanes.copy()
    room_bytes = room * m.capacity_bytes.astype(np.float64)
    # A list for each device of the ops that are ready.
    first, after = np.full(n_devices, -1), np.full(n_ops, -1)
    channel_us, arrival_us = np.zeros(m.n_channels), np.zeros(n_devices)
    times, codes, size = (
        np.empty(2 * n_ops + n_tensors),
        np.empty(2 * n_ops + n_tensors, np.int64),
        0,
    )
    for op in range(n_ops):
        used[device[op]] += m.persistent_bytes[op]
        waits[op] = m.in_ptr[op + 1] - m.in_ptr[op]
        for i in range(m.in_ptr[op], m.in_ptr[op + 1]):
            left[m.in_tensor[i], device[op]] += 1
        if waits[op] == 0:
            push_event(times, codes, size, 0.0, op)
            size += 1
    while size > 0:
        now = times[0]
        while size > 0 and times[0] <= now:
            code = pop_event(times, codes, size)
            size -= 1
            if code < n_ops:
                after[code], first[device[code]] = first[device[code]], code
            elif code < 2 * n_ops:
                op = code - n_ops
                free_lanes[device[op]] += 1
                used[device[op]] -= m.temporary_bytes[op]
                for i in range(m.in_ptr[op], m.in_ptr[op + 1]):
                    _end_reading(m, device, left, sending, used, m.in_tensor[i], device[op])
                size = _send(
                    m,
                    device,
                    left,
                    sending,
                    used,
                    channel_us,
                    arrival_us,
                    waits,
                    ready_us,
                    times,
                    codes,
                    size,
                    now,
                    op,
                )
            else:
                tensor = code - 2 * n_ops
                sending[tensor] = 0
                home = device[m.tensor_op[tensor]]
                if left[tensor, home] == 0:
                    used[home] -= m.held_bytes[tensor]
        for d in range(n_devices):
            while free_lanes[d] > 0 and first[d] >= 0:
                op = _choose(m, device, rank_us, room_bytes, left, used, first, after, d)
                start_us[op] = now
                free_lanes[d] -= 1
                used[d] += m.temporary_bytes[op]
                for tensor in range(m.tensor_ptr[op], m.tensor_ptr[op + 1]):
                    used[d] += m.held_bytes[tensor]
                    for e in range(n_devices):
                        if e != d and left[tensor, e] > 0:
                            used[e] += m.copy_bytes[tensor]
                push_event(times, codes, size, now + m.time_us[op, d], n_ops + op)
                size += 1
    return start_us


@step
def _end_reading(
    m: Machine,
    device: IntArray,
    left: IntArray,
    sending: IntArray,
    used: FloatArray,
    tensor: int,
    d: int,
) -> None:  # pragma: no cover - compiled
    """Free a tensor where its last reader has ended."""
    left[tensor, d] -= 1
    if left[tensor, d] > 0:
        return
    if d != device[m.tensor_op[tensor]]:
        used[d] -= m.copy_bytes[tensor]
    elif sending[tensor] == 0:
        used[d] -= m.held_bytes[tensor]


@step
def _send(
    m: Machine,
    device: IntArray,
    left: IntArray,
    sending: IntArray,
    used: FloatArray,
    channel_us: FloatArray,
    arrival_us: FloatArray,
    waits: IntArray,
    ready_us: FloatArray,
    times: FloatArray,
    codes: IntArray,
    size: int,
    now: float,
    op: int,
) -> int:  # pragma: no cover - compiled
    """Send what an op has made, and tell its readers when they are ready; return the events."""
    home, n_ops, n_devices = device[op], len(device), len(m.lanes)
    for tensor in range(m.tensor_ptr[op], m.tensor_ptr[op + 1]):
        last_us = now
        for d in range(n_devices):
            arrival_us[d] = now
            if d == home or left[tensor, d] == 0:
                continue
            link, begin_us = home * n_devices + d, now
            for hop in range(m.route_ptr[link], m.route_ptr[link + 1]):
                begin_us = max(begin_us, channel_us[m.route[hop]])
            arrival_us[d] = begin_us + transfer_us(m, m.tensor_bytes[tensor], home, d)
            for hop in range(m.route_ptr[link], m.route_ptr[link + 1]):
                channel_us[m.route[hop]] = arrival_us[d]
            sending[tensor] = 1
            last_us = max(last_us, arrival_us[d])
        if sending[tensor] > 0:
            push_event(times, codes, size, last_us, 2 * n_ops + tensor)
            size += 1
        elif left[tensor, home] == 0:
            used[home] -= m.held_bytes[tensor]
        for edge in range(m.edge_ptr[tensor], m.edge_ptr[tensor + 1]):
            reader = m.edge_op[edge]
            ready_us[reader] = max(ready_us[reader], arrival_us[device[reader]])
            waits[reader] -= 1
            if waits[reader] == 0:
                push_event(times, codes, size, ready_us[reader], reader)
                size += 1
    return size


@step
def _choose(
    m: Machine,
    device: IntArray,
    rank_us: FloatArray,
    room_bytes: FloatArray,
    left: IntArray,
    used: FloatArray,
    first: IntArray,
    after: IntArray,
    d: int,
) -> int:  # pragma: no cover - compiled
    """Take the op that a free device runs next out of its list."""
    best, before_best, before, op = -1, -1, -1, first[d]
    best_lacks, best_added = False, 0.0
    while op >= 0:
        here, lacking = float(m.temporary_bytes[op]), 0.0
        for tensor in range(m.tensor_ptr[op], m.tensor_ptr[op + 1]):
            here += m.held_bytes[tensor]
            for e in range(len(m.lanes)):
                if e != d and left[tensor, e] > 0:
                    lacking += max(0.0, used[e] + m.copy_bytes[tensor] - room_bytes[e])
        lacking += max(0.0, used[d] + here - room_bytes[d])
        lacks, added = lacking > 0.0, 0.0
        if lacks:
            added = lacking
            for i in range(m.in_ptr[op], m.in_ptr[op + 1]):
                tensor = m.in_tensor[i]
                if left[tensor, d] == 1:
                    is_own = device[m.tensor_op[tensor]] == d
                    added -= m.held_bytes[tensor] if is_own else m.copy_bytes[tensor]
        is_better = best < 0 or (best_lacks and not lacks)
        if not is_better and lacks == best_lacks:
            is_better = added < best_added
            is_better |= added == best_added and rank_us[op] > rank_us[best]
        if is_better:
            best, before_best, best_lacks, best_added = op, before, lacks, added
        before, op = op, after[op]
    if before_best < 0:
        first[d] = after[best]
    else:
        after[before_best] = after[best]
    after[best] = -1
    return best
