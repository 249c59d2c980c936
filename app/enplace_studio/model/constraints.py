"""The constraints of a person, one at a time: listed, priced and switched off. No Qt."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import numpy as np

from enplace.errors import EnplaceError, PinConflictError
from enplace.machine import simulate
from enplace.machine.plan_words import name_ranges
from enplace.names.groups import Grouping
from enplace.names.titles import shorter_titles
from enplace.readers.constraints import constrain as constrain_by_name
from enplace.text import count
from enplace.values.constraints import (
    DEVICE,
    KINDS,
    OP,
    Before,
    Colocate,
    Ends,
    Forbid,
    Kind,
    Lock,
    Pin,
    Row,
    StayClose,
    look_up,
)
from enplace.values.pins import FREE
from enplace.values.plan import Plan, check_plan, follow_graph
from enplace.values.problem import Problem
from enplace.values.profile import IntArray, Profile
from enplace.values.schedule import Schedule
from enplace_studio.explain.reasons import find_lock
from enplace_studio.model import edits
from enplace_studio.model.open_project import Constraint, OpenProject, PlanEntry
from enplace_studio.model.prices import simulate_changed

MOST_GROUPS, MOST_UNITS = 20, 8
"""Most groups whose moves are tried for what a lock costs, and placement units for the others."""


@lru_cache(maxsize=2)  # several views ask after every edit
def list_constraints(
    problem: Problem, grouping: Grouping, locks: tuple[Constraint, ...] = ()
) -> Sequence[Constraint]:
    """List what a person asked for: pins and orders of one group of ops are one constraint.

    Parameters
    ----------
    locks
        Which pins belong to the lock of a device; of other locks, all pins to the device do.
    """
    held = _held_locks(problem, locks)
    named = (_by_names(problem, *each) for each in _joined(problem, grouping, held))
    return [*held, *named]


@lru_cache(maxsize=2)  # menus ask at every change of the selection
def solve_text(project: OpenProject) -> str:
    """Name the action that solves, with the number of constraints as the pane lists them."""
    n = len(list_constraints(project.problem, project.grouping, project.locks))
    return f"Solve around {count(n, 'constraint')}" if n else "Solve"


def _held_locks(problem: Problem, locks: Sequence[Constraint]) -> list[Constraint]:
    """List the locks of a problem, by device."""
    known = {device_in(lock): lock for lock in locks if _holds(problem, lock)}
    found = []
    for device in sorted(problem.locked):
        own = known.get(problem.cluster.devices[device].name)
        found.append(own or _lock_of(problem, device, np.flatnonzero(problem.pinned_to == device)))
    return found


def _lock_of(problem: Problem, device: int, ops: IntArray) -> Constraint:
    """Make the lock of a device, to which the pins of some ops belong."""
    names = [problem.profile.op_names[op] for op in ops.tolist()]
    return Constraint(Lock.key, ((problem.cluster.devices[device].name, *names),))


def _joined(
    problem: Problem, grouping: Grouping, held: Sequence[Constraint]
) -> Iterator[tuple[Kind, IntArray | list[Row]]]:
    """Yield each constraint with its rows; pins that a lock holds, and locks, are left out.

    Rows that are pairs of numbers are an array.
    """
    own = grouping.n_groups + np.arange(problem.profile.n_ops)
    part = np.where(grouping.group >= 0, grouping.group, own)
    parts = {OP: part, DEVICE: np.arange(problem.cluster.n_devices)}
    for kind in problem.constraints:
        if kind.key == Lock.key:
            continue
        if kind.key == Pin.key:
            pinned_to = problem.pinned_to.copy()
            pinned_to[_locked_ops(problem, held)] = FREE
            pinned = np.flatnonzero(pinned_to != FREE)
            rows: Any = np.column_stack([pinned, pinned_to[pinned]])
        else:
            rows = kind.rows(problem.constraints[kind.key])
        if kind.roles in ((OP, DEVICE), (OP, OP)):
            pairs = np.array(rows, dtype=np.int64).reshape(-1, 2)
            joined = _join(pairs, *(parts[role] for role in kind.roles))
            yield from ((kind, each) for each in joined)
        else:
            yield from ((kind, [row]) for row in rows)


def _by_names(problem: Problem, kind: Kind, rows: IntArray | list[Row]) -> Constraint:
    """Make a constraint of the numbers in its rows."""
    devices = tuple(device.name for device in problem.cluster.devices)
    if isinstance(rows, np.ndarray):
        return _pairs_by_name(problem.profile, devices, kind, rows.tobytes())
    ends = look_up(problem.profile.op_names), look_up(devices)
    return Constraint(kind.key, tuple(kind.all_mapped(rows, *ends)))


@lru_cache(maxsize=100)  # pairs of thousands of ops, of which an edit changes few
def _pairs_by_name(
    profile: Profile, devices: tuple[str, ...], kind: Kind, pairs: bytes
) -> Constraint:
    columns = np.frombuffer(pairs, dtype=np.int64).reshape(-1, 2).T.tolist()
    names: dict[str, Sequence[str]] = {OP: profile.op_names, DEVICE: devices}
    ends = (map(names[role].__getitem__, at) for role, at in zip(kind.roles, columns, strict=True))
    return Constraint(kind.key, tuple(zip(*ends, strict=True)))


def _join(pairs: IntArray, first_part: IntArray, then_part: IntArray) -> list[IntArray]:
    """Join all pairs, given in order, whose ends are in the same parts."""
    if not len(pairs):
        return []
    first, then = pairs.T
    code = first_part[first] * (int(then_part.max()) + 1) + then_part[then]
    by_code = np.argsort(code, kind="stable")
    found = np.split(pairs[by_code], np.flatnonzero(np.diff(code[by_code])) + 1)
    return sorted(found, key=lambda rows: rows[0].tolist())


def _holds(problem: Problem, lock: Constraint) -> bool:
    ops, (device, *names) = problem.profile.index, lock.rows[0]
    place = problem.cluster.index.get(device)
    return place in problem.locked and all(
        name in ops and problem.pins.get(ops[name]) == place for name in names
    )


def _locked_ops(problem: Problem, locks: Sequence[Constraint]) -> list[int]:
    return [problem.profile.index[name] for lock in locks for name in lock.rows[0][1:]]


def ops_of(problem: Problem, constraint: Constraint) -> tuple[IntArray, IntArray]:
    """Return the ops of a constraint, and for an order those that come after them."""
    return _find_ops(problem.profile, constraint)


@lru_cache(maxsize=100)
def _find_ops(profile: Profile, constraint: Constraint) -> tuple[IntArray, IntArray]:
    index, rows = profile.index, constraint.rows
    kind = KINDS[constraint.kind]
    if kind.key == Lock.key:
        ends = [rows[0][1:], ()]
    elif kind.roles == (OP, OP):
        ends = [[row[0] for row in rows], [row[1] for row in rows]]
    else:
        ends = [list(kind.ends(rows, OP)), []]
    first, then = (np.unique([index[n] for n in names if n in index]) for names in ends)
    return first.astype(np.int64), then.astype(np.int64)


def describe(project: OpenProject, constraint: Constraint) -> str:
    """Describe a constraint in a few words: ``encoder / layer 0 on GPU 1``."""
    kind, (first, then) = KINDS[constraint.kind], ops_of(project.problem, constraint)
    index = project.problem.cluster.index

    def where(device: str) -> str:
        return project.device_label(index[device]) if device in index else device

    if kind.key == Lock.key:
        return kind.phrase.format(where(device_in(constraint)))
    if (OP in kind.roles and not len(first)) or (kind.roles == (OP, OP) and not len(then)):
        name = next(kind.ends(constraint.rows, OP))
        return f"{name}, for another graph"  # switched off there
    if kind.key == StayClose.key:
        ends = _if_there(project.problem.profile.index), _if_there(index)
        home = find_home(project, kind.all_mapped(constraint.rows, *ends))
        plan = "a plan" if home is None else home.name
        return f"within {count(constraint.rows[0][1], 'op')} of {plan}"
    what = _named(project, first)
    if kind.roles == (OP, OP):
        if len(then) == 1 and what == project.describe(then):
            return kind.phrase.format(*project.describe_two(first.tolist(), int(then[0])))
        groups = np.unique(project.grouping.group[[*first, *then]])
        inside = f" of {project.grouping.names[groups[0]]}" if len(groups) == 1 else ""
        return kind.phrase.format(what.removesuffix(inside), project.describe(then))
    return kind.phrase.format(*kind.texts(constraint.rows[0], lambda _: what, where))


def _if_there(numbers: Mapping[str, int]) -> Ends:
    """Stand for the number of a name, or for nothing: what is off may name what is gone."""
    return lambda name: [numbers[name]] if name in numbers else []


def ways_to_say(description: str, grouping: Grouping) -> list[str]:
    """Return a description, then with fewer outer scopes in the name of the group in it."""
    ways = shorter_titles(grouping.names)
    name = max((each for each in ways if each in description), key=len, default="")
    return [description.replace(name, way) for way in ways.get(name, ("",))]


def find_home(project: OpenProject, rows: Collection[Row]) -> PlanEntry | None:
    """Find the listed plan that change limits, as numbers of ops and devices, keep others close to.

    It is looked for among the plans of the open graph; of several that place all ops alike, it is
    one that has the limit itself, as the plan has on which it was asked for. None if it is gone, or
    there is no limit.
    """
    for row in rows:
        ops, devices = np.array(row[0], dtype=np.int64).reshape(-1, 2).T
        alike = [
            entry
            for entry in project.plans
            if entry.cluster is None and entry.plan.splits == project.problem.splits
            if (entry.plan.device[ops] == devices).all()
        ]
        own = [each for each in alike if row in each.schedule.problem.constraints[StayClose.key]]
        if alike:
            return (own or alike)[0]
    return None


def _named(project: OpenProject, ops: IntArray) -> str:
    """Name ops so that rows of the list read unlike: of many groups, the first."""
    if len(ops) == project.problem.profile.n_ops:
        return "everything"
    what, grouping = project.describe(ops), project.grouping
    if not what.endswith(" groups"):
        return what
    names = name_ranges(grouping, np.unique(grouping.group[ops]).tolist())
    return " and ".join(names) if len(names) < 3 else f"{names[0]} and {len(names) - 1} more"


def device_in(constraint: Constraint) -> str:
    """Return the name of the device that a constraint is about; empty if it is about none."""
    devices = _devices_in(constraint)
    return devices[0] if len(devices) == 1 else ""


def _devices_in(constraint: Constraint) -> list[str]:
    if constraint.kind == Lock.key:
        return [constraint.rows[0][0]]
    return list(dict.fromkeys(KINDS[constraint.kind].ends(constraint.rows, DEVICE)))


def without(problem: Problem, constraint: Constraint) -> Problem:
    """Return the problem without a constraint."""
    ops, devices = problem.profile.index, problem.cluster.index
    constraints = problem.constraints
    for key, rows in _rows_of(constraint).items():
        kind = KINDS[key]
        gone = set(kind.all_mapped(rows, look_up(ops), look_up(devices)))
        kept = [row for row in kind.rows(constraints[key]) if row not in gone]
        constraints = constraints.replaced(**{kind.field: kind.collect(kept)})
    return replace(problem, constraints=constraints)


def _rows_of(constraint: Constraint) -> dict[str, Sequence[Row]]:
    """Return the rows of a constraint by their kinds: a lock has pins too."""
    if constraint.kind != Lock.key:
        return {constraint.kind: constraint.rows}
    device, *ops = constraint.rows[0]
    return {Pin.key: [(op, device) for op in ops], Lock.key: [device]}


def broken_kinds(problem: Problem, plan: Plan, locks: Sequence[Constraint]) -> list[str]:
    """Name the kinds of constraints that a plan of the same graph and cluster breaks."""
    device, wanted = plan.device, problem.pinned_to
    moved, locked = (wanted != FREE) & (wanted != device), np.zeros(len(device), dtype=bool)
    locked[_locked_ops(problem, _held_locks(problem, locks))] = True
    there = {d: np.flatnonzero(device == d) for d in problem.locked}
    added = any(find_lock(problem, ops_there, d) is not None for d, ops_there in there.items())
    kinds = {"pins": (moved & ~locked).any(), "lock": (moved & locked).any() or added}
    found = [kind for kind, broken in kinds.items() if broken]
    rest = (kind for kind in problem.constraints if kind.key not in (Pin.key, Lock.key))
    return [*found, *(f"{kind.noun}s" for kind in rest if _breaks(problem, plan, kind))]


def _breaks(problem: Problem, plan: Plan, kind: Kind) -> bool:
    if kind.key == Colocate.key:
        return any(len(np.unique(plan.device[list(group)])) > 1 for group in problem.together)
    allowed = np.ones((len(plan.device), problem.cluster.n_devices), dtype=bool)
    kind.restrict(problem, allowed)
    is_free = bool(allowed[np.arange(len(plan.device)), plan.device].all())
    return not is_free or bool(kind.check(problem, plan.device))


def step_without(project: OpenProject, constraint: Constraint) -> float | None:
    """Find the least cost of the plan, in us, if only the ops of a constraint move once it is gone.

    That is its step time, or its time per sample or query.
    Pinned ops may go to any device, forbidden ones to that device: all together, one unit at a
    time, or back to where they ran before the edits. Colocated ops move one unit at a time. Ordered
    ops run when they did before the edits, or the other way round. Of a lock, one group of ops
    leaves the device, or goes there. A plan that does not fit is no gain for one that does. If no
    such move gains, the cost of now; None without a plan that keeps all constraints.
    """
    current = project.current
    if current is None or not _follows(project.problem, current.plan):
        return None
    best_us = current.schedule.value_us
    for candidate in _candidates(project, constraint, without(project.problem, constraint)):
        try:
            schedule = candidate()
        except EnplaceError:  # not there either
            continue
        # Adding up the memory takes as long as the simulation.
        is_better = schedule.value_us < best_us
        if is_better and (schedule.fits or not current.schedule.fits):
            best_us = schedule.value_us
    return best_us


def _home(project: OpenProject) -> Plan | None:
    """Return the plan before the edits of the current one, if it is of the same graph."""
    assert project.current is not None
    origin = project.current.origin
    if origin is None or origin.cluster or origin.plan.splits != project.current.plan.splits:
        return None
    return origin.plan


def _follows(problem: Problem, plan: Plan) -> bool:
    try:
        check_plan(problem, plan)
    except EnplaceError:
        return False
    return True


def _candidates(
    project: OpenProject, constraint: Constraint, freed: Problem
) -> list[Callable[[], Schedule]]:
    assert project.current is not None
    plan, home = project.current.plan, _home(project)
    if constraint.kind == Before.key:
        orders = _other_way_round(freed, plan, constraint) if home is None else [home.position]
        return [partial(_reordered, freed, plan, position) for position in orders]
    candidates: list[Callable[[], Schedule]] = [
        partial(_moved, freed, plan, ops, device)
        for ops, device in _moves(project, constraint, freed)
    ]
    if home is not None and constraint.kind in (Pin.key, Forbid.key):
        ops = ops_of(freed, constraint)[0]
        candidates.append(partial(_moved, freed, plan, ops, home.device))
    return candidates


def _moves(
    project: OpenProject, constraint: Constraint, freed: Problem
) -> list[tuple[Collection[int], int]]:
    """List ops and devices that they could move to without a constraint."""
    assert project.current is not None
    everywhere = list(range(freed.cluster.n_devices))
    if constraint.kind == Lock.key:
        there, device = freed.cluster.index[device_in(constraint)], project.current.plan.device
        return [
            (ops, to)
            for ops in _longest_groups(project)
            for to in (everywhere if (device[ops] == there).all() else [there])
        ]
    ops = ops_of(freed, constraint)[0]
    parts = _longest_units(project.current.schedule, freed, ops)
    if constraint.kind != Colocate.key and len(parts) != 1:
        parts = [ops, *parts]
    only = constraint.kind == Forbid.key
    devices = [freed.cluster.index[device_in(constraint)]] if only else everywhere
    return [(part, device) for part in parts for device in devices]


def _longest_units(schedule: Schedule, freed: Problem, ops: IntArray) -> list[IntArray]:
    """Return those of some ops' placement units that compute longest."""
    length_us = np.bincount(freed.unit, schedule.op_finish_us - schedule.op_start_us)
    units = np.unique(freed.unit[ops])
    longest = units[np.argsort(-length_us[units], kind="stable")][:MOST_UNITS]
    return [np.flatnonzero(freed.unit == unit) for unit in longest.tolist()]


