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
- Baechi leaves the order of ops to TensorFlow; we take the better of two orders.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np
from numba import njit

from enplace.placing.candidates import best_that_fits, by_start_or_rank
from enplace.placing.list_schedule import (
    MEMORY_RULE,
    State,
    Work,
    begin,
    by_finish,
    count_memory,
    estimated_excess_bytes,
    inlined,
    prepare,
    ready_us,
    send,
    settle_units,
)
from enplace.placing.options import PlaceOptions
from enplace.placing.registry import placer
from enplace.placing.settle import natural_position
from enplace.placing.slots import Slots, empty_slots
from enplace.values.plan import Plan
from enplace.values.problem import BoolArray, Problem
from enplace.values.profile import FloatArray, IntArray

LOOK_S = 0.05
"""Time between two checks for cancellation."""


@placer(
    "m-etf",
    title="m-etf, Baechi",
    source="Baechi (SoCC 2020)",
    capabilities=("memory", "heterogeneous", "channels"),
    options=(MEMORY_RULE,),
)
def m_etf(problem: Problem, options: PlaceOptions) -> Plan:
    """Always start the op that can start first, on whichever device that is."""
    nobody = np.full(problem.profile.n_ops, -1, dtype=np.int64)

    def candidates(memory_share: float) -> Iterator[Plan]:
        device, start_us = earliest_first(problem, nobody, options, memory_share)
        return by_start_or_rank(problem, device, start_us, "m-etf")

    return best_that_fits(problem, candidates, options).plan


Heaps = list[list[tuple[float, int]]]


