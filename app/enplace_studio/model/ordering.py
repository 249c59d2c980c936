"""Ops run earlier or later on their device, and the orders that this leaves. No Qt."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np

from enplace.errors import OrderError, PlanError
from enplace.machine import simulate
from enplace.values.arrays import FloatArray, IntArray, inverse
from enplace.values.plan import Plan, as_run, follow_graph
from enplace.values.problem import Problem
from enplace.values.profile import Profile, find_pairs
from enplace.values.schedule import Schedule
from enplace_studio.explain.start_times import STRAGGLERS
from enplace_studio.model.edits import constrain
from enplace_studio.model.open_project import OpenProject
from enplace_studio.model.relations import reach


@dataclass(frozen=True)
class Slot:
    """A place in the order: ops run just before another op of their device, or just after it.

    Attributes
    ----------
    anchor : int
        The other op.
    earlier : bool
        Whether the ops then run before it.
    """

    anchor: int
    earlier: bool


@dataclass(frozen=True, eq=False)
class Range:
    """Where some ops of one device may go.

    Attributes
    ----------
    device : int
    earliest_us, latest_us : float
        The end of the last op that they need, and the start of the first that needs them.
    start_us, finish_us : float
        When they run now, but for stragglers far from the others.
    others : int array
        The other ops of the device within these times, by their start.
    needed, needing : int or None
        The op that ends at ``earliest_us``, and the one that starts at ``latest_us``.
    """

    device: int
    earliest_us: float
    latest_us: float
    start_us: float
    finish_us: float
    others: IntArray
    needed: int | None = None
    needing: int | None = None


def find_range(schedule: Schedule, ops: Collection[int]) -> Range:
    """Find where ops may go in the order of their device.

    Orders that a person gave do not count: a new one replaces those that contradict it.

    Raises
    ------
    PlanError
        If the ops run on several devices.
    OrderError
        If the framework keeps the script's order.
    """
    if as_run(schedule.problem.profile, schedule.plan) is not schedule.plan:
        raise OrderError("PyTorch keeps the script's order; to change it, change the script")
    chosen, device = np.array(sorted(ops), dtype=np.int64), schedule.plan.device
    here = int(device[chosen[0]])
    if (device[chosen] != here).any():
        raise PlanError("these ops run on several devices; choose ops of one")
    start_us, finish_us = schedule.op_start_us, schedule.op_finish_us
    others = (device == here) & (finish_us > start_us)
    others[chosen] = False
    profile = schedule.problem.measured_profile
    needed = others & reach(profile, chosen, backward=True)
    needing = others & reach(profile, chosen, backward=False)
    earliest_us = float(finish_us[needed].max(initial=0.0))
    latest_us = float(start_us[needing].min(initial=schedule.makespan_us))
    within = others & ~needed & ~needing
    found = np.flatnonzero(within & (start_us >= earliest_us) & (finish_us <= latest_us))
    first, last = _bulk(start_us[chosen], finish_us[chosen])
    if max(first, earliest_us) < min(last, latest_us):
        # Some ops of a group may run before others of it are ready: what may move counts.
        first, last = max(first, earliest_us), min(last, latest_us)
    by_start = found[np.argsort(start_us[found], kind="stable")]
    before, behind = np.flatnonzero(needed), np.flatnonzero(needing)
    return Range(
        here,
        earliest_us,
        latest_us,
        first,
        last,
        by_start,
        int(before[np.argmax(finish_us[before])]) if len(before) else None,
        int(behind[np.argmin(start_us[behind])]) if len(behind) else None,
    )


def _bulk(start_us: FloatArray, finish_us: FloatArray) -> tuple[float, float]:
    """Find when most of some ops' work is done; a few may run long before or after the others."""
    order = np.argsort(start_us, kind="stable")
    done = np.cumsum((finish_us - start_us)[order])
    if done[-1] <= 0:
        return float(start_us.min()), float(finish_us.max())
    first = int(np.searchsorted(done, STRAGGLERS * done[-1], side="right"))
    last = int(np.searchsorted(done, (1 - STRAGGLERS) * done[-1]))
    return float(start_us[order[first]]), float(finish_us[order[: last + 1]].max())


