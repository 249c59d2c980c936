"""Moving what is too much off over-full devices, for methods whose own plan does not fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from enplace.coarsen import merge_batches
from enplace.errors import ProblemError
from enplace.placing.moves import Level, make_level
from enplace.placing.moves.steps import blocks_step, going, state_of
from enplace.values.plan import Plan
from enplace.values.problem import Problem
from enplace.values.profile import IntArray
from enplace.values.schedule import Schedule

MOST_NODES, TURNS, ROUNDS = 1500, 24, 25
"""Nodes of the graph whose blocks are moved, and how often how many moves are tried."""

MOST_HELD = 1000
"""How much of what a device holds is looked at, which takes hundredths of a second."""


def relieved(schedule: Schedule) -> Plan:
    """Move placement units from over-full GPUs to those with the most room, in the same order.

    The device that lacks most is first. What goes from there is a unit, or a tensor with all units
    that make and use it there, because those that stay would keep a copy. The smallest that is
    enough is asked first, then what is less, the largest first; it goes if a GPU has room for it.

    Parameters
    ----------
    schedule : Schedule
        One that does not fit.

    Returns
    -------
    Plan
        The same plan with other devices; how much it lacks only the simulator can tell.
    """
    problem = schedule.problem
    gpus = np.array(problem.cluster.gpus, dtype=np.int64)
    room_bytes = problem.cluster.capacity_bytes - schedule.peak_bytes
    unit_device = np.empty(problem.n_units, dtype=np.int64)
    unit_device[problem.unit] = schedule.plan.device
    for full in gpus[np.argsort(room_bytes[gpus], kind="stable")].tolist():
        if room_bytes[full] >= 0:
            break
        for together, size in _held(schedule, full):
            units = together[unit_device[together] == full]
            allowed = problem.unit_allowed[units].all(axis=0)
            able = [gpu for gpu in gpus if gpu != full and allowed[gpu]]
            roomiest = max(able, key=lambda gpu: room_bytes[gpu], default=full)
            if room_bytes[roomiest] < size or not len(units):
                continue
            unit_device[units] = roomiest
            room_bytes[roomiest] -= size
            room_bytes[full] += size
            if room_bytes[full] >= 0:
                break
    return replace(schedule.plan, device=unit_device[problem.unit])


def rearranged(schedule: Schedule, ranked: bool, seed: int, stopped: Callable[[], bool]) -> Plan:
    """Move blocks of ops by chance until the step fits, or for a number of turns.

    Parameters
    ----------
    schedule : Schedule
        One that does not fit.
    ranked : bool
        Whether ops run in the order of their ranks from now on, and not in that of the plan.
    stopped : callable
        Asked between turns.
    """
    plan = schedule.plan
    level = _level(schedule.problem)
    step = blocks_step(plan.links, rounds=ROUNDS)
    state = replace(state_of(level, plan), ranked=ranked)
    for turn in range(TURNS):
        state = step(state, seed + turn, 1.0, going())
        if state.lacking_bytes == 0 or stopped():
            break
    found = level.plan(state.order, state.device, plan.policy, plan.links)
    return replace(plan, device=found.device, position=found.position)


def _level(problem: Problem) -> Level:
    n_ops = problem.profile.n_ops
    if n_ops > MOST_NODES:
        try:
            return make_level(problem, merge_batches(problem, MOST_NODES, critical=True))
        except ProblemError:  # no device has room for one of the nodes
            pass
    return make_level(problem, np.arange(n_ops))


def _held(schedule: Schedule, device: int) -> Iterator[tuple[IntArray, int]]:
    """What a device holds when it is fullest: units that go together, and their bytes."""
    problem, lives, curve = schedule.problem, schedule.lives, schedule.memory[device]
    profile, placed = problem.profile, schedule.plan.device
    peak_us = curve.time_us[np.argmax(curve.bytes)]
    alive = (lives.device == device) & (lives.start_us <= peak_us) & (lives.end_us > peak_us)
    tensors = lives.tensor[alive]
    own = tensors[placed[profile.tensor_op[tensors]] == device]
    unit_bytes = problem.unit_persistent_bytes.copy()
    np.add.at(unit_bytes, problem.unit[profile.tensor_op[own]], profile.held_bytes[own])
    units = np.flatnonzero(np.bincount(problem.unit[placed == device], minlength=problem.n_units))
    size = np.concatenate([unit_bytes[units], profile.held_bytes[tensors]])
    too_much = curve.peak_bytes - problem.cluster.capacity_bytes[device]
    enough = size >= too_much
    for i in np.lexsort((np.where(enough, size, -size), ~enough))[:MOST_HELD].tolist():
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
