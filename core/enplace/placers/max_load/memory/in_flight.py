"""Whether a pipeline fits in memory with all its samples in flight, and at which pace."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from enplace.coarsen.grouped import op_memory_bytes
from enplace.machine.pipelines.loads import max_load_us, pass_loads_us
from enplace.machine.pipelines.memory import added_by_stages, forward_bytes, least_bytes
from enplace.machine.pipelines.one_by_one import find_step
from enplace.machine.pipelines.pipeline import (
    PipelineSchedule,
    counts_in_flight,
    fullest_share,
    samples_that_fill,
    simulate_pipeline,
    time_with_room_us,
)
from enplace.placers.max_load.table.stages import Replicas
from enplace.placing.candidates import unordered
from enplace.values.load_rule import LoadRule
from enplace.values.plan import Plan
from enplace.values.problem import Problem
from enplace.values.profile import IntArray

SAME = 1e-9
"""Paces that differ by a smaller share are equal."""


def held_by_stages(problem: Problem, rule: LoadRule) -> IntArray | None:
    """Return what each op counts towards the memory of its stage, if not all of its outputs do.

    In training, it is what the op surely holds; samples in flight are counted separately.
    """
    if not counts_in_flight(problem, rule):
        return None
    return least_bytes(problem)


def samples_matter(problem: Problem, rule: LoadRule) -> bool:
    """Whether samples in flight may need more memory than a device has."""
    if not counts_in_flight(problem, rule):
        return False
    kept = int(forward_bytes(problem).sum())
    sums = problem.profile.held_bytes[added_by_stages(problem)]
    one = int(op_memory_bytes(problem).sum() + problem.profile.temporary_bytes.max() + sums.sum())
    smallest = int(problem.cluster.capacity_bytes.min())
    return one + samples_that_fill(problem, rule) * kept > smallest


def find_fullest(
    problem: Problem,
    device: IntArray,
    rule: LoadRule,
    replicas: Replicas = (),
    recompute: tuple[int, ...] = (),
    pace_us: float = 0.0,
    order: Plan | None = None,
) -> float:
    """Simulate a placement as a pipeline; return the largest share of memory that it needs.

    Above 1, some device exceeds its memory. Ops run in the order of a plan if one is given.
    """
    plan = _make_plan(problem, device, replicas, recompute, pace_us, order)
    return fullest_share(problem, _simulate(problem, plan, rule))


def find_pace_us(
    problem: Problem,
    device: IntArray,
    rule: LoadRule,
    replicas: Replicas = (),
    recompute: tuple[int, ...] = (),
    *,
    most_us: float = np.inf,
    order: Plan | None = None,
) -> float:
    """Find the pace that a plan needs for its pipeline to fit in memory.

    The more slowly samples follow each other, the fewer are in flight; in the end, each enters when
    the one before has left. If they wait for room instead, it is the time that they then need.
    It is never more than a step takes: samples may follow each other as steps of their own.

    Returns
    -------
    float
        0 if the pipeline fits at the pace of the busiest device; inf if not even at ``most_us``;
        else the least pace at which it fits, by bisection.
    """

    def fits(pace_us: float) -> bool:
        plan = _make_plan(problem, device, replicas, recompute, pace_us, order)
        return fullest_share(problem, _simulate(problem, plan, rule, with_room=False)) <= 1.0

    load_us = max_load_us(problem, device, rule, replicas, recompute)
    held = np.bincount(device, problem.profile.persistent_bytes, problem.cluster.n_devices)
    if load_us >= most_us or (held > problem.cluster.capacity_bytes).any():
        return np.inf
    if fits(0.0):
        return 0.0
    if rule.pipeline == "gpipe":
        return np.inf  # there, all samples are in flight at any pace
    loads_us = pass_loads_us(problem, device, rule, replicas, recompute).sum(axis=1)
    slowest_us = rule.n_resources * float(loads_us.sum())
    slow_us, room_us = min(most_us, slowest_us), np.inf
    if rule.pipeline in ("1f1b", "zb-h1"):
        plan = _make_plan(problem, device, replicas, recompute, slow_us, order)
        room_us = time_with_room_us(problem, plan, rule, slow_us)
    step = find_step(problem, _make_plan(problem, device, replicas, recompute, 0.0, order))
    step_us = np.inf if step is None else max(step.makespan_us, load_us)
    if step_us < min(slow_us, room_us) and fits(slowest_us):
        room_us = step_us
    slow_us = min(slow_us, room_us)
    if slow_us < room_us and not fits(slow_us):
        return np.inf
    fast_us = load_us
    while fast_us < slow_us * (1 - SAME):
        pace_us = (fast_us + slow_us) / 2
        fast_us, slow_us = (fast_us, pace_us) if fits(pace_us) else (pace_us, slow_us)
    return slow_us


def count_samples(
    problem: Problem, device: IntArray, rule: LoadRule, pace_us: float = 0.0
) -> IntArray:
    """Count the samples in flight on each device; as many as on any if it is idle; (n_devices,)."""
    plan = _make_plan(problem, device, (), (), pace_us)
    found = np.array(_simulate(problem, plan, rule).in_flight)
    samples: IntArray = np.where(found > 0, found, found.max())
    return samples


def _simulate(
    problem: Problem, plan: Plan, rule: LoadRule, *, with_room: bool = True
) -> PipelineSchedule:
    n = samples_that_fill(problem, rule)
    return simulate_pipeline(problem, plan, rule.pipeline, n, rule, with_room=with_room)


def _make_plan(
    problem: Problem,
    device: IntArray,
    replicas: Replicas,
    recompute: tuple[int, ...],
    pace_us: float,
    order: Plan | None = None,
) -> Plan:
    (plan,) = unordered(problem, device, "")
    if order is not None:
        plan = replace(plan, position=order.position, policy=order.policy, links=order.links)
    return replace(plan, replicas=replicas, recompute=recompute, pace_us=pace_us)
