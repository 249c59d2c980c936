"""Candidates of a placer: the plans of a placement, and the best of several plans."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from enplace.errors import CancelledError, PlanError
from enplace.machine import simulate
from enplace.placing.incumbents import GIVEN, BestSchedule, best_among
from enplace.placing.options import PlaceOptions
from enplace.placing.repair import try_relief
from enplace.placing.settle import by_placed_rank, natural_position, position_by_start, settle
from enplace.values.plan import Plan, check_plan
from enplace.values.problem import Problem
from enplace.values.profile import FloatArray, IntArray
from enplace.values.schedule import Schedule

MEMORY_SHARES = (1.0, 0.85, 0.7, 0.55)
"""Shares of the memory that candidates are made for; smaller shares only if nothing fits."""


def arranged(problem: Problem, device: IntArray, position: IntArray, method: str) -> Iterator[Plan]:
    """Yield plans that run one placement in the orders worth trying.

    These are the placer's own order and the order of the upward ranks under the placement, each
    with channels that serve first come, first served, or the most urgent consumer first.
    """
    by_rank = by_placed_rank(problem, device)
    for links in ("fifo", "priority"):
        for order in (by_rank, position):
            yield Plan(device, order, method, policy="priority", links=links)


def by_start_or_rank(
    problem: Problem, device: IntArray, start_us: FloatArray, method: str
) -> Iterator[Plan]:
    """Yield plans of a method that schedules: ordered by its start times, and by placed ranks.

    Channels serve the most urgent consumer first.
    """
    for order in (position_by_start(problem, start_us), by_placed_rank(problem, device)):
        yield Plan(device, order, method, links="priority")


def unordered(problem: Problem, device: IntArray, method: str) -> list[Plan]:
    """Return the plan of a method that only places: devices take ops as they become ready.

    This is how a framework runs a placement without a schedule.
    """
    return [Plan(device, natural_position(problem), method, policy="fifo", links="fifo")]


def all_on_one(problem: Problem) -> Iterator[IntArray]:
    """Yield placements of everything on one GPU, for each kind of GPU; shape (n_ops,) each."""
    cluster = problem.cluster
    kinds = {(cluster.speed[g], cluster.capacity_bytes[g]): g for g in reversed(cluster.gpus)}
    for gpu in kinds.values():
        yield settle(problem, np.full(problem.profile.n_ops, gpu))


def given_start(problem: Problem, options: PlaceOptions, method: str) -> BestSchedule:
    """Return the best schedule before a search: that of the plan to begin from, if there is one.

    If the plan was made under other constraints, it is changed as little as the current ones
    require.
    """
    best = BestSchedule(options)
    if options.start is None:
        return best
    plan = options.start.under_name(method)
    try:
        check_plan(problem, plan)
    except PlanError:
        plan = replace(plan, device=settle(problem, plan.device, plan.position))
    options.stop.check()
    best.offer(simulate(problem, plan), GIVEN)
    return best


def best_of(
    problem: Problem,
    candidates: Iterable[Plan],
    options: PlaceOptions,
    best: BestSchedule | None = None,
    engine: str = "",
) -> Schedule:
    """Simulate candidates and keep the shortest one that fits in memory, if any does.

    What ``best`` has so far competes with the candidates. Stop early once a plan that fits is
    within :data:`~enplace.placing.incumbents.CLOSE_ENOUGH` of the lower bound.

    Raises
    ------
    CancelledError
        If cancelled before the first one; if cancelled later, the best so far is returned.
    """
    best = best or BestSchedule(options)
    for plan in candidates:
        if best.kept is None:
            options.stop.check()
        elif best.is_enough:
            break
        best.offer(simulate(problem, plan), engine)
    return best.found


def best_that_fits(
    problem: Problem,
    candidates: Callable[[float], Iterable[Plan]],
    options: PlaceOptions,
    best: BestSchedule | None = None,
) -> Schedule:
    """Simulate candidates made for less and less memory while they are short but do not fit.

    Those for one share of the memory are expected to take as long as those for the one before.

    If none fits, repair the best of those made for all of the memory, and the best of all
    (:func:`~enplace.placing.repair.relieve`).

    Parameters
    ----------
    candidates : callable
        Returns at least one plan for a share of each device's memory.
    best : BestSchedule, optional
        Has the schedule to beat, if any; keeps a better one.

    Raises
    ------
    CancelledError
        If cancelled before there was a schedule.
    """
    best = best or BestSchedule(options)
    first: Schedule | None = None
    for share in MEMORY_SHARES:
        began_s = options.seconds
        try:
            schedules = [simulate(problem, plan) for plan in candidates(share)]
        except CancelledError:
            if best.kept is None:
                raise
            return best.found
        shortest_us = min(schedule.makespan_us for schedule in schedules)
        if best.kept and shortest_us >= best.kept.makespan_us and best.kept.fits:
            return best.kept  # the memory of the others need not be computed
        found = best_among(schedules)
        first = first or found
        best.offer(found)
        # If a shorter plan does not fit, one made for less memory may fit and still be shorter.
        took_s = options.seconds - began_s
        left_s = options.stop.with_grace(problem.profile.n_ops).left_s()
        is_late = options.stop() or left_s < took_s
        if is_late or (best.found.fits and shortest_us >= best.found.makespan_us):
            break
    assert first is not None
    if not best.found.fits:
        best.offer(try_relief(first, options))
        best.offer(try_relief(best.found, options))
    return best.found


def make_replicas(
    problem: Problem, groups: Iterable[Sequence[int]], device: IntArray
) -> tuple[tuple[int, ...], ...]:
    """Find the devices of each group that can be replicas of its first device.

    A device that has ops already cannot be a replica, nor can one where some of the ops may not
    run: a pinned op runs on its one device only.
    """
    taken, replicas = set(device.tolist()), []
    for first, *others in groups:
        allowed = problem.unit_allowed[problem.unit[device == first]]
        stage = (first, *(d for d in others if d not in taken and allowed[:, d].all()))
        if len(allowed) and len(stage) > 1:
            replicas.append(stage)
    return tuple(replicas)
