"""Rename devices that are alike, so that a plan agrees with another one as far as it can."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from enplace.errors import EnplaceError
from enplace.machine import simulate
from enplace.solvers.cp import are_twins
from enplace.values.arrays import IntArray, assign
from enplace.values.plan import Plan
from enplace.values.problem import Problem
from enplace.values.schedule import Schedule


def relabel_like(schedule: Schedule, other: Plan) -> Schedule:
    """Exchange devices that nothing tells apart, so that most work is where another plan has it.

    Devices are exchanged only if they are equal in speed, memory and links, and in what may run on
    them, so the schedule is the same but for their names.

    Parameters
    ----------
    other : Plan
        A plan of the same graph and cluster.
    """
    problem, plan = schedule.problem, schedule.plan
    to = _renaming(problem, schedule, other)
    if (to == np.arange(len(to))).all():
        return schedule
    renamed = replace(
        plan,
        device=to[plan.device],
        replicas=tuple(tuple(to[list(group)].tolist()) for group in plan.replicas),
        recompute=tuple(sorted(to[list(plan.recompute)].tolist())),
    )
    try:
        found = simulate(problem, renamed)
    except EnplaceError:  # it would leave the plan to stay close to
        return schedule
    is_same = found.makespan_us == schedule.makespan_us  # ties are broken by numbers of devices
    return found if is_same and found.excess_bytes == schedule.excess_bytes else schedule


def _renaming(problem: Problem, schedule: Schedule, other: Plan) -> IntArray:
    """Find for each device the one that takes its name; shape (n_devices,)."""
    n = problem.cluster.n_devices
    shared = np.zeros((n, n))
    time_us = schedule.op_finish_us - schedule.op_start_us
    least_us = float(time_us.sum()) / max(len(time_us), 1) * 1e-3  # ops without time count a little
    np.add.at(shared, (schedule.plan.device, other.device), time_us + least_us + 1e-9)
    to, left = np.arange(n), list(range(n))
    while left:
        first, *others = left
        twins = np.array([first, *(each for each in others if are_twins(problem, first, each))])
        left = [each for each in left if each not in twins]
        to[twins] = twins[assign(-shared[np.ix_(twins, twins)])]
    return to
