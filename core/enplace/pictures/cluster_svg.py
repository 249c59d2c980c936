"""A cluster as a picture: how fast each device reaches each other one."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from html import escape

from enplace.pictures.svg import MARGIN, fitted, frame, heading
from enplace.text import count, elide_middle, rate
from enplace.values.cluster import Cluster

TOP, LEFT, CELL_W, CELL_H = 72, 110, 74, 26
MOST_DEVICES = 16
LEAST_TINT, TINT = 0.08, 0.47


def cluster_svg(cluster: Cluster) -> str:
    """Draw a table of bandwidths, from the devices at the left to those above; darker is faster.

    A star marks links that share a channel with others. Of many devices, the first are drawn.
    """
    n_shown = min(cluster.n_devices, MOST_DEVICES)
    names = [device.label for device in cluster.devices[:n_shown]]
    width = max(LEFT + CELL_W * n_shown + MARGIN, 440)
    parts = [heading(f"{elide_middle(cluster.name, 24)}: bandwidth from row to column")]
    for number, name in enumerate(names):
        x, y = LEFT + CELL_W * (number + 0.5), TOP + CELL_H * number
        parts.append(
            f'<text class="text" x="{x:g}" y="{TOP - 8}" text-anchor="middle">'
            f"{fitted(name, CELL_W - 6)}<title>{escape(name)}</title></text>"
            f'<text class="text" x="{MARGIN}" y="{y + 17:g}">'
            f"{fitted(name, LEFT - MARGIN - 6)}<title>{escape(name)}</title></text>"
        )
    shares = _shared_channels(cluster)
    parts += _cells(cluster, n_shown, shares)
    bottom = TOP + CELL_H * n_shown
    notes = ["* takes turns with other links, on a shared channel"] if shares else []
    if left := cluster.n_devices - n_shown:
        notes.append(f"{count(left, 'more device')} not drawn")
    for line, note in enumerate(notes):
        parts.append(f'<text class="dim" x="{MARGIN}" y="{bottom + 18 + 16 * line}">{note}</text>')
    height = bottom + 16 * len(notes) + MARGIN
    return frame(f"{cluster.name}: bandwidth", width, height, parts)


def _shared_channels(cluster: Cluster) -> set[int]:
    used = Counter(channel for link in cluster.links for channel in link.channels)
    return {channel for channel, links in used.items() if links > 1}


def _cells(cluster: Cluster, n_shown: int, shares: set[int]) -> Iterator[str]:
    """Draw a cell for each link; its tint goes with the logarithm of the bandwidth."""
    costs = [link.b1_us_per_byte for link in cluster.links if link.b1_us_per_byte]
    slowest, fastest = (max(costs), min(costs)) if costs else (1.0, 1.0)
    span = math.log(slowest / fastest) or 1.0
    for link in cluster.links:
        if max(link.source, link.target) >= n_shown:
            continue
        cost = link.b1_us_per_byte or fastest
        opacity = LEAST_TINT + TINT * math.log(slowest / cost) / span
        text = rate(1e6 / cost) if link.b1_us_per_byte else "unlimited"
        star = " *" if shares.intersection(link.channels) else ""
        x, y = LEFT + CELL_W * link.target, TOP + CELL_H * link.source
        tip = f"{text}, latency {link.b0_us:.3g} µs"
        yield (
            f'<g><title>{tip}</title><rect class="d0" opacity="{opacity:.2f}" x="{x + 1}" '
            f'y="{y + 1}" width="{CELL_W - 2}" height="{CELL_H - 2}" rx="3"/>'
            f'<text class="text" x="{x + CELL_W / 2:g}" y="{y + 17}" font-size="11" '
            f'text-anchor="middle">{text}{star}</text></g>'
        )
