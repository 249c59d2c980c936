"""Texts about a bar of the timeline: its op or transfer, and why it did not start earlier."""

from __future__ import annotations

import numpy as np

from enplace.frameworks.measured import MeasuredRun
from enplace.machine import CriticalPath
from enplace.text import elide_middle, ms, size
from enplace.values.profile import CONTROL
from enplace.values.schedule import Schedule
from enplace_studio.explain.prediction import error_text, total_times
from enplace_studio.explain.start_times import (
    NAME_LENGTH,
    SHORT_US,
    Gap,
    device_of,
    explain_start,
    idle_text,
)
from enplace_studio.timelines.rows import Row
from enplace_studio.widgets.labels import BETWEEN_FACTS


def describe_op(schedule: Schedule, op: int) -> str:
    """Describe an op: name, type, times, device and cause of waiting, one line each."""
    profile = schedule.problem.profile
    start, finish = float(schedule.op_start_us[op]), float(schedule.op_finish_us[op])
    return "\n".join(
        [
            elide_middle(profile.op_names[op], NAME_LENGTH),
            f"{profile.op_types[op]} on {device_of(schedule, int(schedule.plan.device[op]))}",
            f"{ms(finish - start)}, starting at {start / 1000:,.3f} ms",
            explain_start(schedule, op),
        ]
    )


def describe_measured(schedule: Schedule, run: MeasuredRun, op: int) -> str:
    """Describe the measured run of an op, compared with the prediction."""
    profile = schedule.problem.profile
    start, finish = float(run.op_start_us[op]), float(run.op_finish_us[op])
    lines = [
        elide_middle(profile.op_names[op], NAME_LENGTH),
        f"{profile.op_types[op]} on {device_of(schedule, int(run.op_device[op]))}, measured",
        f"{ms(finish - start)} in this step, starting at {start / 1000:,.3f} ms",
    ]
    predicted_us, measured_us = total_times(schedule, run, np.array([op]))
    if off := error_text(predicted_us, measured_us):
        lines.append(f"{ms(measured_us)} over the traced steps, {off} ({ms(predicted_us)})")
    return "\n".join(lines)


def find_gap(schedule: Schedule, row: Row, time_us: float) -> Gap | None:
    """Find a device's idle time around a moment."""
    since_us, next_bar = row.gap_at(time_us)
    until_us = schedule.makespan_us if next_bar is None else float(row.start_us[next_bar])
    if time_us > schedule.makespan_us or until_us <= since_us:
        return None
    op = None if next_bar is None else int(row.numbers[next_bar])
    return Gap(row.device, since_us, until_us, op)


def describe_gap(schedule: Schedule, row: Row, time_us: float) -> str:
    """Describe a device's idle time around a moment, and the op it waits for."""
    gap = find_gap(schedule, row, time_us)
    if gap is None:
        return ""
    why = "" if gap.op is None else f"\n{explain_start(schedule, gap.op)}"
    return f"{idle_text(schedule, gap)}{why}"


def describe_transfer(schedule: Schedule, transfer: int) -> str:
    """Describe a transfer: size, devices, times, and its wait for the channel."""
    profile = schedule.problem.profile
    tensor = int(schedule.transfer_tensor[transfer])
    producer = int(profile.tensor_op[tensor])
    start = float(schedule.transfer_start_us[transfer])
    finish = float(schedule.transfer_finish_us[transfer])
    is_control = profile.tensor_output[tensor] == CONTROL
    what = "Control edge" if is_control else size(int(profile.tensor_bytes[tensor]))
    source = device_of(schedule, int(schedule.transfer_from[transfer]))
    target = device_of(schedule, int(schedule.transfer_to[transfer]))
    waited = start - float(schedule.op_finish_us[producer])
    sentence = f"Waited {ms(waited)} for its channel." if waited > SHORT_US else "Sent at once."
    return "\n".join(
        [
            f"{what} of {elide_middle(profile.op_names[producer], NAME_LENGTH)}",
            f"{source} → {target}",
            f"{ms(finish - start)}, starting at {start / 1000:,.3f} ms",
            sentence,
        ]
    )


def describe_path(path: CriticalPath) -> str:
    """Summarise the parts of the step time in one line."""
    parts = {
        "compute": path.compute_us,
        "transfers": path.transfer_us,
        "waiting": path.waiting_us,
    }
    told = BETWEEN_FACTS.join(f"{what} {ms(time_us)}" for what, time_us in parts.items())
    return f"critical path   {told}"
