"""The rows of the timeline: a lane per device, and a thin one per channel between GPUs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from enplace.frameworks.measured import MeasuredRun
from enplace.pictures.busy import BusyCurve
from enplace.pictures.tracks import Track, channel_tracks, device_tracks, make_track
from enplace.text import ms, size
from enplace.values.arrays import BoolArray
from enplace.values.cluster import Cluster
from enplace.values.profile import FloatArray, IntArray
from enplace.values.schedule import Schedule
from enplace_studio.explain.prediction import device_times, error_text
from enplace_studio.explain.queues import Queue, find_queue

MAX_CHANNEL_ROWS = 6
"""If more channels are in use, those from the same device share a row."""

NEXT_TO_NOTHING = 0.02
"""A CPU that is busy for less of the step than this gets a thin lane."""
IDLE = 0.005
"""A CPU that is busy for less, which would read 0 %, has no lane."""

MEASURED_SHARE = 0.65
"""Height of a measured lane relative to the planned one above it."""

GAP_PX, THIN_PX, QUEUE_PX, LANE_PX = 5, 9, 26, (16, 64)
"""Heights of the gap below a row, of a thin row, of one with a queue, and of a lane at least and
at most."""

SENT = 0.54
"""Share of the height of a row with a queue for what is being sent."""

QUEUED, MOST_QUEUES = 0.02, 4
"""Share of the step that transfers of a row wait for, all together, if it shows its queue; and the
most rows that do."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Row(Track):
    """One row of bars, sorted by start; those of shared rows may overlap.

    Attributes
    ----------
    title, note : str
        The texts before the row: "GPU 0" and "91 % busy", or "0 → 1" and "3.1 GB".
    thin : bool
        Whether the row is low: transfers, or an almost idle CPU.
    odd : bool array, shape (n_bars,)
        Whether a bar has the second of the two shades.
    channels : int
        Number of channels that share the row.
    tip : str
        The tooltip of the row as a whole.
    queue : Queue, optional
        How many transfers wait; such a row has room for their names, too.
    """

    title: str
    note: str
    thin: bool
    odd: BoolArray
    channels: int = 1
    tip: str = ""
    queue: Queue | None = None

    @property
    def is_device(self) -> bool:
        return self.device >= 0

    @property
    def sent_share(self) -> float:
        """The upper part of its height, in which the bars are; the queue is in the other."""
        return 1.0 if self.queue is None else SENT

    @property
    def is_planned(self) -> bool:
        """Whether it is a planned lane of a device, to which ops can be dragged."""
        return self.is_device and not self.measured

    @cached_property
    def curves(self) -> tuple[BusyCurve, BusyCurve]:
        """Busy time of the bars of each shade."""
        even, odd = ~self.odd, self.odd
        return (
            BusyCurve(self.start_us[even], self.finish_us[even]),
            BusyCurve(self.start_us[odd], self.finish_us[odd]),
        )

    @cached_property
    def _reach_us(self) -> FloatArray:
        """Latest finish of this and all earlier bars: ascending even if bars overlap."""
        return np.maximum.accumulate(self.finish_us)

    def within(self, start_us: float, stop_us: float) -> slice:
        """Return a slice with all bars that touch an interval, and perhaps others."""
        first = int(np.searchsorted(self._reach_us, start_us, side="left"))
        last = int(np.searchsorted(self.start_us, stop_us, side="right"))
        return slice(first, max(first, last))

    def nearest(self, time_us: float, slack_us: float) -> int | None:
        """Find the index of the bar at a moment.

        Bars too narrow to hit share the pointer's place with their neighbours within the slack: of
        these, the longest counts.
        """
        near = self.within(time_us - slack_us, time_us + slack_us)
        if near.start == near.stop:
            return None
        before = self.start_us[near] - time_us
        after = time_us - self.finish_us[near]
        distance = np.maximum(np.maximum(before, after), 0.0)
        length = self.finish_us[near] - self.start_us[near]
        hit = (distance == 0) & (length >= 2 * slack_us)
        found = hit if hit.any() else distance <= slack_us
        if not found.any():
            return None
        return near.start + int(np.argmax(np.where(found, length, -1.0)))

    def gap_at(self, time_us: float) -> tuple[float, int | None]:
        """Find the start of the idle gap around a moment, and the index of the bar that ends it."""
        next_bar = int(np.searchsorted(self.start_us, time_us, side="right"))
        since_us = float(self._reach_us[next_bar - 1]) if next_bar else 0.0
        return since_us, next_bar if next_bar < len(self.numbers) else None


