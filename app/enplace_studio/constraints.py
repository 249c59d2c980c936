"""The constraints of a person, one at a time: listed, priced and switched off. No Qt."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from enplace.errors import EnplaceError, PinConflictError, PlanError
from enplace.machine import simulate
from enplace.names.groups import Grouping
from enplace.readers.constraints import constrain as constrain_by_name
from enplace.text import count
from enplace.values.pins import FREE
from enplace.values.plan import Plan, check_plan, follow_graph
from enplace.values.problem import Problem, order_problem
from enplace.values.profile import IntArray, Profile
from enplace.values.schedule import Schedule
from enplace_studio import edits
from enplace_studio.project import Constraint, OpenProject


@lru_cache(maxsize=2)  # several views ask after every edit
def list_constraints(
    problem: Problem, grouping: Grouping, locks: tuple[Constraint, ...] = ()
) -> Sequence[Constraint]:
    """List what a person asked for: pins and orders of one group of ops are one constraint.

    Parameters
    ----------
    locks
        Pins that are one constraint if all of them hold.
    """
    held = [lock for lock in locks if _holds(problem, lock)]
    ops, devices = problem.profile.op_names, [d.name for d in problem.cluster.devices]
    pins, forbidden, before = _join_pairs(problem, grouping, held)
    return [
        *held,
        *_named("pin", pins, ops, devices),
        *_named("forbid", forbidden, ops, devices),
        *(Constraint("colocate", (tuple(ops[op] for op in g),)) for g in problem.together if g),
        *_named("before", before, ops, ops),
    ]


@lru_cache(maxsize=2)  # menus ask at every change of the selection
def solve_text(project: OpenProject) -> str:
    """Name the action that solves, with the number of constraints as the pane lists them."""
    problem, together = project.problem, project.problem.together
    held = [lock for lock in project.locks if _holds(problem, lock)]
    joined = _join_pairs(problem, project.grouping, held)
    n = len(held) + sum(map(len, joined)) + sum(map(bool, together))
    return f"Solve around {count(n, 'constraint')}" if n else "Solve"


def _join_pairs(
    problem: Problem, grouping: Grouping, held: Sequence[Constraint]
) -> tuple[list[IntArray], ...]:
    """Find the pairs of each constraint: pins that no lock holds, forbidden devices, orders."""
    pinned_to = problem.pinned_to.copy()
    pinned_to[[problem.profile.index[name] for lock in held for name, _ in lock.rows]] = FREE
    pinned = np.flatnonzero(pinned_to != FREE)
    own = grouping.n_groups + np.arange(problem.profile.n_ops)
    part = np.where(grouping.group >= 0, grouping.group, own)
    places = np.arange(problem.cluster.n_devices)
    return (
        _join(np.column_stack([pinned, pinned_to[pinned]]), part, places),
        _join(_in_order(problem.forbidden), part, places),
        _join(_in_order(problem.before), part, part),
    )


def _in_order(pairs: Iterable[tuple[int, int]]) -> IntArray:
    return np.array(sorted(pairs), dtype=np.int64).reshape(-1, 2)


def _join(pairs: IntArray, first_part: IntArray, then_part: IntArray) -> list[IntArray]:
    """Join all pairs, given in order, whose ends are in the same parts."""
    if not len(pairs):
        return []
    first, then = pairs.T
    code = first_part[first] * (int(then_part.max()) + 1) + then_part[then]
    by_code = np.argsort(code, kind="stable")
    found = np.split(pairs[by_code], np.flatnonzero(np.diff(code[by_code])) + 1)
    return sorted(found, key=lambda rows: rows[0].tolist())


def _named(
    kind: str, joined: list[IntArray], ops: Sequence[str], others: Sequence[str]
) -> Iterable[Constraint]:
    for pairs in joined:
        yield Constraint(kind, tuple((ops[a], others[b]) for a, b in pairs.tolist()))


def _holds(problem: Problem, lock: Constraint) -> bool:
    ops, devices = problem.profile.index, problem.cluster.index
    return all(
        name in ops and problem.pins.get(ops[name], -1) == devices.get(device)
        for name, device in lock.rows
    )


def ops_of(problem: Problem, constraint: Constraint) -> tuple[IntArray, IntArray]:
    """Return the ops of a constraint, and for an order those that come after them."""
    return _find_ops(problem.profile, constraint)


@lru_cache(maxsize=100)
def _find_ops(profile: Profile, constraint: Constraint) -> tuple[IntArray, IntArray]:
    index, rows = profile.index, constraint.rows
    ends: list[list[str]] = [[row[0] for row in rows], []]
    if constraint.kind == "colocate":
        ends[0] = [name for row in rows for name in row]
    elif constraint.kind == "before":
        ends[1] = [row[1] for row in rows]
    first, then = (np.unique([index[n] for n in names if n in index]) for names in ends)
    return first.astype(np.int64), then.astype(np.int64)


def describe(project: OpenProject, constraint: Constraint) -> str:
    """Describe a constraint in a few words: ``encoder / layer 0 on GPU 1``."""
    first, then = ops_of(project.problem, constraint)
    if not len(first) or (constraint.kind == "before" and not len(then)):
        return f"{constraint.rows[0][0]}, for another graph"  # switched off there
    what = project.describe(first.tolist())
    if constraint.kind == "colocate":
        return f"{what} together"
    if constraint.kind == "before":
        groups = np.unique(project.grouping.group[[*first, *then]])
        inside = f" of {project.grouping.names[groups[0]]}" if len(groups) == 1 else ""
        return f"{what.removesuffix(inside)} before {project.describe(then.tolist())}"
    index = project.problem.cluster.index
    device = constraint.rows[0][1]
    where = project.device_label(index[device]) if device in index else device
    if constraint in project.locks:
        return f"{where} as it is"
    return f"{what} {'on' if constraint.kind == 'pin' else 'off'} {where}"


def without(problem: Problem, constraint: Constraint) -> Problem:
    """Return the problem without a constraint."""
    ops, devices = problem.profile.index, problem.cluster.index
    kind, rows = constraint.kind, constraint.rows
    if kind == "colocate":
        groups = {tuple(ops[name] for name in row) for row in rows}
        return replace(problem, together=tuple(g for g in problem.together if g not in groups))
    if kind == "before":
        gone = {(ops[a], ops[b]) for a, b in rows}
        return order_problem(problem, [pair for pair in problem.before if pair not in gone])
    pairs = {(ops[a], devices[b]) for a, b in rows}
    if kind == "forbid":
        return replace(problem, forbidden=problem.forbidden - pairs)
    return replace(problem, pins=dict(problem.pins.items() - pairs))


def broken_kinds(problem: Problem, plan: Plan, locks: Sequence[Constraint]) -> list[str]:
    """Name the kinds of constraints that a plan of the same graph and cluster breaks."""
    device, ops, wanted = plan.device, problem.profile.index, problem.pinned_to
    moved, locked = (wanted != FREE) & (wanted != device), np.zeros(len(device), dtype=bool)
    locked[[ops[name] for lock in locks if _holds(problem, lock) for name, _ in lock.rows]] = True
    kinds = {
        "pins": (moved & ~locked).any(),
        "lock": (moved & locked).any(),
        "exclusions": any(device[op] == there for op, there in problem.forbidden),
        "colocation": any(len(np.unique(device[list(g)])) > 1 for g in problem.together),
    }
    return [kind for kind, broken in kinds.items() if broken]


def step_without(project: OpenProject, constraint: Constraint) -> float | None:
    """Find the best step time, in us, if only the ops of a constraint move once it is gone.

    Pinned ops may go to any device, forbidden ones to that device; ordered ops run when they did
    before the edits. A plan that does not fit is no gain for one that does. None where this says
    nothing: for colocated ops, which could go anywhere each on its own, for an order that the plan
    was solved with, and if the plan breaks a constraint.
    """
    current = project.current
    if current is None or not _follows(project.problem, current.plan):
        return None
    freed = without(project.problem, constraint)
    candidates = _candidates(project, constraint, freed)
    if not candidates:
        return None
    steps_us = [current.schedule.makespan_us]
    for candidate in candidates:
        try:
            schedule = candidate()
        except EnplaceError:  # not there either
            continue
        if schedule.fits or not current.schedule.fits:
            steps_us.append(schedule.makespan_us)
    return min(steps_us)


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
    plan, origin = project.current.plan, project.current.origin
    if constraint.kind == "colocate":
        return []
    if constraint.kind == "before":
        if origin is None or origin.plan.splits != plan.splits:
            return []
        position = origin.plan.position
        if plan.policy == "strict":
            position = follow_graph(freed.profile, position)
        return [lambda: simulate(freed, replace(plan, position=position))]
    ops = edits.unit_ops(freed, ops_of(freed, constraint)[0].tolist())
    index = freed.cluster.index
    named = [index[constraint.rows[0][1]]]
    devices = named if constraint.kind == "forbid" else range(freed.cluster.n_devices)
    return [
        (lambda device=device: simulate(freed, edits.move(plan, ops, device)))  # type: ignore[misc]
        for device in devices
    ]


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
    found = constrain_by_name(project.problem, {constraint.kind: list(map(list, constraint.rows))})
    if found.unknown:
        gone = found.unknown[0]
        raise EnplaceError(f"this graph or cluster has no {gone}; remove the constraint")
    if constraint.kind == "pin":
        _check_pins(project, constraint)
    return replace(adopt(project, found.problem), off=_off_without(project, constraint))


def _check_pins(project: OpenProject, constraint: Constraint) -> None:
    """Refuse pins of ops that are pinned to another device by now."""
    problem = project.problem
    for op, device in ((problem.profile.index[name], device) for name, device in constraint.rows):
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
        if each.kind in ("pin", "forbid") and there[before.index[each.rows[0][1]]] < 0
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
    """Keep a device as it is: pin everything there that is not pinned yet.

    Raises
    ------
    PlanError
        If there is nothing to pin.
    """
    where = project.device_label(device)
    if project.current is None:
        raise PlanError("there is no plan to keep yet; press Solve first")
    names, pinned_to = project.problem.profile.op_names, project.problem.pinned_to
    here = project.current.plan.device == device
    free = np.flatnonzero(here & (pinned_to == FREE)).tolist()
    if not free:
        raise PlanError(
            f"all ops on {where} are pinned" if here.any() else f"no op runs on {where}"
        )
    name = project.problem.cluster.devices[device].name
    made = Constraint("pin", tuple((names[op], name) for op in free))
    return replace(edits.pin_here(project, free), locks=(*project.locks, made))


def locks_of(project: OpenProject, device: int) -> list[Constraint]:
    """List the locks of a device that hold."""
    name = project.problem.cluster.devices[device].name
    mine = [each for each in project.locks if each.rows[0][1] == name]
    return [each for each in mine if _holds(project.problem, each)]


def unlock(project: OpenProject, device: int) -> OpenProject:
    """Let placers change a locked device again; what was pinned before stays pinned."""
    for each in locks_of(project, device):
        project = remove(project, each)
    return project


def _off_without(project: OpenProject, constraint: Constraint) -> tuple[Constraint, ...]:
    return tuple(each for each in project.off if each != constraint)


def adopt(project: OpenProject, constrained: Problem) -> OpenProject:
    """Take over the constraints of another problem of the same graph."""
    if _constraints_of(constrained) == _constraints_of(project.problem):
        return project
    return edits.constrain(
        project,
        pins=constrained.pins,
        together=constrained.together,
        forbidden=constrained.forbidden,
        before=constrained.before,
    )


def _constraints_of(problem: Problem) -> tuple[Any, ...]:
    return problem.pins, problem.together, problem.forbidden, problem.before
