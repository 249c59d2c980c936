"""The timeline as a picture: one row for each lane and each channel in use."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from itertools import pairwise

import numpy as np

from enplace.bounds import lower_bound_us
from enplace.text import count, elide_middle, ms, percent, size
from enplace.values.device_names import device_label
from enplace.values.profile import FloatArray
from enplace.values.schedule import Schedule
from enplace.writers.palette import device_class, picture_style
from enplace.writers.registry import exporter
from enplace.writers.tracks import Track, channel_tracks, lane_tracks

WIDTH, LEFT, RIGHT = 1200, 170, 1184
TOP, ROW, BAR = 64, 24, 18
LEGEND_ITEM, LEGEND_PER_ROW = 195, 6

MAX_LANES, MAX_CHANNELS = 64, 32
"""Most rows of a picture; the busiest are drawn. Rows and columns bound the file's size."""

EXACT_ITEMS = 3000
"""Most bars that are drawn one by one; beyond that, a row shows how busy each column is."""

LEVELS = 4


@exporter("svg", title="timeline as SVG", suffix=".svg")
def timeline_svg(schedule: Schedule) -> str:
    """Draw lanes, channels, a time axis and a legend as SVG; at most about 2 MB."""
    return draw_timeline(schedule, lower_bound_us(schedule.problem))


def draw_timeline(schedule: Schedule, bound_us: float) -> str:
    """Draw the timeline, with a lower bound on the step time that is already known."""
    lanes, lanes_left = _busiest(lane_tracks(schedule), MAX_LANES)
    channels, channels_left = _busiest(channel_tracks(schedule), MAX_CHANNELS)
    rows = lanes + channels
    notes = [count(lanes_left, "more lane")] * bool(lanes_left)
    notes += [count(channels_left, "more channel")] * bool(channels_left)
    exact = sum(len(track.numbers) for track in rows) <= EXACT_ITEMS
    draw = _bars if exact else _columns
    bottom = TOP + ROW * len(rows)
    legend = list(_legend(schedule, bottom + 40))
    height = bottom + 40 + 20 * (len(legend) // LEGEND_PER_ROW + 1) + 16 * len(notes)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'font-family="Inter, system-ui, sans-serif" font-size="12" role="img">',
        f"<title>{_text(_headline(schedule))}</title><style>{picture_style()}</style>",
        f'<rect class="bg" width="{WIDTH}" height="{height}" rx="8"/>',
        *_head(schedule, bound_us),
        *_axis(schedule.makespan_us, bottom),
    ]
    for number, track in enumerate(rows):
        parts += _row(track, TOP + ROW * number)
        parts += draw(schedule, track, TOP + ROW * number + ROW / 2)
    parts += legend
    parts += [
        f'<text class="dim" x="16" y="{height - 12 - 16 * i}">'
        f"and {note}, less busy, not drawn</text>"
        for i, note in enumerate(notes)
    ]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _text(value: str) -> str:
    return escape(value, quote=True)


def _headline(schedule: Schedule) -> str:
    return f"{schedule.problem.profile.name}: step time {ms(schedule.makespan_us)}"


def _head(schedule: Schedule, bound_us: float) -> Iterator[str]:
    title = elide_middle(_headline(schedule), 70)
    proof = (
        f"proven not below {ms(bound_us)} · {schedule.plan.method} on "
        f"{elide_middle(schedule.problem.cluster.name, 40)}"
    )
    yield f'<text class="text" x="16" y="26" font-size="15" font-weight="600">{_text(title)}</text>'
    yield f'<text class="dim" x="{RIGHT}" y="26" text-anchor="end">{_text(proof)}</text>'


def _busiest(tracks: list[Track], limit: int) -> tuple[list[Track], int]:
    """Find the busiest tracks, in their old order, and count those left out."""
    kept = sorted(range(len(tracks)), key=lambda i: -tracks[i].busy_us)[:limit]
    return [tracks[i] for i in sorted(kept)], len(tracks) - len(kept)


def _axis(makespan_us: float, bottom: int) -> Iterator[str]:
    for time in ticks_us(makespan_us):
        x = _x(time, makespan_us)
        yield f'<path class="line" d="M{x:.1f} {TOP - 6}V{bottom}"/>'
        yield (
            f'<text class="dim" x="{x:.1f}" y="{TOP - 12}" font-size="11" '
            f'text-anchor="middle">{time / 1000:,.6g} ms</text>'
        )


def ticks_us(makespan_us: float) -> list[float]:
    """Choose six to thirteen round times from 0 to the end."""
    if makespan_us <= 0:
        return [0.0]
    power = 10.0 ** np.floor(np.log10(makespan_us / 5))
    step = next(power * f for f in (5, 2, 1) if makespan_us / (power * f) >= 5 or f == 1)
    return [step * i for i in range(int(makespan_us / step) + 1)]