def _other_way_round(freed: Problem, plan: Plan, order: Constraint) -> list[IntArray]:
    """Return orders with the ops that come first just after the others, and the others before."""
    first, then = ops_of(freed, order)
    later, earlier = plan.position.astype(float), plan.position.astype(float)
    later[first] = later[then].max() + 0.5
    earlier[then] = earlier[first].min() - 0.5
    return [np.argsort(np.argsort(key, kind="stable")) for key in (later, earlier)]


def _reordered(problem: Problem, plan: Plan, position: IntArray) -> Schedule:
    if plan.policy == "strict":
        position = follow_graph(problem.profile, position)
    return simulate(problem, replace(plan, position=position))


def _longest_groups(project: OpenProject) -> list[IntArray]:
    """Return the ops of the groups that compute longest."""
    assert project.current is not None
    schedule, grouping = project.current.schedule, project.grouping
    length_us = schedule.op_finish_us - schedule.op_start_us
    groups = [grouping.ops(number) for number in range(grouping.n_groups)]
    return sorted(groups, key=lambda ops: -length_us[ops].sum())[:MOST_GROUPS]


def _moved(problem: Problem, plan: Plan, ops: Collection[int], device: int | IntArray) -> Schedule:
    """Simulate a plan with ops on one device, or each on the device that another plan gives it."""
    whole = edits.unit_ops(problem, ops)
    there = device if isinstance(device, int) else device[whole]
    return simulate_changed(problem, edits.move(plan, whole, there))


