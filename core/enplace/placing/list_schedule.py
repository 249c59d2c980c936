"""A schedule under construction, shared by all list schedulers.

Ops are placed one after another. Placing an op sends its inputs that are not on its device yet, and
takes a slot on the device and some of its memory. Each method decides which op comes next and where
it goes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from enplace.coarsen import find_leaders
from enplace.machine.layout import transfer_us
from enplace.placing.options import Option
from enplace.placing.slots import Slots, all_free_from, free_from, occupy
from enplace.values.arrays import FloatArray, IntArray, csr_offsets
from enplace.values.problem import BoolArray, Problem

MAKERS, SUMS = "makers", "sums"
MEMORY_RULE = Option(
    "memory-rule",
    (MAKERS, SUMS),
    "",
    "How m-etf and m-sct count a GPU's memory, as in Baechi's code: the outputs of its ops that "
    "are still needed, without received copies, or all inputs and outputs, as if none were freed. "
    "[default: the tensors there at a time, with received copies]",
)

inlined = njit(nogil=True, inline="always")
"""Passing these tuples counts the references of every array; inlining saves a third of the time."""


class Work(NamedTuple):
    """The problem for list schedulers: leaders in order, their followers, and the machine.

    It has its own flat layout because memory may be counted by another rule, units may be coarser,
    and every further array costs time in each call.
    """

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
    held_bytes: IntArray
    copy_bytes: IntArray
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
    """The schedule so far; -1 marks a unit that is not placed, or a tensor that is not sent."""

    unit_device: IntArray
    start_us: FloatArray
    finish_us: FloatArray
    arrival_us: FloatArray
    uses_left: IntArray
    weights: IntArray
    live: IntArray
    live_peak: IntArray
    channel_ready_us: FloatArray


def prepare(
    problem: Problem,
    position: IntArray,
    unit: IntArray,
    memory_share: float,
    allowed: BoolArray | None = None,
    memory_rule: str = "",
) -> Work:
    """Lay out the arrays for the kernels; see :func:`enplace.placers.heft.list_schedule`.

    Parameters
    ----------
        A value of :data:`MEMORY_RULE`; empty for the memory that the step needs at any one time.
        A value of :data:`MEMORY_RULE`; empty for the memory that a step needs at a time.
    """
    profile, cluster = problem.profile, problem.cluster
    leader = find_leaders(problem, position)
    follows = leader != np.arange(profile.n_ops)
    order, follower = np.argsort(position), np.lexsort((unit, leader))
    output_bytes = np.zeros(profile.n_ops, dtype=np.int64)
    np.add.at(output_bytes, profile.tensor_op, profile.held_bytes)
    temporary_bytes, held_bytes = profile.temporary_bytes, profile.held_bytes
    copy_bytes = np.zeros_like(held_bytes) if memory_rule else held_bytes
    # Followers run at once: their outputs are there from the start, like variables.
    stay_bytes = profile.persistent_bytes + np.where(follows, output_bytes, 0)
    if memory_rule == SUMS:
        stay_bytes = profile.persistent_bytes + output_bytes + temporary_bytes
        output_bytes, temporary_bytes = np.zeros_like(output_bytes), np.zeros_like(temporary_bytes)
        held_bytes = copy_bytes
    unit_bytes = np.zeros(int(unit.max()) + 1, dtype=np.int64)
    np.add.at(unit_bytes, unit, stay_bytes)
    unit_allowed = np.zeros((len(unit_bytes), cluster.n_devices), dtype=bool)
    unit_allowed[unit] = problem.unit_allowed[problem.unit] if allowed is None else allowed
    return Work(
        order=order[~follows[order]],
        follower=follower,
        follower_ptr=csr_offsets(leader[follower], profile.n_ops),
        time_us=problem.time_us,
        unit=unit.copy(),  # writable: numba compiles again for read-only arrays
        allowed=unit_allowed,
        in_ptr=profile.in_ptr,
        in_tensor=profile.edge_tensor[profile.in_edges],
        tensor_uses=np.diff(profile.edge_ptr),
        tensor_op=profile.tensor_op,
        tensor_bytes=profile.tensor_bytes,
        held_bytes=held_bytes,
        copy_bytes=copy_bytes,
        tensor_stays=follows[profile.tensor_op],
        output_bytes=output_bytes,
        temporary_bytes=temporary_bytes,
        unit_bytes=unit_bytes,
        capacity_bytes=(memory_share * cluster.capacity_bytes).astype(np.int64),
        lane_ptr=np.concatenate([[0], np.cumsum(cluster.lanes)]).astype(np.int64),
        route_ptr=cluster.route_ptr,
        route=cluster.route,
        b0_us=cluster.b0_us,
        b1_us_per_byte=cluster.b1_us_per_byte,
    )


def begin(problem: Problem, work: Work) -> State:
    """Place only the units that are allowed on a single device."""
    n_devices = problem.cluster.n_devices
    pinned = work.allowed.sum(axis=1) == 1
    unit_device = np.where(pinned, np.argmax(work.allowed, axis=1), -1)
    weights = np.zeros(n_devices, dtype=np.int64)
    np.add.at(weights, unit_device[pinned], work.unit_bytes[pinned])
    return State(
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


@inlined
def by_finish(
    work: Work, state: State, tensors: IntArray
) -> IntArray:  # pragma: no cover - compiled
    """Sort tensors by when they are made. Insertion sort will do, as an op has few inputs."""
    tensors = tensors.copy()
    for i in range(1, len(tensors)):
        tensor, k = tensors[i], i
        made = state.finish_us[work.tensor_op[tensor]]
        while k > 0 and state.finish_us[work.tensor_op[tensors[k - 1]]] > made:
            tensors[k] = tensors[k - 1]
            k -= 1
        tensors[k] = tensor
    return tensors


@inlined
def ready_us(
    work: Work, state: State, channels: Slots, inputs: IntArray, device: int
) -> float:  # pragma: no cover - compiled
    """Return when all inputs are on a device; those not sent yet are sent one after another."""
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
            duration = transfer_us(work, work.tensor_bytes[tensor], origin, device)
            there = all_free_from(channels, links, there, duration) + duration
            state.channel_ready_us[links] = there
        ready = max(ready, there)
    return ready


@inlined
def send(
    work: Work, state: State, channels: Slots, inputs: IntArray, device: int
) -> Slots:  # pragma: no cover - compiled
    """Occupy channels for the inputs that are not yet on a device."""
    n_devices = len(work.capacity_bytes)
    for tensor in inputs:
        producer = work.tensor_op[tensor]
        origin = state.unit_device[work.unit[producer]]
        if origin in (-1, device) or state.arrival_us[tensor, device] >= 0:
            continue
        pair = origin * n_devices + device
        links = work.route[work.route_ptr[pair] : work.route_ptr[pair + 1]]
        duration = transfer_us(work, work.tensor_bytes[tensor], origin, device)
        start = all_free_from(channels, links, state.finish_us[producer], duration)
        for channel in links:
            channels = occupy(channels, channel, start, start + duration)
        state.arrival_us[tensor, device] = start + duration
        state.live[device] += work.copy_bytes[tensor]
    return channels


@inlined
def lane_start(
    work: Work, lanes: Slots, op: int, device: int, ready: float
) -> tuple[float, int]:  # pragma: no cover - compiled
    """Find the lane of a device where an op may start first, and its start time."""
    first, end = work.lane_ptr[device], work.lane_ptr[device + 1]
    best, best_lane = np.inf, int(first)
    for lane in range(first, end):
        found = free_from(lanes, lane, ready, work.time_us[op, device])
        if found < best:
            best, best_lane = found, lane
    return best, best_lane


@inlined
def settle_units(work: Work, state: State, op: int, device: int) -> None:  # pragma: no cover
    """Place an op's unit and those of its followers, unless they are placed already."""
    for member in work.follower[work.follower_ptr[op] : work.follower_ptr[op + 1]]:
        unit = work.unit[member]
        if state.unit_device[unit] < 0:
            state.unit_device[unit] = device
            state.weights[device] += work.unit_bytes[unit]