class Dispatch(NamedTuple):
    """The ready ops and the times at which devices are free, in addition to :class:`State`.

    Attributes
    ----------
    rank : int array, shape (n_ops,)
        Place of each leader in Kahn's order; ``work.order`` is its inverse.
    missing : int array, shape (n_ops,)
        Number of edges from producers that have not ended.
    out_ptr, out_op : int arrays
        Consumers of each op, one for each edge.
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
    out_ptr: IntArray
    out_op: IntArray
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
    work = prepare(
        problem,
        natural_position(problem),
        problem.unit,
        memory_share,
        allowed,
        options.choice(MEMORY_RULE),
    )
    state = begin(problem, work)
    rank = np.full(profile.n_ops, -1, dtype=np.int64)
    rank[work.order] = np.arange(len(work.order))
    leads = rank >= 0
    going = Dispatch(
        rank=rank,
        missing=np.bincount(profile.edge_op[leads[profile.edge_source]], minlength=profile.n_ops),
        out_ptr=profile.edge_ptr[profile.tensor_ptr],
        out_op=profile.edge_op,
        placed=np.zeros(profile.n_ops, dtype=bool),
        offered=np.zeros((profile.n_ops, cluster.n_devices), dtype=bool),
        lane_free_us=np.zeros(int(cluster.lanes.sum())),
        favourite=favourite,
        last=np.full(cluster.n_devices, -1, dtype=np.int64),
        wake_us=np.full(cluster.n_devices, np.inf),
    )
    stop = np.zeros(1, dtype=bool)
    # If devices wait for favourite children, a large graph takes seconds.
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(_earliest_first, work, state, going, stop)
        try:
            while not wait([running], LOOK_S).done:
                options.check_cancelled()
        finally:
            stop[0] = True
    running.result()
    options.check_cancelled()
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


@njit(cache=True, nogil=True)
def _earliest_first(
    work: Work, state: State, going: Dispatch, stop: BoolArray
) -> None:  # pragma: no cover - compiled
    """Place one op after another until none is left or ``stop[0]`` is set."""
    n_devices, now, left = len(work.capacity_bytes), 0.0, len(work.order)
    channels = empty_slots(len(state.channel_ready_us))
    waiting = [[(0.0, 0)][:0] for _ in range(n_devices)]
    arrived = [[0][:0] for _ in range(n_devices)]
    running = [(0.0, 0)][:0]
    for op in work.order:
        if going.missing[op] == 0:
            _offer(work, state, going, channels, waiting, op, now)
    while left > 0 and not stop[0]:
        while len(running) > 0 and running[0][0] <= now:
            _, done = heappop(running)
            for consumer in going.out_op[going.out_ptr[done] : going.out_ptr[done + 1]]:
                going.missing[consumer] -= 1
                if going.missing[consumer] == 0 and going.rank[consumer] >= 0:  # no follower
                    _offer(work, state, going, channels, waiting, consumer, now)
        op, device = -1, -1
        for d in range(n_devices):
            if _lane_of(work, going, d)[0] > now:
                continue
            while len(waiting[d]) > 0 and waiting[d][0][0] <= now:
                heappush(arrived[d], heappop(waiting[d])[1])
            found, stuck = _next_op(work, state, going, channels, waiting[d], arrived[d], d, now)
            if found >= 0 and (op < 0 or going.rank[found] < going.rank[op]):
                op, device = found, d
            if stuck:
                op, device = found, _least_exceeded(work, state, found)
                break
        if op >= 0:
            channels, finish = _run(work, state, going, channels, waiting, op, device, now)
            heappush(running, (finish, op))
            left -= 1
            continue
        now = running[0][0] if len(running) > 0 else np.inf
        for d in range(n_devices):
            free = _lane_of(work, going, d)[0]
            now = min(now, max(free, going.wake_us[d]))
            if len(waiting[d]) > 0:
                now = min(now, max(free, waiting[d][0][0]))


@inlined
def _lane_of(work: Work, going: Dispatch, device: int) -> tuple[float, int]:  # pragma: no cover
    """Return when a device is free, and which of its lanes is free first."""
    first = work.lane_ptr[device]
    lane = first + np.argmin(going.lane_free_us[first : work.lane_ptr[device + 1]])
    return going.lane_free_us[lane], lane


@inlined
def _inputs(work: Work, state: State, op: int) -> IntArray:  # pragma: no cover - compiled
    return by_finish(work, state, work.in_tensor[work.in_ptr[op] : work.in_ptr[op + 1]])


@njit(cache=True, nogil=True)
def _input_us(
    work: Work, state: State, channels: Slots, op: int, device: int
) -> float:  # pragma: no cover - compiled
    """Return when the inputs of an op could be on a device, with the channels as they are now."""
    return float(ready_us(work, state, channels, _inputs(work, state, op), device))


@njit(cache=True, nogil=True)
def _offer(
    work: Work, state: State, going: Dispatch, channels: Slots, waiting: Heaps, op: int, now: float
) -> None:  # pragma: no cover - compiled
    """Offer a ready op to every device that it may go to.

    A free op may have taken its unit to a CPU that the rest of the unit would not have chosen.
    """
    unit = work.unit[op]
    there = state.unit_device[unit]
    for device in range(len(work.capacity_bytes)):
        if device == there or (there < 0 and work.allowed[unit, device]):
            going.offered[op, device] = True
            ready = max(now, _input_us(work, state, channels, op, device))
            heappush(waiting[device], (ready, going.rank[op]))


@inlined
def _is_open(
    work: Work, state: State, going: Dispatch, op: int, device: int
) -> bool:  # pragma: no cover
    """Whether a ready op may still go to a device."""
    there = state.unit_device[work.unit[op]] in (-1, device)
    return there and going.offered[op, device] and not going.placed[op]


@njit(cache=True, nogil=True)
def _next_op(
    work: Work,
    state: State,
    going: Dispatch,
    channels: Slots,
    waiting: list[tuple[float, int]],
    arrived: list[int],
    device: int,
    now: float,
) -> tuple[int, bool]:  # pragma: no cover - compiled
    """Find the op that a free device starts now, or -1; also whether the op fits nowhere."""
    going.wake_us[device] = np.inf
    child = going.favourite[going.last[device]] if going.last[device] >= 0 else -1
    if child >= 0 and _is_awaited(work, state, going, channels, child, device, now):
        here = max(now, _input_us(work, state, channels, child, device))
        urgent, going.wake_us[device] = _urgent_op(
            work, state, going, channels, arrived, device, now, here
        )
        if urgent >= 0:
            return urgent, False
        if here <= now:
            return child, False
        return -1, False
    while len(arrived) > 0:
        op = work.order[arrived[0]]
        if _is_open(work, state, going, op, device):
            ready = _input_us(work, state, channels, op, device)
            excess = estimated_excess_bytes(work, state, op, _inputs(work, state, op), device)
            if ready <= now and excess == 0:
                return op, False
            if ready > now:
                heappush(waiting, (ready, going.rank[op]))
            else:
                going.offered[op, device] = False
        else:
            going.offered[op, device] = False
        heappop(arrived)
        if not going.placed[op] and not going.offered[op].any():
            return op, True
    return -1, False


@njit(cache=True, nogil=True)
def _is_awaited(
    work: Work, state: State, going: Dispatch, channels: Slots, child: int, device: int, now: float
) -> bool:  # pragma: no cover - compiled
    """Whether a favourite child is ready, fits on this device and can start first here."""
    if going.missing[child] > 0 or not _is_open(work, state, going, child, device):
        return False
    if estimated_excess_bytes(work, state, child, _inputs(work, state, child), device) > 0:
        return False
    here = max(now, _input_us(work, state, channels, child, device))
    for other in range(len(work.capacity_bytes)):
        if other != device and _is_open(work, state, going, child, other):
            free = max(now, _lane_of(work, going, other)[0])
            if max(free, _input_us(work, state, channels, child, other)) < here:
                return False
    return True


@njit(cache=True, nogil=True)
def _urgent_op(
    work: Work,
    state: State,
    going: Dispatch,
    channels: Slots,
    arrived: list[int],
    device: int,
    now: float,
    until: float,
) -> tuple[int, float]:  # pragma: no cover - compiled
    """Find the first op in Kahn's order that could start now wherever it may go, or else -1.

    Also return when the next such op will be able to start, ``until`` at the latest.
    """
    best, soonest = -1, until
    for rank in arrived:
        op = work.order[rank]
        if not _is_open(work, state, going, op, device):
            continue
        urgent_from = now
        for other in range(len(work.capacity_bytes)):
            if _is_open(work, state, going, op, other):
                urgent_from = max(urgent_from, _lane_of(work, going, other)[0])
        for other in range(len(work.capacity_bytes)):
            if urgent_from <= soonest and _is_open(work, state, going, op, other):
                there = _input_us(work, state, channels, op, other)
                urgent_from = max(urgent_from, there)
        if estimated_excess_bytes(work, state, op, _inputs(work, state, op), device) > 0:
            continue
        if urgent_from <= now and (best < 0 or rank < best):
            best = rank
        elif now < urgent_from < soonest:
            soonest = urgent_from
    return (work.order[best] if best >= 0 else -1), soonest


@njit(cache=True, nogil=True)
def _least_exceeded(work: Work, state: State, op: int) -> int:  # pragma: no cover - compiled
    """Find the device whose excess with an op is least."""
    unit, best, least = work.unit[op], -1, 0
    if state.unit_device[unit] >= 0:
        return int(state.unit_device[unit])
    for device in range(len(work.capacity_bytes)):
        if work.allowed[unit, device]:
            excess = estimated_excess_bytes(work, state, op, _inputs(work, state, op), device)
            if best < 0 or excess < least:
                best, least = device, excess
    return best


@njit(cache=True, nogil=True)
def _run(
    work: Work,
    state: State,
    going: Dispatch,
    channels: Slots,
    waiting: Heaps,
    op: int,
    device: int,
    now: float,
) -> tuple[Slots, float]:  # pragma: no cover - compiled
    """Place an op: send its inputs, take a lane and memory; return when it ends."""
    inputs = _inputs(work, state, op)
    settle_units(work, state, op, device)
    for tensor in inputs:
        # A free op whose leader comes later in time: the first op that needs it decides.
        unit = work.unit[work.tensor_op[tensor]]
        if state.unit_device[unit] < 0 and work.allowed[unit, device]:
            state.unit_device[unit] = device
            state.weights[device] += work.unit_bytes[unit]
    missing_here = state.arrival_us[:, device][inputs] < 0
    channels = send(work, state, channels, inputs, device)
    free, lane = _lane_of(work, going, device)
    start = max(now, free, ready_us(work, state, channels, inputs, device))
    finish = start + work.time_us[op, device]
    state.start_us[op], state.finish_us[op] = start, finish
    going.lane_free_us[lane] = finish
    going.placed[op], going.last[device] = True, op
    count_memory(work, state, op, inputs, device)
    # A tensor sent for one consumer may arrive sooner than another consumer expected.
    for tensor in inputs[missing_here]:
        if state.arrival_us[tensor, device] < 0:
            continue
        producer = work.tensor_op[tensor]
        for consumer in going.out_op[going.out_ptr[producer] : going.out_ptr[producer + 1]]:
            ready = going.missing[consumer] == 0 and going.rank[consumer] >= 0
            if ready and _is_open(work, state, going, consumer, device):
                sooner = max(now, _input_us(work, state, channels, consumer, device))
                heappush(waiting[device], (sooner, going.rank[consumer]))
    return channels, finish
