"""Baechi's m-etf: the earliest task first (Hwang et al. 1989), within memory.

Whenever a device is free, it starts the ready op that is first in Kahn's order among those whose
inputs have arrived. Of several free devices, the one with the earliest such op goes first; ties go
to the first device. With favourite children, this is m-sct: see
:mod:`enplace.placers.baechi.m_sct`. Where Baechi and the machine model differ, this is what we do:

- CPUs are not candidates for ops that may run on a GPU, because the rule compares starts, not ends.
- Inputs take the channels of their link, once for each tensor and destination. In a cluster where
  all links of a device share one channel, devices are half-duplex, as in Baechi.
- Free ops (constants, variables) are placed with the first op that needs them, and the first op of
  a placement unit decides for all.
- Outputs are freed with their last consumer, as in Baechi. A device cannot take an op that does not
  fit; an op that fits on no device goes where the excess is least. If the simulated step does not
  fit, ops are placed again for less memory.
- Baechi leaves the order of ops to the framework; we take the better of two orders.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np

from enplace.compiling import helper, kernel, loop, step
from enplace.machine.layout import Machine
from enplace.placing.candidates import best_that_fits, by_start_or_rank
from enplace.placing.list_schedule import (
    MEMORY_RULE,
    PartialSchedule,
    Work,
    begin,
    count_memory,
    estimated_excess_bytes,
    prepare,
    ready_us,
    send,
    settle_units,
    sort_inputs,
)
from enplace.placing.moves.order import first_free
from enplace.placing.options import PlaceOptions
from enplace.placing.registry import CHANNELS, HETEROGENEOUS, MEMORY, placer
from enplace.placing.settle import natural_position
from enplace.placing.slots import Slots, empty_slots
from enplace.values.plan import Plan
from enplace.values.problem import BoolArray, Problem
from enplace.values.profile import FloatArray, IntArray


@placer(
    "m-etf",
    title="m-etf, Baechi",
    good=(
        "When you want a plan at once and links are fast: it is then close to heft. It never "
        "waits for a better device, so behind one shared switch its step may be several times "
        "longer than the best."
    ),
    source="Baechi (SoCC 2020)",
    capabilities=(MEMORY, HETEROGENEOUS, CHANNELS),
    options=(MEMORY_RULE,),
)
def m_etf(problem: Problem, options: PlaceOptions) -> Plan:
    """Always start the op that can start first, on whichever device that is."""
    nobody = np.full(problem.profile.n_ops, -1, dtype=np.int64)

    def candidates(memory_share: float) -> Iterator[Plan]:
        device, start_us = earliest_first(problem, nobody, options, memory_share)
        return by_start_or_rank(problem, device, start_us, "m-etf")

    return best_that_fits(problem, candidates, options).plan


Heap = list[tuple[float, int]]
"""Times and ranks, the earliest first."""


class Dispatch(NamedTuple):
    """The ready ops and the times at which devices are free, on top of a partial schedule.

    Attributes
    ----------
    rank : int array, shape (n_ops,)
        Place of each leader in Kahn's order; ``work.order`` is its inverse.
    missing : int array, shape (n_ops,)
        Number of edges from producers that have not ended.
    placed : bool array, shape (n_ops,)
    offered : bool array, shape (n_ops, n_devices)
        Whether a device may still take a ready op.
    lane_free_us : float array, shape (n_lanes,)
    favourite : int array, shape (n_ops,)
        Favourite child of each op, or -1.
    last : int array, shape (n_devices,)
        The op that each device ran last, or -1.
    wake_us : float array, shape (n_devices,)
        Until when a device waits for a favourite child; inf if it waits for none.
    """

    rank: IntArray
    missing: IntArray
    placed: BoolArray
    offered: BoolArray
    lane_free_us: FloatArray
    favourite: IntArray
    last: IntArray
    wake_us: FloatArray


def earliest_first(
    problem: Problem, favourite: IntArray, options: PlaceOptions, memory_share: float = 1.0
) -> tuple[IntArray, FloatArray]:
    """Place ops in the order in which they can start.

    Parameters
    ----------
    favourite : int array, shape (n_ops,)
        The consumer that an op's device waits for, or -1.
    options : PlaceOptions
        Their memory rule applies; cancelling them stops the search.
    memory_share : float
        How much of each device's memory may be used.

    Returns
    -------
    device, start_us : arrays, shape (n_ops,)
        The placement, and when each op starts in the schedule built with it.

    Raises
    ------
    CancelledError
        If cancelled.
    """
    profile, cluster = problem.profile, problem.cluster
    allowed = _gpus_first(problem)[problem.unit]
    machine, work = prepare(
        problem,
        natural_position(problem),
        problem.unit,
        memory_share,
        allowed,
        options.choice(MEMORY_RULE),
    )
    state = begin(machine, work)
    rank = np.full(profile.n_ops, -1, dtype=np.int64)
    rank[work.order] = np.arange(len(work.order))
    leads = rank >= 0
    dispatch = Dispatch(
        rank=rank,
        missing=np.bincount(profile.edge_op[leads[profile.edge_source]], minlength=profile.n_ops),
        placed=np.zeros(profile.n_ops, dtype=bool),
        offered=np.zeros((profile.n_ops, cluster.n_devices), dtype=bool),
        lane_free_us=np.zeros(int(cluster.lanes.sum())),
        favourite=favourite,
        last=np.full(cluster.n_devices, -1, dtype=np.int64),
        wake_us=np.full(cluster.n_devices, np.inf),
    )
    options.stop.interrupt_if_cancelled(
        lambda flag: _earliest_first(machine, work, state, dispatch, flag)
    )
    return state.unit_device[problem.unit], state.start_us


def _gpus_first(problem: Problem) -> BoolArray:
    """Return where units may go, without CPUs if they may go to a GPU; (n_units, n_devices)."""
    allowed = problem.unit_allowed.copy()
    some_gpu = allowed[:, problem.cluster.gpus].any(axis=1)
    for cpu in problem.cluster.cpus:
        allowed[some_gpu, cpu] = False
    return allowed


# A device has two heaps. `waiting` holds (time, rank) of ops whose inputs arrive no earlier than
# that; `arrived` holds ranks of those whose time has come. Both may hold ops that have been placed
# since, and channels may have filled up, so an op is checked again when it reaches the top.


class _Run(NamedTuple):
    """What all steps share, and the two heaps of each device."""

    m: Machine
    w: Work
    s: PartialSchedule
    dispatch: Dispatch
    waiting: list[Heap]
    arrived: list[list[int]]


@kernel
def _earliest_first(
    m: Machine, w: Work, s: PartialSchedule, dispatch: Dispatch, stop: BoolArray
) -> None:  # pragma: no cover - compiled
    """Place one op after another until none is left or ``stop[0]`` is set."""
    n_devices, now, left = len(dispatch.last), 0.0, len(w.order)
    channels = empty_slots(len(s.channel_ready_us))
    waiting = [[(0.0, 0)][:0] for _ in range(n_devices)]
    arrived = [[0][:0] for _ in range(n_devices)]
    running = [(0.0, 0)][:0]
    run = _Run(m, w, s, dispatch, waiting, arrived)
    for op in w.order:
        _offer_if_ready(run, channels, op, now)
    while left > 0 and not stop[0]:
        while len(running) > 0 and running[0][0] <= now:
            _end_op(run, channels, heappop(running)[1], now)
        op, device = _choose(run, channels, now)
        if op >= 0:
            channels, finish = _place(run, channels, op, device, now)
            heappush(running, (finish, op))
            left -= 1
        else:
            now = running[0][0] if len(running) > 0 else np.inf
            now = _next_us(run, now)


@loop
def _end_op(run: _Run, channels: Slots, op: int, now: float) -> None:  # pragma: no cover - compiled
    """Count an op as done for its consumers, and offer those that are ready."""
    m, dispatch = run.m, run.dispatch
    for edge in range(m.out_ptr[op], m.out_ptr[op + 1]):
        consumer = m.edge_op[edge]
        dispatch.missing[consumer] -= 1
        if dispatch.rank[consumer] >= 0:  # no follower
            _offer_if_ready(run, channels, consumer, now)


@loop
def _choose(
    run: _Run, channels: Slots, now: float
) -> tuple[int, int]:  # pragma: no cover - compiled
    """Choose the op that starts now and its device, or else return -1 twice."""
    dispatch, waiting = run.dispatch, run.waiting
    op, device = -1, -1
    for d in range(len(run.m.lanes)):
        if dispatch.lane_free_us[_first_lane(run, d)] > now:
            continue
        while _is_due(waiting, d, now):
            _push_rank(run.arrived, d, _pop(waiting, d))
        found, stuck = _next_op(run, channels, d, now)
        if found >= 0 and (op < 0 or dispatch.rank[found] < dispatch.rank[op]):
            op, device = found, d
        if stuck:
            op, device = found, _least_exceeded(run, found)
            break
    return op, device


@loop
def _next_us(run: _Run, until_us: float) -> float:  # pragma: no cover - compiled
    """Return when a device may next start an op, ``until_us`` at the latest."""
    dispatch = run.dispatch
    soonest = until_us
    for d in range(len(run.m.lanes)):
        free = dispatch.lane_free_us[_first_lane(run, d)]
        soonest = min(soonest, max(free, min(dispatch.wake_us[d], _first_us(run.waiting, d))))
    return soonest


# Loops cannot read lists themselves.


@helper
def _push(heaps: list[Heap], device: int, us: float, rank: int) -> None:  # pragma: no cover
    """Add an op to those whose inputs arrive no earlier than a time."""
    heappush(heaps[device], (us, rank))


@helper
def _pop(heaps: list[Heap], device: int) -> int:  # pragma: no cover - compiled
    """Remove a device's earliest entry; return its rank."""
    return heappop(heaps[device])[1]


