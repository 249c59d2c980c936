"""Samples one by one, each a step of its own: the slowest pipeline, with one sample in flight.

A stage of a pipeline computes for a sample in one go, and sends what others need when all of it has
ended. In a step, tensors are sent as soon as they are made. So feeding one sample after another can
be faster than a pipeline with room for one only, though each then has all of the updates.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from enplace.machine import simulate
from enplace.machine.pipelines.loads import COMPUTE, IN, OUT
from enplace.machine.pipelines.memory import counts_whole_nodes
from enplace.machine.pipelines.stages import Stage, number_of_stage
from enplace.values.memory import MemoryCurve
from enplace.values.plan import Plan
from enplace.values.problem import Problem
from enplace.values.profile import FloatArray, IntArray
from enplace.values.schedule import Schedule

Span = tuple[int, float, int, int, float]
"""A device, a start, a stage, a part of it, and a finish."""


def find_step(problem: Problem, plan: Plan) -> Schedule | None:
    """Simulate the step of a pipeline's plan; None if it does not fit or is no step of the plan.

    A step has no replicas, and runs no ops again. In the inputs of 2020, whose nodes count all they
    make, memory and time are those of the paper.
    """
    if plan.replicas or plan.recompute or counts_whole_nodes(problem.profile):
        return None
    step = simulate(problem, plan)
    return step if step.fits else None


def spans_of_step(step: Schedule, stages: Sequence[Stage]) -> list[Span]:
    """List when devices compute for the stages of a plan in a step, send and receive."""
    profile, device = step.problem.profile, step.plan.device
    stage = number_of_stage(stages, profile.n_ops)
    tensor, to = step.transfer_tensor, step.transfer_to
    maker = profile.tensor_op[tensor]
    first = np.full((profile.n_tensors, step.problem.cluster.n_devices), len(stages))
    np.minimum.at(first, (profile.edge_tensor, device[profile.edge_op]), stage[profile.edge_op])
    sent_us = step.transfer_start_us, step.transfer_finish_us
    return [
        *_join(device, stage, COMPUTE, step.op_start_us, step.op_finish_us),
        *_join(device[maker], stage[maker], OUT, *sent_us),
        *_join(to, first[tensor, to], IN, *sent_us),
    ]


def _join(
    device: IntArray, stage: IntArray, part: int, start_us: FloatArray, finish_us: FloatArray
) -> list[Span]:
    """List the spans of a part; those of a stage that follow each other without a pause are one."""
    columns = (each.tolist() for each in (device, start_us, stage, finish_us))
    found: list[Span] = []
    for d, begin_us, s, end_us in sorted(zip(*columns, strict=True)):
        last = found[-1] if found else None
        if last and (last[0], last[2]) == (d, s) and begin_us <= last[4]:
            found[-1] = (d, last[1], s, part, max(last[4], end_us))
        elif end_us > begin_us:
            found.append((d, begin_us, s, part, end_us))
    return found


def repeat_memory(curve: MemoryCurve, n: int, period_us: float) -> MemoryCurve:
    """Repeat the memory of a step."""
    inside = curve.time_us < period_us
    time_us = [curve.time_us[inside] + m * period_us for m in range(n)]
    time_us.append(curve.time_us[~inside] + (n - 1) * period_us)
    in_use, sent = (
        np.concatenate([np.tile(each[inside], n), each[~inside]])
        for each in (curve.bytes, curve.sent_bytes)
    )
    return MemoryCurve(np.concatenate(time_us), in_use, sent, curve.weights_bytes)
