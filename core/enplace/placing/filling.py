"""Placements that fill memory as they go: ops in an order, each where it has room and ends early.

How much a device holds is known over the whole order: a tensor from the op that makes it to its
last reader there, a copy since the tensor was made, because it is sent at once. So an op that reads
a tensor of another device may lack room long before its own place in the order, and what is read
for the last time elsewhere makes room in the past. An op for which no device has room goes where
least is lacking. Devices run side by side, so what they hold at any one time is not quite what the
order says; that is why plans that fill less than all of the memory are tried, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from enplace.compiling import kernel, loop
from enplace.machine import simulate
from enplace.machine.layout import Machine, transfer_us
from enplace.placing.incumbents import Best
from enplace.placing.list_schedule import (
    PartialSchedule,
    Work,
    begin,
    prepare,
    settle_units,
    sort_inputs,
    unplaced_bytes,
)
from enplace.placing.moves.timeline import smooth_shares
from enplace.placing.options import PlaceOptions
from enplace.placing.settle import frugal_position, position_by_start
from enplace.values.arrays import BoolArray, IntArray
from enplace.values.plan import Plan
from enplace.values.problem import Problem
from enplace.values.schedule import Schedule

SHARES = (1.0, 0.95, 0.9, 0.85, 0.8)
"""Shares of the memory to fill, until the plan fits."""

SENDING = (1.0, 4.0, 0.5, 0.0)
"""Prices of sending: the multiples of its transfer times by which an op counts as ending later."""

DRAWS, DRAWN_SHARES, DRAWN_SENDING, NOISE = 60, (0.85, 1.02), (0.3, 8.0), 0.002
"""Plans that are drawn where memory is short, the limits of their shares and prices, and how far
ops move in the order, as a share of the step."""


class Held(NamedTuple):
    """What devices hold over an order, as differences, in a binary tree over its places.

    Attributes
    ----------
    total, most : int arrays, shape (n_devices, 2 * n_places)
        The sum of the differences below a node, and the largest sum of the first ones.
    place : int array, shape (n_ops,)
        Where each op is in the order; -1 if it is not placed, or there from the start.
    until : int array, shape (n_tensors, n_devices)
        The place of a tensor's last reader so far on each device; -1 if there is none.
    """

    total: IntArray
    most: IntArray
    place: IntArray
    until: IntArray


def fillings(problem: Problem, options: PlaceOptions) -> Iterator[Schedule]:
    """Yield placements that fill memory, those for each price of sending until one fits.

    Ops are in the order of time and, if memory is short, in one that holds few bytes at once, and
    at last in orders near that of the best plan so far, with prices and shares that are drawn.
    """
    best, is_short = Best[Schedule](), False
    for find_position in (_position_by_time, frugal_position):
        if options.stop():
            return
        position = find_position(problem)
        for sending in SENDING:
            for share in SHARES:
                fits = False
                for schedule in _fillings(problem, position, options, share, sending):
                    fits |= schedule.fits
                    best.offer(schedule)
                    yield schedule
                if fits:
                    break
                is_short = True
        if not is_short:
            return
    draw = np.random.default_rng(options.seed)
    for _ in range(DRAWS):
        if options.stop():
            return
        start_us = best.found.op_start_us
        start_us = start_us + draw.normal(0.0, NOISE * start_us.max(), len(start_us))
        share, sending = draw.uniform(*DRAWN_SHARES), np.exp(draw.uniform(*np.log(DRAWN_SENDING)))
        for schedule in _fillings(
            problem, position_by_start(problem, start_us), options, share, float(sending)
        ):
            best.offer(schedule)
            yield schedule


def _position_by_time(problem: Problem) -> IntArray:
    return position_by_start(problem, smooth_shares(problem))


def _fillings(
    problem: Problem, position: IntArray, options: PlaceOptions, share: float, sending: float
) -> Iterator[Schedule]:
    """Yield what fills memory in one order, unless time is up."""
    if options.stop():
        return
    device = fill(problem, position, options, share, sending)
    plan = Plan(device, position, "enplace", links="fifo", splits=problem.splits)
    for policy in ("strict", "priority"):
        yield simulate(problem, replace(plan, policy=policy))


def fill(
    problem: Problem, position: IntArray, options: PlaceOptions, share: float, sending: float
) -> IntArray:
    """Place ops in an order, each where it has room and ends early.

    Parameters
    ----------
    position : int array, shape (n_ops,)
        A topological order.
    share : float
        How much of each device's memory to fill.
    sending : float
        See :data:`SENDING`.

    Returns
    -------
    int array, shape (n_ops,)
        The device of each op.

    Raises
    ------
    CancelledError
        If cancelled.
    """
    machine, work = prepare(problem, position, problem.unit, share)
    state = begin(machine, work)
    n_places = 1 << (len(work.order) + 1).bit_length()
    shape = problem.cluster.n_devices, 2 * n_places
    held = Held(
        np.zeros(shape, np.int64),
        np.zeros(shape, np.int64),
        np.full(problem.profile.n_ops, -1),
        np.full((len(machine.tensor_op), problem.cluster.n_devices), -1),
    )
    stop = options.stop
    stop.interrupt_if_cancelled(lambda flag: _fill(machine, work, state, held, sending, flag))
    return state.unit_device[problem.unit]


@kernel
def _fill(
    m: Machine, w: Work, s: PartialSchedule, held: Held, sending: float, stop: BoolArray
) -> None:  # pragma: no cover - compiled
    """Place each leader, until none is left or ``stop[0]`` is set."""
    scratch, free_us = s.inputs, np.zeros(len(m.lanes))
    for device in range(len(m.lanes)):
        _add(held, device, 0, s.weights[device])
    for place in range(len(w.order)):
        if stop[0]:
            break
        op = w.order[place]
        inputs = scratch[: sort_inputs(m, s, op)]
        there, best, least_lacking, least_us = s.unit_device[m.unit[op]], -1, 0, np.inf
        for device in range(len(m.lanes)):
            if m.allowed[m.unit[op], device] and (there < 0 or there == device):
                ready_us, sent_us = _ready(m, s, inputs, device)
                end_us = max(ready_us, free_us[device]) + m.time_us[op, device]
                end_us += sending * sent_us
                lacking = _lacking_bytes(m, w, s, held, op, place, inputs, device)
                better = lacking < least_lacking or (lacking == least_lacking and end_us < least_us)
                if best < 0 or better:
                    best, least_lacking, least_us = device, lacking, end_us
        weights = s.weights[best]
        settle_units(m, w, s, op, best)
        _add(held, best, 0, s.weights[best] - weights)
        start_us = max(_ready(m, s, inputs, best)[0], free_us[best])
        s.finish_us[op] = start_us + m.time_us[op, best]
        free_us[best] = start_us + m.time_us[op, best] / m.lanes[best]
        _hold(m, w, s, held, op, place, inputs, best)


@loop
def _ready(
    m: Machine, s: PartialSchedule, inputs: IntArray, device: int
) -> tuple[float, float]:  # pragma: no cover - compiled
    """Return when inputs that are sent at once are on a device, and how long sending them takes.

    What was sent before, for another op, takes no longer.
    """
    ready_us, sent_us = 0.0, 0.0
    for tensor in inputs:
        producer = m.tensor_op[tensor]
        origin, there_us = s.unit_device[m.unit[producer]], s.finish_us[producer]
        if origin >= 0 and origin != device:
            cost_us = transfer_us(m, m.tensor_bytes[tensor], origin, device)
            there_us += cost_us
            if s.arrival_us[tensor, device] < 0:
                sent_us += cost_us
        ready_us = max(ready_us, there_us)
    return ready_us, sent_us


@loop
def _add(held: Held, device: int, place: int, n_bytes: int) -> None:  # pragma: no cover - compiled
    """Let a device hold more from a place in the order on."""
    total, most = held.total[device], held.most[device]
    node = len(total) // 2 + place
    total[node] += n_bytes
    most[node] = total[node]
    while node > 1:
        node //= 2
        total[node] = total[2 * node] + total[2 * node + 1]
        most[node] = max(most[2 * node], total[2 * node] + most[2 * node + 1])


@loop
def _most_since(held: Held, device: int, place: int) -> int:  # pragma: no cover - compiled
    """Return the most that a device holds at a place in the order or after it."""
    total, most = held.total[device], held.most[device]
    node = len(total) // 2 + place
    found = most[node]
    while node > 1:
        if node % 2:
            found += total[node - 1]
        else:
            found = max(found, total[node] + most[node + 1])
        node //= 2
    return int(found)


@loop
def _copied_since(
    m: Machine, s: PartialSchedule, held: Held, tensor: int, device: int
) -> int:  # pragma: no cover - compiled
    """Return the place since which a reader on a device needs a further copy; -1 if none."""
    producer = m.tensor_op[tensor]
    origin = s.unit_device[m.unit[producer]]
    if origin < 0 or origin == device:
        return -1
    return int(max(held.place[producer], held.until[tensor, device]) + 1)


@loop
def _lacking_bytes(
    m: Machine,
    w: Work,
    s: PartialSchedule,
    held: Held,
    op: int,
    place: int,
    inputs: IntArray,
    device: int,
) -> int:  # pragma: no cover - compiled
    """Return how much memory an op, its inputs and its followers lack on a device at the worst."""
    weights, first = unplaced_bytes(m, w, s, op), place
    for tensor in inputs:
        since = _copied_since(m, s, held, tensor, device)
        if since >= 0:
            first = min(first, since)
            _add(held, device, since, m.copy_bytes[tensor])
    needed = _most_since(held, device, place) + w.output_bytes[op] + m.temporary_bytes[op]
    needed = weights + max(needed, _most_since(held, device, 0 if weights > 0 else first))
    for tensor in inputs:
        since = _copied_since(m, s, held, tensor, device)
        if since >= 0:
            _add(held, device, since, -m.copy_bytes[tensor])
    return int(max(0, needed - m.capacity_bytes[device]))


@loop
def _hold(
    m: Machine,
    w: Work,
    s: PartialSchedule,
    held: Held,
    op: int,
    place: int,
    inputs: IntArray,
    device: int,
) -> None:  # pragma: no cover - compiled
    """Hold what an op makes and the copies that it reads, and free what is no longer needed."""
    held.place[op] = place
    _add(held, device, place, m.temporary_bytes[op])
    _add(held, device, place + 1, -m.temporary_bytes[op])
    for tensor in range(m.tensor_ptr[op], m.tensor_ptr[op + 1]):
        held.until[tensor, device] = place
        _add(held, device, place, m.held_bytes[tensor])
        if s.uses_left[tensor] == 0:
            _add(held, device, place + 1, -m.held_bytes[tensor])
    for tensor in inputs:
        since = _copied_since(m, s, held, tensor, device)
        if 0 <= since <= place:
            _add(held, device, since, m.copy_bytes[tensor])
            _add(held, device, place + 1, -m.copy_bytes[tensor])
            s.arrival_us[tensor, device] = 0.0
        held.until[tensor, device] = place
        _use(m, w, s, held, tensor)
    for at in range(w.until_ptr[op], w.until_ptr[op + 1]):
        tensor = w.until_tensor[at]
        held.until[tensor, s.unit_device[m.unit[m.tensor_op[tensor]]]] = place
        _use(m, w, s, held, tensor)


@loop
def _use(
    m: Machine, w: Work, s: PartialSchedule, held: Held, tensor: int
) -> None:  # pragma: no cover - compiled
    """Count one use of a tensor; after the last one, its device has held it until its own last.

    Then that is a use less of the tensor in whose memory it lies.
    """
    while tensor >= 0:
        s.uses_left[tensor] -= 1
        if s.uses_left[tensor] > 0:
            return
        home, base = s.unit_device[m.unit[m.tensor_op[tensor]]], m.tensor_base[tensor]
        until = held.until[tensor, home]
        if not w.tensor_stays[tensor]:
            _add(held, home, until + 1, -m.held_bytes[tensor])
        if base >= 0:
            held.until[base, home] = max(held.until[base, home], until)
        tensor = base
