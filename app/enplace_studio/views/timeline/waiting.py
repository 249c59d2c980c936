"""Texts about a bar of the timeline: its op or transfer, and why it did not start earlier."""

from __future__ import annotations

import numpy as np

from enplace.frameworks.measured import MeasuredRun
from enplace.text import elide_middle, ms, size
from enplace.values.device_names import device_label
from enplace.values.profile import CONTROL
from enplace.values.schedule import Schedule
from enplace_studio.prediction import error_text, total_times
from enplace_studio.views.timeline.rows import Row

NAME_LENGTH = 70
_SHORT_US = 0.5
"""Waits shorter than this are not mentioned."""


def describe_op(schedule: Schedule, op: int) -> str:
    """Describe an op: name, type, times, device and cause of waiting, one line each."""
    profile = schedule.problem.profile
    start, finish = float(schedule.op_start_us[op]), float(schedule.op_finish_us[op])
    return "\n".join(
        [
            elide_middle(profile.op_names[op], NAME_LENGTH),
            f"{profile.op_types[op]} on {_device(schedule, int(schedule.plan.device[op]))}",
            f"{ms(finish - start)}, starting at {start / 1000:,.3f} ms",
            describe_start(schedule, op),
        ]
    )


def describe_measured(schedule: Schedule, run: MeasuredRun, op: int) -> str:
    """Describe the measured run of an op, compared with the prediction."""
    profile = schedule.problem.profile
    start, finish = float(run.op_start_us[op]), float(run.op_finish_us[op])
    lines = [
        elide_middle(profile.op_names[op], NAME_LENGTH),
        f"{profile.op_types[op]} on {_device(schedule, int(run.op_device[op]))}, measured",
        f"{ms(finish - start)} in this step, starting at {start / 1000:,.3f} ms",
    ]
    predicted_us, measured_us = total_times(schedule, run, np.array([op]))
    if off := error_text(predicted_us, measured_us):
        lines.append(f"{ms(measured_us)} over the traced steps, {off} ({ms(predicted_us)})")
    return "\n".join(lines)


def describe_gap(schedule: Schedule, row: Row, time_us: float) -> str:
    """Describe a device's idle time around a moment, and the op it waits for."""
    since_us, next_bar = row.gap_at(time_us)
    until_us = schedule.makespan_us if next_bar is None else float(row.start_us[next_bar])
    if time_us > schedule.makespan_us or until_us <= since_us:
        return ""
    idle = f"{_device(schedule, row.device)} idle for {ms(until_us - since_us)}"
    if next_bar is None:
        return f"{idle}, to the end of the step"
    op = int(row.number[next_bar])
    name = elide_middle(schedule.problem.profile.op_names[op], NAME_LENGTH)
    return f"{idle}, until {name}\n{describe_start(schedule, op)}"


def describe_transfer(schedule: Schedule, transfer: int) -> str:
    """Describe a transfer: size, devices, times, and its wait for the channel."""
    profile = schedule.problem.profile
    tensor = int(schedule.transfer_tensor[transfer])
    producer = int(profile.tensor_op[tensor])
    start = float(schedule.transfer_start_us[transfer])
    finish = float(schedule.transfer_finish_us[transfer])
    is_control = profile.tensor_output[tensor] == CONTROL
    what = "Control edge" if is_control else size(int(profile.tensor_bytes[tensor]))
    source = _device(schedule, int(schedule.transfer_from[transfer]))
    target = _device(schedule, int(schedule.transfer_to[transfer]))
    waited = start - float(schedule.op_finish_us[producer])
    sentence = f"Waited {ms(waited)} for its channel." if waited > _SHORT_US else "Sent at once."
    return "\n".join(
        [
            f"{what} of {elide_middle(profile.op_names[producer], NAME_LENGTH)}",
            f"{source} → {target}",
            f"{ms(finish - start)}, starting at {start / 1000:,.3f} ms",
            sentence,
        ]
    )


def describe_start(schedule: Schedule, op: int) -> str:
    """Explain an op's start: its last input, or the previous op on its lane."""
    start = float(schedule.op_start_us[op])
    free_us, before = _lane_free(schedule, op)
    ready_us, producer, transfer = _last_input(schedule, op)
    names = schedule.problem.profile.op_names
    if start <= _SHORT_US:
        return "Starts with the step."
    if ready_us > free_us and producer is not None:
        name = elide_middle(names[producer], NAME_LENGTH)
        waited = f"Its device was idle for {ms(start - free_us)}, waiting"
        if start - free_us <= _SHORT_US:
            waited = "Started as soon as it could, after"
        if transfer is None:
            return f"{waited} for {name}." if "idle" in waited else f"{waited} {name}."
        source = _device(schedule, int(schedule.transfer_from[transfer]))
        return f"{waited} {'for ' if 'idle' in waited else ''}the transfer of {name} from {source}."
    if before is None:
        return ""
    name = elide_middle(names[before], NAME_LENGTH)
    if start - ready_us > _SHORT_US:
        return (
            f"It was ready {ms(start - ready_us)} earlier; its device was busy until {name} ended."
        )
    return f"Started as soon as it could, after {name}."


def _lane_free(schedule: Schedule, op: int) -> tuple[float, int | None]:
    """Find when the op's lane became free, and the op that ran there before."""
    start = schedule.op_start_us[op]
    same = (schedule.plan.device == schedule.plan.device[op]) & (
        schedule.op_lane == schedule.op_lane[op]
    )
    earlier = same & (schedule.op_finish_us <= start)
    earlier &= schedule.op_finish_us > schedule.op_start_us
    earlier[op] = False
    found = np.flatnonzero(earlier)
    if not len(found):
        return 0.0, None
    last = int(found[np.argmax(schedule.op_finish_us[found])])
    return float(schedule.op_finish_us[last]), last


def _last_input(schedule: Schedule, op: int) -> tuple[float, int | None, int | None]:
    """Find when the last input arrived, its producer, and its transfer, if any."""
    profile = schedule.problem.profile
    here = int(schedule.plan.device[op])
    ready, source, brought = 0.0, None, None
    for edge in profile.in_edges[profile.in_ptr[op] : profile.in_ptr[op + 1]].tolist():
        producer, transfer = int(profile.edge_source[edge]), None
        time = float(schedule.op_finish_us[producer])
        if schedule.plan.device[producer] != here:
            sent = schedule.transfer_tensor == profile.edge_tensor[edge]
            transfer = int(np.flatnonzero(sent & (schedule.transfer_to == here))[0])
            time = float(schedule.transfer_finish_us[transfer])
        if source is None or time > ready:
            ready, source, brought = time, producer, transfer
    return ready, source, brought


def _device(schedule: Schedule, device: int) -> str:
    return device_label(schedule.problem.cluster.devices[device].name)
