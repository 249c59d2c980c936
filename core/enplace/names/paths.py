"""Position of each op in the model, its weight on screen, and when it runs."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache

import numpy as np

from enplace.names.passes import BACKWARD, UPDATE, scopes_by_pass
from enplace.names.titles import MOST_LETTERS, Path, make_path, split_number
from enplace.values.arrays import BoolArray, FloatArray, IntArray, inverse
from enplace.values.limits import MOST_DEPTH
from enplace.values.op_kinds import OpKind, is_read_type
from enplace.values.profile import Profile

COUNT_SHARE = 0.4
"""Share of a weight that comes from the number of ops; the rest is their compute time."""

CONSTANT_DEPTH = 6
"""Most ops in a row that only prepare constants."""

AGAIN = "_1"
"""What TensorFlow adds to a name that was there before."""

ROUNDS = 40
"""Most edges that a path travels from its op to an op without one."""

_UNKNOWN, _SETTLED = -1, -2

_OF_BLOCK = re.compile(r"(.*?[A-Za-z]_?\d+[a-z]?)_((?:\d+_)?[A-Za-z].*)")
"""A layer named after its block: ``blk0_up``, ``conv2_block1_1_conv``."""


@dataclass(frozen=True, eq=False)
class OpIndex:
    """Facts about every op of a profile that grouping needs.

    Attributes
    ----------
    paths : list of Path, length n_ops
    time_us, weight : float array, shape (n_ops,)
        Compute time on the slowest kind of device, and the op's share of the model.
    rank : float array, shape (n_ops,)
        Position in the order in which ops run.
    is_working : bool array, shape (n_ops,)
        Whether an op is no input, constant or variable, nor only reads one.
    """

    profile: Profile
    paths: list[Path]
    time_us: FloatArray
    weight: FloatArray
    rank: FloatArray
    is_working: BoolArray


@lru_cache(maxsize=4)
def index_ops(profile: Profile) -> OpIndex:
    """Find path, weight and rank of every op; cached for the profiles used last."""
    time_us = np.nan_to_num(profile.time_us).max(axis=1)
    share = time_us / (time_us.sum() or 1.0)
    weight = (1 - COUNT_SHARE) * share + COUNT_SHARE / profile.n_ops
    is_working = _find_working(profile)
    paths = _find_paths(profile, is_working)
    return OpIndex(profile, paths, time_us, weight, _find_ranks(profile), is_working)


def _find_working(profile: Profile) -> BoolArray:
    given = (OpKind.INPUT, OpKind.CONSTANT, OpKind.VARIABLE)
    named = zip(profile.kinds, profile.op_types, strict=True)
    return np.array([kind not in given and not is_read_type(name) for kind, name in named])


def _find_ranks(profile: Profile) -> FloatArray:
    """Rank ops in topological order; constants and variables come just before their use."""
    rank = inverse(profile.topological_order).astype(np.float64)
    source, target = profile.edge_source, profile.edge_op
    early = np.diff(profile.in_ptr) == 0
    for _ in range(CONSTANT_DEPTH):
        fed = np.bincount(target, weights=~early[source], minlength=profile.n_ops)
        early = fed == 0
    for _ in range(CONSTANT_DEPTH + 1):
        first_use = np.full(profile.n_ops, np.inf)
        np.minimum.at(first_use, source, rank[target])
        moved = early & np.isfinite(first_use)
        rank[moved] = first_use[moved] - 0.5
    return rank


def _find_paths(profile: Profile, is_working: BoolArray) -> list[Path]:
    """Find the path of each op: of its scope, else its name, else the ops that it works with.

    Constants that have a scope for themselves belong to the scope around it.
    """
    telling = is_working | (profile.persistent_bytes > 0)
    own = _without_idle_scopes(_own_paths(profile), telling)
    number = {path: at for at, path in enumerate(dict.fromkeys(own)) if not _is_vague(path)}
    label = np.array([number.get(path, _UNKNOWN) for path in own], dtype=np.int64)
    for op in np.flatnonzero(label == _UNKNOWN).tolist():
        if profile.kinds[op] == OpKind.INPUT:
            own[op], label[op] = ("input",), _SETTLED
    _follow_colocation(profile, label)
    _follow_neighbours(profile, label)
    paths = {at: path for path, at in number.items()}
    return [paths.get(at, path) for at, path in zip(label.tolist(), own, strict=True)]


def _own_paths(profile: Profile) -> list[Path]:
    known: dict[str, Path] = {}
    found = [
        _own_path(scope or name.rpartition("/" if "/" in name else ".")[0], profile.index, known)
        for scope, name in zip(scopes_by_pass(profile), profile.op_names, strict=True)
    ]
    return _in_blocks(_as_called_first(found))


def _as_called_first(paths: list[Path]) -> list[Path]:
    """Leave out the ``_1`` of a Keras model, and of all that is in it, that is called again.

    Keras has called it once before its step is traced, and each name is unique.
    """
    inside: dict[str, set[str]] = {}
    for path in set(paths):
        model, *inner = path[path[:1] == (BACKWARD,) :] or ("",)
        inside.setdefault(model, set()).update(inner[:1])
    again = {
        model
        for model, parts in inside.items()
        if all(name.endswith(AGAIN) for name in (model, *parts)) and len(parts) > 1
        if sum(other.startswith(model.removesuffix(AGAIN)) for other in inside) == 1
    }

    @cache
    def shorter(path: Path) -> Path:
        first = int(path[:1] == (BACKWARD,))
        if path[first : first + 1] and path[first] in again:
            parts = (part.removesuffix(AGAIN) for part in path[first : first + 2])
            return (*path[:first], *parts, *path[first + 2 :])
        return path

    return [shorter(path) for path in paths] if again else paths


def _own_path(scope: str, op_names: Mapping[str, int], known: dict[str, Path]) -> Path:
    """Find the path of a scope; ops in ``mul/`` next to an op ``mul`` belong to the scope above."""
    found = known.get(scope)
    if found is None:
        above = scope
        while above in op_names:
            above = above.rpartition("/")[0]
        found = known[scope] = make_path(above)
    return found


def _without_idle_scopes(paths: list[Path], telling: BoolArray) -> list[Path]:
    """Leave out the scopes in which no op is telling."""
    kept = {path for path, tells in zip(paths, telling.tolist(), strict=True) if tells}
    scopes = {path[:depth] for path in kept for depth in range(len(path) + 1)}

    @cache
    def known(path: Path) -> Path:
        return path if path in scopes or not path else known(path[:-1])

    return [known(path) for path in paths] if scopes else paths


def _in_blocks(paths: list[Path]) -> list[Path]:
    """Put layers named after one of several blocks into it: ``blk0_up`` becomes ``blk0/up``."""
    blocks: dict[tuple[Path, str], dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for path in {_forward(path) for path in paths}:
        for depth, part in enumerate(path):
            if found := _block_of(part):
                block, layer = found
                blocks[path[:depth], split_number(block)[0]][block].add(layer)
    known = {
        (above, block)
        for (above, _), alike in blocks.items()
        if len(alike) > 1 and all(len(layers) > 1 for layers in alike.values())
        for block in alike
    }
    if not known:
        return paths

    @cache
    def inside(path: Path) -> Path:
        forward, parts = _forward(path), list[str]()
        for depth, part in enumerate(forward):
            found = _block_of(part)
            parts += found if found and (forward[:depth], found[0]) in known else (part,)
        return (*path[: len(path) - len(forward)], *parts)[:MOST_DEPTH]

    return _in_blocks([inside(path) for path in paths])


def _forward(path: Path) -> Path:
    return path[path[:1] in ((BACKWARD,), (UPDATE,)) :]


def _block_of(part: str) -> tuple[str, str] | None:
    found = _OF_BLOCK.fullmatch(part) if len(part) <= MOST_LETTERS else None
    return (found[1], found[2]) if found else None


def _is_vague(path: Path) -> bool:
    """Return whether a path does not show where in the model it is."""
    return path in ((), (BACKWARD,))


def _follow_colocation(profile: Profile, label: IntArray) -> None:
    """Give ops without a path that of an op on the same device by constraint."""
    known: dict[str, int] = {}
    for op, text in enumerate(profile.colocation):
        if text and label[op] >= 0:
            known.setdefault(text, int(label[op]))
    for op in np.flatnonzero(label == _UNKNOWN).tolist():
        label[op] = known.get(profile.colocation[op], _UNKNOWN)


def _follow_neighbours(profile: Profile, label: IntArray) -> None:
    """Spread paths along the edges to ops without one: first from producers, then consumers."""
    source, target = profile.edge_source, profile.edge_op
    for _ in range(ROUNDS):
        before = label.copy()
        for giver, taker in ((source, target), (target, source)):
            open_ends = (label[giver] >= 0) & (label[taker] == _UNKNOWN)
            label[taker[open_ends]] = label[giver[open_ends]]
        if np.array_equal(before, label):
            break
