"""The memory of all devices over time as a picture, each against its capacity."""

from __future__ import annotations

import math
from collections.abc import Iterator
from html import escape

import numpy as np

from enplace.pictures.busy import highest_per_column
from enplace.pictures.palette import colour_numbers, device_class
from enplace.pictures.svg import MARGIN, Meaning, fitted, frame, heading, legend
from enplace.pictures.timeline_svg import LEFT, RIGHT, TOP, WIDTH, time_axis
from enplace.text import size
from enplace.values.profile import FloatArray
from enplace.values.schedule import Schedule

HEIGHT, GAP = 84, 18
COLUMNS = 507
CAPACITY_TIP = "A plan that exceeds it cannot run"
NEAR = 8
"""A capacity beyond this multiple of the peak is written, not drawn: the curve would be flat."""


def memory_svg(schedule: Schedule) -> str:
    """Draw each used device's memory over the step, with axes and the capacity."""
    devices = np.flatnonzero(schedule.peak_bytes > 0).tolist()
    bottom = TOP + (HEIGHT + GAP) * len(devices)
    axis = time_axis(schedule.makespan_us, TOP, bottom - GAP)
    parts = [heading("Memory over time"), *axis]
    for row, device in enumerate(devices):
        parts += _chart(schedule, device, TOP + (HEIGHT + GAP) * row)
    limit: Meaning = ("limit", "capacity; far above the axis where it is not drawn", CAPACITY_TIP)
    parts += legend([limit], MARGIN, bottom + 16, RIGHT)
    return frame("memory over time", WIDTH, bottom + 32, parts)


def _chart(schedule: Schedule, device: int, top: float) -> Iterator[str]:
    machine = schedule.problem.cluster.devices[device]
    peak, capacity = int(schedule.peak_bytes[device]), int(machine.capacity_bytes)
    highest = capacity if peak < capacity <= NEAR * peak else peak
    scale, bottom = (HEIGHT - 6) / highest, top + HEIGHT
    step = (RIGHT - LEFT) / COLUMNS
    heights = "".join(
        f"V{bottom - used * scale:.1f}h{step:g}"
        for used in column_peaks(schedule, device, COLUMNS).tolist()
    )
    name = machine.label
    colour = colour_numbers(schedule.problem.cluster)[device]
    yield (
        f'<text class="text" x="{MARGIN}" y="{top + 16:g}" font-weight="600">'
        f"{fitted(name, LEFT - MARGIN - 60)}<title>{escape(name)}</title></text>"
        f'<text class="{"bad-text" if peak > capacity else "dim"}" x="{MARGIN}" '
        f'y="{top + 34:g}" font-size="11">peak {size(peak)}</text>'
        f'<text class="dim" x="{MARGIN}" y="{top + 50:g}" font-size="11">of {size(capacity)}</text>'
        f'<path class="{device_class(colour)}" d="M{LEFT} {bottom:g}{heights}V{bottom:g}z"/>'
    )
    for ticks in byte_ticks(highest):
        y = bottom - ticks * scale
        yield (
            f'<path class="line" d="M{LEFT} {y:.1f}H{RIGHT}"/>'
            f'<text class="dim" x="{LEFT - 6}" y="{y + 4:.1f}" font-size="10" '
            f'text-anchor="end">{size(ticks) if ticks else 0}</text>'
        )
    if capacity <= highest:
        y = bottom - capacity * scale
        yield f'<path class="limit" stroke-width="1.5" d="M{LEFT} {y:.1f}H{RIGHT}"/>'


def byte_ticks(highest: int) -> list[int]:
    """Choose three to five round amounts of memory from 0 to the highest, equally far apart."""
    step = 2 ** max(math.floor(math.log2(max(highest, 2) / 2)), 0)
    return list(range(0, highest + 1, step))


def column_peaks(schedule: Schedule, device: int, n_columns: int) -> FloatArray:
    """Find the highest use in each of ``n_columns`` equal parts of the step; shape (n_columns,)."""
    curve, edges = schedule.memory[device], np.linspace(0.0, schedule.makespan_us, n_columns + 1)
    edges[-1] = np.nextafter(edges[-1], np.inf)  # with what is there as the step ends
    return highest_per_column(curve.time_us, curve.bytes, edges)
