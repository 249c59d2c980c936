"""Whether a pipeline fits in memory with all its samples in flight."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from enplace.coarsen.grouped import op_memory_bytes
from enplace.machine.pipeline import PipelineSchedule, simulate_pipeline
from enplace.machine.pipeline_memory import forward_bytes
from enplace.placers.max_load.stages import Replicas
from enplace.placing.candidates import unordered
from enplace.values.load_rule import LoadRule
from enplace.values.problem import Problem
from enplace.values.profile import IntArray


def samples_matter(problem: Problem, rule: LoadRule) -> bool:
    """Whether samples in flight may need more memory than an accelerator has."""
    kept = int(forward_bytes(problem).sum())
    if not rule.in_flight or not kept:
        return False
    one = int(op_memory_bytes(problem).sum())
    smallest = int(problem.cluster.capacity_bytes[problem.cluster.gpus].min())
    return one + _most_samples(problem, rule) * kept > smallest


def find_fullest(
    problem: Problem,
    device: IntArray,
    rule: LoadRule,
    replicas: Replicas = (),
    recompute: tuple[int, ...] = (),
) -> float:
    """Simulate a placement as a pipeline; return the largest share of memory that it needs.

    Above 1, some accelerator exceeds its memory.
    """
    found = _simulate(problem, device, rule, replicas, recompute)
    gpus = problem.cluster.gpus
    return float(np.max(found.peak_bytes[gpus] / problem.cluster.capacity_bytes[gpus]))


def count_samples(problem: Problem, device: IntArray, rule: LoadRule) -> IntArray:
    """Count the samples in flight on each device; as many as on any if it is idle; (n_devices,)."""
    found = np.array(_simulate(problem, device, rule).in_flight)
    samples: IntArray = np.where(found > 0, found, found.max())
    return samples


def _simulate(
    problem: Problem,
    device: IntArray,
    rule: LoadRule,
    replicas: Replicas = (),
    recompute: tuple[int, ...] = (),
) -> PipelineSchedule:
    (plan,) = unordered(problem, device, "")
    plan = replace(plan, replicas=replicas, recompute=recompute)
    return simulate_pipeline(problem, plan, rule.pipeline, _most_samples(problem, rule), rule)


def _most_samples(problem: Problem, rule: LoadRule) -> int:
    """Return enough samples to fill the pipeline."""
    return rule.microbatches if rule.pipeline == "gpipe" else 3 * problem.cluster.n_devices
