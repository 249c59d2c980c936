"""A schedule beside what was measured: for each device a predicted and a measured row."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

import numpy as np

from enplace.pictures.palette import device_class
from enplace.pictures.svg import frame
from enplace.pictures.timeline_svg import BAR, MARGIN, ROW, TOP, WIDTH, time_axis, track_row, x_of
from enplace.pictures.tracks import Track
from enplace.text import elide_middle, ms
from enplace.values.device_names import device_label
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
    predicted = schedule.op_start_us, schedule.op_finish_us, schedule.plan.device
    end_us = max(schedule.makespan_us, float(np.nanmax(finish_us, initial=0.0)))
    rows: list[Track] = []
    for number, each in enumerate(schedule.problem.cluster.devices):
        label = device_label(each.name)
        rows.append(_track(f"{label}, predicted", number, *predicted))
        rows.append(_track(f"{label}, measured", number, start_us, finish_us, device))
    rows = [row for row in rows if len(row.numbers)]
    bottom = TOP + ROW * len(rows)
    name = f"{schedule.problem.profile.name}, {schedule.plan.method}: predicted and measured"
    parts = [
        f'<text class="text" x="{MARGIN}" y="26" font-size="15" font-weight="600">'
        f"{escape(elide_middle(name, 100))}</text>",
        *time_axis(end_us, TOP, bottom),
    ]
    for number, row in enumerate(rows):
        parts += track_row(row, TOP + ROW * number)
        parts += _bars(schedule, row, TOP + ROW * number, end_us)
    return frame(name, WIDTH, bottom + MARGIN, parts)


def _track(
    name: str, number: int, start_us: FloatArray, finish_us: FloatArray, device: IntArray
) -> Track:
    """Take the ops of one device whose times are known, in the order of their starts."""
    ops = np.flatnonzero((device == number) & np.isfinite(start_us) & np.isfinite(finish_us))
    ops = ops[np.argsort(start_us[ops], kind="stable")]
    return Track(name, number, 0, ops, start_us[ops], finish_us[ops])


def _bars(schedule: Schedule, row: Track, y: float, end_us: float) -> Iterator[str]:
    """Draw a rectangle for each op; the names of ops are its tooltips."""
    names, colour = schedule.problem.profile.op_names, device_class(row.device)
    for op, start, finish in zip(row.numbers.tolist(), row.start_us, row.finish_us, strict=True):
        x = x_of(start, end_us)
        width = max(x_of(finish, end_us) - x - 0.4, 0.4)
        tip = f"{names[op]}, {ms(start)} to {ms(finish)}"
        yield (
            f'<rect class="{colour}" x="{x:.1f}" y="{y + (ROW - BAR) / 2:g}" '
            f'width="{width:.1f}" height="{BAR}"><title>{escape(tip)}</title></rect>'
        )
