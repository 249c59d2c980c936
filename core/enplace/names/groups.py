"""Groups: the ops of a profile gathered into a few dozen parts that a person knows by name.

Ops are sorted into the tree of their name scopes, and the tree is cut where the parts weigh about
the same. Numbered siblings (``t0`` ... ``t34``) are cut into equal ranges, the same in every part
of the tree, so that the steps of two recurrent layers can stand below each other.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import chain

import numpy as np

from enplace.text import count
from enplace.values.profile import FloatArray, IntArray, Profile

PART = re.compile(r"\d+: ")
"""How the label of a part begins that has no name of its own; the number stays where it is cut."""

TARGET = 48
"""How many groups a person can overlook on one screen."""

Path = tuple[str, ...]
_Ordinal = tuple[int, str]

_DERIVED = ("gradients", "update")
"""Scopes that repeat the model below them: ``gradients/lstm0`` reads "gradients of lstm 0"."""

_INPUT_TYPES = ("Iterator", "Placeholder", "OneShotIterator", "_Arg", "Input")
_COUNT_SHARE = 0.4  # of a part's weight; the rest is its share of the compute time
_SMALL = 0.12  # of the largest weight a part may have: below it, a part may join its neighbours
_KEPT_AT_TOP, _KEPT_INSIDE = 10, 3  # small parts that still stand for themselves
_LEAN = 1.25  # go into numbered siblings that weigh on average this many limits
_FLAT = 3.0  # cut ops that stand together in one scope only if they weigh this many limits
_FLAT_SHARE = 0.08  # ... and this share of everything
_IDLE = 0.1  # ops that take at most this share of a scope's time do not compute
_FLAT_OPS = 72  # ... and are more than a person can overlook
_FEW = 1.5  # up to this many times the target, every op is a group of its own
_TIMELESS_US = 1e-3  # lets ops without compute time have a say in where their part stands
_CONSTANT_DEPTH = 6  # ops in a row that may only prepare constants
_ROUNDS = 40  # how far the name of a neighbour may travel to an op without a scope
_CUTS = 14  # bisection steps to find the weight at which there are about ``target`` parts


@dataclass(frozen=True, eq=False)
class Grouping:
    """Ops gathered into named groups, numbered roughly in the order in which they run.

    Attributes
    ----------
    group : int array, shape (n_ops,)
        Group of each op; −1 for ops that were not to be grouped.
    names : tuple of str
        Unique full name of each group: ``"lstm 0 / t 24–27"``.
    rows : tuple of str
        What the group has in common with its neighbours: ``"lstm 0"``.
    labels : tuple of str
        What tells it from them: ``"t 24–27"``.
    """

    group: IntArray
    names: tuple[str, ...]
    rows: tuple[str, ...]
    labels: tuple[str, ...]

    @property
    def n_groups(self) -> int:
        return len(self.names)

    @cached_property
    def _sorted_ops(self) -> IntArray:
        return np.argsort(self.group, kind="stable").astype(np.int64)

    @cached_property
    def _ptr(self) -> IntArray:
        sorted_group = self.group[self._sorted_ops]
        return np.searchsorted(sorted_group, np.arange(self.n_groups + 1)).astype(np.int64)

    def ops(self, group: int) -> IntArray:
        """The ops of a group, lowest first."""
        return self._sorted_ops[self._ptr[group] : self._ptr[group + 1]]


def group_ops(profile: Profile, target: int = TARGET) -> Grouping:
    """Gather all ops into at most about ``target`` named groups."""
    return subgroups(profile, np.arange(profile.n_ops), target)


def subgroups(profile: Profile, ops: Collection[int] | IntArray, target: int = TARGET) -> Grouping:
    """Gather some ops into at most about ``target`` groups; into single ops where there are few.

    Parameters
    ----------
    ops
        Op numbers, for example those of a group that a person opens.
    target
        How many groups are wanted; at least 1.
    """
    chosen = np.unique(np.asarray(list(ops), dtype=np.int64))
    index = _index(profile)
    if len(chosen) <= _FEW * target:
        return _single_ops(index, chosen)
    return _number(index, _best_cut(_tree(index, chosen), index, target))


def name_ops(profile: Profile, ops: Collection[int], grouping: Grouping) -> str:
    """What a person calls a selection: ``"lstm 0"``, ``"3 groups"``, ``"MatMul of lstm 0"``."""
    chosen = np.unique(np.asarray(list(ops), dtype=np.int64))
    if len(chosen) == 0:
        return "nothing"
    groups, sizes = np.unique(grouping.group[chosen], return_counts=True)
    whole = groups[0] >= 0 and all(
        len(grouping.ops(int(group))) == size for group, size in zip(groups, sizes, strict=True)
    )
    if whole:
        return grouping.names[groups[0]] if len(groups) == 1 else count(len(groups), "group")
    within = f" of {grouping.names[groups[0]]}" if len(groups) == 1 and groups[0] >= 0 else ""
    what = _leaf(profile.op_names[chosen[0]]) if len(chosen) == 1 else count(len(chosen), "op")
    return what + within


# ---------------------------------------------------------------- names


def _split(text: str) -> list[str]:
    """Segments of a scope; PyTorch writes dots where TensorFlow writes slashes."""
    return text.split("/") if "/" in text else text.split(".")


def _leaf(op_name: str) -> str:
    """The op's own name, without its scope."""
    return _split(op_name)[-1]


