"""Rows of a timeline: each lane of a device and each channel, with its ops or transfers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

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
    """

    name: str
    device: int
    lane: int
    numbers: IntArray
    start_us: FloatArray
    finish_us: FloatArray

    @property
    def busy_us(self) -> float:
        return float((self.finish_us - self.start_us).sum())


def lane_tracks(schedule: Schedule) -> list[Track]:
    """List the lanes of all devices, up to the last one of each device that is used."""
    tracks = []
    for number, device in enumerate(schedule.problem.cluster.devices):
        ops = np.flatnonzero(schedule.plan.device == number)
        used = int(schedule.op_lane[ops].max(initial=0)) + 1
        for lane in range(used):
            suffix = f", lane {lane}" if used > 1 else ""
            mine = ops[schedule.op_lane[ops] == lane]
            order = np.lexsort((schedule.op_finish_us[mine], schedule.op_start_us[mine]))
            tracks.append(
                Track(
                    device_label(device.name) + suffix,
                    number,
                    lane,
                    mine[order],
                    schedule.op_start_us[mine[order]],
                    schedule.op_finish_us[mine[order]],
                )
            )
    return tracks


def channel_tracks(schedule: Schedule) -> list[Track]:
    """List the channels that carry at least one transfer, in the cluster's order."""
    cluster = schedule.problem.cluster
    link = schedule.transfer_from * cluster.n_devices + schedule.transfer_to
    order = np.lexsort((schedule.transfer_finish_us, schedule.transfer_start_us))
    carried: list[list[int]] = [[] for _ in cluster.channels]
    for transfer in order.tolist():
        pair = int(link[transfer])
        for channel in cluster.route[cluster.route_ptr[pair] : cluster.route_ptr[pair + 1]]:
            carried[channel].append(transfer)
    return [
        Track(
            device_label(cluster.channels[channel]).replace("->", " → "),
            -1,
            channel,
            np.array(transfers, dtype=np.int64),
            schedule.transfer_start_us[transfers],
            schedule.transfer_finish_us[transfers],
        )
        for channel, transfers in enumerate(carried)
        if transfers
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
