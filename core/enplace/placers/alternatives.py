"""What people pick where they have no planner, predicted to compare plans with."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from enplace.machine import simulate
from enplace.machine.check_claims import check_claims
from enplace.machine.pipelines.pipeline import most_bytes
from enplace.names.passes import BACKWARD, in_pass
from enplace.placers.data_parallel import Replicas
from enplace.placing.prices import total_price_us
from enplace.placing.settle import by_placed_rank, settle
from enplace.values.arrays import IntArray
from enplace.values.batch import with_batch
from enplace.values.load_rule import LoadRule
from enplace.values.op_kinds import OpKind
from enplace.values.plan import Plan
from enplace.values.problem import STEP_TIME, THROUGHPUT, Problem
from enplace.values.result import Alternative


def replicas_as_alternative(found: Replicas) -> Alternative:
    """Return data parallelism as what it may be compared with."""
    peak_bytes = np.zeros(found.cluster.n_devices, dtype=np.int64)
    for each in found.replicas:
        gpus = list(each.gpus)
        peak_bytes[gpus] = each.alone.peak_bytes[: len(gpus)]
    return Alternative(
        found.name,
        found.cluster,
        found.step_time_us,
        peak_bytes,
        found.sent_bytes,
        " ".join(filter(None, (found.about_shares, found.guess))),
        price_us=found.price_us,
    )


def with_batch_of(problem: Problem, factor: float) -> Problem:
    """Return a problem with a batch ``factor`` times as large.

    It keeps the measurement, which says to which module each parameter belongs.
    """
    profile, measured = problem.measured_profile, problem.measured_profile.measured
    shapes = tuple((max(1, round(n * factor)), *rest) for n, *rest in measured.batch_shapes)
    measured = replace(measured, batch_shapes=shapes)
    return Problem(replace(with_batch(profile, factor), measured=measured), problem.cluster)


def at_once(problem: Problem, n: int) -> Problem:
    """Return the problem of a step that has all ``n`` micro-batches at once.

    Each micro-batch of a batch that was cut adds its gradients to those before; one whole batch has
    nothing to add to.
    """
    whole = with_batch_of(problem, n)
    profile = whole.measured_profile
    if profile.measured.parts_of_batch == 1:
        return whole
    adds = np.zeros(profile.n_ops, dtype=bool)
    based = profile.tensor_base >= 0
    of_variable = profile.of_kind(OpKind.VARIABLE)[profile.tensor_op[profile.tensor_base[based]]]
    adds[profile.tensor_op[based][of_variable]] = True
    adds &= in_pass(profile, BACKWARD)
    time_us = np.where(adds[:, None], 0.0, profile.time_us)
    return replace(whole, measured_profile=replace(profile, time_us=time_us))


def per_sample(whole: Alternative, n: int) -> Alternative:
    """Return the time and transfers per sample of a step that has all ``n`` samples at once."""
    about = f"A step with all {n} micro-batches at once takes {whole.time}." if whole.time else ""
    return replace(
        whole,
        value_us=whole.value_us / n,
        sent_bytes=whole.sent_bytes // n,
        price_us=0.0,
        about=" ".join(filter(None, (about, whole.about))),
    )


def split_as_alternative(
    problem: Problem,
    name: str,
    preferred: IntArray,
    objective: str,
    rule: LoadRule,
    about: str = "",
    position: IntArray | None = None,
) -> Alternative:
    """Return a placement as what a plan may be compared with.

    Parameters
    ----------
    preferred : int array, shape (n_ops,)
        A device for each op that may run there.
    rule : LoadRule
        The schedule of its pipeline, for the throughput.
    position : int array, shape (n_ops,), optional
        As for :func:`~enplace.placing.settle.settle`.
    """
    device = settle(problem, preferred, position)
    plan = Plan(device, by_placed_rank(problem, device), name)
    return plan_as_alternative(problem, plan, objective, rule, about)


def plan_as_alternative(
    problem: Problem, plan: Plan, objective: str, rule: LoadRule, about: str = ""
) -> Alternative:
    """Return a plan as what another may be compared with, whatever it was made for."""
    if objective != plan.objective or objective == THROUGHPUT:
        own = replace(plan, objective=objective, load_rule=rule, value_us=None, bound_us=None)
        plan = check_claims(problem, own)
    schedule = simulate(problem, plan)
    return Alternative(
        plan.method,
        problem.cluster,
        schedule.value_us,
        most_bytes(schedule),
        int(schedule.transfer_bytes.sum()),
        about,
        price_us=total_price_us(schedule) * (objective == STEP_TIME),
    )
