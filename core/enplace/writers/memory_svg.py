"""One device's memory over time as a picture."""

from __future__ import annotations

import numpy as np

from enplace.values.profile import IntArray
from enplace.values.schedule import Schedule
from enplace.writers.palette import device_class

WIDTH, HEIGHT = 1168, 90
COLUMNS = 584


def memory_svg(schedule: Schedule, device: int) -> str:
    """Draw as SVG the device's memory in use over the step, and its capacity if that is near."""
    capacity = int(schedule.problem.cluster.capacity_bytes[device])
    highest = column_peaks(schedule, device, COLUMNS)
    top = max(int(highest.max()), 1)
    limit = capacity <= 1.5 * top
    scale = (HEIGHT - 6) / (max(top, capacity) if limit else top * 1.1)
    step = WIDTH / COLUMNS
    heights = "".join(f"V{HEIGHT - used * scale:.1f}h{step:g}" for used in highest.tolist())
    line = HEIGHT - capacity * scale
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">'
        f'<rect class="lane" width="{WIDTH}" height="{HEIGHT}" rx="2"/>'
        f'<path class="{device_class(device)}" d="M0 {HEIGHT}{heights}V{HEIGHT}z"/>'
        + (f'<path class="limit" d="M0 {line:.1f}H{WIDTH}"/>' if limit else "")
        + "</svg>"
    )


def column_peaks(schedule: Schedule, device: int, n_columns: int) -> IntArray:
    """Find the highest use in each of ``n_columns`` equal parts of the step; shape (n_columns,)."""
    curve = schedule.memory[device]
    edges = np.linspace(0.0, schedule.makespan_us, n_columns + 1)
    first = np.searchsorted(curve.time_us, edges[:-1], side="right") - 1
    last = np.maximum(np.searchsorted(curve.time_us, edges[1:], side="left"), first + 1)
    last[-1] = len(curve.bytes)
    peaks = [curve.bytes[a:b].max() for a, b in zip(first, last, strict=True)]
    return np.array(peaks, dtype=np.int64)
