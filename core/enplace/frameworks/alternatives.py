"""What the people of a model's framework would pick instead of a plan, data parallelism first."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from pkgutil import resolve_name

import numpy as np

from enplace.frameworks.microbatches import Microbatches, plan_on_microbatch, share_of_profile
from enplace.frameworks.registry import framework_of
from enplace.machine.pipelines.pipeline import step_rule
from enplace.placers.alternatives import (
    at_once,
    per_sample,
    plan_as_alternative,
    replicas_as_alternative,
    with_batch_of,
)
from enplace.placers.data_parallel import (
    NO_ROOM,
    Replicas,
    all_mirrored,
    mirrored,
    why_not_mirrored,
)
from enplace.placing.prices import find_stock_us
from enplace.processes.worker import never
from enplace.values.load_rule import PIPELINES, USUAL, LoadRule
from enplace.values.plan import Plan
from enplace.values.problem import LATENCY, STEP_TIME, THROUGHPUT, Problem
from enplace.values.result import Alternative


def find_alternatives(
    problem: Problem,
    objective: str,
    rivals: Iterable[Replicas] = (),
    rule: LoadRule = USUAL,
    cancelled: Callable[[], bool] = never,
) -> list[Alternative]:
    """Predict what people would pick instead of a plan, under the names that they use.

    Parameters
    ----------
    rivals : iterable of Replicas
        Data parallelism, as it was predicted; for the throughput, it is predicted here.
    rule : LoadRule
        The schedule of pipelines, for the throughput.
    """
    framework, whole = framework_of(problem.measured_profile), problem
    if objective == THROUGHPUT and framework.alternatives:
        whole = at_once(problem, rule.microbatches)
        rivals = filter(None, [mirrored(whole, cancelled)])
    found = [replicas_as_alternative(each) for each in rivals]
    found = [replace(each, name=framework.in_own_words(each.name)) for each in found]
    if not framework.alternatives:
        return found
    if objective != LATENCY and not found and why_not_mirrored(whole) == NO_ROOM:
        found.append(_without_room(problem, framework.data_parallel))
    if objective == THROUGHPUT:
        found = [per_sample(each, rule.microbatches) for each in found]
    others: list[Alternative] = resolve_name(framework.alternatives)(
        problem, objective, rule, cancelled
    )
    return found + others


def alternatives_of_run(
    problem: Problem, plan: Plan, wanted: Microbatches | None, predicted_us: float
) -> tuple[str, list[Alternative]]:
    """Predict a plan that ran, and what people would pick instead of it.

    Parameters
    ----------
    predicted_us : float
        What was predicted for the step of the run; NaN if nothing was.

    Returns
    -------
    objective : str
        Of what is predicted: for a pipeline, the time per micro-batch once it is full.
    found : list of Alternative
        The plan first; empty if the framework names no alternatives, or the plan splits ops.
    """
    framework = framework_of(problem.measured_profile)
    objective = STEP_TIME if wanted is None else THROUGHPUT
    if not framework.alternatives or plan.splits:
        return objective, []
    rule = USUAL
    if wanted is not None:
        plan = plan_on_microbatch(problem, plan, wanted.number)
        share = share_of_profile(problem.measured_profile, wanted.number)
        problem = with_batch_of(problem, share)
        kind = wanted.schedule if wanted.schedule in PIPELINES else USUAL.pipeline
        rule = replace(step_rule(plan, wanted.number), pipeline=kind)
    rivals = all_mirrored(problem) if wanted is None else []
    own = plan_as_alternative(problem, replace(plan, method="this plan"), objective, rule)
    if wanted is None and math.isfinite(predicted_us):
        own = replace(own, value_us=predicted_us)
    return objective, [own, *find_alternatives(problem, objective, rivals, rule)]


def measured_alone(problem: Problem) -> Alternative | None:
    """Return the step that the framework took by itself, if it was measured on these devices."""
    took_us = find_stock_us(problem)
    if math.isnan(took_us):
        return None
    name = f"{framework_of(problem.measured_profile).name} by itself, measured"
    peak_bytes = np.zeros(problem.cluster.n_devices, dtype=np.int64)  # nobody has measured that
    return Alternative(name, problem.cluster, took_us, peak_bytes)


def _without_room(problem: Problem, name: str) -> Alternative:
    """Return data parallelism whose variables alone fill more than all cards but one."""
    peak_bytes = np.zeros(problem.cluster.n_devices, dtype=np.int64)
    peak_bytes[problem.cluster.gpus] = problem.measured_profile.persistent_bytes.sum()
    why = "fewer than two cards have room for the variables"
    return Alternative(name, problem.cluster, math.nan, peak_bytes, why_not=why)
