"""What a person wants to know of a cluster at a glance, and the plan of its drawing. No Qt."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from enplace.readers.clusters import presets
from enplace.text import count, rate, size
from enplace.values.cluster import Cluster, Link

MOST_DRAWN = 32
"""Most GPUs that a drawing shows."""

Pair = tuple[int, int]


def cluster_title(cluster: Cluster) -> str:
    """Return the beginning of a cluster's description; if edited, marked, with its own number."""
    title = re.split(r"[,.:(] ?(?!\d)", cluster.description, maxsplit=1)[0].strip()
    is_edited = presets().get(cluster.name, cluster) != cluster
    if is_edited:  # perhaps to another number of GPUs
        title = re.sub(r"^\d+(?= ×)", f"{len(cluster.gpus)}", title or cluster.name) + ", edited"
    return title or cluster.name


def family(cluster: Cluster) -> str:
    """Return the heading of a preset in the list."""
    if "paper" in cluster.description:
        return "Testbeds of the papers"
    if all(device.kind == "cpu" for device in cluster.devices):
        return "Logical CPU devices"
    return "PCIe" if "PCIe" in cluster_title(cluster) else "NVLink servers"


def devices_text(cluster: Cluster) -> str:
    """Count the devices: ``8 GPUs``, ``2 CPUs``."""
    gpus = sum(device.kind == "gpu" for device in cluster.devices)
    return count(gpus, "GPU") if gpus else count(cluster.n_devices, "CPU")


def memory_text(cluster: Cluster) -> str:
    """Return the memory of a GPU, or of the smallest and the largest: ``8.0–16 GiB``."""
    found = [int(cluster.capacity_bytes[gpu]) for gpu in cluster.gpus]
    return _from_to(size(min(found)), size(max(found)))


def bandwidth_text(cluster: Cluster) -> str:
    """Return the bandwidth between GPUs, or the least and the largest: ``12.5–48.2 GB/s``."""
    gpus = set(cluster.gpus)
    found = [_rate(link) for link in cluster.links if {link.source, link.target} <= gpus]
    return _from_to(_rate_text(min(found)), _rate_text(max(found))) if found else "none"


def _rate(link: Link) -> float:
    """Return bytes a second; inf for a link that takes no time."""
    return 1e6 / link.b1_us_per_byte if link.b1_us_per_byte else math.inf


def _rate_text(bytes_per_s: float) -> str:
    return rate(bytes_per_s) if math.isfinite(bytes_per_s) else "no limit"


def _from_to(least: str, most: str) -> str:
    """Join two texts with the same unit into a range."""
    if least == most:
        return least
    number, _, unit = least.rpartition(" ")
    return f"{number}–{most}" if most.endswith(f" {unit}") else f"{least} – {most}"


@dataclass(frozen=True)
class Spot:
    """A device of the drawing, or what several pairs of devices share.

    Attributes
    ----------
    x, y : float
        From 0 to 1.
    label : str
        The number of the device, or the name of what is shared.
    device : int or None
        None for what is shared.
    """

    x: float
    y: float
    label: str
    device: int | None = None


@dataclass(frozen=True)
class Line:
    """A line of the drawing between two spots.

    Attributes
    ----------
    start, end : int
        Numbers of spots.
    share : float
        Its bandwidth as a share of the largest.
    """

    start: int
    end: int
    share: float


@dataclass(frozen=True)
class Drawing:
    """The plan of a drawing: how the GPUs of a cluster reach each other.

    Attributes
    ----------
    width : float
        Relative to the height.
    """

    spots: tuple[Spot, ...] = ()
    lines: tuple[Line, ...] = ()
    width: float = 1.0


def draw_topology(cluster: Cluster) -> Drawing:
    """Plan the drawing: a line for each link, and a spot for what several links share.

    Pairs that go over the links of others are left out: their hops are drawn.
    """
    gpus = cluster.gpus
    if len(gpus) > MOST_DRAWN:
        return Drawing()
    routes = _routes(cluster)
    hubs = _hubs(routes)
    direct = {pair: hub for pair in routes if (hub := _way(pair, routes, hubs)) is not None}
    servers = _connected(gpus, [pair for pair, hub in direct.items() if hub == ()])
    if all(len(server) == 1 for server in servers):
        servers = [gpus]
    spots = _place(cluster, servers)
    number = {spot.device: at for at, spot in enumerate(spots)}
    shared = list(dict.fromkeys(filter(None, direct.values())))
    fastest = max((each.rate for each in routes.values() if math.isfinite(each.rate)), default=1.0)
    ends: dict[Pair, float] = {}
    for pair, hub in direct.items():
        a, b = (number[device] for device in pair)
        middle = len(spots) + shared.index(hub) if hub else None
        for stop in [(a, b)] if middle is None else [(a, middle), (b, middle)]:
            ends[stop] = max(min(1.0, routes[pair].rate / fastest), ends.get(stop, 0.0))
    names = [cluster.channels[hub[0]] if len(hub) == 1 else "shared links" for hub in shared]
    return Drawing(
        (*spots, *_place_hubs(names, below=len(servers) > 1)),
        tuple(Line(a, b, share) for (a, b), share in ends.items()),
        float(len(servers)),
    )


