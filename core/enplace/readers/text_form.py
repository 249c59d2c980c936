"""The open text form of a profile: JSON that any program can write and read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from enplace.errors import DanglingEdgeError, DuplicateOpError, FileError
from enplace.files.fields import check_format, each_object, number, only, shown, take, whole
from enplace.readers.measurement import measurement_from_json
from enplace.readers.registry import Content, reader
from enplace.values.columns import Column
from enplace.values.profile import (
    CONTROL,
    KINDS,
    MAX_BYTES,
    OP_COLUMNS,
    Profile,
    edge_columns,
    make_profile,
)

NAME, VERSION = "enplace-profile", 1
OP_KEYS = {"name", *(column.key for column in OP_COLUMNS.values())}
EDGE_KEYS = {"src", "output", "dst", "bytes", "control"}
HOLD_KEYS = {"src", "output", "until"}
SHARE_KEYS = {"src", "output", "of", "of_output"}


def _is_text_form(content: Content) -> bool:
    return content.declared_format == NAME or (
        not content.declared_format and "ops" in content.fields
    )


@reader(
    "text-form",
    title="Profiles in the open text form",
    suffixes=(".json", ".json.gz"),
    matches=_is_text_form,
)
def read_text_form(content: Content) -> Profile:
    """Check the open text form and make a profile from it.

    Raises
    ------
    FileError, ProfileError
        With the op's or edge's place in the file.
    """
    data = content.fields
    check_format(data, NAME, VERSION)
    only(data, {"format", "name", "ops", "edges", "holds", "shares", "measured"}, "")
    ops = [_op(op, where) for op, where in each_object(data, "ops", "")]
    index = {op["name"]: i for i, op in enumerate(ops)}
    if len(index) < len(ops):
        double = next(op["name"] for i, op in enumerate(ops) if index[op["name"]] != i)
        raise DuplicateOpError(f"ops: two are called {shown(double)}; op names must be unique")
    edges = [_edge(edge, where, index) for edge, where in each_object(data, "edges", "")]
    holds = [_hold(hold, where, index) for hold, where in each_object(data, "holds", "", [])]
    shares = [_share(share, where, index) for share, where in each_object(data, "shares", "", [])]
    columns: dict[str, Any] = {
        label: [op[column.key] for op in ops] for label, column in OP_COLUMNS.items()
    }
    columns["time_us"] = np.array(columns["time_us"], dtype=np.float64)
    columns["colocation"] = colocation_texts(columns["colocation"])
    return make_profile(
        take(data, "name", str, "", "model"),
        op_names=[op["name"] for op in ops],
        **columns,
        **edge_columns(edges),
        holds=holds,
        shares=shares,
        measured=measurement_from_json(take(data, "measured", dict, "", {})),
    )


def _op(op: dict[str, Any], where: str) -> dict[str, Any]:
    only(op, OP_KEYS, where)
    name = take(op, "name", str, where)
    values = {
        each.key: _READ.get(each.key, _value)(each, op, where) for each in OP_COLUMNS.values()
    }
    scope = take(op, "scope", str, where, name.rpartition("/")[0])
    return {**values, "name": name, "scope": scope}


def _value(column: Column, op: dict[str, Any], where: str) -> Any:
    if column.type is str:
        return take(op, column.key, str, where, column.default)
    if column.type is int:
        return whole(op, column.key, where, column.default, high=column.most)
    if op.get(column.key) is None:
        return column.default
    return number(op, column.key, where, high=column.most)


def _times(column: Column, op: dict[str, Any], where: str) -> list[float]:
    times = take(op, column.key, dict, where)
    place = f"{where}.{column.key}"
    only(times, set(KINDS), place)
    return [
        number(times, kind, place, high=column.most) if times.get(kind) is not None else np.nan
        for kind in KINDS
    ]


def _groups(_: Column, op: dict[str, Any], where: str) -> list[str]:
    value = op.get("colocation")
    groups = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(group, str) for group in groups):
        raise FileError(
            f"{where}.colocation: must be a text, a list of texts or null, not {shown(value)}"
        )
    return [group for group in groups if group]


_READ: dict[str, Callable[[Column, dict[str, Any], str], Any]] = {
    "time_us": _times,
    "colocation": _groups,
}
"""Keys that hold more than a text or a number."""


def _edge(edge: dict[str, Any], where: str, index: dict[str, int]) -> tuple[int, int, int, int]:
    only(edge, EDGE_KEYS, where)
    ends = [_end(edge, key, where, index) for key in ("src", "dst")]
    output = whole(edge, "output", where, 0, low=CONTROL, high=1 << 31)
    control = take(edge, "control", bool, where, False) or output == CONTROL
    size = whole(edge, "bytes", where, 0 if control else None, high=MAX_BYTES)
    return ends[0], CONTROL if control else output, ends[1], size


def _hold(hold: dict[str, Any], where: str, index: dict[str, int]) -> tuple[int, int, int]:
    only(hold, HOLD_KEYS, where)
    source, until = (_end(hold, key, where, index) for key in ("src", "until"))
    return source, whole(hold, "output", where, 0, high=1 << 31), until


def _share(share: dict[str, Any], where: str, index: dict[str, int]) -> tuple[int, int, int, int]:
    only(share, SHARE_KEYS, where)
    source, base = (_end(share, key, where, index) for key in ("src", "of"))
    output, number = (whole(share, key, where, 0, high=1 << 31) for key in ("output", "of_output"))
    return source, output, base, number


def _end(value: dict[str, Any], key: str, where: str, index: dict[str, int]) -> int:
    """Return the number of the op that an edge, a hold or a share names."""
    name = take(value, key, str, where)
    if name not in index:
        what = where.partition("s[")[0]
        raise DanglingEdgeError(
            f"{where}.{key}: there is no op {shown(name)}; add it or remove the {what}"
        )
    return index[name]


def colocation_texts(groups: list[list[str]]) -> list[str]:
    """Merge groups that share an op, and name the group of each op.

    A merged group gets the alphabetically first of its names. An op in no group gets an empty text.
    """
    parent: dict[str, str] = {}

    def root(group: str) -> str:
        while parent.setdefault(group, group) != group:
            parent[group] = parent[parent[group]]
            group = parent[group]
        return group

    for names in groups:
        for other in names[1:]:
            a, b = sorted((root(names[0]), root(other)))
            parent[b] = a
    return [root(names[0]) if names else "" for names in groups]
