"""The constraints of a person, one at a time: listed, priced and switched off. No Qt."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from enplace.errors import EnplaceError
from enplace.machine import simulate
from enplace.names.groups import Grouping
from enplace.readers.constraints import constrain as constrain_by_name
from enplace.values.problem import Problem, order_problem
from enplace.values.profile import IntArray
from enplace.values.schedule import Schedule
from enplace_studio import edits
from enplace_studio.project import Constraint, OpenProject


def list_constraints(problem: Problem, grouping: Grouping) -> list[Constraint]:
    """List what a person asked for: pins and orders of one group of ops are one constraint."""
    names, devices = problem.profile.op_names, [d.name for d in problem.cluster.devices]

    def part(op: int) -> int:
        return int(grouping.group[op]) if grouping.group[op] >= 0 else -1 - op

    return [
        *_join("pin", problem.pins.items(), lambda p: (part(p[0]), p[1]), (names, devices)),
        *_join("forbid", problem.forbidden, lambda p: (part(p[0]), p[1]), (names, devices)),
        *(Constraint("colocate", (tuple(names[op] for op in ops),)) for ops in problem.together),
        *_join("before", problem.before, lambda p: (part(p[0]), part(p[1])), (names, names)),
    ]


def _join(
    kind: str,
    pairs: Iterable[tuple[int, int]],
    key: Callable[[tuple[int, int]], tuple[int, int]],
    names: tuple[Any, Any],
) -> list[Constraint]:
    """Make one constraint of all pairs with the same key."""
    found: dict[tuple[int, int], list[tuple[str, str]]] = {}
    for pair in sorted(pairs):
        found.setdefault(key(pair), []).append((names[0][pair[0]], names[1][pair[1]]))
    return [Constraint(kind, tuple(rows)) for rows in found.values()]


def ops_of(problem: Problem, constraint: Constraint) -> tuple[IntArray, IntArray]:
    """Return the ops of a constraint, and for an order those that come after them."""
    index, rows = problem.profile.index, constraint.rows
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
    what = project.describe(first.tolist())
    if constraint.kind == "colocate":
        return f"{what} together"
    if constraint.kind == "before":
        return f"{what} before {project.describe(then.tolist())}"
    index = project.problem.cluster.index
    device = constraint.rows[0][1]
    where = project.device_label(index[device]) if device in index else device
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
    return replace(problem, pins=dict(pair for pair in problem.pins.items() if pair not in pairs))


def step_without(project: OpenProject, constraint: Constraint) -> float | None:
    """Find the best step time, in us, if only the ops of a constraint move once it is gone.

    Pinned ops may go to any device, forbidden ones to that device; ordered ops run when they did
    before the edits. None for colocated ops, which could go anywhere each on its own.
    """
    if project.current is None or constraint.kind == "colocate":
        return None
    schedule, freed = project.current.schedule, without(project.problem, constraint)
    steps_us = [schedule.makespan_us]
    for candidate in _candidates(project, constraint, freed):
        try:
            steps_us.append(candidate().makespan_us)
        except EnplaceError:  # not there either
            continue
    return min(steps_us)


def _candidates(
    project: OpenProject, constraint: Constraint, freed: Problem
) -> list[Callable[[], Schedule]]:
    assert project.current is not None
    plan, origin = project.current.plan, project.current.origin
    if constraint.kind == "before":
        same = origin is not None and origin.plan.splits == plan.splits
        position = origin.plan.position if origin is not None and same else plan.position
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
    after = remove(project, constraint)
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
    off = tuple(each for each in project.off if each != constraint)
    return replace(adopt(project, found.problem), off=off)


def remove(project: OpenProject, constraint: Constraint) -> OpenProject:
    """Remove a constraint, whether it is on or off."""
    if constraint in project.off:
        return replace(project, off=tuple(each for each in project.off if each != constraint))
    return adopt(project, without(project.problem, constraint))


def adopt(project: OpenProject, constrained: Problem) -> OpenProject:
    """Take over the constraints of another problem of the same graph."""
    return edits.constrain(
        project,
        pins=constrained.pins,
        together=constrained.together,
        forbidden=constrained.forbidden,
        before=constrained.before,
    )
