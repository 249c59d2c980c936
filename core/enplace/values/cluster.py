"""The cluster: devices, channels, and the cost of a transfer between two devices."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple, TypeVar

import numpy as np

from enplace.errors import ClusterError
from enplace.text import factor, listed, rate, read_percent, read_size, size, table
from enplace.values.arrays import FloatArray, IntArray, offsets
from enplace.values.device_names import device_label
from enplace.values.limits import KINDS, MAX_BYTES, MAX_DEVICE_NAME

MAX_DEVICES = 256

MOST_LINK_COST = 1e9
"""Largest latency of a link in µs, and largest time for a byte."""


_T = TypeVar("_T")


@dataclass(frozen=True)
class Device:
    """A GPU or CPU with its own memory.

    Attributes
    ----------
    name : str
        For example ``"GPU:0"``.
    kind : {"gpu", "cpu"}
        Decides which column of the profile's times applies.
    capacity_bytes : int
        Memory available to a model: what the device has, without its reserve.
    speed : float
        The profile's times are divided by it.
    lanes : int
        How many ops may run at once; 1 for GPUs.
    chip : str
        Devices with the same chip share its lanes: only one of the logical GPUs of a GPU runs at a
        time. Empty for a device with lanes of its own.
    reserve_bytes : int
        Further memory of the device, which no plan may use.
    model : str
        The card, such as ``rtx-4090``, whose bandwidth is known by this name. Empty if unknown.
    """

    name: str
    kind: str
    capacity_bytes: int
    speed: float = 1.0
    lanes: int = 1
    chip: str = ""
    reserve_bytes: int = 0
    model: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not 0 < len(self.name) <= MAX_DEVICE_NAME:
            raise ClusterError(
                f"device {self.name!r:.60} needs a name of 1 to {MAX_DEVICE_NAME} characters"
            )
        if self.kind not in KINDS:
            raise ClusterError(f"device '{self.name}': kind '{self.kind}' is not gpu or cpu")
        if not 0 < self.capacity_bytes <= MAX_BYTES:
            raise ClusterError(
                f"device '{self.name}': capacity_bytes is {self.capacity_bytes}; use 1 to 2^62"
            )
        if not 0 <= self.reserve_bytes <= MAX_BYTES:
            raise ClusterError(
                f"device '{self.name}': reserve_bytes is {self.reserve_bytes}; use 0 or more"
            )
        if not (math.isfinite(self.speed) and 1e-6 <= self.speed <= 1e6):
            raise ClusterError(f"device '{self.name}': speed is {self.speed}; use 1e-6 to 1e6")
        if not 1 <= self.lanes <= 1024:
            raise ClusterError(f"device '{self.name}': lanes is {self.lanes}; use 1 to 1024")

    @property
    def label(self) -> str:
        """Its name on screen: ``GPU 0``."""
        return device_label(self.name)

    @property
    def memory_bytes(self) -> int:
        """All of its memory, with the reserve."""
        return self.capacity_bytes + self.reserve_bytes

    def reserving(self, n_bytes: int) -> Device:
        """Return the same device with another reserve.

        Raises
        ------
        ClusterError
            If that leaves nothing for plans.
        """
        if n_bytes >= self.memory_bytes:
            raise ClusterError(
                f"device '{self.name}': a reserve of {size(n_bytes)} leaves nothing of its "
                f"{size(self.memory_bytes)}; reserve less"
            )
        return replace(self, capacity_bytes=self.memory_bytes - n_bytes, reserve_bytes=n_bytes)


class LinkCost(NamedTuple):
    """The cost of one link, or arrays of the costs of several."""

    b0_us: float | FloatArray
    b1_us_per_byte: float | FloatArray

    def transfer_us(self, n_bytes: IntArray, n_tensors: int | IntArray = 1) -> FloatArray:
        """Return the durations of transfers, b0 for each tensor and b1 for each byte."""
        return np.asarray(n_tensors * self.b0_us + self.b1_us_per_byte * n_bytes, np.float64)


@dataclass(frozen=True)
class Link:
    """The cost of sending a tensor from one device to another: b0 + b1 * bytes.

    Attributes
    ----------
    source, target : int
        Device numbers.
    b0_us, b1_us_per_byte : float
        Latency and inverse bandwidth.
    channels : tuple of int
        Channels that a transfer occupies, all of them for its whole duration. A routed pair has
        several.
    """

    source: int
    target: int
    b0_us: float
    b1_us_per_byte: float
    channels: tuple[int, ...]


@dataclass(frozen=True)
class Cluster:
    """Devices, channels, and one link for every ordered pair of devices.

    Attributes
    ----------
    hosts : tuple of (str, str)
        Where the framework's servers listen: task, such as ``/job:worker/task:0``, and its
        ``name:port``. Empty if all devices are on one machine.

    Raises
    ------
    ClusterError
        If a name is used twice, or a link is missing, duplicate, or unusable.
    """

    name: str
    devices: tuple[Device, ...]
    channels: tuple[str, ...]
    links: tuple[Link, ...]
    description: str = ""
    hosts: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        if not 1 <= len(self.devices) <= MAX_DEVICES:
            raise ClusterError(
                f"cluster '{self.name}' has {len(self.devices)} devices; use 1 to {MAX_DEVICES}"
            )
        for names in ([d.name for d in self.devices], list(self.channels)):
            if double := _first_double(names):
                raise ClusterError(f"cluster '{self.name}': the name '{double}' is used twice")
        for device, owner in zip(self.devices, self.lane_owner.tolist(), strict=True):
            if device.lanes != self.devices[owner].lanes:
                raise ClusterError(
                    f"devices '{self.devices[owner].name}' and '{device.name}' share chip "
                    f"'{device.chip}' but not its number of lanes; give both the same"
                )
        for link in self.links:
            self._check_link(link)
        self._check_pairs()

    def __repr__(self) -> str:
        return f"<Cluster {self.name}: {listed([device.name for device in self.devices])}>"

    @property
    def summary(self) -> str:
        """The first sentence of its description, without its stop."""
        return self.description.partition(". ")[0].rstrip(".")

    def __str__(self) -> str:
        """Describe the devices and the links, a line each."""
        label = [device.label for device in self.devices]
        devices = [["device", "memory", "reserve", "speed", "lanes"]]
        devices += [
            [
                name,
                size(device.memory_bytes),
                size(device.reserve_bytes) if device.reserve_bytes else "",
                factor(device.speed),
                str(device.lanes),
            ]
            for name, device in zip(label, self.devices, strict=True)
        ]
        links = [["link", "latency", "bandwidth", "channels"]]
        for link in self.links:
            speed = rate(1e6 / link.b1_us_per_byte) if link.b1_us_per_byte else "unlimited"
            channels = ", ".join(self.channels[channel] for channel in link.channels)
            ends = f"{label[link.source]} → {label[link.target]}"
            links.append([ends, f"{link.b0_us:.3g} µs", speed, channels])
        head = f"{self.name}: {self.description}"
        return "\n\n".join([head, table(devices, "lrrrr"), table(links, "lrrl")])

    def _check_link(self, link: Link) -> None:
        n = len(self.devices)
        if not (0 <= link.source < n and 0 <= link.target < n) or link.source == link.target:
            raise ClusterError(f"cluster '{self.name}': a link must join two different devices")
        where = f"link {self.devices[link.source].name} to {self.devices[link.target].name}"
        costs = (link.b0_us, link.b1_us_per_byte)
        if not all(math.isfinite(c) and 0 <= c <= MOST_LINK_COST for c in costs):
            raise ClusterError(
                f"{where}: b0_us and b1_us_per_byte must be 0 to {MOST_LINK_COST:g}, not {costs}"
            )
        if not link.channels or len(set(link.channels)) < len(link.channels):
            raise ClusterError(f"{where}: name at least one channel, and each only once")
        if not all(0 <= channel < len(self.channels) for channel in link.channels):
            raise ClusterError(f"{where}: a channel is not in the cluster's list")

    def _check_pairs(self) -> None:
        pairs = [(link.source, link.target) for link in self.links]
        if double := _first_double(pairs):
            a, b = (self.devices[d].name for d in double)
            raise ClusterError(f"cluster '{self.name}': two links lead from {a} to {b}; keep one")
        everyone = {(a, b) for a in range(self.n_devices) for b in range(self.n_devices) if a != b}
        if missing := sorted(everyone - set(pairs)):
            a, b = (self.devices[d].name for d in missing[0])
            raise ClusterError(f"cluster '{self.name}': no link from {a} to {b}; add one")

    @property
    def n_devices(self) -> int:
        return len(self.devices)

    @cached_property
    def index(self) -> dict[str, int]:
        """Device number by name."""
        return {device.name: number for number, device in enumerate(self.devices)}

    @cached_property
    def b0_us(self) -> FloatArray:
        """Latency of each ordered pair, shape (n_devices, n_devices), 0 on the diagonal."""
        return self._matrix("b0_us")

    @cached_property
    def b1_us_per_byte(self) -> FloatArray:
        """Inverse bandwidth of each ordered pair, shape (n_devices, n_devices)."""
        return self._matrix("b1_us_per_byte")

    def transfer_us(
        self,
        n_bytes: IntArray,
        source: int | IntArray,
        target: int | IntArray,
        n_tensors: int | IntArray = 1,
    ) -> FloatArray:
        """Return the durations of transfers between devices; see :class:`LinkCost`."""
        cost = LinkCost(self.b0_us[source, target], self.b1_us_per_byte[source, target])
        return cost.transfer_us(n_bytes, n_tensors)

    def _matrix(self, field: str) -> FloatArray:
        matrix = np.zeros((self.n_devices, self.n_devices))
        for link in self.links:
            matrix[link.source, link.target] = getattr(link, field)
        return matrix

    @cached_property
    def route_ptr(self) -> IntArray:
        """Channels of pair (a, b) are ``route[route_ptr[p] : route_ptr[p + 1]]``, p = a * n + b."""
        counts = np.zeros(self.n_devices**2, dtype=np.int64)
        for link in self.links:
            counts[link.source * self.n_devices + link.target] = len(link.channels)
        return offsets(counts)

    @cached_property
    def route(self) -> IntArray:
        """Channel numbers of all pairs, pair by pair; see :attr:`route_ptr`."""
        ordered = sorted(self.links, key=lambda link: (link.source, link.target))
        return np.array([c for link in ordered for c in link.channels], dtype=np.int64)

    @cached_property
    def speed(self) -> FloatArray:
        return np.array([device.speed for device in self.devices])

    @cached_property
    def lanes(self) -> IntArray:
        return np.array([device.lanes for device in self.devices], dtype=np.int64)

    @cached_property
    def lane_owner(self) -> IntArray:
        """The first device of the same chip, whose lanes a device uses; usually itself."""
        first: dict[str, int] = {}
        owners = [
            first.setdefault(device.chip, number) if device.chip else number
            for number, device in enumerate(self.devices)
        ]
        return np.array(owners, dtype=np.int64)

    @property
    def shares_chips(self) -> bool:
        """Whether several devices are logical GPUs of one chip."""
        return len(np.unique(self.lane_owner)) < self.n_devices

    @cached_property
    def capacity_bytes(self) -> IntArray:
        return np.array([device.capacity_bytes for device in self.devices], dtype=np.int64)

    @cached_property
    def kind(self) -> IntArray:
        """Column of ``Profile.time_us`` for each device."""
        return np.array([KINDS.index(device.kind) for device in self.devices], dtype=np.int64)

    @property
    def gpus(self) -> list[int]:
        """Numbers of the GPUs; of all devices if there is no GPU."""
        found = [d for d, device in enumerate(self.devices) if device.kind == "gpu"]
        return found or list(range(self.n_devices))

    @property
    def cpus(self) -> list[int]:
        """Numbers of all devices that are not among :attr:`gpus`."""
        return [d for d in range(self.n_devices) if d not in self.gpus]

    def scaled(self, compute: float = 1.0, links: float = 1.0) -> Cluster:
        """Return the same cluster with faster compute and links (Pesto's Fig. 8 sweeps).

        Parameters
        ----------
        compute, links : float
            Factors; 2 means twice as fast. Latency and inverse bandwidth are both divided by
            ``links``.

        Raises
        ------
        ClusterError
            If a factor is not a number from 1e-6 to 1e6.
        """
        told = []
        for label, scale in (("compute", compute), ("links", links)):
            if not (isinstance(scale, int | float | np.number) and 1e-6 <= scale <= 1e6):
                raise ClusterError(f"scale of {label} is {scale!r:.60}; use 1e-6 to 1e6")
            told += [f"{label.capitalize()} {factor(scale)} as fast"] if scale != 1 else []
        if not told:
            return self
        return replace(
            self,
            description=". ".join(filter(None, [self.description.rstrip("."), *told])),
            devices=tuple(replace(d, speed=d.speed * compute) for d in self.devices),
            links=tuple(
                replace(k, b0_us=k.b0_us / links, b1_us_per_byte=k.b1_us_per_byte / links)
                for k in self.links
            ),
        )

    def reserving(self, reserve: str) -> Cluster:
        """Return the same cluster whose GPUs have another reserve.

        Parameters
        ----------
        reserve : str
            A size such as ``1GiB``, or a share of each GPU's memory such as ``5%``. Empty: the
            reserves stay.

        Raises
        ------
        ClusterError
            If it is neither, or leaves nothing of a GPU.
        """
        if not reserve:
            return self
        share, n_bytes = read_percent(reserve), read_size(reserve)
        if not n_bytes and share is None:
            raise ClusterError(
                f"reserve '{reserve}': write a size such as 1GiB, or a share of each GPU's memory "
                f"such as 5%"
            )
        devices = list(self.devices)
        for gpu in self.gpus:
            kept = n_bytes if share is None else round(share * devices[gpu].memory_bytes)
            devices[gpu] = devices[gpu].reserving(kept)
        return replace(self, devices=tuple(devices))


def _first_double(values: Iterable[_T]) -> _T | None:
    seen: set[_T] = set()
    for value in values:
        if value in seen:
            return value
        seen.add(value)
    return None
