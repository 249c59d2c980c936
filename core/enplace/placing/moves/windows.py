"""Windowed annealing: placement and order of a few dozen ops at a time, the rest unchanged.

The state is a placement and one order of all ops (:mod:`enplace.placing.moves.order`). A window is
a run of consecutive ops. Everything before it stays unchanged; everything after it counts through
inclusive tails, the time from the start of each op to the end of the schedule. Within the window,
simulated annealing moves one unit, a connected block, or an op in the order. The result is kept
if the whole schedule, simulated again, is no longer than before and fits in memory.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from enplace.compiling import kernel, loop, step
from enplace.machine.layout import Machine
from enplace.machine.memory import find_excess
from enplace.placing.moves.order import (
    PrefixSchedule,
    Tails,
    empty_schedule,
    find_tails,
    first_free,
    new_tails,
    send,
    simulate_order,
)
from enplace.placing.random_numbers import draw_below
from enplace.values.arrays import BoolArray, FloatArray, IntArray

SHIFTS, SINGLES = 0.4, 0.7
"""Share of the moves that shift an op in the order, and share that shift an op or move one unit."""

MOST_IN_BLOCK = 12


class Annealing(NamedTuple):
    """How windows are annealed.

    Attributes
    ----------
    width, stride : int
        Length of a window, and distance from one window to the next, in ops.
    rounds : int
        Moves tried in each window.
    hot, cold : float
        First and last temperature, in units of the mean time of the window's ops.
    spread : float
        Weight of the mean end over the devices, relative to the latest end.
    """

    width: int
    stride: int
    rounds: int
    hot: float
    cold: float
    spread: float


class Window(NamedTuple):
    """The arrays that annealing a window writes.

    Attributes
    ----------
    order, best_order, best_device : int arrays, shape (width,)
        The window's ops in their current order and in their best order, with the devices then.
    position : int array, shape (n_ops,)
        Position of each op in the order of all ops.
    block, was_device : int arrays, shape (width,)
        Ops that move together, and their devices before the move.
    in_block : int array, shape (n_ops,)
        The number of the latest block that contains the op.
    lane_free_us, channel_free_us, last_start_us : float arrays
        As in :class:`PrefixSchedule`, while the window is simulated.
    late_us, late_of : arrays, shape (n_tensors, n_devices)
        When a tensor arrives; valid only if ``late_of`` is the number of the current trial.
    counts : int array, shape (2,)
        Numbers of the current trial and of the latest block.
    """

    order: IntArray
    best_order: IntArray
    best_device: IntArray
    position: IntArray
    block: IntArray
    was_device: IntArray
    in_block: IntArray
    lane_free_us: FloatArray
    channel_free_us: FloatArray
    last_start_us: FloatArray
    late_us: FloatArray
    late_of: IntArray
    counts: IntArray


TRIALS, BLOCKS = range(2)
"""Indices into ``Window.counts``."""


def sweep(
    machine: Machine,
    order: IntArray,
    device: IntArray,
    first: int,
    n_windows: int,
    annealing: Annealing,
    draw: np.random.Generator,
    stop: BoolArray,
) -> tuple[float, int]:
    """Anneal windows one after another from position ``first``, wrapping around at the end.

    Parameters
    ----------
    order, device : int arrays, shape (n_ops,), changed in place
        A topological order and a placement.
    stop : bool array, shape (1,)
        Once true, the current window is the last.

    Returns
    -------
    float, int
        The makespan of the result in ``order`` and ``device``, in µs, and its excess in bytes.
    """
    n_ops = len(order)
    width = min(annealing.width, n_ops)
    window = new_window(machine, width)
    before, tails = empty_schedule(machine), new_tails(machine)
    makespan = simulate_order(machine, order, n_ops, device, before)
    excess = find_excess(machine, device, before.timing)
    kept_order, kept_device = order.copy(), device.copy()
    for number in range(n_windows):
        if stop[0]:
            break
        window.position[order] = np.arange(n_ops)
        begin = (first + number * annealing.stride) % max(1, n_ops - width // 2)
        end = min(n_ops, begin + width)
        simulate_order(machine, order, begin, device, before)
        find_tails(machine, order, end, device, tails)
        window.order[: end - begin] = order[begin:end]
        anneal_window(machine, before, tails, window, device, begin, end, annealing, draw)
        order[begin:end] = window.best_order[: end - begin]
        device[order[begin:end]] = window.best_device[: end - begin]
        found = _simulate_whole(machine, order, device, before, makespan)
        found_excess = excess
        if found <= makespan or excess > 0:
            found_excess = find_excess(machine, device, before.timing)
        if found_excess < excess or (found_excess == excess and found <= makespan):
            makespan, excess = found, found_excess
            kept_order[:], kept_device[:] = order, device
        else:
            order[:], device[:] = kept_order, kept_device
    return makespan, excess


def new_window(machine: Machine, width: int) -> Window:
    """Make the arrays for windows of up to ``width`` ops."""
    n_ops, shape = len(machine.time_us), (len(machine.tensor_op), len(machine.lanes))
    return Window(
        order=np.empty(width, np.int64),
        best_order=np.empty(width, np.int64),
        best_device=np.empty(width, np.int64),
        position=np.empty(n_ops, np.int64),
        block=np.empty(width, np.int64),
        was_device=np.empty(width, np.int64),
        in_block=np.full(n_ops, -1),
        lane_free_us=np.empty(machine.lane_end.max()),
        channel_free_us=np.empty(machine.n_channels),
        last_start_us=np.empty(len(machine.lanes)),
        late_us=np.empty(shape),
        late_of=np.full(shape, -1),
        counts=np.zeros(2, np.int64),
    )


def _simulate_whole(
    machine: Machine, order: IntArray, device: IntArray, prefix: PrefixSchedule, makespan: float
) -> float:
    """Simulate all ops; sort the order by end if that is needed for an exact simulation.

    Transfers that share a channel are sent as they are made: only in that order does
    :func:`simulate_order` agree with the simulator.
    """
    found = simulate_order(machine, order, len(order), device, prefix)
    if machine.shares_channels and found <= makespan:
        order[:] = order[np.argsort(prefix.timing.finish_us[order], kind="stable")]
        found = simulate_order(machine, order, len(order), device, prefix)
    return found


@loop
def _copy(source: FloatArray, target: FloatArray) -> None:  # pragma: no cover - compiled
    """Copy an array; an assignment would allocate, and take seconds to compile."""
    for i in range(len(source)):
        target[i] = source[i]


@kernel
def anneal_window(
    machine: Machine,
    before: PrefixSchedule,
    tails: Tails,
    window: Window,
    device: IntArray,
    begin: int,
    end: int,
    annealing: Annealing,
    draw: np.random.Generator,
) -> None:  # pragma: no cover - compiled
    """Anneal the ops at ``begin`` to ``end``; leave the best order and devices in the window."""
    _anneal(machine, before, tails, window, device, begin, end, annealing, draw)


@loop
def _anneal(
    m: Machine,
    before: PrefixSchedule,
    tails: Tails,
    w: Window,
    device: IntArray,
    begin: int,
    end: int,
    annealing: Annealing,
    draw: np.random.Generator,
) -> None:  # pragma: no cover - compiled
    """Do the work of :func:`anneal_window` without counting references."""
    width, n_devices = end - begin, len(m.lanes)
    mean = 0.0
    for i in range(width):
        mean += m.time_us[w.order[i], device[w.order[i]]]
    temperature = annealing.hot * max(mean / width, 1e-9)
    cooling = (annealing.cold / annealing.hot) ** (1.0 / max(1, annealing.rounds))
    current = best = np.inf
    for attempt in range(annealing.rounds + 1):  # attempt 0 only measures the start
        source = target = -1
        n_moved = 0
        if attempt > 0:
            temperature *= cooling
            i = draw_below(draw, width)
            kind = draw.random()
            if kind < SHIFTS:
                source, target = i, _new_place(m, w, i, begin, width, draw)
                if target == source:
                    continue
                _shift(w, source, target, begin)
            else:
                to = draw_below(draw, n_devices)
                if to == device[w.order[i]]:
                    continue
                limit = 1
                if kind >= SINGLES:
                    limit += draw_below(draw, int(np.int64(MOST_IN_BLOCK)))
                n_moved = _grow_block(m, w, device, w.order[i], limit, begin, end)
                n_moved = _add_units(m, w, n_moved, to, begin, end)
                if n_moved == 0:
                    continue
                for k in range(n_moved):
                    w.was_device[k] = device[w.block[k]]
                    device[w.block[k]] = to
        longest, mean_end = _simulate_window(m, before, tails, w, device, begin, end)
        energy = longest + annealing.spread * mean_end / n_devices
        # The spread rewards a move that shortens any device, though another decides the makespan.
        if energy <= current or draw.random() < np.exp((current - energy) / temperature):
            current = energy
            if energy < best - 1e-9:
                best = energy
                for i in range(width):
                    w.best_order[i], w.best_device[i] = w.order[i], device[w.order[i]]
            continue
        if source >= 0:
            _shift(w, target, source, begin)
        for k in range(n_moved):
            device[w.block[k]] = w.was_device[k]


@step
def _new_place(
    m: Machine, w: Window, i: int, begin: int, width: int, draw: np.random.Generator
) -> int:  # pragma: no cover - compiled
    """Draw another place in the window for an op, after its producers and before its consumers.

    Return its current place if there is no other, or if that is drawn.
    """
    op, low, high = w.order[i], 0, width - 1
    for k in range(m.in_ptr[op], m.in_ptr[op + 1]):
        low = max(low, w.position[m.tensor_op[m.in_tensor[k]]] - begin + 1)
    for k in range(m.out_ptr[op], m.out_ptr[op + 1]):
        high = min(high, w.position[m.edge_op[k]] - begin - 1)
    place = i
    if high > low:
        place = low + draw_below(draw, high - low + 1)
    return place


@step
def _shift(w: Window, source: int, target: int, begin: int) -> None:  # pragma: no cover - compiled
    """Move the op at one place of the window to another; those in between move by one."""
    op = w.order[source]
    by = 1 if target > source else -1
    k = source
    while k != target:
        w.order[k] = w.order[k + by]
        w.position[w.order[k]] = begin + k
        k += by
    w.order[target] = op
    w.position[op] = begin + target


@step
def _grow_block(
    m: Machine, w: Window, device: IntArray, op: int, limit: int, begin: int, end: int
) -> int:  # pragma: no cover - compiled
    """Choose up to ``limit`` ops around an op, connected on its device; return how many."""
    w.counts[BLOCKS] += 1
    w.block[0] = op
    w.in_block[op] = w.counts[BLOCKS]
    n, at = 1, 0
    while at < n and n < limit:
        node = w.block[at]
        at += 1
        for k in range(m.in_ptr[node], m.in_ptr[node + 1]):
            near = m.tensor_op[m.in_tensor[k]]
            if n < limit and device[near] == device[op] and _is_new(w, near, begin, end):
                n = _add(w, near, n)
        for k in range(m.out_ptr[node], m.out_ptr[node + 1]):
            near = m.edge_op[k]
            if n < limit and device[near] == device[op] and _is_new(w, near, begin, end):
                n = _add(w, near, n)
    return n


@step
def _is_new(w: Window, op: int, begin: int, end: int) -> bool:  # pragma: no cover - compiled
    """Whether an op is in the window and not yet in the block."""
    inside = begin <= w.position[op] < end
    return bool(inside and w.in_block[op] != w.counts[BLOCKS])


@step
def _add(w: Window, op: int, n: int) -> int:  # pragma: no cover - compiled
    """Add an op to the block; return the new number of ops."""
    w.in_block[op] = w.counts[BLOCKS]
    w.block[n] = op
    return n + 1


@step
def _add_units(
    m: Machine, w: Window, n: int, to: int, begin: int, end: int
) -> int:  # pragma: no cover - compiled
    """Extend a block of ``n`` ops to whole units; return how many ops it then has.

    0 if the block may not move to the device ``to``, or extends beyond the window.
    """
    movable = True
    for k in range(n):
        unit = m.unit[w.block[k]]
        movable &= m.allowed[unit, to]
        for i in range(m.unit_ptr[unit], m.unit_ptr[unit + 1]):
            other = m.member[i]
            if w.position[other] < begin or w.position[other] >= end:
                movable = False
            elif w.in_block[other] != w.counts[BLOCKS]:
                if n == len(w.block):
                    movable = False
                else:
                    n = _add(w, other, n)
    return n if movable else 0


@step
def _simulate_window(
    m: Machine,
    before: PrefixSchedule,
    tails: Tails,
    w: Window,
    device: IntArray,
    begin: int,
    end: int,
) -> tuple[float, float]:  # pragma: no cover - compiled
    """Simulate the window's ops; return the makespan, and the sum of the ends of all devices."""
    w.counts[TRIALS] += 1
    _copy(before.lane_free_us, w.lane_free_us)
    _copy(before.channel_free_us, w.channel_free_us)
    _copy(before.last_start_us, w.last_start_us)
    finish_us = before.timing.finish_us
    longest = 0.0
    for i in range(end - begin):
        op = w.order[i]
        d = device[op]
        ready = w.last_start_us[d]
        for k in range(m.in_ptr[op], m.in_ptr[op + 1]):
            ready = max(ready, _arrival_us(m, before, w, device, m.in_tensor[k], d, begin))
        lane = first_free(w.lane_free_us, m.lane_ptr[d], m.lane_end[d])
        start = max(ready, w.lane_free_us[lane])
        done = start + m.time_us[op, d]
        w.last_start_us[d] = start
        w.lane_free_us[lane] = done
        finish_us[op] = done
        for tensor in range(m.tensor_ptr[op], m.tensor_ptr[op + 1]):
            for edge in range(m.edge_ptr[tensor], m.edge_ptr[tensor + 1]):
                # Also for consumers beyond the window: what they wait for decides the makespan.
                user = m.edge_op[edge]
                there = done
                if device[user] != d:
                    there = _late_us(m, w, tensor, d, device[user], done)
                if w.position[user] >= end:
                    longest = max(longest, there + tails.op_us[user])
    sum_of_ends = 0.0
    for d in range(len(m.lanes)):
        lane = m.lane_ptr[d]
        longest = max(longest, w.lane_free_us[lane] + tails.lane_us[lane])
        sum_of_ends += w.lane_free_us[lane] + tails.lane_us[lane]
    for channel in range(m.n_channels):
        longest = max(longest, w.channel_free_us[channel] + tails.channel_us[channel])
    return longest, sum_of_ends


@step
def _arrival_us(
    m: Machine,
    before: PrefixSchedule,
    w: Window,
    device: IntArray,
    tensor: int,
    d: int,
    begin: int,
) -> float:  # pragma: no cover - compiled
    """Return when an input of the window is on a device; send it there if necessary."""
    maker = m.tensor_op[tensor]
    there = before.timing.finish_us[maker]
    if device[maker] != d:
        sent = w.late_of[tensor, d] != w.counts[TRIALS] and w.position[maker] < begin
        if sent and before.timing.arrival_us[tensor, d] >= 0.0:
            there = before.timing.arrival_us[tensor, d]
        else:
            there = _late_us(m, w, tensor, device[maker], d, there)
    return float(there)


@step
def _late_us(
    m: Machine, w: Window, tensor: int, home: int, to: int, made_us: float
) -> float:  # pragma: no cover - compiled
    """Return when a tensor arrives in this trial; send it at the first request."""
    if w.late_of[tensor, to] != w.counts[TRIALS]:
        w.late_us[tensor, to] = send(m, tensor, home, to, made_us, w.channel_free_us)[1]
        w.late_of[tensor, to] = w.counts[TRIALS]
    return float(w.late_us[tensor, to])