def switch_off(project: OpenProject, constraint: Constraint) -> OpenProject:
    """Take a constraint away, but remember it."""
    after = _take_away(project, constraint)
    return replace(after, off=(*after.off, constraint))


def switch_on(project: OpenProject, constraint: Constraint) -> OpenProject:
    """Make a constraint that was switched off hold again.

    Raises
    ------
    EnplaceError
        If it contradicts others, or the ops or devices that it names are gone.
    """
    rows = _rows_of(constraint)
    found = constrain_by_name(project.problem, rows)
    if found.unknown:
        gone = found.unknown[0]
        raise EnplaceError(f"this graph or cluster has no {gone}; remove the constraint")
    _check_pins(project, rows.get(Pin.key, ()))
    return replace(adopt(project, found.problem), off=_off_without(project, constraint))


def _check_pins(project: OpenProject, pins: Iterable[Row]) -> None:
    """Refuse pins of ops that are pinned to another device by now."""
    problem = project.problem
    for name, device in pins:
        op = problem.profile.index[name]
        now = problem.pins.get(op, problem.cluster.index[device])
        if now != problem.cluster.index[device]:
            raise PinConflictError(
                f"{project.describe([op])} is now pinned to {project.device_label(now)}; unpin it "
                f"first"
            )


def keep_lost(old: OpenProject, new: OpenProject) -> OpenProject:
    """Keep, switched off, the constraints on devices that the cluster of a project now lacks."""
    before, after = old.problem.cluster, new.problem.cluster
    there = edits.counterparts(before, after)
    if min(there) >= 0:
        return new
    lost = [
        each
        for each in list_constraints(old.problem, old.grouping, old.locks)
        if any(there[before.index[name]] < 0 for name in _devices_in(each))
    ]
    return replace(new, off=tuple(dict.fromkeys((*new.off, *lost))))


