"""The timeline as a picture: one row for each lane and each channel in use."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from itertools import pairwise

import numpy as np

from enplace.machine import critical_path
from enplace.pictures.palette import colour_numbers, device_class
from enplace.pictures.svg import MARGIN, Meaning, frame, heading, legend, legend_height
from enplace.pictures.tracks import Track, busiest, channel_tracks, lane_tracks, trace_path
from enplace.text import count, elide_middle, ms, percent, size
from enplace.values.profile import FloatArray
from enplace.values.result import Result
from enplace.values.schedule import Schedule

WIDTH, LEFT, RIGHT = 1200, 170, 1184
TOP, ROW, BAR = 64, 24, 18

MAX_LANES, MAX_CHANNELS = 64, 32
"""Most rows of a picture; the busiest are drawn. Rows and columns bound the file's size."""

EXACT_ITEMS = 3000
"""Most bars that are drawn one by one; beyond that, a row shows how busy each column is."""

LEVELS = 4


def timeline_svg(result: Result) -> str:
    """Draw lanes, channels, a time axis, the critical path and a legend; at most about 2 MB."""
    schedule = result.schedule
    lanes, lanes_left = busiest(lane_tracks(schedule), MAX_LANES)
    channels, channels_left = busiest(channel_tracks(schedule), MAX_CHANNELS)
    rows = lanes + channels
    notes = [count(lanes_left, "more lane")] * bool(lanes_left)
    notes += [count(channels_left, "more channel")] * bool(channels_left)
    exact = sum(len(track.numbers) for track in rows) <= EXACT_ITEMS
    draw = bars if exact else _columns
    bottom = TOP + ROW * len(rows)
    meanings = list(_meanings(schedule))
    end = bottom + 20 + legend_height(meanings, MARGIN, RIGHT)
    parts = [*_head(result), *time_axis(schedule.makespan_us, TOP, bottom)]
    for number, track in enumerate(rows):
        parts += track_row(track, TOP + ROW * number)
        parts += draw(schedule, track, TOP + ROW * (number + 0.5), schedule.makespan_us)
    parts.append(_critical_path(schedule, rows))
    parts += legend(meanings, MARGIN, bottom + 30, RIGHT)
    parts += [
        f'<text class="dim" x="{MARGIN}" y="{end + 12 + 16 * i:g}">'
        f"and {note}, less busy, not drawn</text>"
        for i, note in enumerate(notes)
    ]
    return frame(_headline(result), WIDTH, end + 16 * len(notes) + 8, parts)


def _headline(result: Result) -> str:
    problem = result.schedule.problem
    step = problem.measured_profile.measured.title_of("step time")
    return f"{result.titled(problem.profile.name)}: {step} {ms(result.schedule.makespan_us)}"


def _head(result: Result) -> Iterator[str]:
    schedule = result.schedule
    title = elide_middle(_headline(result), 70)
    facts = f"{schedule.plan.method} on {elide_middle(schedule.problem.cluster.name, 40)}"
    if result.step_bound_us is not None:
        facts = f"proven not below {ms(result.step_bound_us)} · {facts}"
    yield heading(title)
    yield f'<text class="dim" x="{RIGHT}" y="26" text-anchor="end">{escape(facts)}</text>'


def time_axis(makespan_us: float, top: float, bottom: float) -> Iterator[str]:
    """Draw a line and its time, in ms, for each tick of the axis."""
    for time in ticks_us(makespan_us):
        x = x_of(time, makespan_us)
        yield f'<path class="line" d="M{x:.1f} {top - 6:g}V{bottom:g}"/>'
        yield (
            f'<text class="dim" x="{x:.1f}" y="{top - 12:g}" font-size="11" '
            f'text-anchor="middle">{time / 1000:,.6g} ms</text>'
        )


def ticks_us(makespan_us: float) -> list[float]:
    """Choose six to thirteen round times from 0 to the end."""
    if makespan_us <= 0:
        return [0.0]
    power = 10.0 ** np.floor(np.log10(makespan_us / 5))
    step = next(power * f for f in (5, 2, 1) if makespan_us / (power * f) >= 5 or f == 1)
    return [step * i for i in range(int(makespan_us / step) + 1)]


def x_of(time_us: float, makespan_us: float) -> float:
    """Return where a time is on the axis."""
    return LEFT + (RIGHT - LEFT) * time_us / (makespan_us or 1.0)


