"""Memory of a pipeline over time: what each device holds of every sample on its way.

A device always holds the variables of its ops, copies of others' that its ops read, and the sums of
the gradients that its ops make, to which each sample adds its own at once
(:func:`~enplace.machine.op_passes.once_per_step`). Gradients that the step before left lie where
these sums do. Of each sample it holds

- a tensor that it makes, from the op that makes it to the last op there that reads it, and those
  until which it is held, and until it is sent;
- a tensor that it receives, from the start of the transfer to the last op there that reads it;
- while an op runs, its temporary memory.

A tensor that lies in the memory of another takes none if all that read it run beside the op that
made the other; then that one stays for them. Otherwise it counts as any tensor in a pipeline, and
so do sums.

So between stages a device only holds what later ones need: of the samples on their way back, what
the backward pass reads. While a stage computes, it needs as much more as its ops do at their most,
one after another in the plan's order (:mod:`enplace.machine.pipelines.stage_peaks`). Between two
steps, in the exchange, it also holds the sums that it receives, and while its updates run, what
they make for themselves.

In the inputs of 2020, the size of a node includes the outputs of one sample. There a device holds
the sizes of its nodes, and for every further sample in flight the outputs of its forward nodes,
if it has backward nodes too.

A device that recomputes keeps no activations: of a sample in flight it holds the tensors that its
forward ops receive. Those that they make exist again from its first backward stage on, which runs
the forward ops once more.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from enplace.machine.op_passes import (
    backward_ops,
    base_in_samples,
    given_by_variables,
    holds_of_samples,
    left_by_last_step,
    made_by_updates,
    once_per_step,
    optimiser_ops,
    recomputing,
    returns_to,
)
from enplace.machine.pipelines.loads import COMPUTE, IN, OUT
from enplace.machine.pipelines.stage_peaks import (
    UNKNOWN,
    Life,
    find_ancestors,
    find_corrections,
    find_repeated,
    last_of,
    run_in_order,
)
from enplace.machine.pipelines.stages import FORWARD, Stage, number_of_stage
from enplace.values.arrays import marked
from enplace.values.memory import MemoryCurve
from enplace.values.plan import Plan
from enplace.values.problem import BoolArray, Problem
from enplace.values.profile import FloatArray, IntArray, Profile, find_roots

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


Holds = Mapping[int, Mapping[_Hold, int]]
"""By device, the bytes of each sample that it holds for the same time."""


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
        np.add.at(kept, profile.tensor_op, profile.held_bytes * kept_tensors(problem))
    return np.where(backward, 0, kept)


def kept_tensors(problem: Problem) -> BoolArray:
    """Find the tensors of forward ops that a sample needs on its way back; (n_tensors,)."""
    profile, backward = problem.profile, backward_ops(problem)
    kept = marked(profile.n_tensors, profile.edge_tensor[backward[profile.edge_op]])
    holds = holds_of_samples(profile)
    kept[profile.hold_tensor[holds[backward[profile.hold_op[holds]]]]] = True
    kept &= ~once_per_step(profile)
    np.logical_or.at(kept, find_roots(base_in_samples(profile)), kept.copy())
    return kept & ~backward[profile.tensor_op]


def least_bytes(problem: Problem) -> IntArray:
    """Return the bytes of each op that are surely held where it runs; (n_ops,).

    They are its variables, and what it keeps of one sample for backward ops that share its device.
    No pipeline in training needs less.
    """
    profile = problem.profile
    if counts_whole_nodes(profile):
        return profile.persistent_bytes
    found, backward = profile.persistent_bytes.copy(), backward_ops(problem)
    held_bytes, once = profile.held_bytes, once_per_step(profile)
    forward = ~backward[profile.tensor_op] & ~once
    reads = forward[profile.edge_tensor] & backward[profile.edge_op]
    reads &= problem.unit[profile.edge_source] == problem.unit[profile.edge_op]
    stays = marked(profile.n_tensors, profile.edge_tensor[reads])
    np.add.at(found, profile.tensor_op, held_bytes * stays)
    return found


def counts_whole_nodes(profile: Profile) -> bool:
    """Whether the size of a node includes its activations, as in the inputs of 2020."""
    return profile.measured.backward is not None


def find_memory(
    problem: Problem,
    plan: Plan,
    stages: Sequence[Stage],
    holds: Holds,
    times: Times,
    n_microbatches: int,
    exchange_us: tuple[float, float],
    updates_us: Mapping[int, tuple[float, float]],
) -> tuple[MemoryCurve, ...]:
    """Find the memory of each device over time.

    Parameters
    ----------
    holds : Holds
        What :func:`find_holds` finds.
    exchange_us : (float, float)
        From when to when weights and gradients are exchanged; twice the same if none are.
    updates_us : mapping of int to (float, float)
        When each device starts and finishes updating its variables.
    """
    variables, copies = problem.profile.persistent_bytes, copied_bytes(problem, plan.device)
    begin_us, end_us = exchange_us
    last_us = max(end_us, *(finish_us for _, finish_us in times.values()))
    curves = []
    for d in range(problem.cluster.n_devices):
        group = next((g for g in plan.replicas if d in g), (d,))
        resident = int(variables[plan.device == group[0]].sum() + copies.kept[group[0]])
        arriving = int(copies.arriving[group[0]] * (end_us > begin_us))
        rows = [(begin_us, arriving, arriving), (end_us, -arriving, -arriving)]
        updating, update_us = int(copies.updating[group[0]]), updates_us.get(d, (last_us,))
        rows += [(us, way * updating, 0) for us, way in zip(update_us, (1, -1), strict=False)]
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
    updating : int array, shape (n_devices,)
        Bytes that its updates make for themselves.
    """

    kept: IntArray
    arriving: IntArray
    updating: IntArray