@helper
def _is_due(heaps: list[Heap], device: int, now: float) -> bool:  # pragma: no cover - compiled
    """Whether the time of a device's earliest entry has come."""
    return len(heaps[device]) > 0 and heaps[device][0][0] <= now


@helper
def _first_us(heaps: list[Heap], device: int) -> float:  # pragma: no cover - compiled
    """Return the time of a device's earliest entry, or inf if there is none."""
    return heaps[device][0][0] if len(heaps[device]) > 0 else np.inf


@helper
def _push_rank(heaps: list[list[int]], device: int, rank: int) -> None:  # pragma: no cover
    """Add an op to those whose time has come."""
    heappush(heaps[device], rank)


@helper
def _pop_rank(heaps: list[list[int]], device: int) -> int:  # pragma: no cover - compiled
    """Remove a device's lowest rank and return it."""
    return heappop(heaps[device])


@helper
def _first_rank(heaps: list[list[int]], device: int) -> int:  # pragma: no cover - compiled
    """Return a device's lowest rank, or -1 if there is none."""
    return heaps[device][0] if len(heaps[device]) > 0 else -1


@helper
def _rank_at(heaps: list[list[int]], device: int, at: int) -> int:  # pragma: no cover - compiled
    """Return an entry of a device's heap, or -1 after the last."""
    return heaps[device][at] if at < len(heaps[device]) else -1


