"""The file of constraints that teammates exchange: JSON that names ops and devices.

Each key is that of a kind of constraint (:data:`~enplace.values.constraints.KINDS`), and an option
of ``enplace place``. It holds a list with the parts of each constraint, as a list.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from enplace.errors import FileError, PinConflictError
from enplace.files.fields import check_format, is_object, only, shown, take, whole
from enplace.files.json_text import LITTLE_MEMORY_BYTES, parse_json
from enplace.files.reading import naming, read_bytes
from enplace.values.constraints import DEVICE, KINDS, NUMBER, OP, PLACEMENT, Kind, Pin, Row
from enplace.values.problem import Problem

NAME, VERSION = "enplace-constraints", 1
MOST_DEVICES = 256
_WORDS = {OP: "an op", DEVICE: "a device", PLACEMENT: "a placement", NUMBER: "a number"}


@dataclass(frozen=True, eq=False)
class ConstraintsFile:
    """Constraints from a file.

    Attributes
    ----------
    problem : Problem
        The problem with its own constraints and those of the file; its own pins come first.
    unknown : tuple of str
        Ops and devices that the problem does not have; constraints that name them are left out.
    overruled : tuple of str
        Ops that the problem pins to another device than the file, whose pin is left out.
    """

    problem: Problem
    unknown: tuple[str, ...]
    overruled: tuple[str, ...] = ()


def read_constraints(path: str | os.PathLike[str], problem: Problem) -> ConstraintsFile:
    """Read constraints for a problem.

    Raises
    ------
    FileError, ProblemError
        If the file is damaged, or its constraints contradict each other or the graph.
    """
    with naming(path):
        data = is_object(parse_json(read_bytes(path), most_bytes=LITTLE_MEMORY_BYTES), "")
        if "format" not in data:
            raise FileError(f"no constraints: 'format' is missing; it should be {NAME}/{VERSION}")
        check_format(data, NAME, VERSION)
        only(data, {"format", *KINDS}, "")
        return constrain(problem, rows_by_name(data))


def constrain(problem: Problem, named: Mapping[str, Sequence[Row]]) -> ConstraintsFile:
    """Add constraints by their kinds, with names for numbers, to a problem.

    Raises
    ------
    PinConflictError, ProblemError
        As for :func:`read_constraints`.
    """
    ops, devices = problem.profile.index, problem.cluster.index
    unknown: dict[str, None] = {}

    def find(index: Mapping[str, int], name: str) -> list[int]:
        if name in index:
            return [index[name]]
        unknown[name] = None
        return []

    rows = {
        key: KINDS[key].all_mapped(each, partial(find, ops), partial(find, devices))
        for key, each in named.items()
    }
    pins = rows.get(Pin.key, [])
    _check_pins(problem, pins)
    found = replace(problem, constraints=problem.constraints.with_rows(rows))
    overruled = [op for op, device in pins if found.pins[op] != device]
    names = [problem.profile.op_names[op] for op in dict.fromkeys(overruled)]
    return ConstraintsFile(found, tuple(unknown), tuple(names))


def _check_pins(problem: Problem, pins: Sequence[tuple[int, int]]) -> None:
    """Refuse an op with two pins."""
    first = dict(reversed(pins))
    for op, device in pins:
        if device != first[op]:
            names = [problem.cluster.devices[d].name for d in (first[op], device)]
            raise PinConflictError(
                f"pin: op '{problem.profile.op_names[op]}' is pinned to {names[0]} and to "
                f"{names[1]}; keep one of the two"
            )


def rows_by_name(data: Mapping[str, Any]) -> dict[str, list[Row]]:
    """Read the constraints of a document like the file's by their kinds, with names for numbers.

    Raises
    ------
    FileError
        If they are not lists of the parts that the kind has.
    """
    return {
        key: [_named(kind, row, f"{key}[{i}]") for i, row in enumerate(rows)]
        for key, kind in KINDS.items()
        if (rows := take(dict(data), key, list, "", []))
    }


def _named(kind: Kind, row: Any, place: str) -> Row:
    if not isinstance(row, list) or not row:
        raise FileError(f"{place}: must be a list of names, not {shown(row)}; correct it")
    if not kind.many and len(row) != len(kind.roles):
        wanted = "two names" if len(kind.roles) == 2 else "one name"
        raise FileError(f"{place}: must be {wanted}, not {len(row)}; correct it")
    return kind.read(row, lambda role, part: _named_part(role, part, row, place))


def _named_part(role: str, part: Any, row: Any, place: str) -> Any:
    if role == NUMBER:
        return whole({"number": part}, "number", place)
    if role == PLACEMENT:
        pairs = is_object(part, place)
        homes = ((op, at if isinstance(at, list) else [at]) for op, at in pairs.items())
        return tuple((op, take({op: one}, op, str, place)) for op, at in homes for one in at)
    if not isinstance(part, str):
        raise FileError(f"{place}: must be a list of names, not {shown(row)}; correct it")
    return part


def rows_by_number(data: Mapping[str, Any], where: str, n_ops: int) -> dict[str, list[Row]]:
    """Read the constraints of a project by their kinds.

    Raises
    ------
    FileError
        If they are not lists of the parts that the kind has, or name an op that does not exist.
    """
    return {
        key: [
            _numbered(kind, row, f"{where}.{kind.field}[{i}]", n_ops) for i, row in enumerate(rows)
        ]
        for key, kind in KINDS.items()
        if (rows := take(dict(data), kind.field, list, where, []))
    }


def _numbered(kind: Kind, row: Any, place: str, n_ops: int) -> Row:
    is_list = kind.many or len(kind.roles) > 1
    parts = row if is_list else [row]
    if not isinstance(parts, list) or not (kind.many or len(parts) == len(kind.roles)):
        wanted = " and ".join(_WORDS[role] for role in kind.roles)
        wanted = {(OP,): "a list of ops", (OP, OP): "two ops"}.get(kind.roles, wanted)
        raise FileError(f"{place}: must be {wanted}, not {shown(row)}")
    return kind.read(parts, lambda role, part: _number(role, part, place, n_ops))


def _number(role: str, part: Any, place: str, n_ops: int) -> Any:
    if role == PLACEMENT:
        pairs = take({role: part}, role, list, place)
        return tuple(_numbered(KINDS[Pin.key], pair, place, n_ops) for pair in pairs)
    high = {OP: n_ops - 1, DEVICE: MOST_DEVICES - 1}.get(role)
    return whole({role: part}, role, place, **({} if high is None else {"high": high}))
