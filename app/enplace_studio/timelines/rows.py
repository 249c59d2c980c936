"""The rows of the timeline: a lane per device, and a thin one per channel between GPUs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from enplace.frameworks.measured import MeasuredRun
from enplace.text import ms, size
from enplace.values.cluster import Cluster
from enplace.values.device_names import device_label
from enplace.values.profile import FloatArray, IntArray
from enplace.values.schedule import Schedule
from enplace_studio.explain.prediction import device_times, error_text
from enplace_studio.timelines.busy import BusyCurve

MAX_CHANNEL_ROWS = 6
"""If more channels are in use, those from the same device share a row."""

NEXT_TO_NOTHING = 0.02
"""A CPU that is busy for less of the step than this gets a thin lane."""

MEASURED_SHARE = 0.65
"""Height of a measured lane relative to the planned one above it."""

GAP_PX, THIN_PX, LANE_PX = 5, 9, (16, 64)
"""Heights of the gap below a row, of a thin row, and of a lane at least and at most."""

BoolArray = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Row:
    """One row of bars, sorted by start.

    Attributes
    ----------
    title, note : str
        The texts before the row: "GPU 0" and "91 % busy", or "0 → 1" and "3.1 GB".
    device : int
        Device number; of a row of transfers, -1.
    thin : bool
        Whether the row is low: transfers, or an almost idle CPU.
    number : int array, shape (n_bars,)
        Op or transfer numbers.
    start_us, finish_us : float array, shape (n_bars,)
    odd : bool array, shape (n_bars,)
        Whether a bar has the second of the two shades.
    channels : int
        Number of channels that share the row.
    measured : bool
        Whether it shows the measurement rather than the plan.
    tip : str
        The tooltip of the row as a whole.
    """

    title: str
    note: str
    device: int
    thin: bool
    number: IntArray
    start_us: FloatArray
    finish_us: FloatArray
    odd: BoolArray
    channels: int = 1
    measured: bool = False
    tip: str = ""

    @property
    def is_device(self) -> bool:
        return self.device >= 0

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
        return since_us, next_bar if next_bar < len(self.number) else None


def rows_of(
    schedule: Schedule, group: IntArray | None = None, run: MeasuredRun | None = None
) -> list[Row]:
    """Make all rows, top to bottom; the channels of a pair follow its first device.

    Parameters
    ----------
    group : int array, shape (n_ops,), optional
        The shade changes with the group; without groups, at every bar.
    run : MeasuredRun, optional
        Its ops are shown below the lane of each device.
    """
    channels = _channel_rows(schedule)
    rows: list[Row] = []
    for device in range(schedule.problem.cluster.n_devices):
        rows += _device_rows(schedule, device, group)
        if run is not None:
            rows += _measured_rows(schedule, run, device, group)
        rows += [row for first, row in channels if first == device]
    return rows


def _device_rows(schedule: Schedule, device: int, group: IntArray | None) -> Iterator[Row]:
    """Make one row, or one per lane for a CPU that uses several."""
    lasting = schedule.op_finish_us > schedule.op_start_us
    mine = np.flatnonzero((schedule.plan.device == device) & lasting)
    lanes = np.unique(schedule.op_lane[mine]) if len(mine) else np.zeros(1, dtype=np.int64)
    described = schedule.problem.cluster.devices[device]
    is_cpu = described.kind == "cpu"
    for lane in lanes:
        ops = mine[schedule.op_lane[mine] == lane]
        ops = ops[np.argsort(schedule.op_start_us[ops], kind="stable")]
        start, finish = schedule.op_start_us[ops], schedule.op_finish_us[ops]
        busy = float((finish - start).sum()) / max(schedule.makespan_us, 1e-9)
        yield Row(
            title=device_label(described.name) if lane == lanes[0] else "",
            note=f"{busy * 100:.0f} % busy" if len(ops) else "not used",
            device=device,
            thin=len(lanes) > 1 or (is_cpu and busy < NEXT_TO_NOTHING),
            number=ops,
            start_us=start,
            finish_us=finish,
            odd=_alternate(ops if group is None else group[ops]),
        )


def _measured_rows(
    schedule: Schedule, run: MeasuredRun, device: int, group: IntArray | None
) -> Iterator[Row]:
    """Make a row of what ran on a device in the traced step; none if nothing did."""
    length_us = run.op_finish_us - run.op_start_us
    ops = np.flatnonzero((run.op_device == device) & (length_us > 0))
    if not len(ops):
        return
    ops = ops[np.argsort(run.op_start_us[ops], kind="stable")]
    name = device_label(schedule.problem.cluster.devices[device].name)
    predicted_us, measured_us = device_times(schedule, run, device)
    off = error_text(predicted_us, measured_us)
    yield Row(
        title=f"{name} measured",
        note=off,
        device=device,
        thin=measured_us < NEXT_TO_NOTHING * schedule.makespan_us,
        number=ops,
        start_us=run.op_start_us[ops],
        finish_us=run.op_finish_us[ops],
        odd=_alternate(ops if group is None else group[ops]),
        measured=True,
        tip=f"{name} computed for {ms(measured_us)}, predicted {ms(predicted_us)}: {off}",
    )


def _alternate(key: IntArray) -> BoolArray:
    """Alternate the shade wherever the key changes."""
    changes = np.ones(len(key), dtype=np.int64)
    changes[1:] = np.diff(key) != 0
    return np.cumsum(changes) % 2 == 0


def _channel_rows(schedule: Schedule) -> list[tuple[int, Row]]:
    """Make the rows of transfers, each with the device it goes below."""
    cluster = schedule.problem.cluster
    among = set(cluster.gpus)
    used: dict[int, list[int]] = {}
    pair = schedule.transfer_from * cluster.n_devices + schedule.transfer_to
    links = {link.source * cluster.n_devices + link.target: link for link in cluster.links}
    present = [links[p] for p in np.unique(pair).tolist()]
    present = [link for link in present if {link.source, link.target} <= among]
    for link in present:
        for channel in link.channels:
            used.setdefault(channel, []).append(link.source * cluster.n_devices + link.target)
    if len(used) > MAX_CHANNEL_ROWS:
        return _rows_by_sender(schedule, sorted({link.source for link in present}))
    return [_channel_row(schedule, channel, pairs, pair) for channel, pairs in used.items()]


def _channel_row(
    schedule: Schedule, channel: int, pairs: list[int], pair: IntArray
) -> tuple[int, Row]:
    cluster = schedule.problem.cluster
    ends = [divmod(p, cluster.n_devices) for p in pairs]
    names = _short_names(cluster)
    title = cluster.channels[channel]
    if len(ends) == 1:
        title = f"{names[ends[0][0]]} → {names[ends[0][1]]}"
    carried = np.flatnonzero(np.isin(pair, pairs))
    return min(map(min, ends)), _transfer_row(schedule, title, carried, 1)


def _rows_by_sender(schedule: Schedule, senders: Sequence[int]) -> list[tuple[int, Row]]:
    cluster = schedule.problem.cluster
    names = _short_names(cluster)
    rows = []
    for sender in senders:
        sent = np.flatnonzero(
            (schedule.transfer_from == sender) & np.isin(schedule.transfer_to, cluster.gpus)
        )
        receivers = len(np.unique(schedule.transfer_to[sent]))
        rows.append((sender, _transfer_row(schedule, f"from {names[sender]}", sent, receivers)))
    return rows


def _transfer_row(schedule: Schedule, title: str, transfers: IntArray, channels: int) -> Row:
    transfers = transfers[np.argsort(schedule.transfer_start_us[transfers], kind="stable")]
    return Row(
        title=title,
        note=size(int(schedule.transfer_bytes[transfers].sum())),
        device=-1,
        thin=True,
        number=transfers,
        start_us=schedule.transfer_start_us[transfers],
        finish_us=schedule.transfer_finish_us[transfers],
        odd=np.zeros(len(transfers), dtype=bool),
        channels=channels,
    )


def _short_names(cluster: Cluster) -> list[str]:
    """Shorten a GPU's name to its number if that is unambiguous."""
    numbers = [re.search(r"\d+$", device.name) for device in cluster.devices]
    short = [
        found.group() if found and cluster.devices[d].kind == "gpu" else device_label(device.name)
        for d, (device, found) in enumerate(zip(cluster.devices, numbers, strict=True))
    ]
    unique = len(set(short)) == len(short)
    return short if unique else [device_label(device.name) for device in cluster.devices]


@dataclass(frozen=True)
class Place:
    """The place of a row, in pixels from the top of the rows."""

    top: int
    height: int

    @property
    def middle(self) -> float:
        return self.top + self.height / 2

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
    free_px = height_px - gap * len(rows) - thin * sum(row.thin for row in rows)
    lowest, tallest = (round(px * scale) for px in LANE_PX)
    tall = min(max(int(free_px / max(_lanes(rows), 1)), lowest), tallest)
    places, top = [], 0
    for row in rows:
        height = thin if row.thin else round(_share(row) * tall)
        places.append(Place(top, height))
        top += height + gap
    return places


def highest(rows: Sequence[Row], scale: float = 1.0) -> int:
    """Return the height of rows that have all the room they can use."""
    n_thin = sum(row.thin for row in rows)
    pixels = GAP_PX * len(rows) + THIN_PX * n_thin + LANE_PX[1] * _lanes(rows)
    return round(pixels * scale)


def _lanes(rows: Sequence[Row]) -> float:
    """Count the lanes that grow with the room."""
    return sum(_share(row) for row in rows if not row.thin)


def _share(row: Row) -> float:
    """Return the height of a row relative to a planned lane."""
    return MEASURED_SHARE if row.measured else 1.0
