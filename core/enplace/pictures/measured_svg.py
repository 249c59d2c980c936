"""A schedule beside what was measured: for each device a predicted and a measured row."""

from __future__ import annotations

import numpy as np

from enplace.pictures.svg import MARGIN, frame, heading
from enplace.pictures.timeline_svg import ROW, TOP, WIDTH, bars, time_axis, track_row
from enplace.pictures.tracks import make_track
from enplace.text import elide_middle
from enplace.values.profile import FloatArray, IntArray
from enplace.values.schedule import Schedule


def measured_svg(
    schedule: Schedule, start_us: FloatArray, finish_us: FloatArray, device: IntArray
) -> str:
    """Draw all ops on one time axis, as predicted and as measured.

    Parameters
    ----------
    start_us, finish_us : float array, shape (n_ops,)
        As measured; NaN where an op left no trace.
    device : int array, shape (n_ops,)
        Where each op really ran; negative where that is unknown.
    """
    predicted = schedule.plan.device, schedule.op_start_us, schedule.op_finish_us
    end_us = max(schedule.makespan_us, float(np.nanmax(finish_us, initial=0.0)))
    kinds = {"predicted": predicted, "measured": (device, start_us, finish_us)}
    rows = [
        make_track(f"{each.label}, {kind}", (number, 0), np.flatnonzero(on == number), *times)
        for number, each in enumerate(schedule.problem.cluster.devices)
        for kind, (on, *times) in kinds.items()
    ]
    rows = [row for row in rows if len(row.numbers)]
    bottom = TOP + ROW * len(rows)
    name = f"{schedule.problem.profile.name}, {schedule.plan.method}: predicted and measured"
    parts = [heading(elide_middle(name, 100)), *time_axis(end_us, TOP, bottom)]
    for number, row in enumerate(rows):
        parts += track_row(row, TOP + ROW * number)
        parts += bars(schedule, row, TOP + ROW * (number + 0.5), end_us)
    return frame(name, WIDTH, bottom + MARGIN, parts)