@inlined
def estimated_excess_bytes(
    work: Work, state: State, op: int, inputs: IntArray, device: int
) -> int:  # pragma: no cover - compiled
    """Estimate a device's excess with an op and its followers on it."""
    weights, last = state.weights[device], -1
    for member in work.follower[work.follower_ptr[op] : work.follower_ptr[op + 1]]:
        if state.unit_device[work.unit[member]] < 0 and work.unit[member] != last:
            last = work.unit[member]
            weights += work.unit_bytes[last]
    live = state.live[device] + work.output_bytes[op] + work.temporary_bytes[op]
    for tensor in inputs:
        origin = state.unit_device[work.unit[work.tensor_op[tensor]]]
        if origin not in (-1, device) and state.arrival_us[tensor, device] < 0:
            live += work.copy_bytes[tensor]
    need = weights + max(live, state.live_peak[device])
    return int(max(0, need - work.capacity_bytes[device]))


@inlined
def count_memory(
    work: Work, state: State, op: int, inputs: IntArray, device: int
) -> None:  # pragma: no cover - compiled
    """Count an op's outputs as live, and free the inputs of which it is the last consumer."""
    state.live[device] += work.output_bytes[op]
    peak = state.live[device] + work.temporary_bytes[op]
    state.live_peak[device] = max(state.live_peak[device], peak)
    for tensor in inputs:
        state.uses_left[tensor] -= 1
        if state.uses_left[tensor] > 0:
            continue
        for other in range(len(work.capacity_bytes)):
            if state.arrival_us[tensor, other] >= 0:
                state.live[other] -= work.copy_bytes[tensor]
        if not work.tensor_stays[tensor]:
            home = state.unit_device[work.unit[work.tensor_op[tensor]]]
            state.live[home] -= work.held_bytes[tensor]
