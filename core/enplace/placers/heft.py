"""HEFT: insertion-based list scheduling (Topcuoglu, Hariri and Wu 2002).

Ops are taken by upward rank; each goes to the device, and into the first gap there, where it ends
earliest. Beyond the paper, as the machine model demands:

- Transfers occupy the channels of their link, once for each tensor and destination, in the first
  gap that all channels of the link share.
- Free ops (constants, variables) are placed with the op they follow, and the first op of a
  placement unit decides for all. What may be on one device only is there from the start.
- Ops that take no time need no gap.
- The mean transfer of the ranks is over the pairs of GPUs, which carry nearly all of them.
- A device counts as full when its variables plus the highest running estimate of live tensors
  exceed its memory. The estimate frees a tensor once its last consumer is placed. An op for which
  all devices are full goes where the least is lacking. If the simulated step does not fit all the
  same, the work is done again with less memory to go by.
- Taking one op at a time, HEFT does not see that a weight matrix, or a sum of gradients, will draw
  many later ops to its device. So it is also run with heavy edges tied, and with ranks that count
  no transfers; the plan whose simulated step is shortest wins.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from enplace.coarsen import find_leaders, tie_heavy_edges
from enplace.placers.registry import PlaceOptions, placer
from enplace.placers.settle import (
    arranged,
    best_of,
    by_placed_rank,
    is_better,
    is_enough,
    mean_rank_us,
    position_by,
    report,
)
from enplace.placers.slots import Slots, all_free_from, empty_slots, free_from, occupy
from enplace.plan import Plan
from enplace.problem import BoolArray, Problem
from enplace.profile import FloatArray, IntArray
from enplace.schedule import Schedule
from enplace.simulate import simulate

VARIANTS = (
    (1.0, None),
    (0.0, None),
    (1.0, (1.0, 1.0)),
    (1.0, (0.0, 1.0)),
    (1.0, (0.0, 0.25)),
    (1.0, (0.0, 2.0)),
)
"""Share of the mean transfers in the rank (the paper's 1, or none), and which edges are tied: none,
or their ratio and their limit as a share of a GPU's even load."""

MEMORY_SHARES = (1.0, 0.85, 0.7, 0.55)
"""Memory to go by, as a share of the real one: less than all of it only if a step does not fit."""


@placer(
    "heft",
    title="HEFT, list scheduling",
    source="Topcuoglu, Hariri and Wu (TPDS 2002)",
    capabilities=("memory", "heterogeneous", "channels"),
)
def heft(problem: Problem, options: PlaceOptions) -> Plan:
    """Schedule ops by upward rank where they end earliest; the best of a few variants."""
    best = _improved(problem, *VARIANTS[0], None, options)
    for link_weight, tie in VARIANTS[1:]:
        if is_enough(best, options):
            break
        best = _improved(problem, link_weight, tie, best, options)
    orders = arranged(problem, best.plan.device, best.plan.position, "heft")
    return best_of(problem, orders, options, best).plan


def _improved(
    problem: Problem,
    link_weight: float,
    tie: tuple[float, float] | None,
    best: Schedule | None,
    options: PlaceOptions,
) -> Schedule:
    """Try a variant, with ever less memory for as long as its step is short but does not fit."""
    n_gpus = len(problem.cluster.gpus)
    unit = problem.unit if tie is None else tie_heavy_edges(problem, tie[0], tie[1] / n_gpus)
    rank_us = mean_rank_us(problem, link_weight)
    for share in MEMORY_SHARES:
        device, start_us = list_schedule(problem, rank_us, unit, share)
        orders = (position_by(problem, start_us), by_placed_rank(problem, device))
        plans = [Plan(device.copy(), order, "heft", links="priority") for order in orders]
        schedules = [simulate(problem, plan) for plan in plans]
        found = min(schedules, key=lambda schedule: schedule.makespan_us)
        if best is None or is_better(found, best):
            best = found
            report(best, options)
        if options.stopped or (found.makespan_us >= best.makespan_us and best.fits):
            break
    assert best is not None
    return best


_inlined = njit(nogil=True, inline="always")
"""A call that passes the tuples below counts every array's references; inlining saves a third."""


class Work(NamedTuple):
    """What the kernel reads: the leaders in order, their followers, the graph and the machine."""

    order: IntArray
    follower: IntArray
    follower_ptr: IntArray
    time_us: FloatArray
    unit: IntArray
    allowed: BoolArray
    in_ptr: IntArray
    in_tensor: IntArray
    tensor_uses: IntArray
    tensor_op: IntArray
    tensor_bytes: IntArray
    tensor_stays: BoolArray
    output_bytes: IntArray
    temporary_bytes: IntArray
    unit_bytes: IntArray
    capacity_bytes: IntArray
    lane_ptr: IntArray
    route_ptr: IntArray
    route: IntArray
    b0_us: FloatArray
    b1_us_per_byte: FloatArray


class State(NamedTuple):
    """What the kernel knows so far; ``-1`` stands for a unit not placed, a tensor not sent."""

    unit_device: IntArray
    start_us: FloatArray
    finish_us: FloatArray
    arrival_us: FloatArray
    uses_left: IntArray
    weights: IntArray
    live: IntArray
    live_peak: IntArray
    channel_ready_us: FloatArray


def list_schedule(
    problem: Problem, rank_us: FloatArray, unit: IntArray, memory_share: float = 1.0
) -> tuple[IntArray, FloatArray]:
    """Place ops by falling rank, each where it ends earliest.

    Parameters
    ----------
    rank_us : float array, shape (n_ops,)
        Never rises along an edge.
    unit : int array, shape (n_ops,)
        Ops of one unit share a device: ``problem.unit`` or coarser.
    memory_share : float
        How much of each device's memory may be used.

    Returns
    -------
    device, start_us : arrays, shape (n_ops,)
        The placement and when each op starts in the schedule built along with it.
    """
    position = position_by(problem, -rank_us)
    work = _prepare(problem, position, unit, memory_share)
    n_devices = problem.cluster.n_devices
    pinned = work.allowed.sum(axis=1) == 1
    unit_device = np.where(pinned, np.argmax(work.allowed, axis=1), -1)
    weights = np.zeros(n_devices, dtype=np.int64)
    np.add.at(weights, unit_device[pinned], work.unit_bytes[pinned])
    state = State(
        unit_device=unit_device,
        start_us=np.zeros(problem.profile.n_ops),
        finish_us=np.zeros(problem.profile.n_ops),
        arrival_us=np.full((problem.profile.n_tensors, n_devices), -1.0),
        uses_left=work.tensor_uses.copy(),
        weights=weights,
        live=np.zeros(n_devices, dtype=np.int64),
        live_peak=np.zeros(n_devices, dtype=np.int64),
        channel_ready_us=np.zeros(len(problem.cluster.channels)),
    )
    _list_schedule(work, state)
    return state.unit_device[unit], state.start_us


def _prepare(problem: Problem, position: IntArray, unit: IntArray, memory_share: float) -> Work:
    profile, cluster = problem.profile, problem.cluster
    leader = find_leaders(problem, position)
    follows = leader != np.arange(profile.n_ops)
    order, follower = np.argsort(position), np.lexsort((unit, leader))
    output_bytes = np.zeros(profile.n_ops, dtype=np.int64)
    np.add.at(output_bytes, profile.tensor_op, profile.tensor_bytes)
    # Followers run at once: their outputs lie there from the start, like variables.
    unit_bytes = np.zeros(int(unit.max()) + 1, dtype=np.int64)
    np.add.at(unit_bytes, unit, profile.persistent_bytes + np.where(follows, output_bytes, 0))
    allowed = np.zeros((len(unit_bytes), cluster.n_devices), dtype=bool)
    allowed[unit] = problem.unit_allowed[problem.unit]
    return Work(
        order=order[~follows[order]],
        follower=follower,
        follower_ptr=np.searchsorted(leader[follower], np.arange(profile.n_ops + 1)),
        time_us=problem.time_us,
        unit=unit,
        allowed=allowed,
        in_ptr=profile.in_ptr,
        in_tensor=profile.edge_tensor[profile.in_edges],
        tensor_uses=np.diff(profile.edge_ptr),
        tensor_op=profile.tensor_op,
        tensor_bytes=profile.tensor_bytes,
        tensor_stays=follows[profile.tensor_op],
        output_bytes=output_bytes,
        temporary_bytes=profile.temporary_bytes,
        unit_bytes=unit_bytes,
        capacity_bytes=(memory_share * cluster.capacity_bytes).astype(np.int64),
        lane_ptr=np.concatenate([[0], np.cumsum(cluster.lanes)]).astype(np.int64),
        route_ptr=cluster.route_ptr,
        route=cluster.route,
        b0_us=cluster.b0_us,
        b1_us_per_byte=cluster.b1_us_per_byte,
    )


@njit(cache=True, nogil=True)
def _list_schedule(work: Work, state: State) -> None:  # pragma: no cover - compiled
    lanes = empty_slots(work.lane_ptr[-1])
    channels = empty_slots(len(state.channel_ready_us))
    for op in work.order:
        inputs = work.in_tensor[work.in_ptr[op] : work.in_ptr[op + 1]]
        inputs = _by_finish(work, state, inputs)
        device = _choose(work, state, lanes, channels, op, inputs)
        _settle_units(work, state, op, device)
        channels = _send(work, state, channels, inputs, device)
        ready = _ready(work, state, channels, inputs, device)
        start, lane = _lane_start(work, lanes, op, device, ready)
        state.start_us[op] = start
        state.finish_us[op] = start + work.time_us[op, device]
        lanes = occupy(lanes, lane, start, state.finish_us[op])
        _count_memory(work, state, op, inputs, device)


@_inlined
def _by_finish(
    work: Work, state: State, tensors: IntArray
) -> IntArray:  # pragma: no cover - compiled
    """Sort tensors by when they are made, in place of a list too short for anything cleverer."""
    tensors = tensors.copy()
    for i in range(1, len(tensors)):
        tensor, k = tensors[i], i
        made = state.finish_us[work.tensor_op[tensor]]
        while k > 0 and state.finish_us[work.tensor_op[tensors[k - 1]]] > made:
            tensors[k] = tensors[k - 1]
            k -= 1
        tensors[k] = tensor
    return tensors


@_inlined
def _choose(
    work: Work, state: State, lanes: Slots, channels: Slots, op: int, inputs: IntArray
) -> int:  # pragma: no cover - compiled
    """Find the device with room where an op ends earliest, or the one with the most room."""
    unit, best, best_key = work.unit[op], -1, (0, np.inf)
    for device in range(len(work.capacity_bytes)):
        if not work.allowed[unit, device] or state.unit_device[unit] not in (-1, device):
            continue
        ready = _ready(work, state, channels, inputs, device)
        start, _ = _lane_start(work, lanes, op, device, ready)
        lacking = _lacking_bytes(work, state, op, inputs, device)
        key = (lacking, start + work.time_us[op, device])
        if best < 0 or key < best_key:
            best, best_key = device, key
    return best


@_inlined
def _ready(
    work: Work, state: State, channels: Slots, inputs: IntArray, device: int
) -> float:  # pragma: no cover - compiled
    """Tell when all inputs are on a device; those not yet sent go one after another."""
    ready, n_devices = 0.0, len(work.capacity_bytes)
    state.channel_ready_us[:] = 0.0
    for tensor in inputs:
        producer = work.tensor_op[tensor]
        origin = state.unit_device[work.unit[producer]]
        if origin in (-1, device):
            there = state.finish_us[producer]
        elif state.arrival_us[tensor, device] >= 0:
            there = state.arrival_us[tensor, device]
        else:
            pair = origin * n_devices + device
            links = work.route[work.route_ptr[pair] : work.route_ptr[pair + 1]]
            there = max(state.finish_us[producer], state.channel_ready_us[links].max())
            duration = _send_us(work, tensor, origin, device)
            there = all_free_from(channels, links, there, duration) + duration
            state.channel_ready_us[links] = there
        ready = max(ready, there)
    return ready


@_inlined
def _send(
    work: Work, state: State, channels: Slots, inputs: IntArray, device: int
) -> Slots:  # pragma: no cover - compiled
    """Occupy channels for the inputs that are not yet on a device."""
    n_devices = len(work.capacity_bytes)
    for tensor in inputs:
        producer = work.tensor_op[tensor]
        origin = state.unit_device[work.unit[producer]]
        if origin == device or state.arrival_us[tensor, device] >= 0:
            continue
        pair = origin * n_devices + device
        links = work.route[work.route_ptr[pair] : work.route_ptr[pair + 1]]
        duration = _send_us(work, tensor, origin, device)
        start = all_free_from(channels, links, state.finish_us[producer], duration)
        for channel in links:
            channels = occupy(channels, channel, start, start + duration)
        state.arrival_us[tensor, device] = start + duration
        state.live[device] += work.tensor_bytes[tensor]
    return channels


@_inlined
def _send_us(
    work: Work, tensor: int, origin: int, device: int
) -> float:  # pragma: no cover - compiled
    rate = work.b1_us_per_byte[origin, device]
    return float(work.b0_us[origin, device] + rate * work.tensor_bytes[tensor])


@_inlined
def _lane_start(
    work: Work, lanes: Slots, op: int, device: int, ready: float
) -> tuple[float, int]:  # pragma: no cover - compiled
    """Find the lane of a device where an op may start first, and when."""
    first, end = work.lane_ptr[device], work.lane_ptr[device + 1]
    best, best_lane = np.inf, int(first)
    for lane in range(first, end):
        found = free_from(lanes, lane, ready, work.time_us[op, device])
        if found < best:
            best, best_lane = found, lane
    return best, best_lane


@_inlined
def _settle_units(work: Work, state: State, op: int, device: int) -> None:  # pragma: no cover
    """Place an op's unit, and those of its followers, where they are not placed yet."""
    for member in work.follower[work.follower_ptr[op] : work.follower_ptr[op + 1]]:
        unit = work.unit[member]
        if state.unit_device[unit] < 0:
            state.unit_device[unit] = device
            state.weights[device] += work.unit_bytes[unit]


@_inlined
def _lacking_bytes(
    work: Work, state: State, op: int, inputs: IntArray, device: int
) -> int:  # pragma: no cover - compiled
    """Estimate how overfull a device would be with an op and its followers; 0 if they fit."""
    weights, last = state.weights[device], -1
    for member in work.follower[work.follower_ptr[op] : work.follower_ptr[op + 1]]:
        if state.unit_device[work.unit[member]] < 0 and work.unit[member] != last:
            last = work.unit[member]
            weights += work.unit_bytes[last]
    live = state.live[device] + work.output_bytes[op] + work.temporary_bytes[op]
    for tensor in inputs:
        origin = state.unit_device[work.unit[work.tensor_op[tensor]]]
        if origin not in (-1, device) and state.arrival_us[tensor, device] < 0:
            live += work.tensor_bytes[tensor]
    need = weights + max(live, state.live_peak[device])
    return int(max(0, need - work.capacity_bytes[device]))


@_inlined
def _count_memory(
    work: Work, state: State, op: int, inputs: IntArray, device: int
) -> None:  # pragma: no cover - compiled
    """Outputs of an op come to life, inputs die with their last consumer."""
    state.live[device] += work.output_bytes[op]
    peak = state.live[device] + work.temporary_bytes[op]
    state.live_peak[device] = max(state.live_peak[device], peak)
    for tensor in inputs:
        state.uses_left[tensor] -= 1
        if state.uses_left[tensor] > 0:
            continue
        for other in range(len(work.capacity_bytes)):
            if state.arrival_us[tensor, other] >= 0:
                state.live[other] -= work.tensor_bytes[tensor]
        if not work.tensor_stays[tensor]:
            state.live[state.unit_device[work.unit[work.tensor_op[tensor]]]] -= work.tensor_bytes[
                tensor
            ]
