"""A plan's splits as JSON: ``[{"dimension": "batch", "op": "conv1", "parts": 4}, ...]``."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from enplace.files.fields import each_object, only, take, whole
from enplace.values.splits import Split

MAX_PARTS = 256


def splits_from_json(data: dict[str, Any], where: str = "") -> tuple[Split, ...]:
    """Read the splits under the key ``splits`` of an object, if any.

    Raises
    ------
    FileError
        If an entry is damaged.
    """
    found = []
    for entry, place in each_object(data, "splits", where, []):
        only(entry, {field.name for field in fields(Split)}, place)
        op, dimension = (take(entry, key, str, place) for key in ("op", "dimension"))
        n_parts = whole(entry, "parts", place, low=2, high=MAX_PARTS)
        readers = tuple(map(str, take(entry, "readers", list, place, [])))
        found.append(Split(op, dimension, n_parts, readers, take(entry, "after", str, place, "")))
    return tuple(found)
