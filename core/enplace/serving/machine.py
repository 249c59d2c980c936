"""The cards of a machine, and its host: what each holds, how fast it reads, and which are alike."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from enplace.errors import ClusterError
from enplace.frameworks.own_cluster import describe_each
from enplace.frameworks.roofline import GPUS, Gpu
from enplace.readers.cluster_json import cluster_from_json
from enplace.readers.clusters import ClusterChoice, presets, read_cluster
from enplace.text import instead, read_size
from enplace.values.arrays import FloatArray
from enplace.values.cluster import Cluster
from enplace.values.limits import MAX_BYTES

CARDS = "rtx-4090,3*rtx-a5000,rtx-3060:12GiB,cpu:64GiB"
"""How people write cards down: some of one kind, one with its memory, and a host."""

RESERVE = "1GiB"
"""What a card keeps free unless its cluster says it: a CUDA context and fragments."""

MOST_CARDS = 64
MOST_STATES = 12_000
"""Most choices of cards to look at; with more, the kinds are too many to try every order."""

_CARD = re.compile(
    r"(?:(?P<count>\d{1,3})\*)?(?P<name>[a-z0-9-]+)(?::(?P<size>.+))?", re.IGNORECASE
)


@dataclass(frozen=True)
class Kind:
    """Cards that can stand for each other: of one model, memory and place in the machine.

    Attributes
    ----------
    devices : tuple of int
        Numbers in the cluster.
    """

    gpu: Gpu
    capacity_bytes: int
    devices: tuple[int, ...]


@dataclass(frozen=True)
class Machine:
    """A cluster as it serves a model.

    Attributes
    ----------
    host : int or None
        The device that takes what no card holds.
    """

    cluster: Cluster
    kinds: tuple[Kind, ...]
    host: int | None

    @property
    def n_cards(self) -> int:
        return sum(len(kind.devices) for kind in self.kinds)

    def kind_of(self, device: int) -> Kind:
        """Return the kind of a card."""
        return next(kind for kind in self.kinds if device in kind.devices)

    def sent_us(self, source: int, target: int, n_bytes: int) -> float:
        """Return the time to send something from device to device."""
        return float(self.cluster.transfer_us(np.array(n_bytes), source, target))

    def kinds_sent_us(self, n_bytes: int) -> FloatArray:
        """Return the times to send something between different cards of two kinds."""
        pairs = product(self.kinds, repeat=2)
        times = [self.sent_us(a.devices[0], b.devices[-1], n_bytes) for a, b in pairs]
        return np.array(times).reshape(len(self.kinds), -1)


def make_machine(choice: ClusterChoice, reserve: str = "") -> Machine:
    """Return the machine that a person means.

    Parameters
    ----------
    choice : str, path, mapping or Cluster
        A preset, a JSON file, or cards such as :data:`CARDS`.
    reserve : str
        Memory that each card keeps free, as for :meth:`~enplace.values.cluster.Cluster.reserving`.

    Raises
    ------
    ClusterError, FileError
        If there is no such cluster, or it does not say which cards it has.
    """
    cluster = _cluster(choice).reserving(reserve)
    devices = [d for d, device in enumerate(cluster.devices) if device.kind == "gpu"]
    if not devices:
        raise ClusterError(f"cluster '{cluster.name}' has no GPU; name cards, such as '{CARDS}'")
    if len(devices) > MOST_CARDS:
        raise ClusterError(f"cluster '{cluster.name}' has over {MOST_CARDS} cards; name fewer")
    gpus = {device: _gpu(cluster, device) for device in devices}
    groups: list[list[int]] = []
    for device in devices:
        group = next((each for each in groups if _alike(cluster, each[0], device)), None)
        if group is None:
            groups.append([device])
        else:
            group.append(device)
    if np.prod([len(group) + 1.0 for group in groups]) * len(groups) > MOST_STATES:
        raise ClusterError(
            f"cluster '{cluster.name}' has {len(groups)} kinds of cards, too many to try every "
            f"order; give cards of one model the same memory and links, or name fewer"
        )
    kinds = tuple(
        Kind(gpus[group[0]], cluster.devices[group[0]].capacity_bytes, tuple(group))
        for group in groups
    )
    return Machine(cluster, kinds, next(iter(cluster.cpus), None))


def _cluster(choice: ClusterChoice) -> Cluster:
    if isinstance(choice, Cluster):
        return choice
    if isinstance(choice, Mapping):
        return cluster_from_json(dict(choice))
    if not isinstance(choice, str) or choice.endswith(".json"):
        return read_cluster(choice)
    return presets()[choice] if choice in presets() else _from_cards(choice)


def _from_cards(text: str) -> Cluster:
    cards: list[tuple[str, int]] = []
    host_bytes = 0
    for word in text.split(","):
        match = _CARD.fullmatch(word.strip())
        name = match["name"].lower() if match else ""
        if match is None or (name not in GPUS and name != "cpu"):
            raise ClusterError(
                f"'{word.strip()}' is no cluster and no card; write '{CARDS}', or "
                f"{instead(name or word, [*GPUS, 'cpu', *presets()])}"
            )
        n_bytes = read_size(match["size"]) if match["size"] else 0
        if (match["size"] or name == "cpu") and not 0 < n_bytes <= MAX_BYTES:
            raise ClusterError(
                f"'{word.strip()}': write a size after the colon, as in {name}:24GiB"
            )
        if name == "cpu":
            host_bytes = n_bytes
            continue
        cards += [(name, n_bytes or GPUS[name].memory_bytes)] * int(match["count"] or 1)
    if not 0 < len(cards) <= MOST_CARDS:
        raise ClusterError(f"'{text}' has {len(cards)} cards; write 1 to {MOST_CARDS}")
    found = describe_each(cards, host_bytes).reserving(RESERVE)
    return replace(found, name=text)


def _gpu(cluster: Cluster, device: int) -> Gpu:
    found = cluster.devices[device]
    if found.model in GPUS:
        return GPUS[found.model]
    why = f"is '{found.model}', of which" if found.model else "does not say which card it is, so"
    raise ClusterError(
        f"cluster '{cluster.name}': {found.name} {why} no bandwidth is known; say "
        f'"model": "rtx-4090" there, or the like ({instead(found.model, GPUS)})'
    )


def _alike(cluster: Cluster, one: int, other: int) -> bool:
    """Tell whether two devices may change places: nothing distinguishes them but their names."""
    first, second = cluster.devices[one], cluster.devices[other]
    if (first.model, first.capacity_bytes) != (second.model, second.capacity_bytes):
        return False
    order = np.arange(cluster.n_devices)
    order[[one, other]] = other, one
    costs = (cluster.b0_us, cluster.b1_us_per_byte)
    return all(np.array_equal(each, each[np.ix_(order, order)]) for each in costs)
