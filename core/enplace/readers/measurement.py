"""The ``measured`` block of a profile's file."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from enplace.errors import FileError
from enplace.files.fields import take
from enplace.files.records import Object, key_of, read_record, reader_of
from enplace.readers.cluster_json import cluster_from_json
from enplace.values.measurement import Measurement

_OLD_VERSION = "tensorflow"
"""Key of the framework's version, and its name, in files that know no other framework."""

_KEYS = {key_of(each) for each in fields(Measurement)} - {"other"}

_SOURCE = {
    **dict.fromkeys(("path", "kind", "framework_name"), str),
    "arguments": tuple[str, ...],
    "batch_size": int,
}
"""Type of each field of a model's source that all frameworks share."""


def measurement_from_json(data: Object, where: str = "measured") -> Measurement:
    """Make a measurement from plain data; unknown keys are kept, and null means "not known".

    Raises
    ------
    FileError, ClusterError
        With the field whose value has the wrong type.
    """
    given = {key: value for key, value in data.items() if value is not None}
    apart: dict[str, Any] = {"cluster": None, "source": {}, "paper": ""}
    if "cluster" in given:
        apart["cluster"] = cluster_from_json(given["cluster"], f"{where}.cluster")
    if isinstance(given.get("source"), str):
        apart["paper"] = take(given, "source", str, where)
    elif "source" in given:
        apart["source"] = _source(given, "source", where)
    if _OLD_VERSION in given:
        version = take(given, _OLD_VERSION, str, where)
        given = {"framework_version": version, "framework": _OLD_VERSION} | given
    other = {k: v for k, v in given.items() if k not in {*_KEYS, _OLD_VERSION}}
    found = read_record(Measurement, given, where, other=other, **apart)
    for i, link in enumerate(found.links or ()):
        n_sizes, n_times = len(link.size_bytes), len(link.time_us)
        if n_sizes != n_times:
            raise FileError(
                f"{where}.links[{i}]: has {n_sizes} sizes and {n_times} times; give as many of both"
            )
    return found


def _source(data: Object, key: str, where: str) -> Object:
    """Check the types of the model's fields, and keep all as they are."""
    source, place = take(data, key, dict, where), f"{where}.{key}"
    for name, hint in _SOURCE.items():
        if source.get(name) is not None:
            reader_of(hint)(source, name, place)
    return source
