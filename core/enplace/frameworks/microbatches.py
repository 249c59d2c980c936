"""Micro-batches: what is asked for, and the order in which the ops of their graph run.

The pipeline's simulation says when each stage computes for which micro-batch. An op of that
micro-batch takes its place in that slot, and within the slot the place that the plan gives it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from enplace.errors import PipelineError
from enplace.frameworks.wishes import MICROBATCHES, ORDER, OWN_STATISTICS, PIPELINE
from enplace.machine.pipelines.pipeline import (
    KINDS,
    PipelineSchedule,
    simulate_pipeline,
    step_rule,
)
from enplace.machine.pipelines.stages import number_of_stage
from enplace.option import Value
from enplace.text import listed
from enplace.values.arrays import inverse
from enplace.values.batch import with_batch
from enplace.values.cluster import Cluster
from enplace.values.plan import Plan, follow_graph
from enplace.values.problem import BoolArray, Problem
from enplace.values.profile import FloatArray, IntArray, Profile
from enplace.values.splits import rewriting

WHOLE = -1
"""Stands for the part's number of an op that is not cut."""


@dataclass(frozen=True)
class Microbatches:
    """How to run a step as a pipeline.

    Attributes
    ----------
    schedule : str
        One of :data:`~enplace.machine.pipelines.pipeline.KINDS`.
    number : int
        Into how many micro-batches each batch is cut.
    own_statistics : bool
        Whether each micro-batch takes its own means and sums where samples depend on each other, as
        in batch normalisation; the result is then not that of the whole batch.
    """

    schedule: str
    number: int
    own_statistics: bool = False

    def __post_init__(self) -> None:
        if self.schedule not in KINDS:
            raise PipelineError(
                f"there is no pipeline '{self.schedule}'; use one of {listed(KINDS)}"
            )
        if not isinstance(self.number, int | np.integer) or self.number < 2:
            raise PipelineError("a pipeline needs a number of micro-batches, at least 2")

    def __str__(self) -> str:
        return f"{self.number} micro-batches, {self.schedule}"


def find_microbatches(wishes: Mapping[str, Value], dashes: str = "") -> Microbatches | None:
    """Return the pipeline that is wished for, if one is.

    Parameters
    ----------
    wishes : mapping
        By the keys of :data:`~enplace.frameworks.wishes.PIPELINE_OPTIONS` and ``order``.
    dashes : str
        What to put before an option in a message: ``--`` on the command line.

    Raises
    ------
    PipelineError
        If they contradict each other.
    """
    kind = str(wishes.get(PIPELINE.key) or "")
    if not kind:
        for option in (MICROBATCHES, OWN_STATISTICS):
            if wishes.get(option.key):
                raise PipelineError(f"{dashes}{option.name} is for pipelines; add {dashes}pipeline")
        return None
    if not wishes.get(ORDER.key, True):
        off = "--no-order" if dashes else "order=False"
        raise PipelineError(f"a pipeline is an order of micro-batches; leave out {off}")
    number = MICROBATCHES.parse(wishes.get(MICROBATCHES.key, MICROBATCHES.default))
    return Microbatches(kind, number, bool(wishes.get(OWN_STATISTICS.key)))


def share_of_profile(profile: Profile, number: int) -> float:
    """Return the size of one of so many micro-batches as a share of what was profiled."""
    return profile.measured.parts_of_batch / number


def on_microbatch(problem: Problem, number: int) -> Problem:
    """Return the problem of one of so many micro-batches: as profiled, or its share of that."""
    whole = problem.measured_profile
    return replace(problem, measured_profile=with_batch(whole, share_of_profile(whole, number)))


def plan_on_microbatch(problem: Problem, plan: Plan, number: int) -> Plan:
    """Return the plan with the pace at which micro-batches follow each other."""
    share = share_of_profile(problem.measured_profile, number)
    return replace(plan, pace_us=plan.pace_us * share)


def simulate_batch(problem: Problem, plan: Plan, wanted: Microbatches) -> PipelineSchedule:
    """Simulate a batch as a pipeline of micro-batches; see :func:`on_microbatch`."""
    small, rule = on_microbatch(problem, wanted.number), step_rule(plan, wanted.number)
    plan = plan_on_microbatch(problem, plan, wanted.number)
    return simulate_pipeline(small, plan, wanted.schedule, wanted.number, rule)


def check_runnable(plan: Plan, cluster: Cluster, *, recomputes: bool = False) -> None:
    """Refuse a plan that micro-batches cannot follow; ``recomputes`` says whether stages may.

    Raises
    ------
    PipelineError
        If it splits ops, has replicas of a stage, or recomputes activations.
    """
    if plan.splits or plan.replicas:
        odd = rewriting(plan.splits) or "has replicas of a stage"
        raise PipelineError(
            f"the plan {odd}, and micro-batches need one device for each op: make a plan without "
            "--replicate, by a method that leaves ops as they are"
        )
    if plan.recompute and not recomputes:
        where = listed([cluster.devices[d].label for d in plan.recompute])
        raise PipelineError(
            f"the plan recomputes activations on {where}, which a run cannot do yet; make a plan "
            "without --recompute"
        )


