"""The machine model: simulate a plan, and find what makes up its step time."""

from __future__ import annotations

import numpy as np

from enplace.errors import DeadlockError
from enplace.machine.critical_path import CriticalPath, critical_path, path_to
from enplace.machine.kernel import run
from enplace.machine.layout import build_machine
from enplace.machine.placement import lay_out
from enplace.values.arrays import give_away
from enplace.values.plan import (
    LINK_POLICIES,
    POLICIES,
    Plan,
    as_run,
    check_plan,
    position_by_itself,
    runs_as_recorded,
)
from enplace.values.problem import Problem, split_problem
from enplace.values.profile import IntArray
from enplace.values.schedule import Schedule

__all__ = [
    "CriticalPath",
    "critical_path",
    "path_to",
    "simulate",
]


def simulate(problem: Problem, plan: Plan) -> Schedule:
    """Simulate a plan under its own dispatch and link policies.

    The same input gives the same result to the last bit. If the plan splits ops, the schedule's
    problem is that of the split graph. If the framework runs ops as they were recorded, each device
    does so, in a pipeline only where the plan has no order.

    Raises
    ------
    PlanError
        If the plan does not belong to the problem or breaks a constraint other than memory.
    DeadlockError
        If the order makes ops wait for each other.
    """
    problem = split_problem(problem, plan.splits)
    check_plan(problem, plan)
    machine = build_machine(problem)
    run_as = as_run(problem.profile, plan)
    policy, position = run_as.policy, run_as.position
    if runs_as_recorded(problem.profile, run_as):
        policy, position = "strict", position_by_itself(problem.profile)
    placement = lay_out(
        machine,
        plan.device.astype(np.int64),
        position.astype(np.int64),
        POLICIES.index(policy),
        LINK_POLICIES.index(run_as.links),
    )
    times = run(machine, placement)
    if times.n_finished < problem.profile.n_ops:
        raise DeadlockError(_describe_deadlock(problem, plan, times.waiting))
    return Schedule(
        problem=problem,
        plan=plan,
        op_start_us=give_away(times.start_us),
        op_finish_us=give_away(times.finish_us),
        op_lane=give_away(times.lane),
        transfer_tensor=give_away(placement.transfers.tensor),
        transfer_to=give_away(placement.transfers.target),
        transfer_start_us=give_away(times.sent_start_us),
        transfer_finish_us=give_away(times.sent_finish_us),
    )


def _describe_deadlock(problem: Problem, plan: Plan, waiting: IntArray) -> str:
    """Name the first op in the order that could not start, and an op that it waits for."""
    profile = problem.profile
    unfinished = [op for op in np.argsort(plan.position).tolist() if waiting[op] > 0]
    op = unfinished[0]
    edges = profile.edges_into(op)
    later = [
        int(source)
        for source in profile.edge_source[edges]
        if plan.position[source] > plan.position[op] or waiting[source] > 0
    ]
    cause = f"op '{profile.op_names[later[0]]}'" if later else "a transfer that is never sent"
    where = problem.cluster.devices[plan.device[op]].name
    return (
        f"the plan's order deadlocks: op '{profile.op_names[op]}' on {where} waits for {cause}, "
        f"which comes later in the order; use policy 'priority' or an order that follows the graph"
    )
