"""Memory of a pipeline over time: what each device holds of every sample on its way.

A device always holds the variables of its ops, copies of others' that its ops read, and sums of
gradients that its ops make for updates elsewhere, or that are held until the optimiser has ended
(:func:`~enplace.machine.op_passes.once_per_step`). Of each sample it holds

- a tensor that it makes, from the start of the stage that makes it to the end of the last stage
  there that reads it, and of those until which it is held, and until it is sent;
- a tensor that it receives, from the start of the transfer to the end of the last stage there that
  reads it;
- while a stage computes, the temporary memory of its hungriest op.

Between two steps, in the exchange, it also holds the sums that it receives.

In the inputs of 2020, the size of a node includes the outputs of one sample. There a device holds
the sizes of its nodes, and for every further sample in flight the outputs of its forward nodes,
if it has backward nodes too.

A device that recomputes keeps no activations: of a sample in flight it holds the tensors that its
forward ops receive, and those that they make exist again while its backward stages run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from enplace.machine.op_passes import (
    backward_ops,
    given_by_variables,
    holds_of_samples,
    once_per_step,
    recomputing,
    returns_to,
)
from enplace.machine.pipelines.loads import COMPUTE, IN, OUT
from enplace.machine.pipelines.stages import FORWARD, Stage
from enplace.values.memory import MemoryCurve
from enplace.values.plan import Plan
from enplace.values.problem import Problem
from enplace.values.profile import FloatArray, IntArray, Profile

Times = Mapping[tuple[int, int, int], tuple[float, float]]
"""Start and finish of slots, by microbatch, stage and part."""


@dataclass(frozen=True)
class _Hold:
    """What a device holds of each sample for the same time.

    Attributes
    ----------
    begin : (int, int)
        A stage, and the part at whose start the memory is taken.
    ends : tuple of (int, int)
        Stages and parts after the last of which it is free.
    received : bool
    """

    begin: tuple[int, int]
    ends: tuple[tuple[int, int], ...]
    received: bool = False


def forward_bytes(problem: Problem) -> IntArray:
    """Return the bytes of each op that are kept for the backward pass of a sample; (n_ops,).

    They are its outputs that backward ops read, or until which they are held; any device keeps them
    where both passes need them.
    In the inputs of 2020, whose backward nodes may read none, they are all outputs of a forward
    node, on a device to which samples return (:func:`~enplace.machine.op_passes.returns_to`).
    Outputs that differ only in their cost are one.
    """
    profile, backward = problem.profile, backward_ops(problem)
    kept = np.zeros(profile.n_ops, dtype=np.int64)
    if not backward.any():
        return kept
    if counts_whole_nodes(profile):
        np.maximum.at(kept, profile.tensor_op, profile.tensor_bytes)
    else:
        read = np.zeros(profile.n_tensors, dtype=bool)
        read[profile.edge_tensor[backward[profile.edge_op]]] = True
        holds = holds_of_samples(profile)
        read[profile.hold_tensor[holds[backward[profile.hold_op[holds]]]]] = True
        read[once_per_step(profile)] = False
        np.add.at(kept, profile.tensor_op, profile.held_bytes * read)
    return np.where(backward, 0, kept)


def counts_whole_nodes(profile: Profile) -> bool:
    """Whether the size of a node includes its activations, as in the inputs of 2020."""
    return profile.measured.backward is not None


def find_memory(
    problem: Problem,
    plan: Plan,
    stages: Sequence[Stage],
    times: Times,
    n_microbatches: int,
    exchange_us: tuple[float, float],
) -> tuple[MemoryCurve, ...]:
    """Find the memory of each device over time.

    Parameters
    ----------
    exchange_us : (float, float)
        From when to when weights and gradients are exchanged; twice the same if none are.
    """
    holds = _find_holds(problem, plan, stages)
    variables, copies = problem.profile.persistent_bytes, copied_bytes(problem, plan.device)
    begin_us, end_us = exchange_us
    curves = []
    for d in range(problem.cluster.n_devices):
        group = next((g for g in plan.replicas if d in g), (d,))
        resident = int(variables[plan.device == group[0]].sum() + copies.kept[group[0]])
        arriving = int(copies.arriving[group[0]] * (end_us > begin_us))
        rows = [(begin_us, arriving, arriving), (end_us, -arriving, -arriving)]
        for m in range(n_microbatches):
            if m % len(group) == group.index(d):
                rows += _rows(holds.get(group[0], {}), times, m)
        if counts_whole_nodes(problem.profile):
            rows = _further_samples(problem, plan, stages, times, group[0], d)
        curves.append(_curve(rows, resident))
    return tuple(curves)


@dataclass(frozen=True)
class Copies:
    """What devices hold for others' updates and of others' variables, by device.

    Attributes
    ----------
    kept : int array, shape (n_devices,)
        Bytes for the whole step: copies of variables, and sums of gradients.
    arriving : int array, shape (n_devices,)
        Bytes of the sums that it receives when the step ends.
    """

    kept: IntArray
    arriving: IntArray


def copied_bytes(problem: Problem, device: IntArray) -> Copies:
    """Find what crosses once per step in a placement, and where it is held."""
    profile, n = problem.profile, problem.cluster.n_devices
    once, weights = once_per_step(profile), given_by_variables(profile)
    home, reader = device[profile.edge_source], device[profile.edge_op]
    crosses = once[profile.edge_tensor] & (home != reader)
    pair = np.unique(profile.edge_tensor[crosses] * n + reader[crosses])
    tensor, to = np.divmod(pair, n)
    kept, arriving = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64)
    of_weights = weights[tensor]
    for place, chosen in ((kept, of_weights), (arriving, ~of_weights)):
        np.add.at(place, to[chosen], profile.copy_bytes[tensor[chosen]])
    made = np.flatnonzero(weights)
    np.add.at(kept, device[profile.tensor_op[made]], profile.held_bytes[made])
    held = np.diff(profile.hold_ptr) > 0
    sums = np.union1d(tensor[~of_weights], np.flatnonzero(once & ~weights & held))
    np.add.at(kept, device[profile.tensor_op[sums]], profile.held_bytes[sums])
    return Copies(kept, arriving)


def _rows(
    holds: Mapping[_Hold, int], times: Times, microbatch: int
) -> Iterable[tuple[float, int, int]]:
    """List when memory is taken and freed for a sample: time, bytes, and bytes received."""
    for hold, n_bytes in holds.items():
        begin_us = _time(times, microbatch, hold.begin)[0]
        end_us = max(_time(times, microbatch, end)[1] for end in hold.ends)
        if end_us > begin_us:
            received = n_bytes if hold.received else 0
            yield begin_us, n_bytes, received
            yield end_us, -n_bytes, -received


def _time(times: Times, microbatch: int, at: tuple[int, int]) -> tuple[float, float]:
    """Return the start and finish of a part; those of the stage's compute if it takes no time."""
    stage, part = at
    found = times.get((microbatch, stage, part))
    return times[microbatch, stage, COMPUTE] if found is None else found