@step
def _first_lane(run: _Run, device: int) -> int:  # pragma: no cover - compiled
    """Return the lane of a device that is free first."""
    w = run.w
    return first_free(run.dispatch.lane_free_us, w.lane_ptr[device], w.lane_ptr[device + 1])


@loop
def _input_us(
    run: _Run, channels: Slots, op: int, device: int
) -> float:  # pragma: no cover - compiled
    """Return when the inputs of an op could be on a device, with the channels as they are now."""
    m, s = run.m, run.s
    n_inputs = sort_inputs(m, s, op)
    return ready_us(m, s, channels, s.inputs[:n_inputs], device)


@loop
def _find_op_excess(run: _Run, op: int, device: int) -> int:  # pragma: no cover - compiled
    """Estimate by how much a device would exceed its memory with an op."""
    m, s = run.m, run.s
    n_inputs = sort_inputs(m, s, op)
    return estimated_excess_bytes(m, run.w, s, op, s.inputs[:n_inputs], device)


@loop
def _offer_if_ready(
    run: _Run, channels: Slots, op: int, now: float
) -> None:  # pragma: no cover - compiled
    """Offer an op, if it is ready, to every device that it may go to.

    A free op may have taken its unit to a CPU that the rest of the unit would not have chosen.
    """
    m, dispatch = run.m, run.dispatch
    unit = m.unit[op]
    there = run.s.unit_device[unit]
    for device in range(len(m.lanes)):
        may = device == there or (there < 0 and m.allowed[unit, device])
        if may and dispatch.missing[op] == 0:
            dispatch.offered[op, device] = True
            ready = max(now, _input_us(run, channels, op, device))
            _push(run.waiting, device, ready, dispatch.rank[op])


