"""What a profile says that transfers cost: lines through what was measured, or presets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from enplace.errors import EnplaceError
from enplace.readers.clusters import cluster_from_json
from enplace.text import device_label, listed, ms, rate
from enplace.values.cluster import Cluster, task_of
from enplace.values.profile import FloatArray, Profile

POOR_R2 = 0.9
"""A line that tells less of the differences between transfers is poor."""


@dataclass(frozen=True, eq=False)
class LinkFit:
    """Measured transfers between two devices, and the line b0 + b1 * bytes through them."""

    source: int
    title: str
    size_bytes: FloatArray
    time_us: FloatArray
    b0_us: float
    b1_us_per_byte: float
    r2: float

    @property
    def said(self) -> str:
        """``0.012 ms + bytes at 25 GB/s, R² 0.998``."""
        return f"{_cost(self.b0_us, self.b1_us_per_byte)}, R² {self.r2:.3f}"


def link_fits(profile: Profile) -> list[LinkFit]:
    """The measured links; empty where none were measured, as between logical CPUs."""
    found = profile.measured.get("links")
    cluster = local_cluster(profile)
    if not isinstance(found, list) or cluster is None:
        return []
    return [fit for value in found if (fit := _link_fit(value, cluster)) is not None]


def _link_fit(value: Any, cluster: Cluster) -> LinkFit | None:
    """A measured link; None for what is not one."""
    try:
        source, target = str(value["from"]), str(value["to"])
        size, time = (np.array(value[key], dtype=np.float64) for key in ("sizes", "times_us"))
        numbers = (float(value[key]) for key in ("b0_us", "b1_us_per_byte", "r2"))
        title = f"{device_label(source)} → {device_label(target)}"
        fit = LinkFit(cluster.index[source], title, size, time, *numbers)
    except (KeyError, TypeError, ValueError):
        return None
    usable = len(size) > 1 and size.shape == time.shape and (size > 0).all() and (time > 0).all()
    return fit if usable else None


def about_poor(fits: Sequence[LinkFit]) -> str:
    """Which lines are poor, and what to do; empty if none is."""
    poor = [fit.title for fit in fits if not fit.r2 >= POOR_R2]
    if not poor:
        return ""
    return (
        f"Poor fit (R² below {POOR_R2}): {listed(poor)}. Stop what else uses these devices or "
        f"their network, and profile once more."
    )


def about_presets(profile: Profile) -> str:
    """What transfers between the CPUs of one host cost, which nothing measures; empty if none."""
    cluster = local_cluster(profile)
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
        f"Logical CPUs share their memory: nothing is copied between them, so that what transfers "
        f"cost is a preset, {listed(sorted(costs))}, and not measured. Tune learns what sends cost."
    )


def local_cluster(profile: Profile) -> Cluster | None:
    """The devices that the profile was measured on."""
    found = profile.measured.get("cluster")
    try:
        return cluster_from_json(found) if found else None
    except EnplaceError:
        return None


def _cost(b0_us: float, b1_us_per_byte: float) -> str:
    speed = f"bytes at {rate(1e6 / b1_us_per_byte)}" if b1_us_per_byte > 0 else "no cost by size"
    return f"{ms(b0_us)} + {speed}"
