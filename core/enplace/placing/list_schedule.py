"""A schedule under construction, shared by all list schedulers.

Ops are placed one after another. Placing an op sends its inputs that are not on its device yet, and
takes a slot on the device and some of its memory. Each method decides which op comes next and where
it goes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from enplace.coarsen import find_leaders
from enplace.compiling import helper, loop, step
from enplace.machine.layout import Machine, build_machine, transfer_us
from enplace.option import Option
from enplace.placing.slots import Slots, all_free_from, free_from, occupy
from enplace.values.arrays import (
    BoolArray,
    FloatArray,
    IntArray,
    adjacency,
    csr_offsets,
    offsets,
)
from enplace.values.problem import Problem

MAKERS, SUMS = "makers", "sums"
MEMORY_RULE = Option(
    "memory-rule",
    (MAKERS, SUMS),
    "",
    "How m-etf and m-sct count a GPU's memory, as in Baechi's code: outputs that are still needed, "
    "without received copies; or all inputs and outputs, as if none were freed. "
    "[default: live tensors, with received copies]",
)


MANY_INPUTS = 64
"""From here on, sorting the inputs of an op by insertion takes long: its time is quadratic."""


class Work(NamedTuple):
    """What list schedulers need in addition to the machine.

    The machine's units, their permissions and its memory are those of the list schedule: units may
    be coarser, CPUs may be ruled out, and memory may be counted by another rule.

    Attributes
    ----------
    order : int array
        The leaders, in the order in which they come up.
    follower, follower_ptr : int arrays, shapes (n_ops,) and (n_ops + 1,)
        Ops that are placed with leader ``u``, itself included:
        ``follower[follower_ptr[u] : follower_ptr[u + 1]]``.
    copy_bytes, tensor_stays : arrays, shape (n_tensors,)
        Memory of a received copy, and whether a tensor is never freed.
    until_ptr, until_tensor : int arrays, shapes (n_ops + 1,) and (n_holds,)
        Tensors that are held until op ``u``: ``until_tensor[until_ptr[u] : until_ptr[u + 1]]``.
    output_bytes : int array, shape (n_ops,)
    unit_bytes : int array, shape (n_units,)
        Memory that a unit takes from the start.
    lane_ptr : int array, shape (n_devices + 1,)
        Each device has lanes of its own here, even if it shares its chip.
    """

    order: IntArray
    follower: IntArray
    follower_ptr: IntArray
    copy_bytes: IntArray
    tensor_stays: BoolArray
    until_ptr: IntArray
    until_tensor: IntArray
    output_bytes: IntArray
    unit_bytes: IntArray
    lane_ptr: IntArray


class PartialSchedule(NamedTuple):
    """The schedule so far; -1 marks a unit that is not placed, or a tensor that is not sent.

    ``inputs`` and ``channel_ready_us`` are scratch: see :func:`sort_inputs` and :func:`ready_us`.
    """

    unit_device: IntArray
    start_us: FloatArray
    finish_us: FloatArray
    arrival_us: FloatArray
    uses_left: IntArray
    weights: IntArray
    live: IntArray
    live_peak: IntArray
    channel_ready_us: FloatArray
    inputs: IntArray


def prepare(
    problem: Problem,
    position: IntArray,
    unit: IntArray,
    memory_share: float,
    allowed: BoolArray | None = None,
    memory_rule: str = "",
) -> tuple[Machine, Work]:
    """Lay out the arrays for the kernels; see :func:`enplace.placers.heft.list_schedule`.

    Parameters
    ----------
    memory_rule : str
        A value of :data:`MEMORY_RULE`; empty for the memory that the step needs at any one time.
    """
    profile, cluster = problem.profile, problem.cluster
    leader = find_leaders(problem, position)
    follows = leader != np.arange(profile.n_ops)
    order, follower = np.argsort(position), np.lexsort((unit, leader))
    output_bytes = np.zeros(profile.n_ops, dtype=np.int64)
    np.add.at(output_bytes, profile.tensor_op, profile.held_bytes)
    temporary_bytes, held_bytes = profile.temporary_bytes.copy(), profile.held_bytes.copy()
    copy_bytes = np.zeros_like(held_bytes) if memory_rule else profile.copy_bytes.copy()
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
    member = np.argsort(unit, kind="stable")
    # All new arrays are writable: numba compiles again for read-only ones.
    machine = build_machine(problem)._replace(
        unit=unit.copy(),
        unit_ptr=csr_offsets(unit[member], len(unit_bytes)),
        member=member,
        allowed=unit_allowed,
        held_bytes=held_bytes,
        temporary_bytes=temporary_bytes,
        capacity_bytes=(memory_share * cluster.capacity_bytes).astype(np.int64),
    )
    until_ptr, until_tensor = adjacency(profile.hold_op, profile.hold_tensor, profile.n_ops)
    work = Work(
        order=order[~follows[order]],
        follower=follower,
        follower_ptr=csr_offsets(leader[follower], profile.n_ops),
        copy_bytes=copy_bytes,
        tensor_stays=follows[profile.tensor_op],
        until_ptr=until_ptr,
        until_tensor=until_tensor,
        output_bytes=output_bytes,
        unit_bytes=unit_bytes,
        lane_ptr=offsets(cluster.lanes),
    )
    return machine, work


def begin(machine: Machine, work: Work) -> PartialSchedule:
    """Place only the units that are allowed on a single device."""
    n_ops, n_devices = machine.time_us.shape
    pinned = machine.allowed.sum(axis=1) == 1
    unit_device = np.where(pinned, np.argmax(machine.allowed, axis=1), -1)
    weights = np.zeros(n_devices, dtype=np.int64)
    np.add.at(weights, unit_device[pinned], work.unit_bytes[pinned])
    return PartialSchedule(
        unit_device=unit_device,
        start_us=np.zeros(n_ops),
        finish_us=np.zeros(n_ops),
        arrival_us=np.full((len(machine.tensor_op), n_devices), -1.0),
        uses_left=np.diff(machine.edge_ptr)
        + np.diff(machine.hold_ptr)
        + np.bincount(machine.tensor_base[machine.sharing], minlength=len(machine.tensor_op)),
        weights=weights,
        live=np.zeros(n_devices, dtype=np.int64),
        live_peak=np.zeros(n_devices, dtype=np.int64),
        channel_ready_us=np.zeros(machine.n_channels),
        inputs=np.zeros(np.diff(machine.in_ptr).max(initial=0), dtype=np.int64),
    )


@loop
def sort_inputs(m: Machine, s: PartialSchedule, op: int) -> int:  # pragma: no cover - compiled
    """Write the inputs of an op to the state, sorted by when they are made; return how many.

    Insertion sort for an op with few inputs, as nearly all have; Shell's sort for one with many.
    """
    first, n = m.in_ptr[op], m.in_ptr[op + 1] - m.in_ptr[op]
    gap = 1
    while n > MANY_INPUTS and gap < n // 9:
        gap = 3 * gap + 1
    for i in range(n):
        s.inputs[i] = m.in_tensor[first + i]
    while gap > 0:
        for i in range(gap, n):
            tensor, k = s.inputs[i], i
            made_us = s.finish_us[m.tensor_op[tensor]]
            while k >= gap and s.finish_us[m.tensor_op[s.inputs[k - gap]]] > made_us:
                s.inputs[k] = s.inputs[k - gap]
                k -= gap
            s.inputs[k] = tensor
        gap //= 3
    return int(n)


@loop
def ready_us(
    m: Machine, s: PartialSchedule, channels: Slots, inputs: IntArray, device: int
) -> float:  # pragma: no cover - compiled
    """Return when all inputs are on a device; those not sent yet are sent one after another."""
    ready = 0.0
    for tensor in inputs:  # of thousands of channels between many devices, few are used here
        origin = s.unit_device[m.unit[m.tensor_op[tensor]]]
        if origin >= 0 and origin != device:
            for channel in _links(m, origin, device):
                s.channel_ready_us[channel] = 0.0
    for tensor in inputs:
        producer = m.tensor_op[tensor]
        origin = s.unit_device[m.unit[producer]]
        there = s.finish_us[producer]
        if origin >= 0 and origin != device:
            if s.arrival_us[tensor, device] >= 0:
                there = s.arrival_us[tensor, device]
            else:
                links = _links(m, origin, device)
                for channel in links:
                    there = max(there, s.channel_ready_us[channel])
                duration = transfer_us(m, m.tensor_bytes[tensor], origin, device)
                there = all_free_from(channels, links, there, duration) + duration
                for channel in links:
                    s.channel_ready_us[channel] = there
        ready = max(ready, there)
    return ready


@step
def _links(m: Machine, source: int, target: int) -> IntArray:  # pragma: no cover - compiled
    """Return the channels from one device to another."""
    pair = source * len(m.lanes) + target
    return m.route[m.route_ptr[pair] : m.route_ptr[pair + 1]]


@helper
def send(
    m: Machine, w: Work, s: PartialSchedule, channels: Slots, inputs: IntArray, device: int
) -> Slots:  # pragma: no cover - compiled
    """Occupy channels for the inputs that are not yet on a device."""
    route_ptr, route = m.route_ptr, m.route
    for tensor in inputs:
        pair, start, end = _send_one(m, w, s, channels, tensor, device)
        if pair >= 0:
            for hop in range(route_ptr[pair], route_ptr[pair + 1]):
                channels = occupy(channels, route[hop], start, end)
    return channels


@loop
def _send_one(
    m: Machine, w: Work, s: PartialSchedule, channels: Slots, tensor: int, device: int
) -> tuple[int, float, float]:  # pragma: no cover - compiled
    """Send a tensor to a device, unless it is there.

    Return the pair of devices, or -1, and when the transfer starts and ends.
    """
    producer = m.tensor_op[tensor]
    origin = s.unit_device[m.unit[producer]]
    pair, start, end = -1, 0.0, 0.0
    if origin >= 0 and origin != device and s.arrival_us[tensor, device] < 0:
        pair = origin * len(m.lanes) + device
        duration = transfer_us(m, m.tensor_bytes[tensor], origin, device)
        links = _links(m, origin, device)
        start = all_free_from(channels, links, s.finish_us[producer], duration)
        end = start + duration
        s.arrival_us[tensor, device] = end
        s.live[device] += w.copy_bytes[tensor]
    return pair, start, end


@loop
def lane_start(
    m: Machine, w: Work, lanes: Slots, op: int, device: int, ready: float
) -> tuple[float, int]:  # pragma: no cover - compiled
    """Find when an op may start on a device at the earliest, and on which lane."""
    best, best_lane = np.inf, w.lane_ptr[device]
    for lane in range(w.lane_ptr[device], w.lane_ptr[device + 1]):
        found = free_from(lanes, lane, ready, m.time_us[op, device])
        if found < best:
            best, best_lane = found, lane
        if found <= ready:  # a CPU has many lanes, and most are free
            break
    return best, int(best_lane)


@loop
def settle_units(
    m: Machine, w: Work, s: PartialSchedule, op: int, device: int
) -> None:  # pragma: no cover - compiled
    """Place an op's unit and those of its followers, unless they are placed already."""
    for at in range(w.follower_ptr[op], w.follower_ptr[op + 1]):
        unit = m.unit[w.follower[at]]
        if s.unit_device[unit] < 0:
            s.unit_device[unit] = device
            s.weights[device] += w.unit_bytes[unit]


