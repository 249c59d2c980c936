"""Plans as pipelines, for every view that shows one. No Qt."""

from __future__ import annotations

from enplace.machine.pipelines.pipeline import PipelineSchedule, simulate_pipeline, step_rule
from enplace.machine.pipelines.stages import stages_of
from enplace.names.passes import named_backward
from enplace.values.problem import Problem
from enplace.values.schedule import Schedule

TRAINING = {
    "1f1b": "Training, 1F1B (PipeDream)",
    "interleaved": "Training, interleaved 1F1B (Megatron)",
    "zb-h1": "Training, zero bubble (ZB-H1)",
    "zbv": "Training, zero bubble in a V (ZB-V)",
    "gpipe": "Training, GPipe",
}
INFERENCE = {"inference": "Inference"}

MOST_STAGES = 250
"""A plan with more stages changes devices too often to show or use as a pipeline."""

SAMPLES, MOST_SAMPLES = 8, 64


def kinds_of(problem: Problem) -> dict[str, str]:
    """Return the kinds of pipeline that a model can have, with their titles."""
    return TRAINING | INFERENCE if named_backward(problem.profile).any() else INFERENCE


def simulate_kind(schedule: Schedule, kind: str, n: int) -> PipelineSchedule | int:
    """Simulate a plan as a pipeline; if it has too many stages, return their number."""
    problem, plan = schedule.problem, schedule.plan
    n_stages = len(stages_of(problem, plan))
    if n_stages > MOST_STAGES:
        return n_stages
    return simulate_pipeline(problem, plan, kind, n, step_rule(plan, n))
