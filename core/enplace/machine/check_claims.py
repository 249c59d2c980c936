"""What a plan claims about itself, computed again: a solver or a file may err, or lie."""

from __future__ import annotations

import math
from dataclasses import replace

from enplace.machine import simulate
from enplace.machine.latency import latency_us
from enplace.machine.pipelines.loads import max_load_us
from enplace.machine.pipelines.pipeline import planned_rule
from enplace.text import finite
from enplace.values.plan import Plan
from enplace.values.problem import LATENCY, THROUGHPUT, Problem
from enplace.values.schedule import Schedule

OTHER_PROOF = (
    "When the plan was made, it was proven that none fits. A plan does not tell for tensors of "
    "what sizes that was; place again to prove it for these."
)
"""A note of a plan that is simulated again."""

SAME = 1e-6
"""Two times are the same if they differ by less than this share."""


def check_claims(problem: Problem, plan: Plan) -> Plan:
    """Return the plan with the value that it has, and without claims that this disproves.

    Parameters
    ----------
    problem : Problem
        With the plan's splits applied.
    plan : Plan
        A plan of the problem, as :func:`~enplace.values.plan.check_plan` demands.
    """
    value_us = None
    if plan.objective == THROUGHPUT:
        load_us = max_load_us(
            problem, plan.device, planned_rule(plan), plan.replicas, plan.recompute
        )
        value_us = max(load_us, plan.pace_us)
    elif plan.objective == LATENCY:
        value_us = latency_us(problem, plan.device, plan.subgraph)
    if _is_same(plan.value_us, value_us) and (plan.bound_us or 0.0) <= (value_us or 0.0) * (
        1 + SAME
    ):
        return plan
    plan = replace(plan, bound_us=None, proven=False, rivals=None, claim=None)
    if plan.objective == LATENCY:
        plan, value_us = replace(plan, subgraph=None), latency_us(problem, plan.device)
    return replace(plan, value_us=finite(value_us))


def simulate_given(problem: Problem, plan: Plan) -> Schedule:
    """Simulate a plan that may have been made for another machine, or for tensors of other sizes.

    If it does not fit, nothing is known about other plans.
    """
    schedule = simulate(problem, plan)
    if schedule.fits:
        return schedule
    alone = replace(schedule.plan, solve_seconds=None, nothing_fits=False)
    if plan.nothing_fits:
        alone = replace(alone, note=OTHER_PROOF, noted_us=None, noted_for="")
    return replace(schedule, plan=alone)


def _is_same(claimed_us: float | None, true_us: float | None) -> bool:
    if claimed_us is None or true_us is None:
        return claimed_us is None and finite(true_us) is None
    return math.isclose(claimed_us, true_us, rel_tol=SAME)
