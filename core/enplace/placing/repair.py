"""Repair plans that exceed memory: move units or blocks of ops, or place merged ops afresh."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial

import numpy as np

from enplace.coarsen import merge_batches
from enplace.errors import CancelledError, ProblemError
from enplace.machine import simulate
from enplace.placing.incumbents import Best, BestSchedule
from enplace.placing.moves import Level, make_level
from enplace.placing.moves.steps import LevelPlan, blocks_step, state_of
from enplace.placing.options import PlaceOptions
from enplace.placing.registry import find_placer
from enplace.values.plan import POLICIES, Plan
from enplace.values.problem import Problem
from enplace.values.profile import IntArray
from enplace.values.schedule import Schedule

UNIT_ROUNDS = 8
"""Rounds of moving units: a device that receives units may exceed its memory in turn."""

MOST_NODES, BLOCK_ROUNDS, MOVES = 1500, 24, 25
"""Most nodes of the graph whose blocks are moved or whose nodes are placed afresh, the number of
rounds of moves, and the moves in each."""

MOST_VISITS = 64_000_000
"""Nodes and edges that all moves of an attempt visit at most, in about 5 s; few graphs have enough
edges to be moved less often for it."""

MERGE_OP_S = 3.5e-5
"""Seconds per op that merging a large graph takes before its first block is moved."""

MOST_TRIED = 1000
"""Most units and tensors of a device that are tried, which takes some hundredths of a second."""


def relieve(schedule: Schedule, options: PlaceOptions) -> Schedule:
    """Move units until a plan fits, and report whether that helped; see :func:`try_relief`."""
    best = BestSchedule(options, schedule)
    best.offer(try_relief(schedule, options))
    return best.found


def try_relief(schedule: Schedule, options: PlaceOptions) -> Schedule:
    """Return the best schedule after moving units a few times, or the given one.

    The given one is returned if it fits or nothing helps. The order stays. This is quick, so
    placers apply it to the plan that they return.
    """
    if schedule.fits:
        return schedule
    return _best_of_repairs(schedule, _with_units_moved(schedule), options)


def rearrange(schedule: Schedule, options: PlaceOptions) -> Schedule:
    """Return the best schedule after moving blocks of ops at random, or the given one.

    The given one is returned if nothing helps or there is no time. The first attempt keeps the
    plan's own order, the second orders ops by their ranks and by what has room, the third by ranks
    alone. This takes seconds, and half of the time left at most.
    """
    problem, n_ops = schedule.problem, schedule.problem.profile.n_ops
    if not has_time_to_rearrange(problem, options):
        return schedule
    merged = next(_merged_levels(problem, options), None) if n_ops > MOST_NODES else None
    level = merged or make_level(problem, np.arange(n_ops))
    options = replace(options, stop=options.stop.within(0.5))
    return _best_of_repairs(schedule, _with_blocks_moved(schedule, level, options), options)


def place_afresh(schedule: Schedule, options: PlaceOptions) -> Schedule:
    """Return the first schedule that fits after placing merged ops by HEFT, or a better given one.

    Each merged op keeps its tensors on one device, so that few copies are needed. Ops are merged by
    both rules of :func:`~enplace.coarsen.merge_batches`. The given schedule is returned if nothing
    helps or there is no time.
    """
    levels = _merged_levels(schedule.problem, options)
    return _best_of_repairs(schedule, _placed_afresh(schedule, levels, options), options)


def has_time_to_rearrange(problem: Problem, options: PlaceOptions) -> bool:
    """Whether the first block of ops would be moved soon after the time limit at the latest."""
    n_ops = problem.profile.n_ops
    return options.stop.with_grace(n_ops).left_s() >= MERGE_OP_S * n_ops


def _best_of_repairs(
    schedule: Schedule, repairs: Iterator[Schedule], options: PlaceOptions
) -> Schedule:
    """Return the first repair that fits, or else the best one; the given one if that is better."""
    best = Best(schedule)
    over = options.stop.with_grace(schedule.problem.profile.n_ops)
    while not over():
        found = next(repairs, None)
        if found is None:
            break
        best.offer(found)
        if found.fits:
            break
    return best.found


def _with_units_moved(schedule: Schedule) -> Iterator[Schedule]:
    for _ in range(UNIT_ROUNDS):
        plan = _move_units(schedule)
        if np.array_equal(plan.device, schedule.plan.device):
            return
        schedule = simulate(schedule.problem, plan)
        yield schedule


def _placed_afresh(
    schedule: Schedule, levels: Iterable[Level], options: PlaceOptions
) -> Iterator[Schedule]:
    over = options.stop.with_grace(schedule.problem.profile.n_ops)
    options = replace(options.quiet, stop=options.stop.when(over))
    for level in levels:
        try:
            plan = find_placer("heft").run(level.problem, options)
        except CancelledError:
            return
        order = np.argsort(plan.position)
        for policy in POLICIES:
            spread = level.plan(order, plan.device, policy, plan.links)
            placed = simulate(schedule.problem, _moved(schedule.plan, spread))
            yield placed
            yield from _with_units_moved(placed)


def _with_blocks_moved(
    schedule: Schedule, level: Level, options: PlaceOptions
) -> Iterator[Schedule]:
    for ranked, room in ((False, 0.0), (True, 1.0), (True, 0.0)):
        start = replace(state_of(level, schedule.plan), ranked=ranked, room=room)
        yield simulate(schedule.problem, _move_blocks(schedule, start, options))


def _move_units(schedule: Schedule) -> Plan:
    """Move placement units from over-full GPUs to those with the most free memory; keep the order.

    The device with the largest excess comes first. It gives away a unit, or a tensor together with
    all units there that make or use it, because any that stayed would keep a copy. The smallest
    candidate that removes the excess is tried first, then smaller ones by falling size, until one
    fits on another GPU.

    Parameters
    ----------
    schedule : Schedule
        A schedule that does not fit.
    """
    problem = schedule.problem
    gpus = np.array(problem.cluster.gpus, dtype=np.int64)
    left_bytes = problem.cluster.capacity_bytes - schedule.peak_bytes
    unit_device = np.empty(problem.n_units, dtype=np.int64)
    unit_device[problem.unit] = schedule.plan.device
    for full in gpus[np.argsort(left_bytes[gpus], kind="stable")].tolist():
        if left_bytes[full] >= 0:
            break
        for together, size in _held(schedule, full):
            units = together[unit_device[together] == full]
            allowed = problem.unit_allowed[units].all(axis=0)
            others = [gpu for gpu in gpus if gpu != full and allowed[gpu]]
            emptiest = max(others, key=lambda gpu: left_bytes[gpu], default=full)
            if left_bytes[emptiest] < size or not len(units):
                continue
            unit_device[units] = emptiest
            left_bytes[emptiest] -= size
            left_bytes[full] += size
            if left_bytes[full] >= 0:
                break
    return replace(schedule.plan, device=unit_device[problem.unit])


def _move_blocks(schedule: Schedule, state: LevelPlan, options: PlaceOptions) -> Plan:
    """Move blocks of ops at random until the step fits, or for a number of rounds.

    Parameters
    ----------
    schedule : Schedule
        A schedule that does not fit.
    state : LevelPlan
        The same on the level whose blocks are moved, with the order that they take.
    """
    over = options.stop.with_grace(schedule.problem.profile.n_ops)
    plan, level = schedule.plan, state.level
    graph = level.problem.profile
    step = blocks_step(plan.links, rounds=MOVES)
    affordable = MOST_VISITS // (MOVES * (graph.n_ops + graph.n_edges))
    for number in range(min(BLOCK_ROUNDS, max(affordable, 1))):
        move = partial(step, state, options.seed + number, 1.0)
        state = over.interrupt(move)
        if state.excess_bytes == 0 or over():
            break
    return _moved(plan, level.plan(state.order, state.device, plan.policy, plan.links))


def _moved(plan: Plan, to: Plan) -> Plan:
    """Return a plan with the devices and the order of another."""
    return replace(plan, device=to.device, position=to.position, policy=to.policy, links=to.links)


def _merged_levels(problem: Problem, options: PlaceOptions) -> Iterator[Level]:
    """Merge ops by both rules, while there is time."""
    target = min(MOST_NODES, 1 + problem.profile.n_ops // 2)
    for critical in (True, False):
        if not has_time_to_rearrange(problem, options):
            return
        with suppress(ProblemError):  # one of the nodes exceeds the memory of every device
            yield make_level(problem, merge_batches(problem, target, critical=critical))


def _held(schedule: Schedule, device: int) -> Iterator[tuple[IntArray, int]]:
    """Find units that can leave a device together, and the bytes that this frees at its peak."""
    problem, lives, curve = schedule.problem, schedule.lives, schedule.memory[device]
    profile, placed = problem.profile, schedule.plan.device
    peak_us = curve.time_us[np.argmax(curve.bytes)]
    alive = (lives.device == device) & (lives.start_us <= peak_us) & (lives.end_us > peak_us)
    tensors = lives.tensor[alive]
    own = tensors[placed[profile.tensor_op[tensors]] == device]
    unit_bytes = problem.unit_persistent_bytes.copy()
    np.add.at(unit_bytes, problem.unit[profile.tensor_op[own]], profile.held_bytes[own])
    units = np.flatnonzero(np.bincount(problem.unit[placed == device], minlength=problem.n_units))
    size = np.concatenate([unit_bytes[units], lives.sizes(profile)[alive]])
    excess = curve.peak_bytes - problem.cluster.capacity_bytes[device]
    enough = size >= excess
    for i in np.lexsort((np.where(enough, size, -size), ~enough))[:MOST_TRIED].tolist():
        if size[i] == 0:
            return
        if i < len(units):
            yield units[i : i + 1], int(size[i])
            continue
        tensor = tensors[i - len(units)]
        users = profile.edge_op[profile.edge_ptr[tensor] : profile.edge_ptr[tensor + 1]]
        ops = np.append(users, profile.tensor_op[tensor])
        here = np.unique(problem.unit[ops[placed[ops] == device]])
        sent = placed[profile.tensor_op[tensor]] != device
        yield here, int(sent * size[i] + unit_bytes[here].sum())