def rows_of(
    schedule: Schedule,
    group: IntArray | None = None,
    run: MeasuredRun | None = None,
    queues: bool = False,
) -> list[Row]:
    """Make all rows, top to bottom; the channels of a pair follow its first device.

    Where no GPU has an op, the CPUs are first.

    Parameters
    ----------
    group : int array, shape (n_ops,), optional
        The shade changes with the group; without groups, at every bar.
    run : MeasuredRun, optional
        Its ops are shown below the lane of each device.
    queues : bool
        Whether the rows on which transfers wait longest show how many wait.
    """
    channels = _channel_rows(schedule)
    if queues:
        channels = _with_queues(schedule, channels, group)
    rows: list[Row] = []
    cluster = schedule.problem.cluster
    devices = [*range(cluster.n_devices)]
    if not np.isin(schedule.plan.device, cluster.gpus).any():
        devices.sort(key=lambda device: device in cluster.gpus)
    for device in devices:
        rows += _device_rows(schedule, device, group)
        if run is not None:
            rows += _measured_rows(schedule, run, device, group)
        rows += [row for first, row in channels if first == device]
    return rows


def _device_rows(schedule: Schedule, device: int, group: IntArray | None) -> Iterator[Row]:
    """Make one row, or one per lane for a CPU that uses several; none for an idle CPU."""
    described = schedule.problem.cluster.devices[device]
    tracks = device_tracks(schedule, device, lasting=True)
    for track in tracks:
        busy = track.busy_us / max(schedule.makespan_us, 1e-9)
        if device not in schedule.problem.cluster.gpus and busy < IDLE:
            continue
        yield Row(
            **vars(track),
            title="" if track.lane else described.label,
            note=f"{busy * 100:.0f} % busy" if len(track.numbers) else "not used",
            thin=len(tracks) > 1 or (described.kind == "cpu" and busy < NEXT_TO_NOTHING),
            odd=_alternate(track.numbers, group),
        )


def _measured_rows(
    schedule: Schedule, run: MeasuredRun, device: int, group: IntArray | None
) -> Iterator[Row]:
    """Make a row of what ran on a device in the traced step; none if nothing did."""
    ops = np.flatnonzero((run.op_device == device) & (run.op_finish_us > run.op_start_us))
    if not len(ops):
        return
    name = schedule.problem.cluster.devices[device].label
    track = make_track(name, (device, 0), ops, run.op_start_us, run.op_finish_us)
    predicted_us, measured_us = device_times(schedule, run, device)
    off = error_text(predicted_us, measured_us)
    yield Row(
        **vars(track) | {"measured": True},
        title=f"{name} measured",
        note=off,
        thin=measured_us < NEXT_TO_NOTHING * schedule.makespan_us,
        odd=_alternate(track.numbers, group),
        tip=f"{name} computed for {ms(measured_us)}, predicted {ms(predicted_us)}: {off}",
    )


def _alternate(ops: IntArray, group: IntArray | None) -> BoolArray:
    """Alternate the shade wherever the group changes, or at every op."""
    key = ops if group is None else group[ops]
    changes = np.ones(len(key), dtype=np.int64)
    changes[1:] = np.diff(key) != 0
    return np.cumsum(changes) % 2 == 0


def _channel_rows(schedule: Schedule) -> list[tuple[int, Row]]:
    """Make the rows of transfers, each with the device it goes below."""
    cluster, names = schedule.problem.cluster, _short_names(schedule.problem.cluster)
    tracks = channel_tracks(schedule, _with_rows(schedule))
    if len(tracks) > MAX_CHANNEL_ROWS:
        return _rows_by_sender(schedule, names)
    rows, link = [], schedule.transfer_link
    for track in tracks:
        ends = [divmod(each, cluster.n_devices) for each in np.unique(link[track.numbers]).tolist()]
        title = cluster.channels[track.lane]
        if len(ends) == 1:
            title = " → ".join(names[device] for device in ends[0])
        rows.append((min(map(min, ends)), _transfer_row(schedule, track, title, 1)))
    return rows


def _with_rows(schedule: Schedule) -> Sequence[int]:
    """Return the GPUs, and the host where outputs are kept on it: transfers among them show."""
    cluster = schedule.problem.cluster
    is_kept = any(split.is_offload for split in schedule.plan.splits)
    return range(cluster.n_devices) if is_kept else cluster.gpus


