"""Rows of a timeline: each lane of a device and each channel, with its ops or transfers."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from enplace.machine import CriticalPath
from enplace.pictures.busy import BusyCurve
from enplace.values.cluster import Cluster
from enplace.values.device_names import device_label
from enplace.values.profile import FloatArray, IntArray
from enplace.values.schedule import Schedule


@dataclass(frozen=True, eq=False)
class Track:
    """One row of a timeline, without overlaps.

    Attributes
    ----------
    name : str
        The name on screen: ``"GPU 0"``, ``"CPU 0, lane 2"``, ``"GPU 0 → GPU 1"``.
    device, lane : int
        Device and lane; for a channel, −1 and the channel's number.
    numbers : int array, shape (n,)
        Ops, or transfers for a channel, in the order in which they run.
    start_us, finish_us : float array, shape (n,)
    measured : bool
        Whether it shows a measurement rather than the plan.
    """

    name: str
    device: int
    lane: int
    numbers: IntArray
    start_us: FloatArray
    finish_us: FloatArray
    measured: bool = False

    @property
    def busy_us(self) -> float:
        return float((self.finish_us - self.start_us).sum())

    @cached_property
    def curve(self) -> BusyCurve:
        return BusyCurve(self.start_us, self.finish_us)


def make_track(
    name: str,
    place: tuple[int, int],
    numbers: IntArray,
    start_us: FloatArray,
    finish_us: FloatArray,
) -> Track:
    """Make a track of some ops or transfers, with the times of all; ``place`` is device and lane.

    Those without a time are left out.
    """
    numbers = numbers[np.isfinite(start_us[numbers]) & np.isfinite(finish_us[numbers])]
    numbers = numbers[np.lexsort((finish_us[numbers], start_us[numbers]))]
    return Track(name, *place, numbers, start_us[numbers], finish_us[numbers])


def device_tracks(schedule: Schedule, device: int, lasting: bool = False) -> list[Track]:
    """List the lanes of a device up to the last one in use; if ``lasting``, of ops that take time.

    At least one lane is listed.
    """
    start_us, finish_us = schedule.op_start_us, schedule.op_finish_us
    mine = schedule.plan.device == device
    ops = np.flatnonzero(mine & (finish_us > start_us) if lasting else mine)
    used = int(schedule.op_lane[ops].max(initial=0)) + 1
    name = schedule.problem.cluster.devices[device].label
    return [
        make_track(
            f"{name}, lane {lane}" if used > 1 else name,
            (device, lane),
            ops[schedule.op_lane[ops] == lane],
            start_us,
            finish_us,
        )
        for lane in range(used)
    ]


def lane_tracks(schedule: Schedule) -> list[Track]:
    """List the lanes of all devices."""
    devices = range(schedule.problem.cluster.n_devices)
    return [track for device in devices for track in device_tracks(schedule, device)]


def channel_tracks(schedule: Schedule, among: Collection[int] | None = None) -> list[Track]:
    """List the channels that carry transfers, if given between some devices, by their numbers."""
    cluster, link = schedule.problem.cluster, schedule.transfer_link
    carried: dict[int, list[int]] = {}
    for pair in np.unique(link).tolist():
        if among is None or {*divmod(pair, cluster.n_devices)} <= {*among}:
            for channel in cluster.route[cluster.route_ptr[pair] : cluster.route_ptr[pair + 1]]:
                carried.setdefault(int(channel), []).append(pair)
    return [
        make_track(
            device_label(cluster.channels[channel]).replace("->", " → "),
            (-1, channel),
            np.flatnonzero(np.isin(link, carried[channel])),
            schedule.transfer_start_us,
            schedule.transfer_finish_us,
        )
        for channel in sorted(carried)
    ]


def busiest(tracks: list[Track], limit: int) -> tuple[list[Track], int]:
    """Find the busiest tracks, in their old order, and count those left out."""
    kept = sorted(range(len(tracks)), key=lambda i: -tracks[i].busy_us)[:limit]
    return [tracks[i] for i in sorted(kept)], len(tracks) - len(kept)


def channel_names(cluster: Cluster) -> dict[tuple[int, int], list[str]]:
    """Name the channels that a transfer occupies, by the numbers of its two devices."""
    return {
        (link.source, link.target): [cluster.channels[channel] for channel in link.channels]
        for link in cluster.links
    }


@dataclass(frozen=True, eq=False)
class PathTrace:
    """Stretches of the critical path, each within one row; all arrays have shape (n_stretches,)."""

    row: IntArray
    start_us: FloatArray
    finish_us: FloatArray


def trace_path(path: CriticalPath, rows: Sequence[Track]) -> PathTrace:
    """Merge the path's steps by row; of several rows with a step, the first has it."""
    number = path.number
    where = np.full(len(number), -1)
    for index, row in reversed(list(enumerate(rows))):
        if row.measured:
            continue
        known = np.zeros(number.max(initial=-1) + 1, dtype=bool)
        known[row.numbers[row.numbers < len(known)]] = True
        where[known[number] & (path.is_transfer != (row.device >= 0))] = index
    shown = where >= 0
    where, start_us, finish_us = where[shown], path.start_us[shown], path.finish_us[shown]
    first = np.flatnonzero(np.diff(where, prepend=-1) != 0)
    last = np.append(first[1:], len(where))[: len(first)] - 1
    return PathTrace(where[first], start_us[first], finish_us[last])