@loop
def unplaced_bytes(
    m: Machine, w: Work, s: PartialSchedule, op: int
) -> int:  # pragma: no cover - compiled
    """Return the bytes of an op's unit and those of its followers that are not placed yet."""
    n_bytes, last = 0, -1
    for at in range(w.follower_ptr[op], w.follower_ptr[op + 1]):
        unit = m.unit[w.follower[at]]
        if s.unit_device[unit] < 0 and unit != last:
            last = unit
            n_bytes += w.unit_bytes[unit]
    return n_bytes


@loop
def estimated_excess_bytes(
    m: Machine, w: Work, s: PartialSchedule, op: int, inputs: IntArray, device: int
) -> int:  # pragma: no cover - compiled
    """Estimate a device's excess with an op and its followers on it."""
    weights = s.weights[device] + unplaced_bytes(m, w, s, op)
    live = s.live[device] + w.output_bytes[op] + m.temporary_bytes[op]
    for tensor in inputs:
        origin = s.unit_device[m.unit[m.tensor_op[tensor]]]
        if origin >= 0 and origin != device and s.arrival_us[tensor, device] < 0:
            live += w.copy_bytes[tensor]
    need = weights + max(live, s.live_peak[device])
    return int(max(0, need - m.capacity_bytes[device]))


