"""A schedule drawn by matplotlib, to adjust and to put beside other plots."""

from __future__ import annotations

from typing import TYPE_CHECKING

from enplace.errors import EnplaceError
from enplace.extras import import_extra
from enplace.pictures.palette import DEVICES_LIGHT, LIGHT
from enplace.pictures.tracks import Track, busiest, channel_tracks, lane_tracks
from enplace.text import count, ms
from enplace.values.schedule import Schedule

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH_IN, ROW_IN, MARGIN_IN = 11.0, 0.3, 1.2
MAX_LANES, MAX_CHANNELS = 32, 16
BAR = 0.8
LEAST_PT = 0.3
"""Every bar is at least as wide, so that it can be seen."""


def plot_timeline(schedule: Schedule, axes: Axes | None = None) -> Axes:
    """Draw a bar for each op and transfer; see :meth:`enplace.Result.plot`."""
    lanes, lanes_left = busiest(lane_tracks(schedule), MAX_LANES)
    channels, channels_left = busiest(channel_tracks(schedule), MAX_CHANNELS)
    rows = lanes + channels
    if axes is None:
        pyplot = import_extra("matplotlib.pyplot", "notebook")
        size = (WIDTH_IN, MARGIN_IN + ROW_IN * len(rows))
        _, axes = pyplot.subplots(figsize=size, layout="constrained")
    if not hasattr(axes, "broken_barh"):
        raise EnplaceError(f"ax is {axes!r:.60}; use one Axes of matplotlib")
    for row, track in enumerate(rows):
        bars = zip(track.start_us / 1000, (track.finish_us - track.start_us) / 1000, strict=True)
        axes.broken_barh(
            list(bars),
            (row - BAR / 2, BAR),
            color=_colour(track),
            linewidth=LEAST_PT,
            rasterized=True,
        )
    left = lanes_left + channels_left
    axes.set_yticks(range(len(rows)), [track.name for track in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(0, schedule.makespan_us / 1000 or 1)
    time = schedule.problem.measured_profile.measured.title_of("time")
    axes.set_xlabel(f"{time} (ms)" + (f"; {count(left, 'row')} not drawn" if left else ""))
    name = schedule.problem.profile.name
    axes.set_title(f"{name}, {schedule.plan.method}: {ms(schedule.makespan_us)}", loc="left")
    return axes


def _colour(track: Track) -> str:
    if track.device < 0:
        return LIGHT["dim"]
    return DEVICES_LIGHT[track.device % len(DEVICES_LIGHT)]
