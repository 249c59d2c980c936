"""What every placer shares: wishes that respect the constraints, and an order for the plan."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
from numba import njit

from enplace.coarsen import find_leaders, mean_link
from enplace.errors import PlanError
from enplace.machine import simulate
from enplace.placing.registry import PlaceOptions, Progress
from enplace.placing.repair import relieved
from enplace.values.plan import Plan, check_plan, inverse
from enplace.values.problem import Problem
from enplace.values.profile import FloatArray, IntArray
from enplace.values.schedule import Schedule

CLOSE_ENOUGH = 0.002
"""Gap to the lower bound below which no further candidate is tried."""


MEMORY_SHARES = (1.0, 0.85, 0.7, 0.55)
"""Memory to go by, as a share of the real one: less than all of it only if a step does not fit."""

GIVEN = "the plan given"
"""What the person's plan to go on from is called among the parts of a search."""

RELIEF_ROUNDS = 8
"""How often a plan that does not fit is relieved: what is moved may fill another device."""


def settle(problem: Problem, wish: IntArray, position: IntArray | None = None) -> IntArray:
    """Turn a wished device for each op into a placement that breaks no constraint.

    Free ops follow their leaders. Of the ops of a placement unit, the first in ``position`` decides
    for all (Celeritas, section 6.1, after Baechi). A unit that may not be where it was wished goes
    to the allowed device that runs it fastest.

    Parameters
    ----------
    wish : int array, shape (n_ops,)
        Device numbers; those of followers do not count.
    position : int array, shape (n_ops,), optional
        A topological order; the graph's own by default.
    """
    unit_wish = wish[deciding_op(problem, position)]
    goes = device_by_wish(problem)
    device: IntArray = goes[np.arange(problem.n_units), unit_wish][problem.unit]
    return device


def deciding_op(problem: Problem, position: IntArray | None = None) -> IntArray:
    """The op whose wish decides for a placement unit, see :func:`settle`; shape (n_units,)."""
    if position is None:
        position = natural_position(problem)
    leader = find_leaders(problem, position)
    by_rank = np.lexsort((position, position[leader]))
    _, first = np.unique(problem.unit[by_rank], return_index=True)
    decider: IntArray = leader[by_rank[first]]
    return decider


def device_by_wish(problem: Problem) -> IntArray:
    """Where a unit goes that is wished on a device: there, or where it is fastest if it may not.

    Returns
    -------
    int array, shape (n_units, n_devices)
    """
    there = np.arange(problem.cluster.n_devices)
    return np.where(problem.unit_allowed, there, fastest_device(problem)[:, None])


def fastest_device(problem: Problem) -> IntArray:
    """The allowed device with the least time for all ops of a unit; shape (n_units,).

    Ties go to a GPU, then to the first.
    """
    time_us = np.zeros(problem.unit_allowed.shape)
    np.add.at(time_us, problem.unit, problem.time_us)
    time_us[~problem.unit_allowed] = np.inf
    gpus_first = np.argsort(problem.cluster.kind, kind="stable").astype(np.int64)
    fastest: IntArray = gpus_first[np.argmin(time_us[:, gpus_first], axis=1)]
    return fastest


def natural_position(problem: Problem) -> IntArray:
    """Position of each op in the graph's own topological order; shape (n_ops,)."""
    return inverse(problem.profile.topological_order)


def position_by(problem: Problem, key: FloatArray) -> IntArray:
    """Order ops by a key that never decreases along an edge; ties by the graph's own order."""
    return inverse(np.lexsort((natural_position(problem), key)))


def position_by_start(problem: Problem, start_us: FloatArray) -> IntArray:
    """Order ops by when they start.

    Schedulers let free ops start at once; what such an op consumes comes before it all the same.
    """
    profile = problem.profile
    key = start_us.copy()
    _push_on(profile.topological_order, profile.tensor_ptr, profile.edge_ptr, profile.edge_op, key)
    return position_by(problem, key)


@njit(cache=True, nogil=True)
def _push_on(
    order: IntArray, tensor_ptr: IntArray, edge_ptr: IntArray, edge_op: IntArray, key: FloatArray
) -> None:  # pragma: no cover - compiled
    """Raise keys until none falls along an edge."""
    for op in order:
        for edge in range(edge_ptr[tensor_ptr[op]], edge_ptr[tensor_ptr[op + 1]]):
            key[edge_op[edge]] = max(key[edge_op[edge]], key[op])


