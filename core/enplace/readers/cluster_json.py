"""Clusters in the custom JSON format."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from typing import Any

from enplace.errors import ClusterError, FileError
from enplace.files.fields import check_format, each_object, is_object, number, only, shown, take
from enplace.files.records import read_record
from enplace.text import UNPRINTABLE
from enplace.values.cluster import MAX_DEVICES, MOST_LINK_COST, Cluster, Device, Link
from enplace.values.device_names import is_task
from enplace.values.profile import KINDS

NAME, VERSION = "enplace-cluster", 1

KIND_PAIRS = tuple(f"{a}-{b}" for a in KINDS for b in KINDS)

_ADDRESS = re.compile(r"[^\s/]+:\d{1,5}")

MAX_NAMED = 1_000_000
"""Most names of channels that the links made from defaults may have in all."""

_LINK_KEYS = {"b0_us", "b1_us_per_byte", "channels"}


def cluster_from_json(data: Any, where: str = "") -> Cluster:
    """Make a cluster from the custom format.

    Parameters
    ----------
    data : object
        ``devices``; ``links`` from one device or several to others; ``default_links`` by kinds,
        such as ``"gpu-gpu"``, for the pairs that no link names. A link without ``channels`` has its
        own channel, called ``"A->B"``. ``channels`` may list all channels in the order to show.
        ``hosts`` has the address of each task, ``{"/job:worker/task:0": "name:port"}``.
    where : str
        Place of ``data`` in its file, for messages.

    Raises
    ------
    FileError, ClusterError
        With the place and the fix.
    """
    obj = is_object(data, where)
    check_format(obj, NAME, VERSION)
    only(
        obj,
        {"format", "name", "description", "devices", "channels", "links", "default_links", "hosts"},
        where,
    )
    at = f"{where}." if where else ""
    values = take(obj, "devices", list, where)
    if len(values) > MAX_DEVICES:
        raise ClusterError(f"{at}devices: holds {len(values)}; use at most {MAX_DEVICES}")
    devices = tuple(_device(value, f"{at}devices[{i}]") for i, value in enumerate(values))
    kinds = {device.name: device.kind for device in devices}
    if len(kinds) < len(devices):
        raise ClusterError(f"{at}devices: a name is used twice; device names must be unique")
    links = _links(obj, kinds, where)
    channels = _channels(obj, where, links)
    number_of = {name: i for i, name in enumerate(kinds)}
    channel_of = {name: i for i, name in enumerate(channels)}
    return Cluster(
        name=take(obj, "name", str, where, "custom"),
        description=take(obj, "description", str, where, ""),
        devices=devices,
        channels=tuple(channels),
        links=tuple(
            Link(
                number_of[a],
                number_of[b],
                link["b0_us"],
                link["b1_us_per_byte"],
                tuple(channel_of[name] for name in link["channels"]),
            )
            for (a, b), link in links.items()
        ),
        hosts=_hosts(obj, at),
    )


def _hosts(obj: dict[str, Any], at: str) -> tuple[tuple[str, str], ...]:
    hosts = take(obj, "hosts", dict, at, {})
    for task, address in hosts.items():
        if not (is_task(task) and isinstance(address, str) and _ADDRESS.fullmatch(address)):
            raise FileError(
                f"{at}hosts: {shown(task)}: {shown(address)} is not like "
                f'"/job:worker/task:0": "name:port"; correct it'
            )
    return tuple(hosts.items())


def _device(value: Any, where: str) -> Device:
    obj = is_object(value, where)
    only(obj, {each.name for each in fields(Device)}, where)
    try:
        device = read_record(Device, obj, where)
        # In a file, as on a data sheet, the memory includes the reserve.
        return replace(device, reserve_bytes=0).reserving(device.reserve_bytes)
    except ClusterError as error:
        raise ClusterError(f"{where}: {error}") from None


def _links(obj: dict[str, Any], kinds: dict[str, str], where: str) -> dict[tuple[str, str], Any]:
    """Find the link of every pair that the file names or its defaults cover, in a fixed order."""
    named: dict[tuple[str, str], Any] = {}
    for link, place in each_object(obj, "links", where, []):
        only(link, _LINK_KEYS | {"from", "to", "both_ways"}, place)
        for pair in _pairs(link, place, kinds):
            if pair in named:
                raise FileError(f"{place}: a second link from {pair[0]} to {pair[1]}; keep one")
            named[pair] = _link(link, place, pair)
    at = f"{where}." if where else ""
    defaults = take(obj, "default_links", dict, where, {})
    only(defaults, set(KIND_PAIRS), f"{at}default_links")
    links: dict[tuple[str, str], Any] = {}
    n_named = 0
    for pair in ((a, b) for a in kinds for b in kinds if a != b):
        key = f"{kinds[pair[0]]}-{kinds[pair[1]]}"
        if pair in named:
            links[pair] = named[pair]
        elif key in defaults:
            place = f"{at}default_links.{key}"
            link = is_object(defaults[key], place)
            only(link, _LINK_KEYS, place)
            links[pair] = _link(link, place, pair)
            n_named += len(links[pair]["channels"])
            if n_named > MAX_NAMED:
                raise FileError(f"{place}.channels: too many for so many links; name fewer")
        else:
            raise FileError(
                f"{at}links: none from {pair[0]} to {pair[1]}; add it, or '{key}' to default_links"
            )
    return links


def _pairs(link: dict[str, Any], place: str, kinds: dict[str, str]) -> list[tuple[str, str]]:
    sources, targets = (_ends(link.get(key), f"{place}.{key}", kinds) for key in ("from", "to"))
    pairs = [(a, b) for a in sources for b in targets if a != b]
    if not pairs:
        raise FileError(f"{place}: leads from a device to itself; name two devices")
    if take(link, "both_ways", bool, place, False):
        pairs += [(b, a) for a, b in pairs]
    return pairs


def _ends(value: Any, place: str, kinds: dict[str, str]) -> list[str]:
    names: list[str] = value if isinstance(value, list) else [value]
    for name in names:
        if not isinstance(name, str) or name not in kinds:
            raise FileError(f"{place}: there is no device {shown(name)}; name one or a list")
    if len(set(names)) < len(names):
        raise FileError(f"{place}: names a device twice; name each once")
    return names


def _link(link: dict[str, Any], place: str, pair: tuple[str, str]) -> dict[str, Any]:
    channels = _names(link, place, [f"{pair[0]}->{pair[1]}"])
    return {
        "b0_us": float(number(link, "b0_us", place, high=MOST_LINK_COST)),
        "b1_us_per_byte": float(number(link, "b1_us_per_byte", place, high=MOST_LINK_COST)),
        "channels": channels,
    }


def _channels(obj: dict[str, Any], where: str, links: dict[tuple[str, str], Any]) -> list[str]:
    used = list(dict.fromkeys(name for link in links.values() for name in link["channels"]))
    if "channels" not in obj:
        return used
    listed = _names(obj, where, [])
    known = set(listed)
    if missing := [name for name in used if name not in known]:
        raise FileError(f"channels: '{missing[0]}', which a link uses, is not listed; add it")
    return listed


def _names(obj: dict[str, Any], where: str, default: list[str]) -> list[str]:
    names = take(obj, "channels", list, where, default)
    if not all(isinstance(n, str) and n and not UNPRINTABLE.search(n) for n in names):
        raise FileError(
            f"{where}{'.' if where else ''}channels: must hold names; correct it or leave it out"
        )
    return names
