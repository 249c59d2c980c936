"""Write the file of constraints, see :mod:`enplace.readers.constraints`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from enplace.files.json_text import dump_json
from enplace.files.writing import write_atomically
from enplace.readers.constraints import NAME, VERSION
from enplace.values.constraints import KINDS, PLACEMENT, Row, look_up
from enplace.values.problem import Problem


def constraints_by_name(problem: Problem) -> dict[str, list[Row]]:
    """Return the constraints that a person gave a problem by their kinds, with names of all."""
    ops, devices = problem.profile.op_names, [d.name for d in problem.cluster.devices]
    return {
        kind.key: kind.all_mapped(rows, look_up(ops), look_up(devices))
        for kind, rows in problem.constraints.items()
    }


def constraints_to_json(named: Mapping[str, Iterable[Row]]) -> dict[str, list[list[Any]]]:
    """Write constraints with names as in their file."""
    return {key: rows_to_json(key, rows) for key, rows in named.items()}


def rows_to_json(key: str, rows: Iterable[Row]) -> list[list[Any]]:
    """Write the constraints of a kind, with names, as in their file."""
    return [
        [_homes(part) if role == PLACEMENT else part for role, part in KINDS[key].parts(row)]
        for row in rows
    ]


def _homes(placement: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Return the device of each op by name; of an op that has several, a list."""
    homes: dict[str, list[str]] = {}
    for op, device in placement:
        homes.setdefault(op, []).append(device)
    return {op: at[0] if len(at) == 1 else at for op, at in homes.items()}


def write_constraints(path: str | os.PathLike[str], problem: Problem) -> None:
    """Write the constraints that a person gave a problem, one line each.

    Raises
    ------
    FileError
        If the file cannot be written.
    """
    lists = [
        f'  "{key}": [\n' + ",\n".join(f"    {dump_json(row)}" for row in each) + "\n  ]"
        for key, each in constraints_to_json(constraints_by_name(problem)).items()
    ]
    head = f'  "format": {dump_json(f"{NAME}/{VERSION}")}'
    write_atomically(path, "{\n" + ",\n".join([head, *lists]) + "\n}\n")
