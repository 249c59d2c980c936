"""Write the file of constraints, see :mod:`enplace.readers.constraints`."""

from __future__ import annotations

import os

from enplace.files.json_text import dump_json
from enplace.files.writing import write_atomically
from enplace.readers.constraints import NAME, VERSION
from enplace.values.problem import Problem


def constraints_to_json(problem: Problem) -> dict[str, list[list[str]]]:
    """Write the constraints that a person gave a problem, by names, as in their file."""
    ops, devices = problem.profile.op_names, [d.name for d in problem.cluster.devices]
    rows = {
        "pin": [[ops[op], devices[device]] for op, device in sorted(problem.pins.items())],
        "forbid": [[ops[op], devices[device]] for op, device in sorted(problem.forbidden)],
        "colocate": [[ops[op] for op in group] for group in problem.together if group],
        "before": [[ops[op] for op in pair] for pair in problem.before],
        "lock": [[devices[device]] for device in sorted(problem.locked)],
    }
    return {kind: each for kind, each in rows.items() if each}


def write_constraints(path: str | os.PathLike[str], problem: Problem) -> None:
    """Write the constraints that a person gave a problem, one line each.

    Raises
    ------
    FileError
        If the file cannot be written.
    """
    lists = [
        f'  "{key}": [\n' + ",\n".join(f"    {dump_json(row)}" for row in each) + "\n  ]"
        for key, each in constraints_to_json(problem).items()
    ]
    head = f'  "format": {dump_json(f"{NAME}/{VERSION}")}'
    write_atomically(path, "{\n" + ",\n".join([head, *lists]) + "\n}\n")