def copied_bytes(problem: Problem, device: IntArray) -> Copies:
    """Find what crosses once per step in a placement, and where it is held."""
    profile, n = problem.profile, problem.cluster.n_devices
    once, weights = once_per_step(profile), given_by_variables(profile)
    home, reader = device[profile.edge_source], device[profile.edge_op]
    crosses = once[profile.edge_tensor] & (home != reader)
    pair = np.unique(profile.edge_tensor[crosses] * n + reader[crosses])
    tensor, to = np.divmod(pair, n)
    kept, arriving, updating = np.zeros((3, n), dtype=np.int64)
    of_weights = weights[tensor]
    for place, chosen in ((kept, of_weights), (arriving, ~of_weights)):
        np.add.at(place, to[chosen], profile.copy_bytes[tensor[chosen]])
    made = np.flatnonzero(weights)
    np.add.at(kept, device[profile.tensor_op[made]], profile.held_bytes[made])
    sums = np.flatnonzero(added_at_once(problem, device))
    np.add.at(kept, device[profile.tensor_op[sums]], profile.copy_bytes[sums])
    own = np.flatnonzero(made_by_updates(profile))
    np.add.at(updating, device[profile.tensor_op[own]], profile.held_bytes[own])
    return Copies(kept, arriving, updating)


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


def find_holds(problem: Problem, plan: Plan, stages: Sequence[Stage], *, overlap: bool) -> Holds:
    """Find what each device holds of a sample, and how many bytes.

    ``overlap`` says whether a device may still send a tensor while it computes the next stage.
    """
    problem = hold_bases(problem, plan.device)
    profile = problem.profile
    stage_of = number_of_stage(stages, profile.n_ops)
    first = [stage.devices[0] for stage in stages]
    repeated = find_repeated(stages, recomputing(problem, plan.device, plan.recompute))
    repeats = {first[number]: number for number in repeated}
    added, ancestors = added_at_once(problem, plan.device), find_ancestors(stages)
    holds: dict[int, dict[_Hold, int]] = defaultdict(lambda: defaultdict(int))
    lives: dict[tuple[int, int], list[Life]] = {}
    sample_holds = _find_sample_holds(problem, plan.device, added)
    uses, use_of = _find_uses(profile, stage_of, added, sample_holds)
    for number, (use, (held_bytes, copy_bytes)) in enumerate(uses.items()):
        maker = use.maker
        readers: dict[int, set[int]] = {first[maker]: {maker}}
        for reader in () if use.is_added else use.readers:
            readers.setdefault(first[reader], set()).add(reader)
        for device, there in readers.items():
            made = device == first[maker]
            receive = {min(each) for d, each in readers.items() if d != device} if made else set()
            again = repeats.get(device, UNKNOWN) if stages[min(there)].of == FORWARD else UNKNOWN
            later = use.until if made else frozenset()
            known = lives.setdefault((number, device), [])
            for hold, life in _holds_of(
                stages, ancestors, maker, there, made, receive, again, later, overlap
            ):
                holds[device][hold] += held_bytes if made else copy_bytes
                known.append(life)
    steps = run_in_order(profile, plan, stages, repeated)
    corrections = find_corrections(problem, plan.device, steps, use_of, added, sample_holds, lives)
    for number, n_bytes in enumerate(corrections.tolist()):
        holds[first[number]][_while_computing(number)] += n_bytes
    return holds


