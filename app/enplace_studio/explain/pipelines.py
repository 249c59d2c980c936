"""Plans as pipelines, for every view that shows one. No Qt."""

from __future__ import annotations

from enplace.machine.pipelines.all_reduce import all_reduce_us
from enplace.machine.pipelines.loads import OUT, shared_parts_us
from enplace.machine.pipelines.pipeline import PipelineSchedule, simulate_pipeline, step_rule
from enplace.machine.pipelines.stages import stages_of
from enplace.names.passes import named_backward
from enplace.values.arrays import FloatArray
from enplace.values.load_rule import LoadRule
from enplace.values.plan import Plan
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


def find_bubble(pipeline: PipelineSchedule, device: int, when_us: float) -> tuple[float, str]:
    """Return the share of the time in which a device neither computes nor transfers, and why now.

    The reason is a part of a sentence: what the next stage on the device waits for.
    """
    slots = sorted(pipeline.slots_of(device), key=lambda slot: slot.start_us)
    busy_us = pipeline.computing_us(device) + pipeline.transferring_us(device)
    share = max(0.0, 1 - busy_us / pipeline.makespan_us) if pipeline.makespan_us else 0.0
    coming = next((slot for slot in slots if slot.start_us >= when_us), None)
    if coming is None:
        return share, "the last sample has left it"
    before = [
        slot
        for row in (*pipeline.computing, pipeline.transfers)
        for slot in row
        if slot.microbatch == coming.microbatch
        and slot.stage in pipeline.stages[coming.stage].after
    ]
    if not before:
        return share, "its turn has not come"
    last = max(before, key=lambda slot: slot.finish_us)
    way = "backward" if last.backward else "forward"
    return share, f"it waits for sample {last.microbatch + 1} in stage {last.stage + 1}, {way}"


def parts_of(problem: Problem, plan: Plan, rule: LoadRule) -> FloatArray:
    """Compute each device's compute, in and out times for one sample; shape (n_devices, 3).

    Gradients that replicas exchange count as sent.
    """
    loads: FloatArray = shared_parts_us(
        problem, plan.device, rule, plan.replicas, plan.recompute
    ).sum(axis=1)
    for group in plan.replicas:
        loads[list(group), OUT] += all_reduce_us(problem, plan.device, group)
    return loads


def visits_as_meant(found: PipelineSchedule) -> bool:
    """Whether samples visit devices again only as interleaved stages, or those of a V, have it."""
    row = [stage.devices for stage in found.stages if not stage.backward]
    first = row[: len({*row})]
    turns = {"interleaved": first * (len(row) // len(first)), "zbv": [*first, *first[::-1]]}
    return row == turns.get(found.kind)


def further_stages(found: PipelineSchedule) -> list[int]:
    """Find the stages whose device has an earlier stage in the same pass."""
    seen: set[tuple[int, int]] = set()
    further = []
    for number, stage in enumerate(found.stages):
        place = stage.devices[0], stage.of
        if place in seen:
            further.append(number)
        seen.add(place)
    return further