@dataclass(frozen=True)
class _Route:
    """How the two devices of a pair reach each other, both ways together."""

    channels: frozenset[int]
    ways: tuple[tuple[int, ...], ...]
    rate: float


def _routes(cluster: Cluster) -> dict[Pair, _Route]:
    """Return the route of every pair of GPUs, the lower number first."""
    gpus, found = set(cluster.gpus), defaultdict(list)
    for link in cluster.links:
        if {link.source, link.target} <= gpus:
            found[min(link.source, link.target), max(link.source, link.target)].append(link)
    return {
        pair: _Route(
            frozenset(channel for link in links for channel in link.channels),
            tuple(link.channels for link in links),
            max(map(_rate, links)),
        )
        for pair, links in sorted(found.items())
    }


def _hubs(routes: dict[Pair, _Route]) -> dict[int, tuple[int, ...]]:
    """Return the channels that pairs without a common device share, those used together as one."""
    users = defaultdict(list)
    for pair, route in routes.items():
        for channel in route.channels:
            users[channel].append(set(pair))
    # The only link of two devices, which others also go over, is no hub, but a hop.
    shared = {
        channel
        for channel, pairs in users.items()
        if len(pairs) > 1 and not set.intersection(*pairs) and not _sole_pair(channel, routes)
    }
    together = [sorted(route.channels & shared) for route in routes.values()]
    joined = [pair for each in together for pair in pairwise(each)]
    groups = _connected(sorted(shared), joined)
    return {channel: tuple(group) for group in groups for channel in group}


def _sole_pair(channel: int, routes: dict[Pair, _Route]) -> bool:
    """Return whether a channel is the whole way of one pair only."""
    return sum(any(way == (channel,) for way in route.ways) for route in routes.values()) == 1


def _way(
    pair: Pair, routes: dict[Pair, _Route], hubs: dict[int, tuple[int, ...]]
) -> tuple[int, ...] | None:
    """Return the hub of a pair, empty for a link of its own; None if it goes over others' links."""
    for channel in sorted(routes[pair].channels):
        if channel in hubs:
            return hubs[channel]
    others = {
        way[0]
        for each, route in routes.items()
        if each != pair
        for way in route.ways
        if len(way) == 1
    }
    return None if routes[pair].channels & others else ()


def _connected(members: Sequence[int], pairs: Iterable[Pair]) -> list[list[int]]:
    """Split members into the sets that pairs connect, in order."""
    group = {member: [member] for member in members}
    for a, b in pairs:
        if group[a] is not group[b]:
            group[a] += group[b]
            for member in group[b]:
                group[member] = group[a]
    return [sorted(each) for each in {id(each): each for each in group.values()}.values()]


def _place(cluster: Cluster, servers: Sequence[list[int]]) -> list[Spot]:
    """Put the GPUs of each server on a circle, servers side by side."""
    spots = []
    for at, server in enumerate(servers):
        radius = 0.0 if len(server) == 1 else 0.4 if len(servers) == 1 else 0.36
        start = math.pi if len(server) == 2 else -math.pi / 2
        for turn, gpu in enumerate(server):
            angle = start + 2 * math.pi * turn / len(server)
            x = (at + 0.5 + radius * math.cos(angle)) / len(servers)
            label = cluster.devices[gpu].label.rpartition(" ")[2]
            spots.append(Spot(x, 0.5 + radius * math.sin(angle), label, gpu))
    return spots


def _place_hubs(names: Sequence[str], below: bool) -> list[Spot]:
    """Put what is shared in the middle, or below the servers."""
    first = 0.98 if below else 0.5
    return [Spot(0.5, first - 0.12 * at, name) for at, name in enumerate(names)]