def _find_holds(
    problem: Problem, plan: Plan, stages: Sequence[Stage]
) -> dict[int, dict[_Hold, int]]:
    """Find what each device holds of a sample, and how many bytes."""
    profile = problem.profile
    stage_of = np.zeros(profile.n_ops, dtype=np.int64)
    for number, stage in enumerate(stages):
        stage_of[stage.ops] = number
    first = [stage.devices[0] for stage in stages]
    recompute = recomputing(problem, plan.device, plan.recompute)
    holds: dict[int, dict[_Hold, int]] = defaultdict(lambda: defaultdict(int))
    for use, (held_bytes, copy_bytes) in _find_uses(profile, stage_of).items():
        maker = use.maker
        readers: dict[int, set[int]] = {first[maker]: {maker}}
        for reader in use.readers:
            readers.setdefault(first[reader], set()).add(reader)
        if use.is_summed and (use.is_held or len(readers) > 1):
            # Added at once to the sum of the samples, which stays, or is sent after the last one.
            readers = {first[maker]: {maker}}
        for device, there in readers.items():
            sent = device == first[maker] and len(readers) > 1
            again = stages[min(there)].of == FORWARD and device in recompute
            made = device == first[maker]
            later = sorted(use.until) if made else []
            for hold in _holds_of(stages, maker, sorted(there), made, sent, again, later):
                holds[device][hold] += held_bytes if made else copy_bytes
    for number, stage in enumerate(stages):
        if temporary := int(profile.temporary_bytes[stage.ops].max(initial=0)):
            holds[first[number]][_Hold((number, COMPUTE), ((number, COMPUTE),))] += temporary
    return holds


class _Use(NamedTuple):
    """Which stages make, read and hold a tensor of each sample; few differ between tensors.

    Attributes
    ----------
    until : frozenset of int
        Stages of the same sample until whose end it is held besides.
    is_summed : bool
        Whether it goes to a sum of all samples.
    is_held : bool
        Whether anything holds it.
    """

    maker: int
    readers: frozenset[int]
    until: frozenset[int]
    is_summed: bool
    is_held: bool


