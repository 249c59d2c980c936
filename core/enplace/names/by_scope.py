"""Count ops by scope: as deep in the tree of scopes as a short table allows.

A scope with much of all ops is split further, its numbered parts in ranges: ``gradients/t4…t7``.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from enplace.names.titles import ordinal, split_number
from enplace.values.limits import MOST_DEPTH

MOST_ROWS = 20
"""Most rows of a table that a person reads."""

LARGE = 0.25
"""Share of all ops above which a row is split."""

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class _Row(Generic[Key]):
    """Ops with one key whose names begin alike, but for numbers.

    Attributes
    ----------
    depth : int
        Number of parts of the names that the label stands for.
    """

    label: str
    depth: int
    key: Key
    names: list[str]


def count_by_scope(
    keys: Mapping[str, Key], most_rows: int = MOST_ROWS
) -> list[tuple[str, Key, int]]:
    """Count the ops of each scope with each key.

    Scopes are as deep as they can be in ``most_rows`` rows. If even the outermost ones are
    more, those that differ in a number share a row. A row with more than :data:`LARGE` of all ops
    is then split further, as long as its parts are at most ``most_rows``; the smallest parts share
    a row.

    Parameters
    ----------
    keys : mapping of str to hashable
        By op name.

    Returns
    -------
    list of (scope, key, number of ops)
        In the order of the first op of each; a scope with one op only is that op.
    """
    best = _rows_at(keys, 1)
    for depth in range(2, MOST_DEPTH):
        deeper = _rows_at(keys, depth)
        if len(deeper) > most_rows or len(deeper) == len(best) == len(keys):
            break
        best = deeper
    if len(best) > most_rows:
        roots: dict[Key, list[str]] = {}
        for name, key in keys.items():
            roots.setdefault(key, []).append(name)
        best = [p for key, names in roots.items() for p in _parts(_Row("", 0, key, names))]
    rows = [part for row in best for part in _split(row, LARGE * len(keys), most_rows)]
    return [
        (row.label if len(row.names) > 1 else row.names[0], row.key, len(row.names)) for row in rows
    ]


def _rows_at(keys: Mapping[str, Key], depth: int) -> list[_Row[Key]]:
    rows: dict[tuple[str, Key], _Row[Key]] = {}
    for name, key in keys.items():
        label = "/".join(name.split("/", depth)[:depth])
        rows.setdefault((label, key), _Row(label, depth, key, [])).names.append(name)
    return list(rows.values())


def _split(row: _Row[Key], large: float, most_rows: int) -> list[_Row[Key]]:
    """Split a row with many ops into the parts below it, and these again."""
    parts = _parts(row) if len(row.names) > max(large, 1) else [row]
    if len(parts) > most_rows:
        by_size = sorted(parts, key=lambda part: -len(part.names))
        kept, rest = by_size[: most_rows - 1], by_size[most_rows - 1 :]
        if len(kept[0].names) < len(row.names) / most_rows * 2:
            return [row]  # many parts of one size: their names would say less
        names = [name for part in rest for name in part.names]
        parts = [*(part for part in parts if part in kept)]
        parts.append(_Row(f"{row.label}, other", MOST_DEPTH, row.key, names))
    if parts == [row] or (len(parts) == 1 and _are_ops(parts[0])):
        return [row]
    if 2 * len(parts) > len(row.names):
        return [row]  # most of them are single ops
    return [smaller for part in parts for smaller in _split(part, large, most_rows)]


def _are_ops(row: _Row[Key]) -> bool:
    """Return whether nothing is left of the names after those parts that the label stands for."""
    return all(name.count("/") < row.depth for name in row.names)


def _parts(row: _Row[Key]) -> list[_Row[Key]]:
    """Split a row at the next part of the names; parts that differ in a number stay together."""
    found: dict[str, list[str]] = {}
    for name in row.names:
        rest = name.split("/", row.depth + 1)[row.depth :]
        found.setdefault(split_number(rest[0])[0] if rest else "", []).append(name)
    if row.depth >= MOST_DEPTH or list(found) == [""]:
        return [row]
    return [
        _Row(_label(names, row.depth + 1) if stem else row.label, row.depth + 1, row.key, names)
        for stem, names in found.items()
    ]


def _label(names: list[str], depth: int) -> str:
    """Name the scopes that some ops are in: the first and the last at each depth."""
    levels = zip(*(name.split("/", depth)[:depth] for name in names), strict=True)
    ranges = [sorted(set(level), key=ordinal) for level in levels]
    return "/".join(r[0] if len(r) == 1 else f"{r[0]}…{r[-1]}" for r in ranges)
