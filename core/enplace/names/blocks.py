"""Blocks: the same part of a model in each of its numbered scopes, ``encoder/layer_0`` to ``_11``.

Names propose the blocks: their ops have the same scopes but for one number, and the same types.
The graph decides: only those with the same edges inside are kept.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import lru_cache
from itertools import pairwise

import numpy as np

from enplace.names.paths import index_ops
from enplace.names.titles import DERIVED, Path, leaf, number_key, split_number
from enplace.values.arrays import IntArray
from enplace.values.profile import Profile

_NUMBER = re.compile(r"_?\d+")


def find_blocks(profile: Profile, ops: Collection[int]) -> IntArray:
    """Find the blocks that are like some ops; shape (n_blocks, n_ops).

    The first row holds the ops themselves in ascending order. Each other row holds a block whose
    ops correspond to them one by one; the rows are in the order of their numbers. If several parts
    of the scopes are numbered, the one with most blocks counts, or else the outermost.
    """
    chosen = np.unique(np.fromiter(ops, dtype=np.int64))
    best = chosen[np.newaxis]
    paths = index_ops(profile).paths
    for depth in _numbered_depths({_split(paths[op])[1] for op in chosen.tolist()}):
        found = _blocks_at(profile, chosen, depth)
        best = found if len(found) > len(best) else best
    return best


def _split(path: Path) -> tuple[str, Path]:
    """Split the pass off a path."""
    return (path[0], path[1:]) if path[:1] and path[0] in DERIVED else ("", path)


def _numbered(part: str) -> tuple[str, int] | None:
    """Split a part into all but its number, and the number."""
    stem, number = split_number(part)
    return None if number is None else (f"{stem}#{number[1]}", number[0])


def _numbered_depths(paths: Collection[Path]) -> list[int]:
    """Find the depths at which all paths have the same part but for its number, below one scope."""
    depths = []
    for depth in range(min(map(len, paths), default=0)):
        parts = {path[depth] for path in paths}
        stems = {found and found[0] for found in map(_numbered, parts)}
        if len(stems) == 1 and None not in stems:
            depths.append(depth)
        if len(parts) > 1:
            break
    return depths


def _blocks_at(profile: Profile, chosen: IntArray, depth: int) -> IntArray:
    """Find the blocks that differ in the number at a depth of their paths."""
    block, place = _places(profile, chosen, depth)
    kind = _kinds(profile)
    key = place * (kind.max() + 1) + kind
    known = np.flatnonzero((place >= 0) & np.isin(key, key[chosen]))
    return _verified(profile, _matches(profile, known, block - block.min(), key, chosen))


def _places(profile: Profile, chosen: IntArray, depth: int) -> tuple[IntArray, IntArray]:
    """Find the block of each op, and a number for its place there, −1 outside all blocks."""
    paths = index_ops(profile).paths
    rest = _split(paths[chosen[0]])[1]
    family = (*rest[:depth], (_numbered(rest[depth]) or ("", 0))[0])
    numbers = [_number(_split(paths[op])[1], depth, family) or 0 for op in chosen.tolist()]
    start, width = min(numbers), max(numbers) - min(numbers) + 1
    places: dict[tuple[str, int, Path], int] = {}
    found: dict[Path, tuple[int, int]] = {}
    for path in set(paths):
        derived, rest = _split(path)
        number = _number(rest, depth, family)
        if number is None:
            found[path] = 0, -1
            continue
        block, within = divmod(number - start, width)
        below = derived, within, rest[depth + 1 :]
        found[path] = block, places.setdefault(below, len(places))
    block, place = np.array([found[path] for path in paths], dtype=np.int64).T
    return block, place


def _number(path: Path, depth: int, family: Path) -> int | None:
    """Return the number of a path at a depth; None if it is not of the family there."""
    if len(path) <= depth or path[:depth] != family[:depth]:
        return None
    stem, number = _numbered(path[depth]) or ("", 0)
    return number if stem == family[depth] else None


@lru_cache(maxsize=4)
def _kinds(profile: Profile) -> IntArray:
    """Number the kinds of ops: the same type, and the same name but for numbers; (n_ops,)."""
    kinds: dict[tuple[str, str], int] = {}
    named = zip(profile.op_types, profile.op_names, strict=True)
    found = ((kind, _NUMBER.sub("", leaf(name))) for kind, name in named)
    return np.array([kinds.setdefault(each, len(kinds)) for each in found], dtype=np.int64)


def _matches(
    profile: Profile, known: IntArray, block: IntArray, key: IntArray, chosen: IntArray
) -> IntArray:
    """Match ops of each block to the chosen ones: of those with one key, the same by number."""
    group, of_key = np.unique(key[known], return_inverse=True)
    code = block[known] * len(group) + of_key
    order = np.lexsort((_by_number(profile, known, code), code))
    ranked, code = known[order], code[order]
    codes, first, count = np.unique(code, return_index=True, return_counts=True)
    home = int(block[chosen[0]])
    mine = np.searchsorted(group, key[chosen])
    place = np.zeros(profile.n_ops, dtype=np.int64)
    place[ranked] = np.arange(len(ranked))
    rank = place[chosen] - first[np.searchsorted(codes, home * len(group) + mine)]
    blocks = np.unique(block[known])
    blocks = np.concatenate([[home], blocks[blocks != home]])
    wanted = blocks[:, np.newaxis] * len(group) + mine
    at = np.minimum(np.searchsorted(codes, wanted), len(codes) - 1)
    whole = ((codes[at] == wanted) & (count[at] > rank)).all(axis=1)
    found: IntArray = ranked[first[at[whole]] + rank]
    return found


def _by_number(profile: Profile, ops: IntArray, code: IntArray) -> IntArray:
    """Rank ops that share a code by the numbers in their names: ``mul_2`` before ``mul_10``."""
    rank = np.zeros(len(ops), dtype=np.int64)
    shared = np.flatnonzero(np.bincount(code)[code] > 1).tolist()
    names = profile.op_names
    shared.sort(key=lambda at: number_key(names[ops[at]]))
    rank[shared] = np.arange(len(shared))
    return rank


def _verified(profile: Profile, blocks: IntArray) -> IntArray:
    """Keep the first block, and those with the same edges inside."""
    n = blocks.shape[1]
    block_of = np.full(profile.n_ops, -1)
    at = np.zeros(profile.n_ops, dtype=np.int64)
    block_of[blocks] = np.arange(len(blocks))[:, np.newaxis]
    at[blocks] = np.arange(n)
    source, target = profile.edge_source, profile.edge_op
    inside = (block_of[source] >= 0) & (block_of[source] == block_of[target])
    owner, ends = block_of[source[inside]], at[source[inside]] * n + at[target[inside]]
    output = profile.tensor_output[profile.edge_tensor[inside]]
    order = np.lexsort((output, ends, owner))
    edges = np.stack([ends, output])[:, order]
    bounds = np.searchsorted(owner[order], np.arange(len(blocks) + 1)).tolist()
    parts = [edges[:, a:b] for a, b in pairwise(bounds)]
    return blocks[[np.array_equal(part, parts[0]) for part in parts]]