def _find_uses(profile: Profile, stage_of: IntArray) -> dict[_Use, tuple[int, int]]:
    """Return the bytes of all tensors of one use: where they are made, and of their copies."""
    counts = np.flatnonzero((profile.copy_bytes > 0) & ~given_by_variables(profile))
    until: dict[int, set[int]] = defaultdict(set)
    for hold in holds_of_samples(profile).tolist():
        until[int(profile.hold_tensor[hold])].add(int(stage_of[profile.hold_op[hold]]))
    readers, ptr = stage_of[profile.edge_op].tolist(), profile.edge_ptr.tolist()
    columns = (
        counts,
        stage_of[profile.tensor_op[counts]],
        once_per_step(profile)[counts],
        np.diff(profile.hold_ptr)[counts] > 0,
        profile.held_bytes[counts],
        profile.copy_bytes[counts],
    )
    found: dict[_Use, tuple[int, int]] = {}
    for tensor, maker, summed, held, held_bytes, copy_bytes in zip(
        *(column.tolist() for column in columns), strict=True
    ):
        read_by = frozenset(readers[ptr[tensor] : ptr[tensor + 1]])
        use = _Use(maker, read_by, frozenset(until.get(tensor, ())), summed, held)
        known = found.get(use, (0, 0))
        found[use] = known[0] + held_bytes, known[1] + copy_bytes
    return found


def _holds_of(
    stages: Sequence[Stage],
    maker: int,
    there: list[int],
    made: bool,
    sent: bool,
    again: bool,
    later: list[int],
) -> list[_Hold]:
    """Find when a device holds a tensor that some of its stages make or read.

    ``later`` are stages, anywhere, until the end of which it is held besides.
    """
    if again:
        later = [s for s in later if stages[s].devices == stages[maker].devices]
    stay = sorted({*there, *later})
    ends = [(stage, COMPUTE) for stage in stay] + [(maker, OUT)] * sent
    begin = (maker, COMPUTE) if made else (there[0], IN)
    back = [(s, COMPUTE) for s in stay if stages[s].of != FORWARD]
    if not again:
        return [_Hold(begin, tuple(ends), not made)]
    if not made:
        # The forward ops run again, so their inputs stay until they have.
        device = stages[there[0]].devices
        last = [(s, COMPUTE) for s, each in enumerate(stages) if each.devices == device]
        return [_Hold(begin, tuple(ends + last), True)]
    forward = [end for end in ends if end not in back]
    found = [_Hold(begin, tuple(forward))]
    return [*found, _Hold(back[0], tuple(back))] if back else found


def _further_samples(
    problem: Problem, plan: Plan, stages: Sequence[Stage], times: Times, first: int, device: int
) -> list[tuple[float, int, int]]:
    """List the memory of all samples in flight but one, on a device of the 2020 inputs."""
    n_bytes = sample_bytes(problem, plan, first)
    begun: dict[int, float] = {}
    ended: dict[int, float] = {}
    for (m, number, _), (start_us, finish_us) in times.items():
        group = stages[number].devices
        if group[m % len(group)] == device:
            begun[m] = min(begun.get(m, start_us), start_us)
            ended[m] = max(ended.get(m, finish_us), finish_us)
    events = sorted([(us, -1) for us in ended.values()] + [(us, 1) for us in begun.values()])
    count = np.maximum(np.cumsum([step for _, step in events]) - 1, 0)
    steps = np.diff(count, prepend=0).tolist()
    return [(us, step * n_bytes, 0) for (us, _), step in zip(events, steps, strict=True) if step]


def sample_bytes(problem: Problem, plan: Plan, device: int) -> int:
    """Return the bytes of each further sample in flight on a device, in the inputs of 2020."""
    if device not in returns_to(problem, plan.device):
        return 0
    if device not in plan.recompute:
        return int(forward_bytes(problem)[plan.device == device].sum())
    return int(received_bytes(problem, plan.device, device))


def received_bytes(problem: Problem, device: IntArray, where: int) -> int:
    """Sum the tensors of other devices that forward ops of a device read."""
    profile, forward = problem.profile, ~backward_ops(problem)
    read = forward[profile.edge_op] & (device[profile.edge_op] == where)
    read &= device[profile.edge_source] != where
    return int(profile.tensor_bytes[np.unique(profile.edge_tensor[read])].sum())


def _curve(rows: list[tuple[float, int, int]], resident: int) -> MemoryCurve:
    """Add up changes of memory; those of one instant count only once all have happened."""
    table: FloatArray = np.array([(0.0, 0, 0), *sorted(rows)], dtype=np.float64).reshape(-1, 3)
    time_us, at = np.unique(table[:, 0], return_index=True)
    total = np.add.reduceat(table[:, 1:], at).cumsum(axis=0).round().astype(np.int64)
    return MemoryCurve(time_us, total[:, 0] + resident, total[:, 1], resident)