def track_row(track: Track, y: int) -> Iterator[str]:
    """Draw the name of a row and the empty lane beside it."""
    name = escape(elide_middle(track.name, 24))
    title = f"<title>{escape(track.name)}</title>"
    yield f'<text class="text" x="{MARGIN}" y="{y + 16}">{name}{title}</text>'
    place = f'x="{LEFT}" y="{y + 3}" width="{RIGHT - LEFT}" height="{BAR}"'
    yield f'<rect class="lane" {place} rx="2"/>'


def _colour(schedule: Schedule, track: Track) -> str:
    if track.device < 0:
        return "sent"
    return device_class(colour_numbers(schedule.problem.cluster)[track.device])


def bars(schedule: Schedule, track: Track, middle: float, end_us: float) -> Iterator[str]:
    """Draw a rectangle with a tooltip for each op or transfer."""
    colour = _colour(schedule, track)
    times = zip(track.numbers.tolist(), track.start_us, track.finish_us, strict=True)
    for number, start, finish in times:
        x = x_of(start, end_us)
        width = max(x_of(finish, end_us) - x - 0.4, 0.4)
        tip = f"{_name(schedule, track, number)}, {ms(start)} to {ms(finish)}"
        yield (
            f'<rect class="{colour}" x="{x:.1f}" y="{middle - BAR / 2:g}" '
            f'width="{width:.1f}" height="{BAR}"><title>{escape(tip)}</title></rect>'
        )


def _name(schedule: Schedule, track: Track, number: int) -> str:
    profile = schedule.problem.profile
    if track.device >= 0:
        return profile.op_names[number]
    producer = profile.op_names[profile.tensor_op[schedule.transfer_tensor[number]]]
    return f"{producer}, {size(float(schedule.transfer_bytes[number]))}"


def _columns(schedule: Schedule, track: Track, middle: float, end_us: float) -> Iterator[str]:
    """Draw one path for each level of activity; adjacent columns of a level share a stroke."""
    colour = _colour(schedule, track)
    busy = busy_share(track, end_us, RIGHT - LEFT)
    level = np.ceil(busy * LEVELS - 1e-6).astype(int)
    edges = np.flatnonzero(np.diff(level, prepend=-1, append=-1))
    for wanted in range(1, LEVELS + 1):
        runs = [(a, b) for a, b in pairwise(edges) if level[a] == wanted]
        if runs:
            path = "".join(f"M{LEFT + a} {middle:g}h{b - a}" for a, b in runs)
            yield (
                f'<path class="{colour}-line" stroke-width="{BAR}" '
                f'stroke-opacity="{wanted / LEVELS:g}" d="{path}"/>'
            )


def busy_share(track: Track, makespan_us: float, n_columns: int) -> FloatArray:
    """Find the share of each of ``n_columns`` equal parts of the step that a track is busy."""
    if makespan_us <= 0 or not len(track.numbers):
        return np.zeros(n_columns)
    share = track.curve.fractions(np.linspace(0.0, makespan_us, n_columns + 1))
    return np.asarray(np.clip(share, 0.0, 1.0), dtype=np.float64)


def _critical_path(schedule: Schedule, rows: list[Track]) -> str:
    """Underline what the step waits for, from its start to its end, across the rows."""
    path = critical_path(schedule)
    trace = trace_path(path, rows)
    ends = [trace.row, trace.start_us, trace.row, trace.finish_us]
    points = np.column_stack(ends).reshape(-1, 2).tolist()
    line = "L".join(
        f"{x_of(time, schedule.makespan_us):.1f} {TOP + ROW * row + ROW - 1.5:g}"
        for row, time in points
    )
    if not line:
        return ""
    tip = f"critical path: {ms(path.compute_us)} computing, {ms(path.transfer_us)} sending"
    drawn = f'<path class="path" stroke-width="1.2" opacity="0.8" d="M{line}">'
    return f"{drawn}<title>{tip}</title></path>"


def _meanings(schedule: Schedule) -> Iterator[Meaning]:
    cluster = schedule.problem.cluster
    found = zip(cluster.devices, colour_numbers(cluster), busy_fraction(schedule), strict=True)
    for device, colour, busy in found:
        name = device.label
        text = f"{elide_middle(name, 16)}, {percent(busy)} busy"
        yield device_class(colour), text, f"{name} is busy {percent(busy)} of the step"
    if len(schedule.transfer_tensor):
        yield "sent", "transfers", "Transfers between devices"
    yield "path", "critical path", "What the step waits for; to be faster, one of these must change"


def busy_fraction(schedule: Schedule) -> list[float]:
    """Return the share of the step in which each device's lanes compute."""
    makespan_us = schedule.makespan_us or 1.0
    return [float(busy / makespan_us) for busy in schedule.busy_us / schedule.problem.cluster.lanes]