def needs_within_bytes(stages: Sequence[Stage], holds: Holds) -> list[int]:
    """Return what each stage holds only while it computes; it depends on the order of its ops.

    Negative where not all of its tensors exist at once.
    """
    return [holds[stage.devices[0]][_while_computing(n)] for n, stage in enumerate(stages)]


def _while_computing(stage: int) -> _Hold:
    return _Hold((stage, COMPUTE), ((stage, COMPUTE),))


def hold_bases(problem: Problem, device: IntArray) -> Problem:
    """Hold tensors until the ops that read what lies in their memory beside them.

    In the result, only what is read there by ops through which samples pass has a base, or what
    lies in a variable. All else has memory of its own.
    """
    profile = problem.profile
    if not len(profile.sharing):
        return problem
    once, weights = once_per_step(profile), given_by_variables(profile)
    tensor, op, base = profile.edge_tensor, profile.edge_op, profile.tensor_base
    home = device[profile.tensor_op]
    is_near = np.ones(profile.n_tensors, dtype=bool)
    is_near[tensor[(device[op] != home[tensor]) | optimiser_ops(problem)[op]]] = False
    root = np.arange(profile.n_tensors)
    for each in profile.sharing[::-1].tolist():
        top = root[base[each]]
        lies = home[each] == home[top] and not once[each]
        if lies and (weights[top] or (is_near[each] and not once[top])):
            root[each] = top
    lying = root != np.arange(profile.n_tensors)
    keeps = lying & ~weights[root]
    edge, hold = keeps[tensor], keeps[profile.hold_tensor]
    held = np.concatenate(
        [profile.hold_tensor, root[tensor[edge]], root[profile.hold_tensor[hold]]]
    )
    until = np.concatenate([profile.hold_op, op[edge], profile.hold_op[hold]])
    hold_tensor, hold_op = np.unique(np.stack([held, until]), axis=1)
    base = np.where(lying | weights, base, -1)
    found = replace(profile, tensor_base=base, hold_tensor=hold_tensor, hold_op=hold_op)
    return Problem(found, problem.cluster)


def added_at_once(problem: Problem, device: IntArray) -> BoolArray:
    """Find the gradients that each sample adds to a sum as they are made; shape (n_tensors,).

    What the optimiser makes of these sums is no sum, unless it is held, or sent to other devices.
    If samples return to one device only, each may be a step of its own, so that only what is sent
    is a sum.
    """
    profile = problem.profile
    apart = device[profile.edge_source] != device[profile.edge_op]
    crosses = marked(profile.n_tensors, profile.edge_tensor[apart])
    summed = _summed(profile)
    if is_step_of_its_own(problem, device):
        return crosses & summed
    stays = crosses | (np.diff(profile.hold_ptr) > 0)
    return (stays & summed) | added_by_stages(problem)


def added_by_stages(problem: Problem) -> BoolArray:
    """Find the gradients that are summed wherever samples return to several devices."""
    profile = problem.profile
    return _summed(profile) & ~optimiser_ops(problem)[profile.tensor_op]


def _summed(profile: Profile) -> BoolArray:
    """Find the tensors that a step has once for all samples, other than variables."""
    return once_per_step(profile) & ~_stays(profile)


def _stays(profile: Profile) -> BoolArray:
    """Find the tensors that no sample makes; (n_tensors,)."""
    of_variables = given_by_variables(profile) | left_by_last_step(profile)
    return of_variables | made_by_updates(profile)


def is_step_of_its_own(problem: Problem, device: IntArray) -> bool:
    """Whether each sample may change the weights: no other is on its way to them meanwhile."""
    return len(returns_to(problem, device)) < 2


