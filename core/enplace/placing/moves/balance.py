"""Annealing of a placement without simulating it: less to send, and work that is balanced in time.

The step is cut into bands of time. A placement costs what its transfers take, and the more, the
less evenly the work of each band is spread over the devices, the fuller channels are, and the more
memory is exceeded at some instants of the step. A move of one unit changes this in a few places
only, so thousands are tried in the time of one simulation.
This finds the strands of a graph, which methods that place one op at a time tear apart.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from enplace.compiling import kernel, loop, step
from enplace.machine.layout import Machine, transfer_us
from enplace.placing.random_numbers import draw_below
from enplace.values.arrays import BoolArray, FloatArray, IntArray

GRIDS = 2
"""The bands of the second grid begin in the middle of those of the first, so that work just beside
the border of a band counts with both sides."""


class Balance(NamedTuple):
    """What a placement costs, and how it is annealed.

    Attributes
    ----------
    band : int array, shape (GRIDS, n_ops)
        The band that each op runs in.
    length_us : float
        The mean length of a band.
    pace : float array, shape (n_devices,)
        The speed of each device, relative to the mean of its kind. Work is even if all devices take
        equally long for theirs: then squares of times are least if they count by pace.
    sending : float
        Weight of a microsecond of transfers; a microsecond of work weighs as much as its device has
        more to do in that band than others, relative to the mean.
    begins, ends : int arrays, shape (n_ops,)
        How many of the instants at which memory counts lie before an op, and before its end.
    stays : int array, shape (n_tensors,)
        How many lie before the maker's device may free a tensor, whoever reads it.
    n_instants : int
        How many there are in all; none if all fits together.
    room : float array, shape (n_devices,)
        The bytes that a device may hold for free.
    holding : float array, shape (n_devices,)
        Weight of memory: at each instant, a byte beyond that costs this times all bytes beyond it.
    crowding : float
        Weight of a channel's load in a band: there, a microsecond of transfers costs this times the
        share of the band in which the channel is busy.
    hot, cold : float
        First and last temperature, in us.
    moves : int
        Number of moves to try.
    begin, end : float
        The part of the annealing that these moves are, as shares of it.
    queue : int array, shape (n_units,)
        The units in the order of time.
    zone : int
        How many units are annealed at a time: a zone of these moves along the queue, hot at its
        front and cold at its end, so that what comes later joins what is settled. If it has all
        units, all are annealed at once.
    """

    band: IntArray
    length_us: float
    pace: FloatArray
    begins: IntArray
    ends: IntArray
    stays: IntArray
    n_instants: int
    room: FloatArray
    holding: FloatArray
    sending: float
    crowding: float
    hot: float
    cold: float
    moves: int
    begin: float
    end: float
    queue: IntArray
    zone: int


class Placed(NamedTuple):
    """A placement with what its cost is computed from.

    Attributes
    ----------
    device : int array, shape (n_ops,)
    users : int array, shape (n_tensors, n_devices)
        How many consumers each tensor has on each device.
    load_us : float array, shape (GRIDS, n_bands, n_devices)
        Work of each device in each band, divided by its lanes.
    even_us : float array, shape (GRIDS, n_bands)
        The mean work of the devices in a band, counted by pace.
    crowd : float array, shape (n_bands, n_channels)
        Transfers of each channel, in the first grid's bands of the ops that make the tensors, as
        multiples of the mean length of a band.
    until : int array, shape (n_tensors, n_devices)
        How many instants lie before the end of a tensor's last reader on each device.
    held : float array, shape (n_devices, n_instants)
        Bytes that each device holds.
    """

    device: IntArray
    users: IntArray
    load_us: FloatArray
    even_us: FloatArray
    crowd: FloatArray
    until: IntArray
    held: FloatArray


@kernel
def anneal_balance(
    machine: Machine, balance: Balance, device: IntArray, draw: np.random.Generator, stop: BoolArray
) -> float:  # pragma: no cover - compiled
    """Anneal a placement, one unit at a time.

    Parameters
    ----------
    device : int array, shape (n_ops,), changed in place
    stop : bool array, shape (1,)
        Once true, no further move is tried.

    Returns
    -------
    float
        By how much the placement costs more than before, in us; negative if it costs less.
    """
    n_bands, n_devices = balance.band.max() + 1, len(machine.lanes)
    placed = Placed(
        device,
        np.zeros((len(machine.tensor_op), n_devices), np.int64),
        np.zeros((GRIDS, n_bands, n_devices)),
        np.zeros((GRIDS, n_bands)),
        np.zeros((n_bands, machine.n_channels)),
        np.zeros((len(machine.tensor_op), n_devices), np.int64),
        np.zeros((n_devices, balance.n_instants)),
    )
    return _anneal(machine, balance, placed, draw, stop)


@loop
def _anneal(
    m: Machine, b: Balance, p: Placed, draw: np.random.Generator, stop: BoolArray
) -> float:  # pragma: no cover - compiled
    """Try moves one after another; see :func:`anneal_balance`."""
    _count(m, b, p)
    total = 0.0
    n_units, n_devices = len(m.unit_ptr) - 1, len(m.lanes)
    moving = b.zone < n_units
    for i in range(b.moves):
        done = b.begin + (b.end - b.begin) * i / b.moves
        behind = draw.random()
        at = int((n_units + b.zone) * done - b.zone * behind) if moving else int(n_units * behind)
        if at < 0 or at >= n_units:
            continue
        unit, to = b.queue[at], draw_below(draw, n_devices)
        here = p.device[m.member[m.unit_ptr[unit]]]
        if to == here or not m.allowed[unit, to]:
            continue
        if stop[0]:
            break
        change = _move(m, b, p, unit, to)
        temperature = b.hot * (b.cold / b.hot) ** (behind if moving else done)
        if change <= 0.0 or draw.random() < np.exp(-change / temperature):
            total += change
        else:
            _move(m, b, p, unit, here)
    return total


@loop
def _count(m: Machine, b: Balance, p: Placed) -> None:  # pragma: no cover - compiled
    """Count the consumers of each tensor, the work and transfers of each band, and memory."""
    is_limited = b.n_instants > 0
    for op in range(len(p.device)):
        here = p.device[op]
        if is_limited:
            _hold_own(m, b, p, op, here, 1.0)
        for i in range(m.in_ptr[op], m.in_ptr[op + 1]):
            tensor = m.in_tensor[i]
            p.users[tensor, here] += 1
            p.until[tensor, here] = max(p.until[tensor, here], b.ends[op])
        for grid in range(GRIDS):
            p.load_us[grid, b.band[grid, op], here] += m.time_us[op, here] / m.lanes[here]
    for grid in range(GRIDS):
        for band in range(p.even_us.shape[1]):
            total = 0.0
            for d in range(len(m.lanes)):
                total += b.pace[d] * p.load_us[grid, band, d]
            p.even_us[grid, band] = max(total / len(m.lanes), 1e-3)
    for tensor in range(len(m.tensor_op)):
        home = p.device[m.tensor_op[tensor]]
        for d in range(len(m.lanes)):
            if d != home and p.users[tensor, d] > 0:
                _send(m, b, p, tensor, home, d, 1.0)
            if is_limited:
                _hold_tensor(m, b, p, tensor, d, 1.0)


@loop
def _move(
    m: Machine, b: Balance, p: Placed, unit: int, to: int
) -> float:  # pragma: no cover - compiled
    """Move a unit to a device; return by how much the placement costs more."""
    change = 0.0
    for i in range(m.unit_ptr[unit], m.unit_ptr[unit + 1]):
        change += _move_op(m, b, p, m.member[i], to)
    return change


@step
def _move_op(
    m: Machine, b: Balance, p: Placed, op: int, to: int
) -> float:  # pragma: no cover - compiled
    """Move an op to a device; return by how much the placement costs more."""
    here, change, is_limited = p.device[op], 0.0, b.n_instants > 0
    for tensor in range(m.tensor_ptr[op], m.tensor_ptr[op + 1]):
        if is_limited:
            change += _hold_tensor(m, b, p, tensor, here, -1.0)
            change += _hold_tensor(m, b, p, tensor, to, -1.0)
        for d in range(len(m.lanes)):
            if p.users[tensor, d] > 0:
                if d != here:
                    change += _send(m, b, p, tensor, here, d, -1.0)
                if d != to:
                    change += _send(m, b, p, tensor, to, d, 1.0)
    p.device[op] = to
    if is_limited:
        change += _hold_own(m, b, p, op, here, -1.0) + _hold_own(m, b, p, op, to, 1.0)
        for tensor in range(m.tensor_ptr[op], m.tensor_ptr[op + 1]):
            change += _hold_tensor(m, b, p, tensor, here, 1.0)
            change += _hold_tensor(m, b, p, tensor, to, 1.0)
    for i in range(m.in_ptr[op], m.in_ptr[op + 1]):
        tensor = m.in_tensor[i]
        home = p.device[m.tensor_op[tensor]]
        p.users[tensor, here] -= 1
        p.users[tensor, to] += 1
        if here != home and p.users[tensor, here] == 0:
            change += _send(m, b, p, tensor, home, here, -1.0)
        if to != home and p.users[tensor, to] == 1:
            change += _send(m, b, p, tensor, home, to, 1.0)
        if is_limited:
            change += _hold_until(m, b, p, tensor, here, _last_reading(m, b, p, tensor, here, op))
            change += _hold_until(m, b, p, tensor, to, max(p.until[tensor, to], b.ends[op]))
    less_us, more_us = m.time_us[op, here] / m.lanes[here], m.time_us[op, to] / m.lanes[to]
    for grid in range(GRIDS):
        band = b.band[grid, op]
        # Half the change of the sum of squares.
        gained = more_us * (p.load_us[grid, band, to] + 0.5 * more_us)
        lost = less_us * (p.load_us[grid, band, here] - 0.5 * less_us)
        change += (b.pace[to] * gained - b.pace[here] * lost) / p.even_us[grid, band]
        p.load_us[grid, band, here] -= less_us
        p.load_us[grid, band, to] += more_us
    return change


@step
def _send(
    m: Machine, b: Balance, p: Placed, tensor: int, home: int, to: int, sign: float
) -> float:  # pragma: no cover - compiled
    """Count a transfer, or discount it (``sign``); return by how much the placement costs more."""
    us = sign * transfer_us(m, m.tensor_bytes[tensor], home, to)
    link, band = home * len(m.lanes) + to, b.band[0, m.tensor_op[tensor]]
    share, crowded = us / b.length_us, 0.0
    for hop in range(m.route_ptr[link], m.route_ptr[link + 1]):
        channel = m.route[hop]
        # Half the change of the square.
        crowded += p.crowd[band, channel] + 0.5 * share
        p.crowd[band, channel] += share
    return us * (b.sending + b.crowding * crowded)


@step
def _hold_own(
    m: Machine, b: Balance, p: Placed, op: int, d: int, sign: float
) -> float:  # pragma: no cover - compiled
    """Count or discount what an op holds besides its tensors; return what that costs."""
    lasting, passing = sign * m.persistent_bytes[op], sign * m.temporary_bytes[op]
    change = _hold(b, p, d, 0, b.n_instants, lasting)
    return change + _hold(b, p, d, b.begins[op], b.ends[op], passing)


@step
def _hold_tensor(
    m: Machine, b: Balance, p: Placed, tensor: int, d: int, sign: float
) -> float:  # pragma: no cover - compiled
    """Count or discount what a device holds of a tensor; return what that costs."""
    first, end, n_bytes = _span(m, b, p, tensor, d)
    return _hold(b, p, d, first, end, sign * n_bytes)


@step
def _hold_until(
    m: Machine, b: Balance, p: Placed, tensor: int, d: int, until: int
) -> float:  # pragma: no cover - compiled
    """Let the last reader of a tensor on a device end at another instant; return what it costs."""
    first, before, n_bytes = _span(m, b, p, tensor, d)
    p.until[tensor, d] = until
    _, after, _ = _span(m, b, p, tensor, d)
    change = _hold(b, p, d, max(first, after), before, -n_bytes)
    return change + _hold(b, p, d, max(first, before), after, n_bytes)


@step
def _span(
    m: Machine, b: Balance, p: Placed, tensor: int, d: int
) -> tuple[int, int, float]:  # pragma: no cover - compiled
    """Return from which instant until which one a device holds a tensor, and how much that is.

    A copy takes room once its tensor is made, because it is sent at once.
    """
    maker = m.tensor_op[tensor]
    first, end, n_bytes = b.ends[maker], p.until[tensor, d], float(m.copy_bytes[tensor])
    if p.device[maker] == d:
        end = max(end, b.ends[maker], b.stays[tensor])
        first, n_bytes = b.begins[maker], float(m.held_bytes[tensor])
    return first, end, n_bytes


@step
def _last_reading(
    m: Machine, b: Balance, p: Placed, tensor: int, d: int, gone: int
) -> int:  # pragma: no cover - compiled
    """Return until when a device reads a tensor after one of its readers there has left."""
    last, before = 0, p.until[tensor, d]
    if b.ends[gone] < before:
        return int(before)
    for edge in range(m.edge_ptr[tensor], m.edge_ptr[tensor + 1]):
        reader = m.edge_op[edge]
        if p.device[reader] == d:
            last = max(last, b.ends[reader])
            if last == before:
                break
    return int(last)


@step
def _hold(
    b: Balance, p: Placed, d: int, first: int, end: int, n_bytes: float
) -> float:  # pragma: no cover - compiled
    """Let a device hold more from an instant until another; return by how much that costs more."""
    change = 0.0
    if n_bytes != 0.0:
        for instant in range(first, end):
            before = max(0.0, p.held[d, instant] - b.room[d])
            p.held[d, instant] += n_bytes
            after = max(0.0, p.held[d, instant] - b.room[d])
            change += after * after - before * before
    return float(0.5 * b.holding[d] * change)