@step
def _is_open(run: _Run, op: int, device: int) -> bool:  # pragma: no cover - compiled
    """Whether a ready op may still go to a device."""
    dispatch = run.dispatch
    there = run.s.unit_device[run.m.unit[op]]
    free = there < 0 or there == device
    return free and dispatch.offered[op, device] and not dispatch.placed[op]


@loop
def _next_op(
    run: _Run, channels: Slots, device: int, now: float
) -> tuple[int, bool]:  # pragma: no cover - compiled
    """Find the op that a free device starts now, or -1; also whether the op fits nowhere."""
    dispatch, arrived = run.dispatch, run.arrived
    dispatch.wake_us[device] = np.inf
    child = dispatch.favourite[dispatch.last[device]] if dispatch.last[device] >= 0 else -1
    if child >= 0 and _is_awaited(run, channels, child, device, now):
        here = max(now, _input_us(run, channels, child, device))
        urgent, wake_us = _urgent_op(run, channels, device, now, here)
        dispatch.wake_us[device] = wake_us
        if urgent < 0 and here <= now:
            urgent = child
        return urgent, False
    # Entries may be outdated: the op may be placed, its inputs later or the memory full by now.
    rank = _first_rank(arrived, device)
    while rank >= 0:
        op = run.w.order[rank]
        if _is_open(run, op, device):
            ready = _input_us(run, channels, op, device)
            excess = _find_op_excess(run, op, device)
            if ready <= now and excess == 0:
                return op, False
            if ready > now:
                _push(run.waiting, device, ready, dispatch.rank[op])
            else:
                dispatch.offered[op, device] = False
        else:
            dispatch.offered[op, device] = False
        _pop_rank(arrived, device)
        if not dispatch.placed[op] and not _is_offered(run, op):
            return op, True
        rank = _first_rank(arrived, device)
    return -1, False


@step
def _is_offered(run: _Run, op: int) -> bool:  # pragma: no cover - compiled
    """Whether some device may still take an op."""
    offered = False
    for device in range(len(run.m.lanes)):
        offered |= run.dispatch.offered[op, device]
    return offered


@loop
def _is_awaited(
    run: _Run, channels: Slots, child: int, device: int, now: float
) -> bool:  # pragma: no cover - compiled
    """Whether a favourite child is ready, fits on this device and can start first here."""
    dispatch = run.dispatch
    if dispatch.missing[child] > 0 or not _is_open(run, child, device):
        return False
    if _find_op_excess(run, child, device) > 0:
        return False
    here = max(now, _input_us(run, channels, child, device))
    for other in range(len(run.m.lanes)):
        if other != device and _is_open(run, child, other):
            free = max(now, dispatch.lane_free_us[_first_lane(run, other)])
            if max(free, _input_us(run, channels, child, other)) < here:
                return False
    return True


@loop
def _urgent_op(
    run: _Run, channels: Slots, device: int, now: float, until: float
) -> tuple[int, float]:  # pragma: no cover - compiled
    """Find the first op in Kahn's order that could start now wherever it may go, or else -1.

    Also return when the next such op will be able to start, ``until`` at the latest.
    """
    m, w, arrived = run.m, run.w, run.arrived
    best, soonest = -1, until
    # All ops whose time has come, in the heap's own order, which is cheaper than sorting them.
    at, rank = 0, _first_rank(arrived, device)
    while rank >= 0:
        op, this = w.order[rank], rank
        at += 1
        rank = _rank_at(arrived, device, at)
        if not _is_open(run, op, device):
            continue
        urgent_from = now
        for other in range(len(m.lanes)):
            if _is_open(run, op, other):
                free = run.dispatch.lane_free_us[_first_lane(run, other)]
                urgent_from = max(urgent_from, free)
        # Arrivals are costly to find, so an op that cannot matter any more is given up early.
        for other in range(len(m.lanes)):
            if urgent_from <= soonest and _is_open(run, op, other):
                urgent_from = max(urgent_from, _input_us(run, channels, op, other))
        if _find_op_excess(run, op, device) > 0:
            continue
        if urgent_from <= now and (best < 0 or this < best):
            best = this
        elif now < urgent_from < soonest:
            soonest = urgent_from
    return (w.order[best] if best >= 0 else -1), soonest


