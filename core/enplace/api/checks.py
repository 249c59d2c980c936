"""Refuse arguments of a wrong type in one line, before they fail deep inside."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from inspect import signature
from numbers import Integral, Real
from typing import ParamSpec, TypeVar

from enplace.errors import EnplaceError, check_name
from enplace.placing.next_moves import NextMove
from enplace.values.cluster import Cluster
from enplace.values.profile import Profile
from enplace.values.result import Result

_P = ParamSpec("_P")
_T = TypeVar("_T")

FILE = (str, os.PathLike)
CLUSTER = "a cluster's name, its file, its contents or a Cluster"

KINDS: dict[str, tuple[type | tuple[type, ...], str]] = {
    "bool": (bool, "True or False"),
    "int": (Integral, "a whole number"),
    "float": (Real, "a number"),
    "str": (str, "a string"),
    "PathLike": (FILE, "a file's name"),
    "Profile": (Profile, "a profile"),
    "Result": (Result, "a result"),
    "NextMove": (NextMove, "one of next_moves"),
    "ClusterChoice": ((*FILE, Mapping, Cluster), CLUSTER),
    "Demand": (Mapping, ""),
    "Iterable[str]": (Iterable, "a list of strings"),
    "Mapping[str, Value]": (Mapping, "a dictionary"),
    "Mapping[str, int]": (Mapping, "a dictionary"),
    "Callable[[Progress], None]": (Callable, "a function"),  # type: ignore[dict-item]
    "None": (type(None), ""),
}
"""What each part of an annotation admits, and what to call it."""


def checked(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Check the arguments of a function by its annotations, whose parts are among ``KINDS``.

    Raises
    ------
    EnplaceError
        If an argument has another type; the line names the argument.
    """
    wanted = {
        name: [KINDS[part] for part in annotation.split(" | ")]
        for name, annotation in function.__annotations__.items()
        if name != "return"
    }
    parameters = signature(function)

    @wraps(function)
    def check(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            given = parameters.bind(*args, **kwargs).arguments
        except TypeError:
            return function(*args, **kwargs)  # Python's own error names the function
        for name, value in given.items():
            if name in wanted and not any(_is_a(value, kind) for kind, _ in wanted[name]):
                words = " or ".join(text for _, text in wanted[name] if text)
                raise EnplaceError(f"{name} is {value!r:.60}; use {words}")
            if name in wanted and KINDS["PathLike"] in wanted[name] and isinstance(value, FILE):
                check_name(value, name)
        return function(*args, **kwargs)

    return check


def _is_a(value: object, kind: type | tuple[type, ...]) -> bool:
    """Like ``isinstance``, but True is no number, and bytes are no list."""
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, kind) and not isinstance(value, bytes)


def texts(given: str | Iterable[str], name: str) -> list[str]:
    """Return one or several strings as a list.

    Raises
    ------
    EnplaceError
        If one of them is not a string.
    """
    listed = [given] if isinstance(given, str) else list(given)
    for each in listed:
        if not isinstance(each, str):
            raise EnplaceError(f"{name}: {each!r:.60} is not a string")
    return listed
