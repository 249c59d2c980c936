"""Take the fields of a JSON object, and check them; every fault names its place."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, TypeVar, cast

from enplace.errors import FileError
from enplace.text import UNPRINTABLE, instead

MAX_TEXT_LENGTH = 1 << 20
"""Most characters of one text."""

_MOST_SHOWN = 60
"""Most characters of a value or key in a message."""

_T = TypeVar("_T")
_TYPE_NAMES = {str: "a text", dict: "an object", list: "a list", bool: "true or false"}


def take(
    obj: dict[str, Any], key: str, kind: type[_T], where: str, default: _T | None = None
) -> _T:
    """Take a value of an object, and check its type.

    Parameters
    ----------
    where : str
        Place of ``obj`` in the file, for the message; may be empty.
    default : optional
        The value of an absent key, or null; without a default, the key is required.

    Raises
    ------
    FileError
        If the key is absent or its value has another type.
    """
    value = obj.get(key)
    if value is None and default is not None:
        return default
    if value is None:
        raise FileError(f"{_at(where)}'{key}' is missing; add it")
    if isinstance(value, str) and len(value) > MAX_TEXT_LENGTH:
        raise FileError(f"{_at(where, key)}a text of {len(value):,} characters; shorten it")
    if isinstance(value, str) and UNPRINTABLE.search(value):
        raise FileError(f"{_at(where, key)}must be printable text, not {shown(value)}; correct it")
    if not isinstance(value, kind):
        raise FileError(
            f"{_at(where, key)}must be {_TYPE_NAMES[kind]}, not {shown(value)}; correct it"
        )
    return value


def number(
    obj: dict[str, Any],
    key: str,
    where: str,
    default: float | None = None,
    *,
    low: float = 0,
    high: float = 1e18,
) -> float:
    """Take a finite number of an object, between ``low`` and ``high``; see :func:`take`.

    Raises
    ------
    FileError
        If it is absent, not a number, not finite or out of range.
    """
    value: Any = obj.get(key)
    value = default if value is None else value
    if value is None:
        raise FileError(f"{_at(where)}'{key}' is missing; add it")
    usable = isinstance(value, int | float) and not isinstance(value, bool)
    if not (usable and low <= value <= high):
        raise FileError(
            f"{_at(where, key)}must be a number from {low:g} to {high:g}, not {shown(value)}"
        )
    return cast("float", value)


def whole(
    obj: dict[str, Any], key: str, where: str, default: int | None = None, **limits: Any
) -> int:
    """Take a whole number of an object; see :func:`number`.

    Raises
    ------
    FileError
        Also if it has a fraction.
    """
    value = number(obj, key, where, default, **limits)
    if value != int(value):
        raise FileError(f"{_at(where, key)}must be a whole number, not {shown(value)}")
    return int(value)


def only(obj: dict[str, Any], known: set[str], where: str) -> None:
    """Refuse unknown keys, which are usually misspelt.

    Raises
    ------
    FileError
        With the first unknown key and the known ones.
    """
    if unknown := sorted(set(obj) - known):
        key = unknown[0][:_MOST_SHOWN]
        raise FileError(f"{_at(where)}'{key}' means nothing here; {instead(key, sorted(known))}")


def is_object(value: Any, where: str) -> dict[str, Any]:
    """Check that a value is an object, and return it.

    Raises
    ------
    FileError
        If it is anything else.
    """
    if not isinstance(value, dict):
        raise FileError(f"{_at(where)}must be an object, not {shown(value)}")
    return value


def each_object(
    obj: dict[str, Any], key: str, where: str, default: list[Any] | None = None
) -> Iterator[tuple[dict[str, Any], str]]:
    """Go through a list of objects; give each with its place in the file; see :func:`take`.

    Raises
    ------
    FileError
        Also if one is anything else.
    """
    for i, value in enumerate(take(obj, key, list, where, default)):
        place = f"{where}.{key}[{i}]" if where else f"{key}[{i}]"
        yield is_object(value, place), place


def shown(value: Any) -> str:
    """Show a value from a file in one short line."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    text = json.dumps(value)
    return text if len(text) <= _MOST_SHOWN else text[: _MOST_SHOWN - 3] + "..."


def check_format(obj: dict[str, Any], name: str, version: int) -> None:
    """Refuse a file of another format, or of a newer version than this program reads.

    Raises
    ------
    FileError
        If ``format`` names another kind of file or a newer version.
    """
    found = obj.get("format", f"{name}/{version}")
    if not isinstance(found, str) or not found.startswith(f"{name}/"):
        raise FileError(
            f"'format' is {shown(found)}, not \"{name}/{version}\"; choose another file"
        )
    number_text = found.removeprefix(f"{name}/")
    if not number_text.isascii() or not number_text.isdigit() or len(number_text) > 6:
        raise FileError(f"'format' is {shown(found)}; it should be {name}/{version}")
    if int(number_text) > version:
        raise FileError(
            f"written by a newer Enplace (format {number_text}, this one reads up to {version}); "
            f"update Enplace"
        )


def _at(where: str, key: str = "") -> str:
    place = ".".join(part for part in (where, key) if part)
    return f"{place}: " if place else ""
