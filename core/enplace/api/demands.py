"""Constraints as a caller writes them, by the keywords of their kinds."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from enplace.api.checks import texts
from enplace.errors import EnplaceError, ProblemError
from enplace.inputs import Pair
from enplace.text import instead
from enplace.values.constraints import KINDS
from enplace.values.result import Result

Demand = str | Mapping[Any, Any] | Iterable[Any]
"""Constraints of one kind: one text or several, and for those of two parts also
``{"regex": "GPU:1"}`` or ``[("regex", "regex")]``."""


def demands(given: Mapping[str, Demand]) -> dict[str, Any]:
    """Check constraints, and write each kind as a list.

    Raises
    ------
    EnplaceError
        If there is no such kind, or it is not written this way.
    """
    kinds = {kind.keyword: kind for kind in KINDS.values()}
    found: dict[str, Any] = {}
    for name, value in given.items():
        if name not in kinds:
            raise EnplaceError(f"there is no argument '{name}'; {instead(name, kinds)}")
        is_pair = len(kinds[name].roles) == 2
        if not isinstance(value, Iterable) or isinstance(value, bytes):
            form = "a dictionary, or a list of pairs" if is_pair else "one or several strings"
            raise EnplaceError(f"{name} is {value!r:.60}; use {form}")
        found[name] = _pairs(value, name) if is_pair else texts(value, name)
    return found


def _pairs(given: Any, name: str) -> list[str | Pair]:
    """Write constraints of two parts as a list."""
    if isinstance(given, str):
        return [given]
    if isinstance(given, Mapping):
        given = [(first, then) for first, ends in given.items() for then in _several(ends)]
    return [_pair(each, name) for each in given]


def _pair(given: object, name: str) -> str | Pair:
    """Check a constraint of two parts, or the text of one."""
    match given:
        case str():
            return given
        case ((str() | os.PathLike() | Result()) as first, (str() | int()) as then) if not (
            isinstance(then, bool)
        ):
            return first, str(then)
    raise ProblemError(f"{name}: {given!r:.60} is not a pair; write two names")


def _several(ends: object) -> Iterable[object]:
    return [ends] if isinstance(ends, str) or not isinstance(ends, Iterable) else ends
