"""A schedule in full precision, so that other programs can check it."""

from __future__ import annotations

import json
from typing import Any

from enplace.pictures.tracks import channel_names
from enplace.values.schedule import Schedule


def schedule_json(schedule: Schedule) -> str:
    """Write start and finish of every op and transfer as JSON text.

    Keys: ``makespan_us``, ``ops``, ``transfers``, ``devices``, and ``estimated`` if op times are.
    Reading the numbers gives exactly the same doubles.
    """
    estimated = schedule.problem.measured_profile.measured.estimated
    document = {
        "makespan_us": schedule.makespan_us,
        **({"estimated": estimated} if estimated else {}),
        "ops": _ops(schedule),
        "transfers": _transfers(schedule),
        "devices": _devices(schedule),
    }
    return json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":")) + "\n"


def _ops(schedule: Schedule) -> list[dict[str, Any]]:
    names = [device.name for device in schedule.problem.cluster.devices]
    columns = zip(
        schedule.problem.profile.op_names,
        schedule.plan.device.tolist(),
        schedule.op_lane.tolist(),
        schedule.op_start_us.tolist(),
        schedule.op_finish_us.tolist(),
        strict=True,
    )
    return [
        {"op": op, "device": names[device], "lane": lane, "start_us": start, "finish_us": finish}
        for op, device, lane, start, finish in columns
    ]


def _transfers(schedule: Schedule) -> list[dict[str, Any]]:
    profile, cluster = schedule.problem.profile, schedule.problem.cluster
    names = [device.name for device in cluster.devices]
    channels = channel_names(cluster)
    tensor = schedule.transfer_tensor
    columns = zip(
        profile.tensor_op[tensor].tolist(),
        profile.tensor_output[tensor].tolist(),
        schedule.transfer_bytes.tolist(),
        schedule.transfer_from.tolist(),
        schedule.transfer_to.tolist(),
        schedule.transfer_start_us.tolist(),
        schedule.transfer_finish_us.tolist(),
        strict=True,
    )
    return [
        {
            "op": profile.op_names[op],
            "output": output,
            "bytes": size,
            "from": names[source],
            "to": names[target],
            "channels": channels[source, target],
            "start_us": start,
            "finish_us": finish,
        }
        for op, output, size, source, target, start, finish in columns
    ]


def _devices(schedule: Schedule) -> list[dict[str, Any]]:
    return [
        {
            "name": device.name,
            "kind": device.kind,
            "speed": device.speed,
            "capacity_bytes": int(device.capacity_bytes),
            "persistent_bytes": int(curve.weights_bytes),
            "peak_bytes": curve.peak_bytes,
        }
        for device, curve in zip(schedule.problem.cluster.devices, schedule.memory, strict=True)
    ]