def _rows_by_sender(schedule: Schedule, names: Sequence[str]) -> list[tuple[int, Row]]:
    devices, rows = _with_rows(schedule), []
    among = np.isin(schedule.transfer_to, devices)
    for sender in np.intersect1d(schedule.transfer_from[among], devices).tolist():
        sent = np.flatnonzero(among & (schedule.transfer_from == sender))
        times = schedule.transfer_start_us, schedule.transfer_finish_us
        track = make_track(names[sender], (-1, sender), sent, *times)
        receivers = len(np.unique(schedule.transfer_to[sent]))
        rows.append((sender, _transfer_row(schedule, track, f"from {names[sender]}", receivers)))
    return rows


def _transfer_row(schedule: Schedule, track: Track, title: str, channels: int) -> Row:
    return Row(
        **vars(track),
        title=title,
        note=size(int(schedule.transfer_bytes[track.numbers].sum())),
        thin=True,
        odd=np.zeros(len(track.numbers), dtype=bool),
        channels=channels,
    )


def _with_queues(
    schedule: Schedule, rows: list[tuple[int, Row]], group: IntArray | None
) -> list[tuple[int, Row]]:
    """Give the rows on which transfers wait longest their queues; the shade is the sender's."""
    sender = schedule.problem.profile.tensor_op[schedule.transfer_tensor]
    found = [find_queue(schedule, row.numbers) for _, row in rows]
    least_us = QUEUED * schedule.makespan_us
    waits = [waited_us for _, waited_us in found if waited_us > least_us]
    least_us = max([least_us, *sorted(waits)[:-MOST_QUEUES]])
    shown = []
    for (at, row), (queue, waited_us) in zip(rows, found, strict=True):
        if waited_us > least_us:
            odd = _alternate(sender[row.numbers], group)
            row = _with_queue(row, queue, waited_us, odd)
        shown.append((at, row))
    return shown


def _with_queue(row: Row, queue: Queue, waited_us: float, odd: BoolArray) -> Row:
    note = f"{row.note}, queue of {queue.most:,}"
    tip = f"Up to {queue.most:,} transfers wait at once; together they wait {ms(waited_us)}"
    return replace(row, queue=queue, thin=False, note=note, tip=tip, odd=odd)


def _short_names(cluster: Cluster) -> list[str]:
    """Shorten a GPU's name to its number if that is unambiguous."""
    numbers = [re.search(r"\d+$", device.name) for device in cluster.devices]
    short = [
        found.group() if found and cluster.devices[d].kind == "gpu" else device.label
        for d, (device, found) in enumerate(zip(cluster.devices, numbers, strict=True))
    ]
    unique = len(set(short)) == len(short)
    return short if unique else [device.label for device in cluster.devices]


@dataclass(frozen=True)
class Place:
    """The place of a row, in pixels from the top of the rows."""

    top: int
    height: int

    @property
    def bottom(self) -> int:
        return self.top + self.height


def arrange(rows: Sequence[Row], height_px: int, scale: float = 1.0) -> list[Place]:
    """Stack rows as high as the canvas allows, within limits; beyond that, it scrolls.

    Parameters
    ----------
    scale : float
        Size of the text relative to the usual one.
    """
    gap, thin = round(GAP_PX * scale), round(THIN_PX * scale)
    queue = round(QUEUE_PX * scale)
    fixed_px = thin * sum(row.thin for row in rows) + queue * sum(_is_queue(row) for row in rows)
    free_px = height_px - gap * len(rows) - fixed_px
    lowest, tallest = (round(px * scale) for px in LANE_PX)
    tall = min(max(int(free_px / max(_lanes(rows), 1)), lowest), tallest)
    places, top = [], 0
    for row in rows:
        height = thin if row.thin else queue if _is_queue(row) else round(_share(row) * tall)
        places.append(Place(top, height))
        top += height + gap
    return places


def highest(rows: Sequence[Row], scale: float = 1.0) -> int:
    """Return the height of rows that have all the room they can use."""
    fixed = THIN_PX * sum(row.thin for row in rows) + QUEUE_PX * sum(map(_is_queue, rows))
    pixels = GAP_PX * len(rows) + fixed + LANE_PX[1] * _lanes(rows)
    return round(pixels * scale)


def _lanes(rows: Sequence[Row]) -> float:
    """Count the lanes that grow with the room."""
    return sum(_share(row) for row in rows if not row.thin and not _is_queue(row))


def _is_queue(row: Row) -> bool:
    return row.queue is not None


def _share(row: Row) -> float:
    """Return the height of a row relative to a planned lane."""
    return MEASURED_SHARE if row.measured else 1.0
