"""A person's rules of placement: a text file with a line ``REGEX -> DEVICE`` for each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from enplace.cli.inputs import find_device, find_matching
from enplace.errors import FileError, ProblemError

if TYPE_CHECKING:
    from enplace.problem import Problem

ARROW = "->"


def read_rules(path: str, problem: Problem) -> dict[int, int]:
    """Device number of each op that a rule matches; the first rule that does decides.

    Empty lines and those that begin with ``#`` say nothing.

    Raises
    ------
    FileError, ProblemError
        If a line is no rule, its regex matches nothing, or there is no such device.
    """
    from enplace.disk import read_bytes

    try:
        lines = read_bytes(path).decode().splitlines()
    except UnicodeDecodeError:
        raise FileError(f"{path}: not a text; write lines such as 'decoder/.* -> GPU:1'") from None
    rules: dict[int, int] = {}
    for number, line in enumerate(lines, 1):
        text, place = line.strip(), f"{path}: line {number}"
        if not text or text.startswith("#"):
            continue
        pattern, arrow, device = (part.strip() for part in text.rpartition(ARROW))
        if not arrow or not pattern or not device:
            raise FileError(f"{place}: write REGEX -> DEVICE, for example 'decoder/.* -> GPU:1'")
        where = find_device(device, problem.cluster, place)
        for op in find_matching(pattern, problem.profile, place):
            rules.setdefault(op, where)
    if not rules:
        raise ProblemError(f"{path}: holds no rule; write lines such as 'decoder/.* -> GPU:1'")
    return rules