@lru_cache(maxsize=1 << 16)
def _path(scope: str) -> Path:
    """Segments that say where in the model: no ``MatMul_grad``, and ``layer/0`` as ``layer_0``."""
    path: list[str] = []
    for segment in _split(scope):
        if path and segment.isdigit():
            path[-1] += f"_{segment}"
        elif segment and not _OF_ONE_OP.fullmatch(segment):
            path.append(segment)
    return tuple(path)


_OF_ONE_OP = re.compile(r".*_[gG]rad(_\d+)?|grad_ys_\d+")  # scopes made for a single op's gradient


@lru_cache(maxsize=1 << 16)
def _numbered(segment: str) -> tuple[str, _Ordinal | None]:
    """Stem and number: ``t24`` is (t, 24), ``Mixed_5b`` (Mixed, 5b), ``conv`` (conv, None)."""
    found = re.fullmatch(r"(.+?)_(\d+)([a-z])", segment) or re.fullmatch(
        r"(.*?\D.*?)_?(\d+)()", segment
    )
    return (found[1], (int(found[2]), found[3])) if found else (segment, None)


def _pretty(segment: str) -> str:
    """A segment as words: ``lstm0`` is "lstm 0", ``conv1_2`` "conv 1.2"."""
    stem, number = _numbered(segment)
    if number is None:
        return stem.replace("_", " ").strip() or stem
    words = _pretty(stem)
    return f"{words}{'.' if words[-1].isdigit() else ' '}{number[0]}{number[1]}"


def _title(path: Path) -> str:
    """A whole path as words."""
    words = [_pretty(segment) for segment in path]
    if len(path) > 1 and path[0] in _DERIVED:
        return f"{words[0]} of {' / '.join(words[1:])}"
    return " / ".join(words)


# ---------------------------------------------------------------- where each op belongs


@dataclass(frozen=True, eq=False)
class _Index:
    """Path, time, weight and rank in time of every op of a profile."""

    profile: Profile
    paths: list[Path]
    time_us: FloatArray
    weight: FloatArray
    rank: FloatArray


@lru_cache(maxsize=4)
def _index(profile: Profile) -> _Index:
    time_us = np.nan_to_num(profile.time_us).max(axis=1)
    share = time_us / (time_us.sum() or 1.0)
    weight = (1 - _COUNT_SHARE) * share + _COUNT_SHARE / profile.n_ops
    return _Index(profile, _scoped_paths(profile), time_us, weight, _ranks(profile))


