"""What a plan costs in its own objective: a step, a sample of a pipeline, or a query. No Qt."""

from __future__ import annotations

from dataclasses import replace

from enplace.machine import simulate
from enplace.machine.check_claims import check_claims
from enplace.text import factor, ms
from enplace.values.plan import Plan
from enplace.values.problem import LATENCY, THROUGHPUT, Problem
from enplace.values.schedule import Schedule

PER = {THROUGHPUT: "/sample", LATENCY: "/query"}
"""Suffix of a plan's time if it is not the time of a step."""


def simulate_priced(problem: Problem, plan: Plan) -> Schedule:
    """Simulate a plan whose value may be that of another placement, or for other costs.

    What no longer holds of it is left out.
    """
    return simulate(problem, check_claims(problem, plan))


def simulate_changed(problem: Problem, plan: Plan) -> Schedule:
    """Simulate an edited plan, without what was told of the one before."""
    return simulate_priced(problem, replace(plan, subgraph=None))


def headline(plan: Plan, schedule: Schedule) -> str:
    """Return the number that a plan minimises: ``148.9 ms``, ``24.1 ms/sample``."""
    if plan.value_us is None:
        return ms(schedule.makespan_us)
    return ms(plan.value_us) + PER[plan.objective]


def price_text(schedule: Schedule) -> str:
    """Return that number with what it is: ``step 148.9 ms``, ``24.1 ms/sample``."""
    shown = headline(schedule.plan, schedule)
    return f"step {shown}" if schedule.plan.value_us is None else shown


def change_text(before: Schedule, after: Schedule) -> str:
    """Return the change of that number: ``+3.2 ms``, ``+3.2 ms/sample``."""
    per = "" if after.plan.value_us is None else PER[after.plan.objective]
    return ms(after.value_us - before.value_us, signed=True) + per


def what_if_text(compute: float, links: float) -> str:
    """Say how a what-if scales the speeds: ``what if: links 3.1 ×``; empty without one."""
    scales = {"compute": compute, "links": links}
    shown = [f"{what} {factor(scale)}" for what, scale in scales.items() if scale != 1]
    return f"what if: {', '.join(shown)}" if shown else ""