def mean_rank_us(problem: Problem, link_weight: float = 1.0) -> FloatArray:
    """Upward rank of HEFT: mean times over the devices, and every edge at the mean link's cost.

    Parameters
    ----------
    link_weight : float
        Factor on the transfers; 1 as in Topcuoglu et al., equation 8.
    """
    runs = problem.unit_allowed[problem.unit]
    work_us = np.where(runs, problem.time_us, 0.0).sum(axis=1) / runs.sum(axis=1)
    b0, b1 = mean_link(problem.cluster)
    cost = b0 + b1 * problem.profile.tensor_bytes[problem.profile.edge_tensor]
    return upward_rank_us(problem, work_us, link_weight * cost.astype(np.float64))


def placed_rank_us(problem: Problem, device: IntArray) -> FloatArray:
    """Upward rank under a placement: true times, and only transfers that take place."""
    profile, cluster = problem.profile, problem.cluster
    work = problem.time_us[np.arange(profile.n_ops), device]
    a, b = device[profile.edge_source], device[profile.edge_op]
    size = profile.tensor_bytes[profile.edge_tensor]
    cost = np.where(a == b, 0.0, cluster.b0_us[a, b] + cluster.b1_us_per_byte[a, b] * size)
    return upward_rank_us(problem, work, cost)


def by_placed_rank(problem: Problem, device: IntArray) -> IntArray:
    """Position of each op if those with the most ahead of them under a placement go first."""
    return position_by(problem, -placed_rank_us(problem, device))


def upward_rank_us(problem: Problem, work_us: FloatArray, edge_us: FloatArray) -> FloatArray:
    """Longest path from each op to the end, its own work included; shape (n_ops,)."""
    profile = problem.profile
    return _upward_rank(
        profile.topological_order,
        profile.tensor_ptr,
        profile.edge_ptr,
        profile.edge_op,
        work_us,
        edge_us,
    )


@njit(cache=True, nogil=True)
def _upward_rank(
    order: IntArray,
    tensor_ptr: IntArray,
    edge_ptr: IntArray,
    edge_op: IntArray,
    work_us: FloatArray,
    edge_us: FloatArray,
) -> FloatArray:  # pragma: no cover - compiled
    rank = np.zeros(len(work_us))
    for op in order[::-1]:
        for edge in range(edge_ptr[tensor_ptr[op]], edge_ptr[tensor_ptr[op + 1]]):
            rank[op] = max(rank[op], edge_us[edge] + rank[edge_op[edge]])
        rank[op] += work_us[op]
    return rank


def arranged(problem: Problem, device: IntArray, position: IntArray, method: str) -> Iterator[Plan]:
    """Plans that run one placement in the orders worth trying.

    The placer's own order and that of the upward ranks under the placement, each with channels that
    serve first come first, or the most urgent consumer first.
    """
    by_rank = by_placed_rank(problem, device)
    for links in ("fifo", "priority"):
        for order in (by_rank, position):
            yield Plan(device.copy(), order.copy(), method, policy="priority", links=links)


def by_start_or_rank(
    problem: Problem, device: IntArray, start_us: FloatArray, method: str
) -> Iterator[Plan]:
    """Plans of a method that schedules: in the order of its start times, and by the placed ranks.

    Channels serve the most urgent consumer first.
    """
    for order in (position_by_start(problem, start_us), by_placed_rank(problem, device)):
        yield Plan(device.copy(), order, method, links="priority")


def unordered(problem: Problem, device: IntArray, method: str) -> list[Plan]:
    """The plan of a method that only places: devices take ops as they become ready.

    That is how TensorFlow runs a placement that nobody has scheduled.
    """
    return [Plan(device, natural_position(problem), method, policy="fifo", links="fifo")]


def best_of(
    problem: Problem,
    candidates: Iterable[Plan],
    options: PlaceOptions,
    best: Schedule | None = None,
    engine: str = "",
) -> Schedule:
    """Simulate candidates and keep the shortest one that fits in memory, if any does.

    It only needs to beat ``best``, if given.

    Stops early once a plan that fits is within :data:`CLOSE_ENOUGH` of its proven lower bound.

    Raises
    ------
    CancelledError
        If the person stopped before the first one; afterwards the best so far is returned.
    """
    for plan in candidates:
        if best is None:
            options.check_cancelled()
        elif is_enough(best, options):
            break
        schedule = simulate(problem, plan)
        if best is None or is_better(schedule, best):
            best = schedule
            report(schedule, options, engine)
    assert best is not None, "a placer offers at least one candidate"
    return best


