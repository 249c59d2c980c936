"""The ``measured`` block of a profile's file."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any

from enplace.values.measurement import MeasuredLink, Measurement
from enplace.writers.clusters import cluster_to_json

_KEYS = {"paper": "source"}
"""Keys that differ from the names of their fields."""


def measurement_to_json(measured: Measurement) -> dict[str, Any]:
    """Write a measurement as plain data, without unknown fields."""
    values = {f.name: getattr(measured, f.name) for f in fields(measured) if f.name != "other"}
    if measured.cluster is not None:
        values["cluster"] = cluster_to_json(measured.cluster)
    if measured.links is not None:
        values["links"] = [_link(link) for link in measured.links]
    if measured.evaluation is not None:
        values["evaluation"] = asdict(measured.evaluation)
    known = {
        _KEYS.get(name, name): _plain(value)
        for name, value in values.items()
        if value is not None and (name in _MAY_BE_EMPTY or value not in ("", (), {}))
    }
    return {**known, **measured.other}


_MAY_BE_EMPTY = ("links", "backward")
"""Fields for which empty does not mean unknown."""


def _plain(value: Any) -> Any:
    """Turn tuples into lists, at any depth."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


def _link(link: MeasuredLink) -> dict[str, Any]:
    return {
        "from": link.source,
        "to": link.target,
        "sizes": link.size_bytes,
        "times_us": link.time_us,
        "b0_us": link.b0_us,
        "b1_us_per_byte": link.b1_us_per_byte,
        "r2": link.r2,
    }