def remove(project: OpenProject, constraint: Constraint) -> OpenProject:
    """Remove a constraint, whether it is on or off."""
    after = _take_away(project, constraint)
    if constraint not in after.locks:
        return after
    return replace(after, locks=tuple(each for each in after.locks if each != constraint))


def _take_away(project: OpenProject, constraint: Constraint) -> OpenProject:
    if constraint in project.off:
        project = replace(project, off=_off_without(project, constraint))
    if constraint not in list_constraints(project.problem, project.grouping, project.locks):
        return project
    return adopt(project, without(project.problem, constraint))


def lock(project: OpenProject, device: int) -> OpenProject:
    """Keep a device as it is: pin everything there that is not pinned yet, and add nothing.

    Raises
    ------
    PlanError
        If there is no plan.
    """
    here = project.plan_to("keep").plan.device == device
    free = np.flatnonzero(here & (project.problem.pinned_to == FREE))
    pins = {**project.problem.pins, **dict.fromkeys(free.tolist(), device)}
    locked = edits.constrain(project, pins=pins, locked=project.problem.locked | {device})
    made = _lock_of(locked.problem, device, free)
    return replace(locked, locks=(*project.locks, made))


def unlock(project: OpenProject, device: int) -> OpenProject:
    """Let placers change a locked device again; what was pinned before stays pinned."""
    name = project.problem.cluster.devices[device].name
    held = _held_locks(project.problem, project.locks)
    mine = next((each for each in held if device_in(each) == name), None)
    return project if mine is None else remove(project, mine)


def _off_without(project: OpenProject, constraint: Constraint) -> tuple[Constraint, ...]:
    return tuple(each for each in project.off if each != constraint)


def adopt(project: OpenProject, constrained: Problem) -> OpenProject:
    """Take over the constraints of another problem of the same graph."""
    if constrained.constraints == project.problem.constraints:
        return project
    return edits.constrain(project, **constrained.constraints.by_field)
