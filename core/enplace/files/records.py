"""Dataclasses as JSON objects: the fields say what a file may hold, to read and to write it.

A field's key is its name, or ``key`` in its metadata. Readers take an object, a key, and the place
of the object in the file, as :func:`~enplace.files.fields.take` does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache, partial
from types import UnionType
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

from enplace.files.fields import number, take, whole

_T = TypeVar("_T")

Object = dict[str, Any]
Reader = Callable[[Object, str, str], Any]

Signed = Annotated[float, "of either sign"]
Ratio = Annotated[float, "of either sign, or NaN where too little was measured"]

_MOST = 1 << 62
"""Largest whole number; twice as many bytes do not fit 64 bits."""


def read_record(kind: type[_T], obj: Object, where: str, **given: Any) -> _T:
    """Make a dataclass of an object; an absent or null key leaves the field's default.

    Parameters
    ----------
    **given
        Fields that are not read.

    Raises
    ------
    FileError
        With the place of a value that is missing or has the wrong type.
    """
    read = {
        each.name: reader(obj, key_of(each), where)
        for each, reader in _readers(kind)  # type: ignore[arg-type]
        if each.name not in given
        and (_default(each) is MISSING or obj.get(key_of(each)) is not None)
    }
    return kind(**read, **given)


def write_record(record: Any, **given: Any) -> Object:
    """Write the fields of a dataclass that differ from their defaults; ``given`` replaces some."""
    values = ((each, given.get(each.name, getattr(record, each.name))) for each in fields(record))
    return {
        key_of(each): _plain(value)
        for each, value in values
        if value is not None and value != _default(each)
    }


def key_of(field: Field[Any]) -> str:
    """Return the key of a field in a file."""
    return str(field.metadata.get("key", field.name))


@cache
def reader_of(hint: Hashable) -> Reader:
    """Return what reads values of a type: of JSON's types, or mappings, tuples and dataclasses."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is UnionType:  # with None
        return reader_of(arguments[0])
    if origin is Mapping:
        return partial(_read_each, reader_of(arguments[1]))
    if origin is tuple:
        return partial(_read_list, reader_of(arguments[0]))
    if is_dataclass(hint):
        return partial(_read_object, hint)
    return _PLAIN[hint]


@cache
def _readers(kind: Hashable) -> list[tuple[Field[Any], Reader]]:
    hints = get_type_hints(kind, include_extras=True)
    return [(each, reader_of(hints[each.name])) for each in fields(kind)]  # type: ignore[arg-type]


def _default(field: Field[Any]) -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()


def _read_each(read: Reader, obj: Object, key: str, where: str) -> Object:
    values, place = take(obj, key, dict, where), f"{where}.{key}"
    return {name: read(values, name, place) for name in values}


def _read_list(read: Reader, obj: Object, key: str, where: str) -> tuple[Any, ...]:
    places = {f"{key}[{i}]": value for i, value in enumerate(take(obj, key, list, where))}
    return tuple(read(places, place, where) for place in places)


def _read_object(kind: Any, obj: Object, key: str, where: str) -> Any:
    return read_record(kind, take(obj, key, dict, where), f"{where}.{key}")


def _read_ratio(obj: Object, key: str, where: str) -> float:
    value = obj.get(key)
    is_nan = isinstance(value, float) and math.isnan(value)
    return math.nan if is_nan else float(number(obj, key, where, low=-1e18))


_PLAIN: dict[Any, Reader] = {
    str: lambda obj, key, where: take(obj, key, str, where),
    bool: lambda obj, key, where: take(obj, key, bool, where),
    list: lambda obj, key, where: take(obj, key, list, where),
    int: lambda obj, key, where: whole(obj, key, where, high=_MOST),
    float: lambda obj, key, where: float(number(obj, key, where)),
    Signed: lambda obj, key, where: float(number(obj, key, where, low=-1e18)),
    Ratio: _read_ratio,
    Any: lambda obj, key, _: obj[key],
}


def _plain(value: Any) -> Any:
    """Turn dataclasses into objects, and tuples into lists, at any depth."""
    if is_dataclass(value):
        return write_record(value)
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value
