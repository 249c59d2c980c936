"""Costs of transfers between the devices of a profile: measured lines, or presets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from enplace.pictures.palette import colour_numbers
from enplace.text import listed, ms, rate
from enplace.values.cluster import Cluster
from enplace.values.device_names import device_label, task_of
from enplace.values.measurement import MeasuredLink
from enplace.values.profile import FloatArray, Profile

POOR_R2 = 0.9
"""A line with a lower coefficient of determination is a poor fit."""


@dataclass(frozen=True, eq=False)
class LinkFit:
    """Measured transfers between two devices, ready to be plotted.

    Attributes
    ----------
    colour : int
        Number of the sending device's colour.
    size_bytes, time_us : float array, shape (n_transfers,)
    """

    colour: int
    title: str
    size_bytes: FloatArray
    time_us: FloatArray
    b0_us: float
    b1_us_per_byte: float
    r2: float

    @property
    def text(self) -> str:
        """``0.012 ms + bytes at 25 GB/s, R² 0.998``."""
        return f"{_cost(self.b0_us, self.b1_us_per_byte)}, R² {self.r2:.3f}"


def link_fits(profile: Profile) -> list[LinkFit]:
    """List the measured links; none between logical CPUs, which share their memory."""
    measured = profile.measured
    cluster = measured.cluster
    if cluster is None:
        return []
    links = [link for link in measured.links or () if _is_plottable(link)]
    return [_link_fit(link, cluster) for link in links if link.source in cluster.index]


def _is_plottable(link: MeasuredLink) -> bool:
    """Return whether a link can be drawn on logarithmic axes."""
    return len(link.size_bytes) > 1 and min(*link.size_bytes, *link.time_us) > 0


def _link_fit(link: MeasuredLink, cluster: Cluster) -> LinkFit:
    return LinkFit(
        colour_numbers(cluster)[cluster.index[link.source]],
        f"{device_label(link.source)} → {device_label(link.target)}",
        np.array(link.size_bytes),
        np.array(link.time_us),
        link.b0_us,
        link.b1_us_per_byte,
        link.r2,
    )


def about_poor(fits: Sequence[LinkFit]) -> str:
    """Name the poor fits and their remedy; empty if there are none."""
    poor = [fit.title for fit in fits if not fit.r2 >= POOR_R2]  # NaN is poor
    if not poor:
        return ""
    return (
        f"Poor fit (R² below {POOR_R2}): {listed(poor)}. Stop whatever else uses these devices or "
        f"their network, and profile again."
    )


def about_presets(profile: Profile) -> str:
    """Report the presets for transfers between the CPUs of one host, which cannot be measured."""
    cluster = profile.measured.cluster
    if cluster is None:
        return ""
    devices = cluster.devices
    costs = {
        _cost(link.b0_us, link.b1_us_per_byte)
        for link in cluster.links
        if (source := devices[link.source]).kind == (target := devices[link.target]).kind == "cpu"
        and task_of(source.name) == task_of(target.name)
    }
    if not costs:
        return ""
    return (
        f"Logical CPUs share their memory, so nothing is copied between them and nothing can be "
        f"measured. The cost of a transfer is a preset, {listed(sorted(costs))}; Tune measures it."
    )


def _cost(b0_us: float, b1_us_per_byte: float) -> str:
    speed = f"bytes at {rate(1e6 / b1_us_per_byte)}" if b1_us_per_byte > 0 else "no cost by size"
    return f"{ms(b0_us)} + {speed}"