def without_ops(
    problem: Problem, groups: Iterable[Sequence[int]], device: IntArray
) -> tuple[tuple[int, ...], ...]:
    """Devices that take turns with the first of each group.

    Those that have ops of their own take no turns, nor those where some of its ops may not be: what
    is pinned to one device is on no other.
    """
    taken, turns = set(device.tolist()), []
    for first, *others in groups:
        may = problem.unit_allowed[problem.unit[device == first]]
        turn = (first, *(d for d in others if d not in taken and may[:, d].all()))
        if len(may) and len(turn) > 1:
            turns.append(turn)
    return tuple(turns)


def given_start(problem: Problem, options: PlaceOptions, method: str) -> Schedule | None:
    """What the plan to go on from comes to, as a method's first incumbent; None if none is given.

    One that was made under other pins and groups becomes the nearest to it that respects these.
    """
    if options.start is None:
        return None
    plan = replace(options.start, method=method, facts={})
    try:
        check_plan(problem, plan)
    except PlanError:
        plan = replace(plan, device=settle(problem, plan.device.copy(), plan.position))
    return best_of(problem, [plan], options, engine=GIVEN)


def best_that_fits(
    problem: Problem,
    candidates: Callable[[float], Iterable[Plan]],
    options: PlaceOptions,
    best: Schedule | None = None,
) -> Schedule:
    """Simulate candidates made for ever less memory, while they are short but do not fit.

    If none fits, the best of those made for all of the memory is relieved, and the best of all
    (:func:`made_to_fit`).

    Parameters
    ----------
    candidates : callable
        Plans for a share of each device's memory, at least one.
    best : Schedule, optional
        What they need to beat.
    """
    first: Schedule | None = None
    for share in MEMORY_SHARES:
        found: Schedule | None = None
        shortest_us = np.inf
        for plan in candidates(share):
            schedule = simulate(problem, plan)
            shortest_us = min(shortest_us, schedule.makespan_us)
            if found is None or is_better(schedule, found):
                found = schedule
        assert found is not None, "a placer offers at least one candidate"
        first = first or found
        if best is None or is_better(found, best):
            best = found
            report(best, options)
        # What is shorter and does not fit may fit, and be shorter still, with less to go by.
        if options.stopped or (best.fits and shortest_us >= best.makespan_us):
            break
    assert best is not None
    assert first is not None
    if not best.fits and is_better(relief := _relief(first, options), best):
        best = relief
        report(best, options)
    return made_to_fit(best, options)


def made_to_fit(best: Schedule, options: PlaceOptions) -> Schedule:
    """Relieve a plan that does not fit, for a few rounds, and tell if that helped.

    Returns
    -------
    Schedule
        The one that lacks least: the given one if it fits or nothing helps.
    """
    relief = _relief(best, options)
    if relief is not best:
        report(relief, options)
    return relief


def _relief(schedule: Schedule, options: PlaceOptions) -> Schedule:
    best = schedule
    for _ in range(RELIEF_ROUNDS):
        if best.fits or options.cancelled():
            break
        plan = relieved(schedule)
        if np.array_equal(plan.device, schedule.plan.device):
            break
        schedule = simulate(schedule.problem, plan)
        if is_better(schedule, best):
            best = schedule
    return best


def is_enough(best: Schedule, options: PlaceOptions) -> bool:
    """Whether to look no further: stopped, or as good as proven optimal."""
    return options.stopped or (best.gap < CLOSE_ENOUGH and best.fits)


def is_better(one: Schedule, other: Schedule) -> bool:
    """Whether it lacks less memory than the other, or is shorter and lacks no more."""
    if other.fits:  # so what is longer need not have its memory worked out
        return one.makespan_us < other.makespan_us and one.fits
    return (lacking_bytes(one), one.makespan_us) < (lacking_bytes(other), other.makespan_us)


def lacking_bytes(schedule: Schedule) -> int:
    """What all devices together lack of the memory a step needs."""
    over = schedule.peak_bytes - schedule.problem.cluster.capacity_bytes
    return int(np.maximum(over, 0).sum())


def report(schedule: Schedule, options: PlaceOptions, engine: str = "") -> None:
    """Tell the person about a new incumbent, and which part of the placer found it."""
    options.progress(
        Progress(
            options.seconds,
            "a better plan",
            incumbent=schedule.plan,
            objective_us=schedule.makespan_us,
            bound_us=schedule.lower_bound_us,
            engine=engine,
        )
    )