@loop
def count_memory(
    m: Machine, w: Work, s: PartialSchedule, op: int, inputs: IntArray, device: int
) -> None:  # pragma: no cover - compiled
    """Count an op's outputs as live, and free the tensors of which it is the last use."""
    s.live[device] += w.output_bytes[op]
    peak = s.live[device] + m.temporary_bytes[op]
    s.live_peak[device] = max(s.live_peak[device], peak)
    for tensor in inputs:
        _use(m, w, s, tensor)
    for at in range(w.until_ptr[op], w.until_ptr[op + 1]):
        _use(m, w, s, w.until_tensor[at])


@loop
def _use(
    m: Machine, w: Work, s: PartialSchedule, tensor: int
) -> None:  # pragma: no cover - compiled
    """Count one use of a tensor; after the last one, free it and its copies.

    Then that is a use less of the tensor in whose memory it lies.
    """
    while tensor >= 0:
        s.uses_left[tensor] -= 1
        if s.uses_left[tensor] > 0:
            return
        for other in range(len(m.lanes)):
            if s.arrival_us[tensor, other] >= 0:
                s.live[other] -= w.copy_bytes[tensor]
        if not w.tensor_stays[tensor]:
            home = s.unit_device[m.unit[m.tensor_op[tensor]]]
            s.live[home] -= m.held_bytes[tensor]
        tensor = m.tensor_base[tensor]
