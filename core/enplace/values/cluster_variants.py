"""The same cluster with more, fewer or larger GPUs, to see what a change would bring."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from enplace.errors import ClusterError
from enplace.values.cluster import Cluster, Device, Link, LinkCost
from enplace.values.limits import MAX_BYTES

HOST_LINK = LinkCost(12.0, 8.333e-5)
"""The link assumed between a GPU and the memory of its host: PCIe 4, as in ``pcie-2``."""

THROUGH_HOST = LinkCost(20.0, 1e-4)
"""The link assumed between two GPUs if none is known: PCIe 4, as in ``pcie-2``."""

HOST_BYTES, HOST_LANES = 256 << 30, 16
"""Memory and lanes that a host is assumed to have, as in ``pcie-2``."""


def with_memory(cluster: Cluster, factor: float) -> Cluster:
    """Return the cluster with ``factor`` times the memory in each GPU."""
    gpus = set(cluster.gpus)
    devices = tuple(
        replace(d, capacity_bytes=round(factor * d.capacity_bytes)) if number in gpus else d
        for number, d in enumerate(cluster.devices)
    )
    return replace(cluster, devices=devices)


def boundless(cluster: Cluster) -> Cluster:
    """Return a cluster whose devices have room for everything."""
    devices = (replace(each, capacity_bytes=MAX_BYTES) for each in cluster.devices)
    return replace(cluster, devices=tuple(devices))


def with_gpus(cluster: Cluster, n: int, assumed: LinkCost | None = None) -> Cluster:
    """Return the cluster with its first ``n`` GPUs, or with copies of its first one.

    A copy is linked to others as the first GPU is; to the first GPU and other copies, as the first
    is to the second. It shares the channels that several pairs of devices share, and has the others
    for itself.

    Parameters
    ----------
    assumed : LinkCost, optional
        How the only GPU of a cluster and its copies are linked.

    Raises
    ------
    ClusterError
        If GPUs are to be added to one alone, and no link is assumed.
    """
    n_copies = n - len(cluster.gpus)
    if n_copies <= 0:
        return with_devices(cluster, [*cluster.gpus[:n], *cluster.cpus])
    if len(cluster.gpus) == 1 and assumed is not None:
        copy = _copies(cluster, cluster.devices[cluster.gpus[0]], 1)[0]
        cluster, n_copies = _with_copy_of_only_one(cluster, copy, assumed), n_copies - 1
    return _with_copies(cluster, n_copies) if n_copies else cluster


def with_host(cluster: Cluster) -> Cluster:
    """Add a CPU to a cluster that has none; its memory and links are assumed."""
    host = Device("CPU:0", "cpu", HOST_BYTES, lanes=HOST_LANES)
    return _with_device(cluster, host, dict.fromkeys(range(cluster.n_devices), HOST_LINK))


def _with_copy_of_only_one(cluster: Cluster, copy: Device, assumed: LinkCost) -> Cluster:
    (only,) = cluster.gpus
    links = {link.target: link for link in cluster.links if link.source == only}
    costs = {end: LinkCost(link.b0_us, link.b1_us_per_byte) for end, link in links.items()}
    return _with_device(cluster, copy, costs | {only: assumed})


def _with_device(cluster: Cluster, device: Device, costs: dict[int, LinkCost]) -> Cluster:
    """Add a device that has a channel for each direction of each of its links."""
    channels, links, new = list(cluster.channels), list(cluster.links), cluster.n_devices
    names = [each.name for each in cluster.devices] + [device.name]
    for other, cost in costs.items():
        for ends in ((new, other), (other, new)):
            links.append(
                Link(*ends, float(cost.b0_us), float(cost.b1_us_per_byte), (len(channels),))
            )
            channels.append(f"{names[ends[0]]}->{names[ends[1]]}, assumed")
    return replace(
        cluster,
        devices=(*cluster.devices, device),
        channels=tuple(channels),
        links=tuple(links),
    )


def with_devices(cluster: Cluster, devices: Iterable[int]) -> Cluster:
    """Return the cluster with some of its devices only, and the links between them."""
    kept = sorted(devices)
    number = {old: new for new, old in enumerate(kept)}
    links = tuple(
        replace(link, source=number[link.source], target=number[link.target])
        for link in cluster.links
        if link.source in number and link.target in number
    )
    return replace(cluster, devices=tuple(cluster.devices[d] for d in kept), links=links)


def _with_copies(cluster: Cluster, n_copies: int) -> Cluster:
    if len(cluster.gpus) < 2:
        raise ClusterError(
            f"cluster '{cluster.name}' has one GPU: nothing tells how two are linked"
        )
    first, second, *_ = cluster.gpus
    n_old, n_all = cluster.n_devices, cluster.n_devices + n_copies
    of_pair = {(link.source, link.target): link for link in cluster.links}
    pairs_of = Counter(c for pair in _channels_of_pairs(cluster) for c in pair)
    channels = list(cluster.channels)
    own: dict[tuple[frozenset[int], int], int] = {}

    def copy_link(source: int, target: int) -> Link:
        a, b = (d if d < n_old else first for d in (source, target))
        if a == b:
            a, b = (first, second) if source < target else (second, first)
        found = []
        for channel in of_pair[a, b].channels:
            key = frozenset((source, target)), channel
            if pairs_of[channel] < 2 and key not in own:
                own[key] = len(channels)
                channels.append(f"{cluster.channels[channel]} {len(channels)}")
            found.append(own.get(key, channel))
        return replace(of_pair[a, b], source=source, target=target, channels=tuple(found))

    links = [
        copy_link(source, target)
        for source, target in itertools.permutations(range(n_all), 2)
        if max(source, target) >= n_old
    ]
    return replace(
        cluster,
        devices=(*cluster.devices, *_copies(cluster, cluster.devices[first], n_copies)),
        links=(*cluster.links, *links),
        channels=tuple(channels),
    )


def _channels_of_pairs(cluster: Cluster) -> list[set[int]]:
    """List the channels that each pair of devices uses, in either direction."""
    found: dict[frozenset[int], set[int]] = {}
    for link in cluster.links:
        found.setdefault(frozenset((link.source, link.target)), set()).update(link.channels)
    return list(found.values())


def _copies(cluster: Cluster, device: Device, n: int) -> list[Device]:
    """Make copies of a device under the next free names: ``GPU:4`` after ``GPU:3``."""
    prefix = device.name.rstrip("0123456789")
    free = (name for i in itertools.count() if (name := f"{prefix}{i}") not in cluster.index)
    return [replace(device, name=name, chip="") for name in itertools.islice(free, n)]