def _find_sample_holds(problem: Problem, device: IntArray, added: BoolArray) -> IntArray:
    """Find the holds that count for each sample, by number."""
    profile = problem.profile
    if not is_step_of_its_own(problem, device):
        return holds_of_samples(profile)
    return np.flatnonzero(~added[profile.hold_tensor])


class _Use(NamedTuple):
    """Which stages make, read and hold a tensor of each sample; few differ between tensors.

    Attributes
    ----------
    until : frozenset of int
        Further stages of the same sample until the end of which it is held.
    is_added : bool
        Whether it is added to a sum of all samples at once.
    """

    maker: int
    readers: frozenset[int]
    until: frozenset[int]
    is_added: bool


def _find_uses(
    profile: Profile, stage_of: IntArray, added: BoolArray, sample_holds: IntArray
) -> tuple[dict[_Use, tuple[int, int]], IntArray]:
    """Find the bytes of all tensors of one use: where they are made, and of their copies.

    The array has the number of each tensor's use; -1 if the tensor takes no memory.
    """
    counts = np.flatnonzero((profile.copy_bytes > 0) & ~_stays(profile))
    until: dict[int, set[int]] = defaultdict(set)
    for hold in sample_holds.tolist():
        until[int(profile.hold_tensor[hold])].add(int(stage_of[profile.hold_op[hold]]))
    readers, ptr = stage_of[profile.edge_op].tolist(), profile.edge_ptr.tolist()
    columns = (
        counts,
        stage_of[profile.tensor_op[counts]],
        added[counts],
        profile.held_bytes[counts],
        profile.copy_bytes[counts],
    )
    found: dict[_Use, tuple[int, int]] = {}
    number: dict[_Use, int] = {}
    use_of = np.full(profile.n_tensors, -1)
    for tensor, maker, is_added, held_bytes, copy_bytes in zip(
        *(column.tolist() for column in columns), strict=True
    ):
        read_by = frozenset(readers[ptr[tensor] : ptr[tensor + 1]])
        use = _Use(maker, read_by, frozenset(until.get(tensor, ())), is_added)
        known = found.get(use, (0, 0))
        found[use] = known[0] + held_bytes, known[1] + copy_bytes
        use_of[tensor] = number.setdefault(use, len(number))
    return found, use_of


def _holds_of(
    stages: Sequence[Stage],
    ancestors: Sequence[int],
    maker: int,
    there: set[int],
    made: bool,
    receive: set[int],
    again: int,
    later: frozenset[int],
    overlap: bool,
) -> list[tuple[_Hold, Life]]:
    """Find when a device holds a tensor that some of its stages make or read.

    Parameters
    ----------
    receive : set of int
        Stages of other devices that receive it from here.
    again : int
        The stage that makes it again; :data:`UNKNOWN` if none does.
    later : frozenset of int
        Further stages, anywhere, until the end of which it is held.
    """
    device = stages[min(there)].devices
    here = {s for s, each in enumerate(stages) if each.devices == device}
    if again != UNKNOWN:
        later &= here
        if not made:
            # The forward ops run again, so their inputs stay until they have.
            return [(_Hold((min(there), IN), _ends(here), True), Life(UNKNOWN, UNKNOWN))]
    stay = there | later
    begin = (maker, COMPUTE) if made else (min(there), IN)
    back = {s for s in stay if stages[s].of != FORWARD} if again != UNKNOWN else set()
    ahead, found = stay - back, []
    freed_in = last_of([*ahead, *receive] if overlap else [*ahead], ancestors)
    if freed_in not in ahead & here or (receive and freed_in == maker):
        freed_in = UNKNOWN
    ends = _ends(ahead) + ((maker, OUT),) * bool(receive)
    found.append((_Hold(begin, ends, not made), Life(maker if made else UNKNOWN, freed_in)))
    if again != UNKNOWN:
        life = Life(again, last_of([again, *back], ancestors))
        found.append((_Hold((again, COMPUTE), _ends(back | {again})), life))
    return found


def _ends(stages: AbstractSet[int]) -> tuple[tuple[int, int], ...]:
    return tuple((stage, COMPUTE) for stage in sorted(stages))


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
    in_use = total[:, 0] + resident
    # At the peak of a stage, what it has received may be freed already.
    return MemoryCurve(time_us, in_use, np.minimum(total[:, 1], in_use), resident)