@loop
def _least_exceeded(run: _Run, op: int) -> int:  # pragma: no cover - compiled
    """Find the device whose excess with an op is least."""
    m, s = run.m, run.s
    unit, best, least = m.unit[op], -1, 0
    if s.unit_device[unit] >= 0:
        return int(s.unit_device[unit])
    for device in range(len(m.lanes)):
        if m.allowed[unit, device]:
            excess = _find_op_excess(run, op, device)
            if best < 0 or excess < least:
                best, least = device, excess
    return best


@helper
def _place(
    run: _Run, channels: Slots, op: int, device: int, now: float
) -> tuple[Slots, float]:  # pragma: no cover - compiled
    """Place an op: send its inputs, take a lane and memory; return when it ends."""
    m, w, s = run.m, run.w, run.s
    n_inputs = sort_inputs(m, s, op)
    # A copy, because offering other ops sorts their inputs in the same scratch array.
    inputs = s.inputs[:n_inputs].copy()
    settle_units(m, w, s, op, device)
    was_sent = np.empty(n_inputs, np.bool_)
    _settle_inputs(run, inputs, device, was_sent)
    channels = send(m, w, s, channels, inputs, device)
    finish = _start(run, channels, op, inputs, device, now)
    _offer_sooner(run, channels, inputs, was_sent, device, now)
    return channels, finish


@loop
def _settle_inputs(
    run: _Run, inputs: IntArray, device: int, was_sent: BoolArray
) -> None:  # pragma: no cover - compiled
    """Place the free ops among the makers of some inputs; find which inputs have been sent.

    If the leader of a free op comes later in time, the first op that needs it decides.
    """
    m, s = run.m, run.s
    for i in range(len(inputs)):
        unit = m.unit[m.tensor_op[inputs[i]]]
        if s.unit_device[unit] < 0 and m.allowed[unit, device]:
            s.unit_device[unit] = device
            s.weights[device] += run.w.unit_bytes[unit]
        was_sent[i] = s.arrival_us[inputs[i], device] >= 0


@loop
def _start(
    run: _Run, channels: Slots, op: int, inputs: IntArray, device: int, now: float
) -> float:  # pragma: no cover - compiled
    """Start an op whose inputs have been sent; return when it ends."""
    m, s, dispatch = run.m, run.s, run.dispatch
    lane = _first_lane(run, device)
    ready = ready_us(m, s, channels, inputs, device)
    start = max(now, dispatch.lane_free_us[lane], ready)
    finish = start + m.time_us[op, device]
    s.start_us[op], s.finish_us[op] = start, finish
    dispatch.lane_free_us[lane] = finish
    dispatch.placed[op], dispatch.last[device] = True, op
    count_memory(m, run.w, s, op, inputs, device)
    return float(finish)


@loop
def _offer_sooner(
    run: _Run, channels: Slots, inputs: IntArray, was_sent: BoolArray, device: int, now: float
) -> None:  # pragma: no cover - compiled
    """Offer consumers of what was just sent again: it may arrive sooner than they expected."""
    m, dispatch = run.m, run.dispatch
    for i in range(len(inputs)):
        tensor = inputs[i]
        if was_sent[i] or run.s.arrival_us[tensor, device] < 0:
            continue
        producer = m.tensor_op[tensor]
        for edge in range(m.out_ptr[producer], m.out_ptr[producer + 1]):
            consumer = m.edge_op[edge]
            ready = dispatch.missing[consumer] == 0 and dispatch.rank[consumer] >= 0
            if ready and _is_open(run, consumer, device):
                sooner = max(now, _input_us(run, channels, consumer, device))
                _push(run.waiting, device, sooner, dispatch.rank[consumer])
