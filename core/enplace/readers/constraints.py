"""The file of constraints that teammates exchange: JSON that names ops and devices.

Each key is an option of ``enplace place`` and holds a list: ``pin`` and ``forbid`` of an op and a
device, ``colocate`` of ops, ``before`` of two ops, ``lock`` of a device.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from enplace.errors import FileError, PinConflictError
from enplace.files.fields import check_format, is_object, only, shown, take
from enplace.files.json_text import LITTLE_MEMORY_BYTES, parse_json
from enplace.files.reading import naming, read_bytes
from enplace.values.problem import Problem, order_problem

NAME, VERSION = "enplace-constraints", 1
KINDS = ("pin", "forbid", "colocate", "before", "lock")
"""Keys of the file: the kinds of constraints."""
_LENGTHS = {"colocate": 0, "lock": 1}
"""Names in a row, if not two; 0 for any number."""


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
        return constrain(problem, data)


def constrain(problem: Problem, data: Mapping[str, Any]) -> ConstraintsFile:
    """Add the constraints of a document like the file's to a problem.

    Raises
    ------
    FileError, ProblemError
        As for :func:`read_constraints`.
    """
    ops, devices = problem.profile.index, problem.cluster.index
    unknown: dict[str, None] = {}
    pins = _pairs(data, "pin", ops, devices, unknown)
    forbidden = _pairs(data, "forbid", ops, devices, unknown)
    before = _pairs(data, "before", ops, ops, unknown)
    groups = [{_number(name, ops, unknown) for name in row} for row in rows_of(data, "colocate")]
    known = set(map(frozenset, problem.together))
    locked = {_number(name, devices, unknown) for row in rows_of(data, "lock") for name in row}
    new = [tuple(sorted(group)) for group in groups if min(group) >= 0 and group not in known]
    _check_pins(problem, pins)
    constrained = replace(
        problem,
        pins=dict(sorted((dict(pins) | dict(problem.pins)).items())),
        together=(*problem.together, *dict.fromkeys(new)),
        forbidden=problem.forbidden.union(forbidden),
        locked=problem.locked.union(locked - {-1}),
    )
    ordered = order_problem(constrained, [*problem.before, *before])
    overruled = [op for op, device in pins if problem.pins.get(op, device) != device]
    names = [problem.profile.op_names[op] for op in dict.fromkeys(overruled)]
    return ConstraintsFile(ordered, tuple(unknown), tuple(names))


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


def rows_of(data: Mapping[str, Any], key: str) -> list[list[str]]:
    """Return the constraints of a kind in a document like the file's.

    Raises
    ------
    FileError
        If they are not lists of as many names as the kind has.
    """
    rows = take(dict(data), key, list, "", [])
    for i, row in enumerate(rows):
        if not isinstance(row, list) or not row or not all(isinstance(n, str) for n in row):
            raise FileError(f"{key}[{i}]: must be a list of names, not {shown(row)}; correct it")
        length = _LENGTHS.get(key, 2)
        if length not in (0, len(row)):
            wanted = "two names" if length == 2 else "one name"
            raise FileError(f"{key}[{i}]: must be {wanted}, not {len(row)}; correct it")
    return rows


def _pairs(
    data: Mapping[str, Any],
    key: str,
    first: Mapping[str, int],
    second: Mapping[str, int],
    unknown: dict[str, None],
) -> list[tuple[int, int]]:
    """Read rows of two names; leave out those with an unknown one."""
    found = []
    for row in rows_of(data, key):
        pair = _number(row[0], first, unknown), _number(row[1], second, unknown)
        if min(pair) >= 0:
            found.append(pair)
    return found


def _number(name: str, index: Mapping[str, int], unknown: dict[str, None]) -> int:
    """Return the number of a name; note it and return -1 if it is unknown."""
    if name not in index:
        unknown[name] = None
    return index.get(name, -1)
