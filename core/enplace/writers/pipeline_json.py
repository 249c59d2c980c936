"""A pipeline's schedule as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from enplace.machine.pipelines.loads import COMPUTE, IN
from enplace.machine.pipelines.pipeline import PipelineSchedule, Slot, fits_in
from enplace.machine.pipelines.stages import PASS_NAMES
from enplace.values.problem import Problem


def pipeline_document(problem: Problem, found: PipelineSchedule) -> dict[str, Any]:
    """List stages, and what each device computes and transfers when; devices by name.

    ``updates`` is when a device runs what runs once per step, after its last sample, and
    ``exchange`` what it sends and receives after that. The times of a stage are lists with one
    entry for each of its devices; its ``update_us`` counts once per step.
    """
    names = [device.name for device in problem.cluster.devices]
    op_names = problem.profile.op_names
    return {
        "pipeline": found.kind,
        "microbatches": found.n_microbatches,
        "time_per_sample_us": found.time_per_sample_us,
        "makespan_us": found.makespan_us,
        "feasible": fits_in(problem, found),
        "stages": [
            {
                "devices": [names[device] for device in stage.devices],
                "pass": PASS_NAMES[stage.of],
                "in_us": list(stage.in_us),
                "compute_us": list(stage.compute_us),
                "out_us": list(stage.out_us),
                "reduce_us": list(stage.reduce_us),
                "update_us": list(stage.update_us),
                "after": list(stage.after),
                "ops": [op_names[op] for op in stage.ops],
            }
            for stage in found.stages
        ],
        "devices": [
            {
                "name": name,
                "in_flight": found.in_flight[device],
                "variables_bytes": found.memory[device].weights_bytes,
                "peak_bytes": found.memory[device].peak_bytes,
                "capacity_bytes": problem.cluster.devices[device].capacity_bytes,
                "memory": [
                    {"from_us": from_us, "bytes": n_bytes}
                    for from_us, n_bytes in zip(
                        found.memory[device].time_us.tolist(),
                        found.memory[device].bytes.tolist(),
                        strict=True,
                    )
                ],
                "computing": _slots(found.computing[device]),
                "transfers": _slots([s for s in found.transfers if s.device == device]),
                "updates": [
                    {"start_us": each.start_us, "finish_us": each.finish_us}
                    for each in found.updates
                    if each.device == device
                ],
                "exchange": [
                    {"start_us": e.start_us, "finish_us": e.finish_us, "bytes": e.n_bytes}
                    for e in found.exchange
                    if e.device == device
                ],
            }
            for device, name in enumerate(names)
        ],
    }


def pipelines_document(problem: Problem, found: Sequence[PipelineSchedule]) -> dict[str, Any]:
    """List the time and the peak memory of a plan for each number of microbatches.

    ``mean_us`` is the time of all microbatches over their number: a pipeline fills and drains too.
    ``time_per_sample_us`` is that of one more, once the pipeline is full, with its share of what
    runs once for all of them.
    """
    names = [device.name for device in problem.cluster.devices]
    return {
        "pipeline": found[0].kind,
        "points": [
            {
                "microbatches": each.n_microbatches,
                "makespan_us": each.makespan_us,
                "mean_us": each.mean_us,
                "time_per_sample_us": each.time_per_sample_us,
                "peak_bytes": dict(zip(names, each.peak_bytes.tolist(), strict=True)),
                "feasible": fits_in(problem, each),
            }
            for each in found
        ],
    }


def _slots(slots: Sequence[Slot]) -> list[dict[str, Any]]:
    return [
        {
            "microbatch": slot.microbatch,
            "stage": slot.stage,
            "pass": PASS_NAMES[slot.of],
            **({} if slot.part == COMPUTE else {"way": "in" if slot.part == IN else "out"}),
            "start_us": slot.start_us,
            "finish_us": slot.finish_us,
        }
        for slot in slots
    ]
