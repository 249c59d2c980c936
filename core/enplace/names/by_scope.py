"""Count ops by scope: as deep in the tree of scopes as a short table allows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping
from typing import TypeVar

from enplace.values.limits import MOST_DEPTH

MOST_ROWS = 20
"""Most rows of a table that a person reads."""

Key = TypeVar("Key", bound=Hashable)


def count_by_scope(
    keys: Mapping[str, Key], most_rows: int = MOST_ROWS
) -> list[tuple[str, Key, int]]:
    """Count the ops of each scope with each key.

    Scopes are as deep as they can be in ``most_rows`` rows. If even the outermost ones are
    more, all of them are counted.

    Parameters
    ----------
    keys : mapping of str to hashable
        By op name.

    Returns
    -------
    list of (scope, key, number of ops)
        In the order of the first op of each.
    """
    best = _count_at(keys, 1)
    for depth in range(2, MOST_DEPTH):
        deeper = _count_at(keys, depth)
        if len(deeper) > most_rows or deeper == best:
            break
        best = deeper
    return [(scope, key, n) for (scope, key), n in best.items()]


def _count_at(keys: Mapping[str, Key], depth: int) -> Counter[tuple[str, Key]]:
    return Counter(("/".join(name.split("/", depth)[:depth]), key) for name, key in keys.items())