def _ranks(profile: Profile) -> FloatArray:
    """Position of each op in topological order; constants and variables just before their use."""
    rank = np.empty(profile.n_ops)
    rank[profile.topological_order] = np.arange(profile.n_ops, dtype=np.float64)
    source, target = profile.edge_source, profile.edge_op
    early = np.diff(profile.in_ptr) == 0
    for _ in range(_CONSTANT_DEPTH):
        fed = np.bincount(target, weights=~early[source], minlength=profile.n_ops)
        early = fed == 0
    for _ in range(_CONSTANT_DEPTH + 1):
        first_use = np.full(profile.n_ops, np.inf)
        np.minimum.at(first_use, source, rank[target])
        moved = early & np.isfinite(first_use)
        rank[moved] = first_use[moved] - 0.5
    return rank


def _scoped_paths(profile: Profile) -> list[Path]:
    """Path of each op: of its scope, else of its name, else of the ops it works with."""
    known: dict[str, Path] = {}
    own = [
        _own_path(scope or name.rpartition("/" if "/" in name else ".")[0], profile.index, known)
        for scope, name in zip(profile.scopes, profile.op_names, strict=True)
    ]
    number = {path: at for at, path in enumerate(dict.fromkeys(own)) if not _says_little(path)}
    label = np.array([number.get(path, -1) for path in own], dtype=np.int64)
    for op in np.flatnonzero(label == -1).tolist():
        if profile.op_types[op].startswith(_INPUT_TYPES):
            own[op], label[op] = ("input",), -2
    _follow_colocation(profile, label)
    _follow_neighbours(profile, label)
    paths = {at: path for path, at in number.items()}
    return [paths.get(at, path) for at, path in zip(label.tolist(), own, strict=True)]


def _own_path(scope: str, op_names: Mapping[str, int], known: dict[str, Path]) -> Path:
    """Path of a scope; what stands in ``mul/`` beside an op ``mul`` belongs to the scope above."""
    path = known.get(scope)
    if path is None:
        above = scope.rpartition("/")[0]
        path = _own_path(above, op_names, known) if scope in op_names else _path(scope)
        known[scope] = path
    return path


def _says_little(path: Path) -> bool:
    return not path or (len(path) == 1 and path[0] == "gradients")


def _follow_colocation(profile: Profile, label: IntArray) -> None:
    """Give ops without a scope that of an op they must share a device with."""
    known: dict[str, int] = {}
    for op, text in enumerate(profile.colocation):
        if text and label[op] >= 0:
            known.setdefault(text, int(label[op]))
    for op in np.flatnonzero(label == -1).tolist():
        label[op] = known.get(profile.colocation[op], -1)


def _follow_neighbours(profile: Profile, label: IntArray) -> None:
    """Spread scopes along the edges to ops without one: from producers first, then consumers."""
    source, target = profile.edge_source, profile.edge_op
    for _ in range(_ROUNDS):
        before = label.copy()
        for giver, taker in ((source, target), (target, source)):
            open_ends = (label[giver] >= 0) & (label[taker] == -1)
            label[taker[open_ends]] = label[giver[open_ends]]
        if np.array_equal(before, label):
            break


# ---------------------------------------------------------------- the tree of scopes


@dataclass(eq=False)
class _Scope:
    """A node of the tree; ``ops`` are those directly in it, ``weight`` counts all below."""

    path: Path
    children: dict[str, _Scope] = field(default_factory=dict)
    ops: list[int] = field(default_factory=list)
    weight: float = 0.0

    def all_ops(self) -> list[int]:
        found = list(self.ops)
        for child in self.children.values():
            found += child.all_ops()
        return found

    @cached_property
    def families(self) -> dict[str, list[_Scope]]:
        """Children by stem, in the order of their numbers."""
        found: dict[str, list[_Scope]] = {}
        for name, child in self.children.items():
            found.setdefault(_numbered(name)[0], []).append(child)
        for stem, members in list(found.items()):
            members.sort(key=_ordinal)
            if len(members) == 1:
                # A lone member is known by its whole name, so that it shares no range with others.
                found[members[0].path[-1]] = found.pop(stem)
        return found


