"""The line T_comm = b0 + b1 * bytes (Pesto, section 3.1) fitted to measured times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from enplace.values.cluster import Cluster, Link
from enplace.values.measurement import MeasuredLink
from enplace.values.profile import FloatArray

SIZES = tuple(1 << power for power in range(12, 29, 2))
"""Sizes of the copies that measure a link, in bytes: 4 KiB to 256 MiB."""


def fit_line(sizes: FloatArray, times_us: FloatArray) -> tuple[float, float, float]:
    """Fit latency, time per byte and R² by Theil-Sen, which outliers do not bend.

    The latency comes from the smaller half of the sizes: it matters there, and is lost in the
    noise of the larger ones.
    """
    one, other = np.nonzero(sizes[:, None] < sizes)
    slopes = (times_us[other] - times_us[one]) / (sizes[other] - sizes[one])
    slope = max(float(np.median(slopes)), 0.0)
    small = sizes <= np.median(sizes)
    intercept = max(float(np.median((times_us - slope * sizes)[small])), 0.0)
    left = times_us - (intercept + slope * sizes)
    spread = times_us - times_us.mean()
    r2 = 1.0 - float((left**2).sum() / max((spread**2).sum(), 1e-12))
    return intercept, slope, r2


def measured_link(
    cluster: Cluster, source: int, target: int, sizes: Sequence[int], times_us: FloatArray
) -> MeasuredLink:
    """Fit the line of a link between two devices to the times of copies of these sizes."""
    ends = cluster.devices[source].name, cluster.devices[target].name
    line = fit_line(np.array(sizes, dtype=np.float64), times_us)
    return MeasuredLink(*ends, tuple(sizes), tuple(times_us.tolist()), *line)


def with_lines(cluster: Cluster, line_of: Callable[[Link], MeasuredLink | None]) -> Cluster:
    """Give the links that were measured their costs; the others keep theirs."""

    def fitted(link: Link) -> Link:
        if (line := line_of(link)) is None:
            return link
        return replace(link, b0_us=line.b0_us, b1_us_per_byte=line.b1_us_per_byte)

    return replace(cluster, links=tuple(map(fitted, cluster.links)))