def _x(time_us: float, makespan_us: float) -> float:
    return LEFT + (RIGHT - LEFT) * time_us / (makespan_us or 1.0)


def _row(track: Track, y: int) -> Iterator[str]:
    name = _text(elide_middle(track.name, 24))
    yield f'<text class="text" x="16" y="{y + 16}">{name}<title>{_text(track.name)}</title></text>'
    place = f'x="{LEFT}" y="{y + 3}" width="{RIGHT - LEFT}" height="{BAR}"'
    yield f'<rect class="lane" {place} rx="2"/>'


def _colour(track: Track) -> str:
    return device_class(track.device) if track.device >= 0 else "sent"


def _bars(schedule: Schedule, track: Track, middle: float) -> Iterator[str]:
    """Draw a rectangle with a tooltip for each op or transfer."""
    colour, end = _colour(track), schedule.makespan_us
    times = zip(track.numbers.tolist(), track.start_us, track.finish_us, strict=True)
    for number, start, finish in times:
        x = _x(start, end)
        width = max(_x(finish, end) - x - 0.4, 0.4)
        tip = f"{_name(schedule, track, number)}, {ms(start)} to {ms(finish)}"
        yield (
            f'<rect class="{colour}" x="{x:.1f}" y="{middle - BAR / 2:g}" '
            f'width="{width:.1f}" height="{BAR}"><title>{_text(tip)}</title></rect>'
        )


def _name(schedule: Schedule, track: Track, number: int) -> str:
    profile = schedule.problem.profile
    if track.device >= 0:
        return profile.op_names[number]
    producer = profile.op_names[profile.tensor_op[schedule.transfer_tensor[number]]]
    return f"{producer}, {size(float(schedule.transfer_bytes[number]))}"


def _columns(schedule: Schedule, track: Track, middle: float) -> Iterator[str]:
    """Draw one path for each level of activity; adjacent columns of a level share a stroke."""
    busy = busy_share(track, schedule.makespan_us, RIGHT - LEFT)
    level = np.ceil(busy * LEVELS - 1e-9).astype(int)
    edges = np.flatnonzero(np.diff(level, prepend=-1, append=-1))
    for wanted in range(1, LEVELS + 1):
        runs = [(a, b) for a, b in pairwise(edges) if level[a] == wanted]
        if runs:
            path = "".join(f"M{LEFT + a} {middle:g}h{b - a}" for a, b in runs)
            yield (
                f'<path class="{_colour(track)}-line" stroke-width="{BAR}" '
                f'stroke-opacity="{wanted / LEVELS:g}" d="{path}"/>'
            )


def busy_share(track: Track, makespan_us: float, n_columns: int) -> FloatArray:
    """Find the share of each of ``n_columns`` equal parts of the step that a track is busy."""
    if makespan_us <= 0 or not len(track.numbers):
        return np.zeros(n_columns)
    times = np.stack([track.start_us, track.finish_us], axis=1).ravel()
    spent = np.cumsum(track.finish_us - track.start_us)
    work = np.stack([np.append(0.0, spent[:-1]), spent], axis=1).ravel()
    edges = np.linspace(0.0, makespan_us, n_columns + 1)
    share = np.diff(np.interp(edges, times, work)) / (makespan_us / n_columns)
    return np.asarray(np.clip(share, 0.0, 1.0), dtype=np.float64)


def _legend(schedule: Schedule, y: int) -> Iterator[str]:
    items = [
        (
            device_class(number),
            f"{elide_middle(device_label(device.name), 16)}, {percent(busy)} busy",
            f"{device_label(device.name)} is busy {percent(busy)} of the step",
        )
        for number, (device, busy) in enumerate(
            zip(schedule.problem.cluster.devices, busy_fraction(schedule), strict=True)
        )
    ]
    if len(schedule.transfer_tensor):
        items.append(("sent", "transfers", "Transfers between devices"))
    for i, (colour, label, tip) in enumerate(items):
        x = 16 + i % LEGEND_PER_ROW * LEGEND_ITEM
        top = y + i // LEGEND_PER_ROW * 20
        yield (
            f'<g><title>{_text(tip)}</title><rect class="{colour}" x="{x}" '
            f'y="{top - 9}" width="10" height="10" rx="2"/>'
            f'<text class="text" x="{x + 16}" y="{top}">{_text(label)}</text></g>'
        )


def busy_fraction(schedule: Schedule) -> list[float]:
    """Return the share of the step in which each device's lanes compute."""
    makespan_us = schedule.makespan_us or 1.0
    return [float(busy / makespan_us) for busy in schedule.busy_us / schedule.problem.cluster.lanes]