def _tree(index: _Index, ops: IntArray) -> _Scope:
    """The tree of some ops, without the scopes that all of them share."""
    root = _Scope(())
    at: dict[Path, _Scope] = {(): root}
    for op in ops.tolist():
        scope = _at(at, index.paths[op])
        scope.ops.append(op)
    for path in sorted(at, key=len, reverse=True):
        scope = at[path]
        scope.weight += float(index.weight[scope.ops].sum())
        if path:
            at[path[:-1]].weight += scope.weight
    while not root.ops and len(root.children) == 1:
        root = next(iter(root.children.values()))
    return root


def _at(at: dict[Path, _Scope], path: Path) -> _Scope:
    if path not in at:
        scope = _Scope(path)
        _at(at, path[:-1]).children[path[-1]] = scope
        at[path] = scope
    return at[path]


# ---------------------------------------------------------------- cutting it


@dataclass(frozen=True, eq=False)
class _Part:
    """A group in the making."""

    row: str
    label: str
    name: str
    scopes: Sequence[_Scope] = ()
    ops: Sequence[int] = ()

    def all_ops(self) -> list[int]:
        return [*self.ops, *(op for scope in self.scopes for op in scope.all_ops())]


def _best_cut(root: _Scope, index: _Index, target: int) -> list[_Part]:
    """The cut with most parts among those tried that have at most ``target``."""
    best = [_Part("all ops", "all ops", "all ops", [root])]
    low, high = math.log(root.weight / (8 * target)), math.log(root.weight)
    for _ in range(_CUTS):
        middle = (low + high) / 2
        parts = _Cutter(root, index, math.exp(middle)).parts
        if len(parts) <= target:
            best, high = (parts if len(parts) >= len(best) else best), middle
        else:
            low = middle
    return best


