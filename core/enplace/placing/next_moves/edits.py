"""The edits of a plan that are worth a try: moves, orders, splits, swaps, recomputing.

The most promising come first, so that a search that has little time has seen them: what lies on the
critical path, whole blocks before single ops, and what was good a moment ago before all others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import pairwise

import numpy as np

from enplace.machine import critical_path
from enplace.machine.layout import build_machine
from enplace.placing.moves import make_level
from enplace.placing.settle import by_placed_rank
from enplace.values.arrays import FloatArray, IntArray
from enplace.values.constraints import OP, Before
from enplace.values.plan import Plan, follow_graph, runs_as_recorded
from enplace.values.problem import THROUGHPUT, Problem, split_problem
from enplace.values.profile import Profile
from enplace.values.schedule import Schedule
from enplace.values.splits import Split, legal_dimensions, part_names, whole_names

MOVE, ORDER, SPLIT, SWAP, RECOMPUTE = "move", "order", "split", "swap", "recompute"
TOGETHER = "together"

MOST_SPLIT, MOST_SWAPPED, MOST_PARTNERS = 12, 24, 8
"""The most ops that are split, blocks that are swapped, and blocks to swap each of these with."""

ALIKE = 2.0
"""Blocks that are swapped differ in their work at most by this factor."""


@dataclass(frozen=True, eq=False)
class Edit:
    """An edit that may be tried.

    Attributes
    ----------
    ops : int array
        The ops that move, or run at another time.
    others : int array
        What they are swapped with, or the op that they go before; empty for other kinds.
    devices : tuple of int
        Where ``ops`` go; for a swap, then where ``others`` go.
    make : callable
        Makes the plan.
    how : str
        The dimension of a split; ``again`` if a device is to run its forward ops again, and
        ``keep`` if it is to keep what they make.
    """

    kind: str
    ops: IntArray
    others: IntArray
    devices: tuple[int, ...]
    make: Callable[[], Plan]
    how: str = ""

    @property
    def moved(self) -> IntArray:
        """All ops that run elsewhere, or at another time."""
        return np.union1d(self.ops, self.others) if self.kind == SWAP else self.ops


NONE = np.zeros(0, dtype=np.int64)


def edits_of(schedule: Schedule, again: Iterable[tuple[IntArray, int]] = ()) -> Iterator[Edit]:
    """List the edits of a plan, the most promising first.

    Parameters
    ----------
    again : iterable of (int array, int)
        Ops and devices of moves that were good for a plan much like this one.
    """
    problem, plan = schedule.problem, schedule.plan
    seen: set[tuple[int, bytes]] = set()
    path_us = _path_us(schedule)
    blocks, units = _blocks(problem), _units(problem)
    by_share = _by_share([*blocks, *(unit for unit in units if path_us[unit].any())], path_us)

    def moves(groups: Iterable[IntArray], devices: Sequence[int]) -> Iterator[Edit]:
        for ops in groups:
            for device in devices:
                yield from move(problem, plan, ops, device, seen)

    gpus = problem.cluster.gpus
    if plan.objective == THROUGHPUT:
        yield from _recomputes(problem, plan)
    for ops, device in again:
        yield from move(problem, plan, ops, device, seen)
    yield from _orders(schedule)
    yield from moves(_stretches(schedule), gpus)
    yield from moves(by_share, gpus)
    yield from _splits(schedule, gpus, path_us)
    yield from _swaps(problem, plan, by_share, units, path_us)
    yield from moves(units, gpus)
    yield from moves(units, problem.cluster.cpus)


def _path_us(schedule: Schedule) -> FloatArray:
    """Return how long each op is on the critical path; shape (n_ops,)."""
    path = critical_path(schedule)
    ops = path.number[~path.is_transfer]
    times_us = np.zeros(schedule.problem.profile.n_ops)
    times_us[ops] = (path.finish_us - path.start_us)[~path.is_transfer]
    return times_us


@lru_cache(maxsize=2)
def _blocks(problem: Problem) -> list[IntArray]:
    """List the ops of every scope, pass of a scope, and kind of op within one."""
    level = make_level(problem, np.arange(problem.profile.n_ops))
    ptr, unit, units = level.blocks.ptr.tolist(), level.blocks.unit, _units(problem)
    return [
        np.concatenate([units[each] for each in unit[first:end].tolist()])
        for first, end in pairwise(ptr)
        if end > first + 1
    ]


@lru_cache(maxsize=2)
def _units(problem: Problem) -> list[IntArray]:
    """List the ops of every placement unit."""
    machine = build_machine(problem)
    return np.split(machine.member, machine.unit_ptr[1:-1])


def _by_share(blocks: list[IntArray], path_us: FloatArray) -> list[IntArray]:
    """Sort blocks by how much of the critical path they take for their size."""
    return sorted(blocks, key=lambda ops: -float(path_us[ops].sum()) / np.sqrt(len(ops)))


def move(
    problem: Problem, plan: Plan, ops: IntArray, device: int, seen: set[tuple[int, bytes]]
) -> Iterator[Edit]:
    """Move those ops that may run there, and do not yet."""
    ops = ops[plan.device[ops] != device]
    ops = np.sort(ops[problem.unit_allowed[problem.unit[ops], device]])
    key = device, ops.tobytes()
    if len(ops) and key not in seen:
        seen.add(key)
        yield Edit(MOVE, ops, NONE, (device,), partial(placed, plan, ops, device))


def placed(plan: Plan, ops: IntArray, device: int | IntArray) -> Plan:
    """Return a plan with ops on other devices, in the same order."""
    where = plan.device.copy()
    where[ops] = device
    return replace(plan, device=where)


def _stretches(schedule: Schedule) -> Iterator[IntArray]:
    """List ops of the critical path that run in a row on a device: all, or fewer at either end."""
    problem, path = schedule.problem, critical_path(schedule)
    ops = np.where(path.is_transfer, 0, path.number)
    device = np.where(path.is_transfer, -1, schedule.plan.device[ops])
    cuts = np.flatnonzero(np.diff(device)) + 1
    units = _units(problem)
    for at in np.split(np.arange(len(device)), cuts):
        size = len(at)
        while size > 1 and device[at[0]] >= 0:
            for part in {(0, size), (len(at) - size, len(at))}:
                chosen = np.unique(problem.unit[path.number[at[slice(*part)]]])
                yield np.concatenate([units[unit] for unit in chosen.tolist()])
            size //= 2


# Orders


def _orders(schedule: Schedule) -> Iterator[Edit]:
    """Run ops of the critical path that waited for their device before those it ran meanwhile."""
    problem, plan = schedule.problem, schedule.plan
    every = np.arange(problem.profile.n_ops)
    if runs_as_recorded(problem.profile, plan):
        return
    yield Edit(ORDER, every, NONE, (), partial(by_rank, problem, plan))
    if plan.policy == "fifo":
        return
    ready_us, path = _ready_us(schedule), critical_path(schedule)
    order = follow_graph(problem.profile, plan.position)
    start_us, finish_us = schedule.op_start_us, schedule.op_finish_us
    for op in path.number[~path.is_transfer].tolist():
        if start_us[op] <= ready_us[op]:
            continue
        ahead = (plan.device == plan.device[op]) & (start_us < start_us[op])
        ahead &= (finish_us > start_us) & (start_us >= ready_us[op])
        passed = np.flatnonzero(ahead)
        passed = passed[np.argsort(start_us[passed], kind="stable")]
        for anchor in dict.fromkeys(passed[[0, -1]].tolist() if len(passed) else ()):
            position = earlier(problem.profile, order, op, anchor)
            make = partial(replace, plan, position=position)
            yield Edit(ORDER, np.array([op]), np.array([anchor]), (int(plan.device[op]),), make)


def _ready_us(schedule: Schedule) -> FloatArray:
    """Find when the last input of each op is on its device; shape (n_ops,)."""
    profile, device = schedule.problem.profile, schedule.plan.device
    n = schedule.problem.cluster.n_devices
    arrival_us = np.zeros((profile.n_tensors, n))
    arrival_us[schedule.transfer_tensor, schedule.transfer_to] = schedule.transfer_finish_us
    to, tensor = device[profile.edge_op], profile.edge_tensor
    here = device[profile.edge_source] == to
    at_us = np.where(here, schedule.op_finish_us[profile.edge_source], arrival_us[tensor, to])
    ready_us = np.zeros(profile.n_ops)
    np.maximum.at(ready_us, profile.edge_op, at_us)
    return ready_us


def by_rank(problem: Problem, plan: Plan) -> Plan:
    """Let devices and channels take first what most work waits for."""
    position = by_placed_rank(problem, plan.device)
    return replace(plan, position=position, policy="priority", links="priority")


def earlier(profile: Profile, order: IntArray, op: int, anchor: int) -> IntArray:
    """Let an op go before another, or right after its last producer if that comes later.

    It is what :func:`follow_graph` finds for a smaller key, which takes ten times as long as the
    simulation.
    """
    producers = profile.edge_source[profile.edges_into(op)]
    first = max(int(order[anchor]), int(order[producers].max(initial=-1)) + 1)
    found: IntArray = order + ((order >= first) & (order < order[op]))
    found[op] = first
    return found


# Splits, swaps, recomputing


def _splits(schedule: Schedule, gpus: Iterable[int], path_us: FloatArray) -> Iterator[Edit]:
    """Split the longest ops of the critical path in two, one part on another GPU."""
    problem, plan = schedule.problem, schedule.plan
    profile = problem.profile
    if problem.splits or plan.objective == THROUGHPUT or profile.measured.runs_as_recorded:
        return  # a script that runs as it is runs its ops whole
    kinds = ((kind, rows) for kind, rows in problem.constraints.items() if kind.key != Before.key)
    kept = {op for kind, rows in kinds for op in kind.numbers(rows, OP).tolist()}
    longest = np.argsort(-path_us, kind="stable")[:MOST_SPLIT]
    for op in longest[path_us[longest] > 0].tolist():
        if op in kept or profile.colocation[op]:
            continue
        home = int(plan.device[op])
        for dimension in legal_dimensions(profile, op, 2):
            splits = (Split(profile.op_names[op], dimension, 2),)
            for device in gpus:
                if device != home and np.isfinite(problem.time_us[op, device]):
                    make = partial(_split, problem, plan, splits, device)
                    ops = np.array([op])
                    yield Edit(SPLIT, ops, NONE, (home, device), make, dimension)


def _split(problem: Problem, plan: Plan, splits: tuple[Split, ...], device: int) -> Plan:
    """Carry a plan over to the graph with an op split, and place its second part elsewhere."""
    graph = graph_of(problem, splits).profile
    names = whole_names(graph.op_names, splits)
    of = np.array([problem.profile.index[name] for name in names])
    where = plan.device[of]
    where[graph.index[part_names(splits[0].op, 2)[1]]] = device
    position = follow_graph(graph, plan.position[of])
    return replace(plan, device=where, position=position, splits=splits, subgraph=None)


@lru_cache(maxsize=1)  # for each device that a part may go to
def graph_of(problem: Problem, splits: tuple[Split, ...]) -> Problem:
    """Return the problem with these ops split."""
    return split_problem(problem, splits)


def _swaps(
    problem: Problem,
    plan: Plan,
    by_share: list[IntArray],
    units: list[IntArray],
    path_us: FloatArray,
) -> Iterator[Edit]:
    """Swap blocks and units of the critical path with others that take about as long."""
    time_us = problem.time_us[np.arange(problem.profile.n_ops), plan.device]
    others = (unit for unit in units if not path_us[unit].any())
    every = [*by_share, *others]
    whole = [ops for ops in every if (plan.device[ops] == plan.device[ops[0]]).all()]
    work_us = np.array([time_us[ops].sum() for ops in whole])
    where = np.array([plan.device[ops[0]] for ops in whole], dtype=np.int64)
    for at, ops in enumerate(whole[:MOST_SWAPPED]):
        if not path_us[ops].any():
            break
        alike = (work_us * ALIKE >= work_us[at]) & (work_us <= ALIKE * work_us[at])
        partners = np.flatnonzero(alike & (where != where[at]))
        nearest = np.argsort(np.abs(work_us[partners] - work_us[at]), kind="stable")
        for other in partners[nearest][:MOST_PARTNERS].tolist():
            yield from _swap(problem, plan, ops, whole[other])


def _swap(problem: Problem, plan: Plan, one: IntArray, other: IntArray) -> Iterator[Edit]:
    here, there = int(plan.device[one[0]]), int(plan.device[other[0]])
    allowed = problem.unit_allowed
    if allowed[problem.unit[one], there].all() and allowed[problem.unit[other], here].all():
        ops = np.concatenate([one, other])
        device = np.repeat([there, here], [len(one), len(other)])
        make = partial(placed, plan, ops, device)
        yield Edit(SWAP, np.sort(one), np.sort(other), (there, here), make)


def _recomputes(problem: Problem, plan: Plan) -> Iterator[Edit]:
    """Have each device of a pipeline keep its activations, or run its forward ops again."""
    for device in np.unique(plan.device).tolist():
        ops = np.flatnonzero(plan.device == device)
        how = "keep" if device in plan.recompute else "again"
        chosen = tuple(sorted({device}.symmetric_difference(plan.recompute)))
        make = partial(replace, plan, recompute=chosen)
        yield Edit(RECOMPUTE, ops, NONE, (device,), make, how)
