"""The ``measured`` block of a profile's file."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from enplace.errors import FileError
from enplace.files.fields import is_object, number, take, whole
from enplace.readers.cluster_json import cluster_from_json
from enplace.values.measurement import Deviation, Evaluation, MeasuredLink, Measurement

_OLD_VERSION = "tensorflow"
"""Key of the framework's version, and its name, in files that know no other framework."""

Object = dict[str, Any]


def measurement_from_json(data: Object, where: str = "measured") -> Measurement:
    """Make a measurement from plain data; unknown keys are kept, and null means "not known".

    Raises
    ------
    FileError, ClusterError
        With the field whose value has the wrong type.
    """
    given = {key: value for key, value in data.items() if value is not None}
    fields = {key: read(given, key, where) for key, read in _READ.items() if key in given}
    if isinstance(given.get("source"), str):
        fields["paper"] = _text(given, "source", where)
    elif "source" in given:
        fields["source"] = _source(given, "source", where)
    if _OLD_VERSION in given:
        fields.setdefault("framework_version", _text(given, _OLD_VERSION, where))
        fields.setdefault("framework", _OLD_VERSION)
    other = {k: v for k, v in given.items() if k not in {*_READ, "source", _OLD_VERSION}}
    return Measurement(**fields, other=other)


def _text(data: Object, key: str, where: str) -> str:
    return take(data, key, str, where)


def _flag(data: Object, key: str, where: str) -> bool:
    return take(data, key, bool, where)


def _mapping(data: Object, key: str, where: str) -> Object:
    return take(data, key, dict, where)


def _count(data: Object, key: str, where: str) -> int:
    return whole(data, key, where)


def _amount(data: Object, key: str, where: str) -> float:
    return float(number(data, key, where))


def _ratio(data: Object, key: str, where: str) -> float:
    """Read a number that may be NaN, because too little data was measured."""
    value = data.get(key)
    return value if isinstance(value, float) and math.isnan(value) else _signed(data, key, where)


def _signed(data: Object, key: str, where: str) -> float:
    return float(number(data, key, where, low=-1e18))


Read = Callable[[Object, str, str], Any]


def _each(read: Read) -> Read:
    """Make a reader of an object whose values are all read the same way."""

    def read_values(data: Object, key: str, where: str) -> Object:
        values, place = _mapping(data, key, where), f"{where}.{key}"
        return {name: read(values, name, place) for name in values}

    return read_values


def _list(read: Read) -> Read:
    """Make a reader of a list whose values are all read the same way."""

    def read_values(data: Object, key: str, where: str) -> tuple[Any, ...]:
        values = take(data, key, list, where)
        return tuple(
            read({place: value}, place, where)
            for place, value in ((f"{key}[{i}]", value) for i, value in enumerate(values))
        )

    return read_values


def _cluster(data: Object, key: str, where: str) -> Any:
    return cluster_from_json(data[key], f"{where}.{key}")


def _link(data: Object, key: str, where: str) -> MeasuredLink:
    place = f"{where}.{key}"
    link = is_object(data[key], place)
    sizes, times_us = (_list(_amount)(link, name, place) for name in ("sizes", "times_us"))
    if len(sizes) != len(times_us):
        raise FileError(
            f"{place}: has {len(sizes)} sizes and {len(times_us)} times; give as many of both"
        )
    return MeasuredLink(
        _text(link, "from", place),
        _text(link, "to", place),
        sizes,
        times_us,
        _signed(link, "b0_us", place),
        _signed(link, "b1_us_per_byte", place),
        _ratio(link, "r2", place),
    )


def _deviation(data: Object, key: str, where: str) -> Deviation:
    place = f"{where}.{key}"
    found = _mapping(data, key, where)
    mean, of_sum, near = (_amount(found, name, place) for name in ("mean", "of_sum", "near"))
    return Deviation(mean, of_sum, near, whole(found, "ops", place, 0))


def _evaluation(data: Object, key: str, where: str) -> Evaluation:
    place = f"{where}.{key}"
    found = _mapping(data, key, where)
    return Evaluation(
        _deviation(found, "memory", place),
        _deviation(found, "time", place),
        _count(found, "batch_size", place),
        _list(_count)(found, "batch_sizes", place),
        _count(found, "devices_used", place),
        _amount(found, "step_time_us", place),
    )


def _pair(data: Object, key: str, where: str) -> list[Any]:
    return take(data, key, list, where)


_SOURCE: dict[str, Read] = {
    **dict.fromkeys(
        ("path", "kind", "loss", "optimizer", "signature", "framework_name", "gpu"), _text
    ),
    "arguments": _list(_text),
    "batch_size": _count,
    "sizes": _list(_pair),
}
"""Reader of each field of a framework's source that Enplace writes."""


def _source(data: Object, key: str, where: str) -> Object:
    """Check the types of the model's fields, and keep all as they are."""
    source, place = _mapping(data, key, where), f"{where}.{key}"
    for name, read in _SOURCE.items():
        if source.get(name) is not None:
            read(source, name, place)
    return source


_READ: dict[str, Read] = {
    "step_time_us": _amount,
    "op_devices": _each(_text),
    "op_kernels": _each(_count),
    "op_deviation": _each(_ratio),
    "peak_bytes": _each(_count),
    "launch_gap_us": _amount,
    "op_overhead_us": _amount,
    "cluster": _cluster,
    "links": _list(_link),
    "devices": _text,
    "function": _text,
    "left_out": _list(_text),
    "compiled": _flag,
    "steps": _count,
    "warm_ups": _count,
    "gpu": _text,
    "framework_version": _text,
    "framework": _text,
    "placement": _text,
    "tf32": _flag,
    "config": _mapping,
    "backward": _list(_count),
    "split_lengths": _each(_each(_count)),
    "batch_shapes": _list(_list(_count)),
    "evaluation": _evaluation,
    "estimated": _text,
    "estimated_speed": _amount,
}
"""Reader of each key whose name is also that of its field."""