class _Cutter:
    """Cuts the tree into parts that weigh at most about ``limit``."""

    def __init__(self, root: _Scope, index: _Index, limit: float) -> None:
        self.depth, self.total = len(root.path), root.weight
        self.index, self.limit = index, limit
        self.pieces: dict[str, int] = {}
        self.numbers: dict[str, set[_Ordinal]] = {}
        self.parts: list[_Part] = []
        self._measure(root)
        self.places = {
            stem: {number: place for place, number in enumerate(sorted(numbers))}
            for stem, numbers in self.numbers.items()
        }
        self._cut(root)

    def _measure(self, scope: _Scope) -> None:
        """Find into how many ranges the numbered scopes of one stem go, wherever they are."""
        for stem, members in scope.families.items():
            weight = sum(member.weight for member in members)
            if len(members) > 1 and weight > self.limit:
                numbers = self.numbers.setdefault(stem, set())
                numbers.update(_ordinal(member) for member in members)
                need = min(math.ceil(weight / self.limit), len(members))
                self.pieces[stem] = max(need, self.pieces.get(stem, 1))
            for member in members:
                if self._is_heavy(member):
                    self._measure(member)

    def _cut(self, scope: _Scope) -> None:
        singles: list[_Scope] = []
        for stem, members in scope.families.items():
            if len(members) > 1:
                self._cut_family(scope, stem, members)
            elif self._is_heavy(members[0]):
                self._cut(members[0])
            else:
                singles.append(members[0])
        rest = [single for single in singles if single.weight < _SMALL * self.limit]
        at_top = len(scope.path) == self.depth
        if len(rest) <= (_KEPT_AT_TOP if at_top else _KEPT_INSIDE):
            rest = []
        for single in singles:
            if single not in rest:
                self._add(scope, _pretty(single.path[-1]), [single])
        self._cut_rest(scope, rest)

    def _cut_family(self, scope: _Scope, stem: str, members: list[_Scope]) -> None:
        """Cut numbered siblings into ranges; go into one that is too heavy alone."""
        place, size = dict.fromkeys(map(_ordinal, members), 0), 1
        weight = sum(member.weight for member in members)
        if weight > self.limit:
            place = self.places[stem]
            size = math.ceil(len(place) / self.pieces[stem])
        enter = size == 1 and weight > _LEAN * self.limit * len(members)
        ranges: dict[int, list[_Scope]] = {}
        for member in members:
            ranges.setdefault(place[_ordinal(member)] // size, []).append(member)
        for chunk in ranges.values():
            if enter and self._is_heavy(chunk[0]):
                self._cut(chunk[0])
            else:
                self._add(scope, _range_label(chunk), chunk, family=_pretty(stem))

    def _cut_rest(self, scope: _Scope, rest: list[_Scope]) -> None:
        """The ops directly in a scope and its smallest children: one part, or several in a row."""
        own = self.index.weight[scope.ops].sum()
        if not rest and not scope.ops:
            return
        many = len(scope.ops) + len(rest) > _FLAT_OPS
        if not many or own + sum(single.weight for single in rest) <= self.limit:
            self._add(scope, self._rest_label(scope, rest), rest, scope.ops)
            return
        for chunk in self._chunks([single.weight for single in rest]):
            scopes = [rest[at] for at in chunk]
            self._add(scope, _first_to_last([_pretty(s.path[-1]) for s in scopes]), scopes)
        ops = sorted(scope.ops, key=lambda op: self.index.rank[op])
        leaves = [_leaf(self.index.profile.op_names[op]) for op in ops]
        chunks = self._chunks(self.index.weight[ops])
        for number, chunk in enumerate(chunks, 1):
            some = [ops[at] for at in chunk]
            names = [leaves[at] for at in chunk]
            telling = len(names) == 1 or len(set(leaves)) == len(leaves)
            label = _first_to_last(names) if telling else f"{number}: {self._main_type(some)}"
            self._add(scope, label, ops=some, within=True)

    def _main_type(self, ops: Sequence[int]) -> str:
        """The op type that takes the most time."""
        taken: dict[str, float] = {}
        for op in ops:
            kind = self.index.profile.op_types[op]
            taken[kind] = taken.get(kind, 0.0) + self.index.time_us[op] + _TIMELESS_US
        return max(taken, key=lambda kind: taken[kind])

    def _chunks(self, weight: Sequence[float] | FloatArray) -> list[IntArray]:
        """Positions in a row of weights, cut into about equal pieces of about the limit."""
        if not len(weight):
            return []
        total = float(np.sum(weight))
        middle = np.cumsum(weight) - np.asarray(weight) / 2
        piece = (middle / total * max(1, round(total / self.limit))).astype(np.int64)
        return np.split(np.arange(len(piece)), np.flatnonzero(np.diff(piece)) + 1)

    def _is_heavy(self, scope: _Scope) -> bool:
        """Whether a scope is worth cutting; one without scopes below only if far too heavy."""
        if len(scope.children) == 1 and not scope.ops and not self._is_head(scope):
            return self._is_heavy(next(iter(scope.children.values())))
        if scope.children:
            return scope.weight > self.limit
        many = len(scope.ops) > _FLAT_OPS
        return many and scope.weight > max(_FLAT * self.limit, _FLAT_SHARE * self.total)

    def _rest_label(self, scope: _Scope, rest: list[_Scope]) -> str:
        if self._is_head(scope):
            return "other"
        if not rest and len(scope.children) == 0:
            return "ops"
        ops = [op for single in rest for op in single.all_ops()] + scope.ops
        profile = self.index.profile
        idle = self.index.time_us[ops].sum() <= _IDLE * self.index.time_us[scope.all_ops()].sum()
        return "weights" if idle and profile.persistent_bytes[ops].any() else "rest"

    def _is_head(self, scope: _Scope) -> bool:
        """Whether a scope is the model itself, so that what is in it stands in rows of its own."""
        below = scope.path[self.depth :]
        return not below or (len(below) == 1 and below[0] in _DERIVED)

    def _add(
        self,
        scope: _Scope,
        label: str,
        scopes: Sequence[_Scope] = (),
        ops: Sequence[int] = (),
        family: str = "",
        within: bool = False,
    ) -> None:
        """Add a part of a scope; ``family`` names its row, ``within`` says it has no own name."""
        below = scope.path[self.depth :]
        head = self._is_head(scope) and not (within and below)
        row = _join(below, family or label) if head else _title(below)
        name = f"{_title(scope.path)} / {label}" if within and scope.path else None
        self.parts.append(_Part(row, label, name or _join(scope.path, label), scopes, ops))


def _ordinal(scope: _Scope) -> _Ordinal:
    return _numbered(scope.path[-1])[1] or (-1, "")


def _join(path: Path, label: str) -> str:
    """The name of something in a scope."""
    if not path:
        return label
    of = " of " if len(path) == 1 and path[0] in _DERIVED else " / "
    return _title(path) + of + label


def _range_label(members: Sequence[_Scope]) -> str:
    """``t 24–27`` for t24 ... t27."""
    first, last = members[0].path[-1], members[-1].path[-1]
    if first == last:
        return _pretty(first)
    number, letter = _ordinal(members[-1])
    return f"{_pretty(first)}–{number}{letter}"


def _first_to_last(names: Sequence[str]) -> str:
    """``node3 … 7`` for node3, ... node7; ``conv … softmax`` where only the order joins them."""
    first, last = names[0], names[-1]
    (stem, number), (last_stem, last_number) = _numbered(first), _numbered(last)
    if number and last_number and stem == last_stem and number != last_number:
        return f"{first} … {last_number[0]}{last_number[1]}"
    return first if len(names) == 1 else f"{first} … {last}"


# ---------------------------------------------------------------- numbering the parts


def _number(index: _Index, parts: Sequence[_Part]) -> Grouping:
    """Number parts in the order in which most of their work is done."""
    members = [np.array(part.all_ops(), dtype=np.int64) for part in parts]
    say = index.time_us + _TIMELESS_US
    middle = [np.average(index.rank[ops], weights=say[ops]) for ops in members]
    order = np.argsort(middle, kind="stable").tolist()
    group = np.full(index.profile.n_ops, -1, dtype=np.int64)
    for number, part in enumerate(order):
        group[members[part]] = number
    return Grouping(
        group,
        _unique([parts[part].name for part in order]),
        tuple(parts[part].row for part in order),
        tuple(parts[part].label for part in order),
    )


def _single_ops(index: _Index, ops: IntArray) -> Grouping:
    """Every op for itself, in the order in which they run."""
    profile = index.profile
    order = ops[np.argsort(index.rank[ops], kind="stable")].tolist()
    group = np.full(profile.n_ops, -1, dtype=np.int64)
    group[order] = np.arange(len(order))
    depth = len(_common_start([index.paths[op] for op in order]))
    labels = tuple(_leaf(profile.op_names[op]) for op in order)
    rows = tuple(
        _title(index.paths[op][depth:]) or label for op, label in zip(order, labels, strict=True)
    )
    return Grouping(group, tuple(profile.op_names[op] for op in order), rows, labels)


def _common_start(paths: Sequence[Path]) -> Path:
    first, last = min(paths), max(paths)
    same = [a == b for a, b in zip(first, last, strict=False)]
    return first[: same.index(False) if False in same else len(same)]


def _unique(names: Iterable[str]) -> tuple[str, ...]:
    """Names told apart by a number where two are the same."""
    taken: dict[str, None] = {}
    for name in names:
        numbers = (f"{name} ({i})" for i in range(2, len(taken) + 3))
        taken[next(n for n in chain([name], numbers) if n not in taken)] = None
    return tuple(taken)