def order_parts(
    profile: Profile,
    origin: IntArray,
    part: IntArray,
    schedule: PipelineSchedule,
    position: IntArray,
) -> IntArray:
    """Find the positions of the ops of a graph of micro-batches.

    Whole ops run as soon as a part waits for them; those for which none waits, such as the
    optimiser's, come after the pipeline. Parts outside the path of a sample, such as those of
    metrics, have no slot of their own: they wait for the slots of what they read.

    Parameters
    ----------
    profile : Profile
        The graph of micro-batches.
    origin, part : int array, shape (n_ops,)
        For each op, the op of the step that it comes from, and the number of its micro-batch or
        :data:`WHOLE`.
    schedule : PipelineSchedule
        The step as a pipeline.
    position : int array
        The plan's positions of the ops of the step.

    Returns
    -------
    int array, shape (n_ops,)
        A permutation that follows the graph.
    """
    start_us, finish_us, stage = _slots_us(schedule, len(position))
    when_us = np.where(part == WHOLE, np.inf, start_us[origin, part])
    _wait_for_slots(profile, part, stage[origin], when_us, finish_us[origin, part])
    rank = inverse(np.lexsort((position[origin], stage[origin], when_us)))
    return follow_graph(profile, _before_consumers(profile, rank))


def find_early(profile: Profile, part: IntArray, ends: BoolArray) -> BoolArray:
    """Find parts that an earlier micro-batch waits for; shape (n_ops,).

    A mean loss over tokens, for example, needs the masks of all samples, which are there before the
    pipeline begins. Such parts do not begin their micro-batch.

    Parameters
    ----------
    profile, part
        As in :func:`order_parts`.
    ends : bool array, shape (n_ops,)
        The parts that the pipeline is for, such as those that make gradients.
    """
    none = int(part.max(initial=0)) + 1
    first = np.where(ends, part, none)
    for op in profile.topological_order[::-1].tolist():
        consumers = profile.readers_of(op)
        first[op] = min(first[op], first[consumers].min(initial=none))
    early: BoolArray = part > first
    return early


def in_flight(
    part: IntArray, device: IntArray, start_us: FloatArray, finish_us: FloatArray, n_devices: int
) -> list[int]:
    """Count the most micro-batches at a time that each device has begun and not finished.

    Parameters
    ----------
    part, device : int array, shape (n_ops,)
        As in :func:`order_parts`.
    start_us, finish_us : float array, shape (n_ops,)
        NaN for ops that were not seen.
    """
    found = []
    seen = (part != WHOLE) & np.isfinite(start_us)
    for number in range(n_devices):
        ops = np.flatnonzero(seen & (device == number))
        parts = np.unique(part[ops])
        begun = np.array([start_us[ops][part[ops] == i].min() for i in parts])
        ended = np.array([finish_us[ops][part[ops] == i].max() for i in parts])
        found.append(max((int(((begun <= at) & (at < ended)).sum()) for at in begun), default=0))
    return found


def _slots_us(schedule: PipelineSchedule, n_ops: int) -> tuple[FloatArray, FloatArray, IntArray]:
    """Find when the slot of each op begins and ends, by micro-batch, and the op's stage."""
    start_us = np.zeros((n_ops, schedule.n_microbatches))
    finish_us = start_us.copy()
    for slots in schedule.computing:
        for slot in slots:
            ops = schedule.stages[slot.stage].ops
            start_us[ops, slot.microbatch] = slot.start_us
            finish_us[ops, slot.microbatch] = slot.finish_us
    return start_us, finish_us, number_of_stage(schedule.stages, n_ops)


def _wait_for_slots(
    profile: Profile, part: IntArray, stage: IntArray, when_us: FloatArray, finish_us: FloatArray
) -> None:
    """Delay parts, in place, until the slots of other stages whose tensors they read are over."""
    for op in profile.topological_order.tolist():
        if part[op] != WHOLE:
            into = profile.edges_into(op)
            before = profile.edge_source[into]
            before = before[part[before] != WHOLE]
            ends_us = np.where(stage[before] == stage[op], when_us[before], finish_us[before])
            when_us[op] = max(when_us[op], ends_us.max(initial=0.0))


def _before_consumers(profile: Profile, rank: IntArray) -> IntArray:
    """Lower ranks until no op comes after one that waits for it."""
    found = rank.copy()
    for op in profile.topological_order[::-1].tolist():
        consumers = profile.readers_of(op)
        found[op] = min(found[op], found[consumers].min(initial=found[op]))
    return found
