"""The same cluster with more, fewer or larger GPUs, to see what a change would bring."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from enplace.errors import ClusterError
from enplace.values.cluster import Cluster, Device, Link


def with_memory(cluster: Cluster, factor: float) -> Cluster:
    """Return the cluster with ``factor`` times the memory in each GPU."""
    gpus = set(cluster.gpus)
    devices = tuple(
        replace(d, capacity_bytes=round(factor * d.capacity_bytes)) if number in gpus else d
        for number, d in enumerate(cluster.devices)
    )
    return replace(cluster, devices=devices)


def with_gpus(cluster: Cluster, n: int) -> Cluster:
    """Return the cluster with its first ``n`` GPUs, or with copies of its first one.

    A copy is linked to others as the first GPU is; to the first GPU and other copies, as the first
    is to the second. It shares the channels that several pairs of devices share, and has the others
    for itself.

    Raises
    ------
    ClusterError
        If GPUs are to be added to one alone.
    """
    if n > len(cluster.gpus):
        return _with_copies(cluster, n - len(cluster.gpus))
    return with_devices(cluster, [*cluster.gpus[:n], *cluster.cpus])


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
