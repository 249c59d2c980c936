"""Predictions compared with measurements."""

from __future__ import annotations

import numpy as np

from enplace.frameworks.measured import MeasuredRun
from enplace.text import ms, percent
from enplace.values.profile import KINDS, FloatArray, IntArray
from enplace.values.schedule import Schedule


def prediction_error(predicted_us: float, measured_us: float) -> float | None:
    """Return the relative error of a prediction; −0.05 is 5 % too short."""
    return predicted_us / measured_us - 1 if measured_us > 0 else None


def predicted_times(schedule: Schedule) -> FloatArray:
    """Compute the op times of the schedule as a trace would show them; shape (n_ops,).

    Traces of a CPU leave out the executor's overhead per op; the profile's costs include it.
    """
    cluster, device = schedule.problem.cluster, schedule.plan.device
    overhead_us = schedule.problem.profile.measured.op_overhead_us or 0.0
    on_cpu = cluster.kind[device] == KINDS.index("cpu")
    added_us = np.where(on_cpu, overhead_us / cluster.speed[device], 0.0)
    return np.maximum(schedule.op_finish_us - schedule.op_start_us - added_us, 0.0)


def total_times(schedule: Schedule, run: MeasuredRun, ops: IntArray) -> tuple[float, float]:
    """Sum the predicted and measured times of those ops that the run recorded."""
    seen = ops[np.isfinite(run.op_time_us[ops])]
    return float(predicted_times(schedule)[seen].sum()), float(run.op_time_us[seen].sum())


def device_times(schedule: Schedule, run: MeasuredRun, device: int) -> tuple[float, float]:
    """Sum the predicted and measured times of the ops that ran on a device."""
    return total_times(schedule, run, np.flatnonzero(run.op_device == device))


def step_error(schedule: Schedule, run: MeasuredRun) -> float | None:
    """Return the relative error of the predicted step time; None on labels, which have none."""
    if run.on_labels:
        return None
    return prediction_error(schedule.makespan_us, run.step_time_us)


def error_text(predicted_us: float, measured_us: float) -> str:
    """Format the error: ``prediction −3.2 %``; empty if nothing was measured."""
    error = prediction_error(predicted_us, measured_us)
    return "" if error is None else f"prediction {percent(error, signed=True)}"


def compared(predicted_us: float, measured_us: float) -> str:
    """Format time and error: ``4.4 ms, prediction −3.2 %``."""
    off = error_text(predicted_us, measured_us)
    return f"{ms(measured_us)}, {off}" if off else ms(measured_us)