def slot_at(schedule: Schedule, where: Range, time_us: float) -> Slot | None:
    """Find the place in the order at a moment; None where the ops are now."""
    middle_us = (schedule.op_start_us[where.others] + schedule.op_finish_us[where.others]) / 2
    before = (middle_us > time_us) & (middle_us < where.start_us)
    after = (middle_us < time_us) & (middle_us > where.finish_us)
    if before.any():
        return Slot(int(where.others[before][0]), earlier=True)
    return Slot(int(where.others[after][-1]), earlier=False) if after.any() else None


def next_slot(schedule: Schedule, where: Range, earlier: bool) -> Slot | None:
    """Find the next place earlier or later; None at the end of the range."""
    start_us, finish_us = (t[where.others] for t in (schedule.op_start_us, schedule.op_finish_us))
    if earlier:
        found = where.others[finish_us <= where.start_us]
        return Slot(int(found[-1]), earlier=True) if len(found) else None
    found = where.others[start_us >= where.finish_us]
    return Slot(int(found[0]), earlier=False) if len(found) else None


def ordered(
    problem: Problem, schedule: Schedule, ops: Collection[int], slot: Slot
) -> tuple[Problem, Plan]:
    """Order ops before or after another; orders of theirs that contradict the place are dropped.

    Parameters
    ----------
    schedule : Schedule
        Shows what the ops pass on the way to their new place.

    Raises
    ------
    OrderError
        If the graph, or an order of other ops, does not allow it.
    """
    chosen, start_us = sorted(ops), schedule.op_start_us
    ends = (chosen, [slot.anchor]) if slot.earlier else ([slot.anchor], chosen)

    def is_passed(first: int, then: int) -> bool:
        if slot.earlier:
            return then in ops and bool(start_us[first] >= start_us[slot.anchor])
        return first in ops and bool(start_us[then] <= start_us[slot.anchor])

    kept = [pair for pair in problem.before if not is_passed(*pair)]
    new = find_pairs(problem.measured_profile, *ends)
    problem = problem.constrained(before=[*kept, *new])
    return problem, replace(
        schedule.plan, position=_positions(problem.profile, schedule.plan, chosen, slot)
    )


def _positions(profile: Profile, plan: Plan, ops: list[int], slot: Slot) -> IntArray:
    """Move ops, with those that must move too, next to another op in the order of a plan."""
    position, moving = plan.position, np.array(ops, dtype=np.int64)
    between = position > position[slot.anchor] if slot.earlier else position < position[slot.anchor]
    moves = between & reach(profile, moving, backward=slot.earlier)
    key = position.astype(np.float64)
    key[moves] = position[slot.anchor] + (-0.5 if slot.earlier else 0.5)
    order = np.lexsort((position, key))
    moved = inverse(order)
    return follow_graph(profile, moved) if plan.policy == "strict" else moved


def reordered_schedule(
    problem: Problem, schedule: Schedule, ops: Collection[int], slot: Slot
) -> Schedule:
    """Simulate the plan of a schedule with ops in another place of the order.

    Raises
    ------
    EnplaceError
        If they may not run there.
    """
    return simulate(*ordered(problem, schedule, ops, slot))


def reorder(project: OpenProject, ops: Collection[int], slot: Slot) -> OpenProject:
    """Run ops before or after another op of their device, and keep this as a constraint.

    Raises
    ------
    EnplaceError
        If there is no plan, or the graph does not allow it.
    """
    schedule = project.plan_to("change").schedule
    problem, plan = ordered(project.problem, schedule, ops, slot)
    return constrain(project, before=problem.before, plan=plan)


def forget_order(project: OpenProject, ops: Collection[int]) -> OpenProject:
    """Let placers decide again when these ops run.

    Raises
    ------
    OrderError
        If nobody has ordered them.
    """
    chosen, before = set(map(int, ops)), project.problem.before
    kept = [pair for pair in before if not chosen & set(pair)]
    if len(kept) == len(before):
        raise OrderError("nobody has ordered these ops; their order is the plan's own")
    return constrain(project, before=kept)


def keeps_order(problem: Problem, schedule: Schedule) -> bool:
    """Whether a schedule of the problem's ops runs them in the order that is wanted now."""
    first, then = np.array(problem.before, dtype=np.int64).reshape(-1, 2).T
    late = schedule.op_finish_us[first] > schedule.op_start_us[then]
    return not late.any()
