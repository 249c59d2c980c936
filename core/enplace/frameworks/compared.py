"""What a file that people read compares a plan with: other plans, and what needs none."""

from __future__ import annotations

from dataclasses import replace

from enplace.bounds import Proof, with_bound
from enplace.frameworks.alternatives import find_alternatives, measured_alone
from enplace.frameworks.how_to import how_to_apply
from enplace.frameworks.registry import framework_of
from enplace.machine.pipelines.pipeline import planned_rule
from enplace.placers.alternatives import plan_as_alternative
from enplace.placers.data_parallel import mirrored, why_not_mirrored
from enplace.placers.references import (
    EXPERT,
    alone_schedule,
    expert_schedule,
    reference_schedule,
)
from enplace.placing.prices import about_price, total_price_us
from enplace.values.problem import LATENCY, STEP_TIME, THROUGHPUT, Problem
from enplace.values.result import Result
from enplace.values.schedule import Schedule
from enplace.writers import Exporter

FREE = "an expert's plan"
OBEYING = "an expert's plan with the same constraints"
PREDICTED = "everything on one device, predicted"


def result_for(
    exporter: Exporter, schedule: Schedule, model: Problem | None, known: Proof | None = None
) -> Result:
    """Return a schedule with what a file format shows of it, and nothing else that takes time.

    Parameters
    ----------
    model : Problem or None
        What other plans are made for; None to compare with none.
    known : Proof, optional
        Of a bound on the step time.
    """
    result = with_bound(schedule, known) if exporter.shows_bound else Result(schedule)
    if not exporter.shows_references:
        return result
    result = replace(result, how_to=how_to_apply(schedule))
    return result if model is None else _compare(result, model)


def _compare(result: Result, model: Problem) -> Result:
    """Add plans of others, and what people pick without a planner, or why that is not predicted."""
    plan, framework = result.plan, framework_of(model.measured_profile)
    objective = THROUGHPUT if plan.objective == THROUGHPUT else STEP_TIME
    rule = planned_rule(plan)
    stock = measured_alone(model) if objective == STEP_TIME else None
    plans = {
        title: plan_as_alternative(schedule.problem, schedule.plan, objective, rule)
        for title, schedule in find_references(
            model, PREDICTED if stock else framework.alone
        ).items()
    }
    if stock:
        plans[stock.name] = stock
    why_not, found = "", []
    if plan.objective != LATENCY:
        replicas = mirrored(model) if objective == STEP_TIME else None
        why_not = "" if replicas or objective != STEP_TIME else why_not_mirrored(model)
        found = find_alternatives(model, objective, [replicas] if replicas else [], rule)
    known = plans | {each.name: replace(each, about=each.notes) for each in found}
    priced = [(title, each.price_us, each.value_us) for title, each in known.items()]
    if objective == STEP_TIME:
        ours = result.schedule
        priced.insert(0, ("the plan", total_price_us(ours), ours.makespan_us))
    about = framework.in_own_words(why_not), about_price(*priced)
    return replace(result, references=known, about_references=tuple(filter(None, about)))


def find_references(problem: Problem, alone: str) -> dict[str, Schedule]:
    """Return the plans of an expert and of one device that there are, by what they are.

    An expert who has to obey the constraints is another one: the difference is their price.
    """
    expert = expert_schedule(problem)
    found = {FREE: expert}
    if problem.constraints:
        obeying = reference_schedule(problem, EXPERT)
        if not (expert and obeying and obeying.plan.acts_like(expert.plan)):
            found[OBEYING] = obeying
    found[alone] = alone_schedule(problem)
    return {title: schedule for title, schedule in found.items() if schedule}
