"""Many moves at once: a search from a plan, cut back to what its gain needs.

Where no single edit helps much, several may. Blocks are moved at random, also where that is worse
for a while, and whatever moved without much need goes back, layer by layer and then op by op.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from zlib import crc32

import numpy as np

from enplace.names.passes import scopes_by_pass
from enplace.placing.moves import make_level
from enplace.placing.moves.steps import LevelPlan, blocks_step, measure, new_stop_flag, state_of
from enplace.placing.next_moves.edits import NONE, TOGETHER, Edit, by_rank, move, placed
from enplace.placing.stop import Stop
from enplace.values.arrays import IntArray
from enplace.values.plan import runs_as_recorded
from enplace.values.problem import STEP_TIME
from enplace.values.schedule import Schedule

LINKS = "priority"
"""The policy of channels in the search."""

FEW_OPS, MOST_WORSE = 5, 0.3
"""A move may make the step longer for a while: by the share that so many ops have of it in the
mean, but by no more than this share."""

MOST_ROUNDS, LEAST_ROUNDS, OP_ROUNDS = 400, 20, 2_000_000
"""The most and the fewest moves in one step; within these limits, there are as many as the last
number divided by the number of ops."""

BURST, PATIENCE = 6, 3
"""Steps after which what is needless goes back; bursts without a gain after which to give up."""

LITTLE = 1e-4
"""Share by which a burst must shorten the step to be a gain."""

NEEDED = 0.2
"""What moved stays if it earns this share of what it would if all ops earned the same."""


def moves_together(schedule: Schedule, stop: Stop) -> Iterator[Edit]:
    """Search from a plan for one with a shorter step; list each that is better than those before.

    Each is followed by its parts, as single moves: some of them help alone.
    """
    problem, plan = schedule.problem, schedule.plan
    n_ops = problem.profile.n_ops
    if plan.objective != STEP_TIME or problem.cluster.n_devices == 1:
        return
    level = make_level(problem, np.arange(n_ops))
    start = measure(state_of(level, plan), LINKS)
    rounds = max(LEAST_ROUNDS, min(OP_ROUNDS // n_ops, MOST_ROUNDS))
    step = blocks_step(LINKS, min(FEW_OPS / n_ops, MOST_WORSE), rounds)
    state, seed, fruitless = start, crc32(plan.device.tobytes()), 0
    while fruitless < PATIENCE and not stop():
        found = state
        for at in range(BURST):
            if not stop():
                found = step(found, (seed + at) % 2**32, 0.0, new_stop_flag())
        seed += BURST
        goal = state.excess_bytes, (1 - LITTLE) * state.makespan_us
        if found.key < goal:
            found = _cut_back(found, start, stop)
        if found.key >= goal:  # also if the gain went back with what was needless, time and again
            fruitless += 1
            continue
        state, fruitless = found, 0
        if not stop():  # else it may hold much that is needless
            yield from _edits(schedule, state)


def _cut_back(found: LevelPlan, start: LevelPlan, stop: Stop) -> LevelPlan:
    """Take back what moved without much need: of a whole scope, or else of a unit."""
    problem, state = found.level.problem, found
    n_moved = int(np.count_nonzero(found.device != start.device))
    fair_us = max(start.makespan_us - found.makespan_us, 0.0) / max(n_moved, 1)
    for ops in (*_parts(found, start, scopes_by_pass(problem.profile)), *_parts(found, start)):
        if stop():
            break
        moved = ops[state.device[ops] != start.device[ops]]
        if not len(moved):
            continue
        device = state.device.copy()
        device[moved] = start.device[moved]
        trial = measure(replace(state, device=device), LINKS)
        allowed_us = state.makespan_us + NEEDED * fair_us * len(moved)
        if trial.excess_bytes <= state.excess_bytes and trial.makespan_us <= allowed_us:
            state = trial
    return state


def _parts(
    state: LevelPlan, start: LevelPlan, scopes: tuple[str, ...] | None = None
) -> list[IntArray]:
    """Group the ops that moved by both devices, and by their units or the scopes of these."""
    problem = state.level.problem
    first = np.unique(problem.unit, return_index=True)[1].tolist()
    parts: dict[tuple[int, int, int | str], list[int]] = defaultdict(list)
    for op in np.flatnonzero(state.device != start.device).tolist():
        unit = int(problem.unit[op])
        of = unit if scopes is None else scopes[first[unit]]
        parts[int(start.device[op]), int(state.device[op]), of].append(op)
    return [np.array(ops) for ops in parts.values()]


def _edits(schedule: Schedule, state: LevelPlan) -> Iterator[Edit]:
    """Make the edits that lead to a state, one for each order worth a try; then its parts."""
    problem, plan = schedule.problem, schedule.plan
    ops = np.flatnonzero(state.device != plan.device)
    if not len(ops):
        return
    where, n_ops = np.unique(state.device[ops], return_counts=True)
    devices = tuple(where[np.argsort(-n_ops, kind="stable")].tolist())
    there = placed(plan, ops, state.device[ops])
    makes = [lambda: there]
    if not runs_as_recorded(problem.profile, plan):
        makes += [partial(by_rank, problem, there)]
    for make in makes:
        yield Edit(TOGETHER, ops, NONE, devices, make)
    before = replace(state, device=plan.device)
    for part in _parts(state, before, scopes_by_pass(problem.profile)):
        yield from move(problem, plan, part, int(state.device[part[0]]), set())
