"""Cut the tree of scopes into parts of about equal weight."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from enplace.names.passes import UPDATE, is_optimizer
from enplace.names.paths import OpIndex
from enplace.names.scope_tree import Scope
from enplace.names.titles import (
    DERIVED,
    Ordinal,
    first_to_last,
    leaf,
    ordinal,
    range_label,
    title,
    title_within,
    words,
)
from enplace.values.profile import FloatArray, IntArray

CUTS = 14
"""Bisection steps that find the weight at which there are about ``target`` parts."""

SMALL = 0.12
"""A scope below this share of the largest weight may be merged with its neighbours."""

KEPT_AT_TOP, KEPT_INSIDE = 10, 3
"""Up to this many small scopes are not merged: at the top of the tree, and inside it."""

LEAN = 1.25
"""Numbered siblings are cut further if their mean weight is more than this many limits."""

FLAT_LIMITS, FLAT_SHARE, FLAT_OPS = 3.0, 0.08, 72
"""Ops directly in one scope are cut only if they weigh this many limits, this share of everything,
and are too many to grasp at a glance."""

LEAST_OPS = 8
"""A scope with fewer working ops is not cut: a layer is easier to read than its parts."""

MOST_OWN = 0.5
"""A scope is not cut if the ops directly in it, such as its loop, take more of its time."""

MOST_NAMED = 4
"""Up to this many small scopes in one part name it."""

IDLE = 0.1
"""Ops with at most this share of a scope's time do not count as computing."""

TIMELESS_US = 1e-3
"""Added to every op's time, so that ops without compute time count a little."""


@dataclass(frozen=True, eq=False)
class Part:
    """A group under construction."""

    row: str
    label: str
    name: str
    scopes: Sequence[Scope] = ()
    ops: Sequence[int] = ()

    def all_ops(self) -> list[int]:
        return [*self.ops, *(op for scope in self.scopes for op in scope.all_ops())]


def cut_tree(root: Scope, index: OpIndex, target: int) -> list[Part]:
    """Cut a tree into the most parts, of those cuts tried that have at most ``target``."""
    best = [Part("all ops", "all ops", "all ops", [root])]
    low, high = math.log(root.weight / (8 * target)), math.log(root.weight)
    for _ in range(CUTS):
        middle = (low + high) / 2
        parts = _Cutter(root, index, math.exp(middle)).cut()
        if len(parts) <= target:
            best, high = (parts if len(parts) >= len(best) else best), middle
        else:
            low = middle
    return best


def open_scope(scope: Scope) -> list[Part]:
    """Make a part of each scope directly in another one, and one of the ops directly in it."""
    whole = title(scope.path) or "all ops"

    def part(label: str, scopes: Sequence[Scope], ops: Sequence[int] = ()) -> Part:
        return Part(whole, label, title_within(scope.path, label), scopes, ops)

    inner = [part(words(child.name), [child]) for child in scope.children.values()]
    return [*inner, part("rest", (), scope.ops)] if scope.ops else inner


class _Ranges:
    """Ranges of numbered scopes with the same stem, equal wherever they are in the tree.

    So the time steps of two recurrent layers line up on screen.
    """

    def __init__(self) -> None:
        self._n_ranges: dict[str, int] = {}
        self._numbers: dict[str, set[Ordinal]] = {}

    def add(self, stem: str, members: Sequence[Scope], n_ranges: int) -> None:
        """Record siblings that must be cut into this many ranges."""
        self._numbers.setdefault(stem, set()).update(ordinal(member.name) for member in members)
        self._n_ranges[stem] = max(n_ranges, self._n_ranges.get(stem, 1))

    def size(self, stem: str) -> int:
        """Return how many numbers a range holds."""
        return math.ceil(len(self._numbers[stem]) / self._n_ranges[stem])

    def places(self, stem: str) -> dict[Ordinal, int]:
        """Return the position of each number among all numbers of the stem."""
        return {number: place for place, number in enumerate(sorted(self._numbers[stem]))}


class _Cutter:
    """Cuts a tree into parts that weigh at most about ``limit``."""

    def __init__(self, root: Scope, index: OpIndex, limit: float) -> None:
        self._root, self._index, self._limit = root, index, limit
        self._ranges = _Ranges()
        self._parts: list[Part] = []

    def cut(self) -> list[Part]:
        self._measure(self._root)
        self._cut(self._root)
        return self._parts

    def _measure(self, scope: Scope) -> None:
        """Find how many ranges the numbered scopes of each stem need."""
        for stem, members in scope.families:
            weight = _weigh(members)
            if len(members) > 1 and weight > self._limit:
                self._ranges.add(stem, members, min(math.ceil(weight / self._limit), len(members)))
            for member in members:
                if self._is_heavy(member):
                    self._measure(member)

    def _cut(self, scope: Scope) -> None:
        singles: list[Scope] = []
        for stem, members in scope.families:
            if len(members) > 1:
                self._cut_family(scope, stem, members)
            elif self._is_heavy(members[0]):
                self._cut(members[0])
            else:
                singles.append(members[0])
        slight = SMALL * self._limit
        small = [each for each in singles if each.weight < slight and not self._is_update(each)]
        if len(small) <= (KEPT_AT_TOP if scope is self._root else KEPT_INSIDE):
            small = []
        for single in singles:
            if single not in small:
                self._add(scope, words(single.name), [single])
        self._cut_rest(scope, small)

    def _cut_family(self, scope: Scope, stem: str, members: list[Scope]) -> None:
        """Cut numbered siblings into ranges, or each of them if they are too heavy."""
        weight = _weigh(members)
        enter = False
        ranges = {0: members}
        if weight > self._limit:
            size = self._ranges.size(stem)
            enter = size == 1 and weight > LEAN * self._limit * len(members)
            ranges = _into_ranges(members, self._ranges.places(stem), size)
        for chunk in ranges.values():
            if enter and self._is_heavy(chunk[0]):
                self._cut(chunk[0])
            else:
                label = range_label(chunk[0].name, chunk[-1].name)
                self._add(scope, label, chunk, family=words(stem))

    def _cut_rest(self, scope: Scope, small: list[Scope]) -> None:
        """Make one or more parts of a scope's own ops and its smallest children."""
        if not small and not scope.ops:
            return
        weight = self._index.weight[scope.ops].sum() + _weigh(small)
        if len(scope.ops) + len(small) <= FLAT_OPS or weight <= self._limit:
            self._add(scope, self._rest_label(scope, small), small, scope.ops)
            return
        for chunk in self._chunks([child.weight for child in small]):
            scopes = [small[at] for at in chunk]
            self._add(scope, first_to_last([words(child.name) for child in scopes]), scopes)
        self._cut_ops(scope)

    def _cut_ops(self, scope: Scope) -> None:
        """Cut the ops directly in a scope, in the order in which they run."""
        ops = sorted(scope.ops, key=lambda op: self._index.rank[op])
        leaves = [leaf(self._index.profile.op_names[op]) for op in ops]
        chunks = self._chunks(self._index.weight[ops])
        if len(chunks) == 1:
            self._add(scope, self._rest_label(scope, []), (), ops)
            return
        for number, chunk in enumerate(chunks, 1):
            names = [leaves[at] for at in chunk]
            some = [ops[at] for at in chunk]
            telling = len(names) == 1 or len(set(leaves)) == len(leaves)
            label = first_to_last(names) if telling else f"{number}: {self._main_type(some)}"
            self._add_ops(scope, label, some)

    def _main_type(self, ops: Sequence[int]) -> str:
        """Find the op type that takes the most time."""
        taken_us: dict[str, float] = {}
        for op in ops:
            kind = self._index.profile.op_types[op]
            taken_us[kind] = taken_us.get(kind, 0.0) + self._index.time_us[op] + TIMELESS_US
        return max(taken_us, key=lambda kind: taken_us[kind])

    def _chunks(self, weight: Sequence[float] | FloatArray) -> list[IntArray]:
        """Cut a row of weights into chunks of about equal weight, close to the limit."""
        if not len(weight):
            return []
        total = float(np.sum(weight))
        middle = np.cumsum(weight) - np.asarray(weight) / 2
        chunk = (middle / total * max(1, round(total / self._limit))).astype(np.int64)
        return np.split(np.arange(len(chunk)), np.flatnonzero(np.diff(chunk)) + 1)

    def _is_heavy(self, scope: Scope) -> bool:
        """Return whether a scope is worth cutting; a leaf only if it is far too heavy."""
        if self._is_update(scope):
            return False
        working = [child for child in scope.children.values() if child.n_working]
        if len(working) == 1 and not self._is_head(scope):
            return self._is_heavy(working[0])
        if scope.children:
            own_us = self._index.time_us[scope.ops].sum()
            many = scope.n_working >= LEAST_OPS and own_us <= MOST_OWN * scope.time_us
            return many and scope.weight > self._limit
        flat = max(FLAT_LIMITS * self._limit, FLAT_SHARE * self._root.weight)
        return len(scope.ops) > FLAT_OPS and scope.weight > flat

    def _rest_label(self, scope: Scope, small: list[Scope]) -> str:
        if self._is_head(scope):
            return "other"
        if not scope.children:
            return "ops"
        layers = [words(child.name) for child in small if child.n_working]
        if layers:
            few = len(layers) <= MOST_NAMED and not self._index.is_working[scope.ops].any()
            return ", ".join(layers) if few else "rest"
        ops = [op for child in small for op in child.all_ops()] + scope.ops
        idle = self._index.time_us[ops].sum() <= IDLE * scope.time_us
        return "weights" if idle and self._index.profile.persistent_bytes[ops].any() else "rest"

    def _below(self, scope: Scope) -> tuple[str, ...]:
        """Return the path of a scope below the root of the tree."""
        return scope.path[len(self._root.path) :]

    def _is_update(self, scope: Scope) -> bool:
        """Return whether a scope is the optimiser, which is one part: it may follow any layer."""
        below = self._below(scope)
        return len(below) == 1 and (below[0] == UPDATE or is_optimizer(below[0]))

    def _is_head(self, scope: Scope) -> bool:
        """Return whether a scope is the model or a pass, so that its parts get their own rows."""
        below = self._below(scope)
        return not below or (len(below) == 1 and below[0] in DERIVED)

    def _add(
        self,
        scope: Scope,
        label: str,
        scopes: Sequence[Scope],
        ops: Sequence[int] = (),
        family: str = "",
    ) -> None:
        """Add a part of a scope; ``family`` names its row if it has its own."""
        below = self._below(scope)
        row = title_within(below, family or label) if self._is_head(scope) else title(below)
        self._parts.append(Part(row, label, title_within(scope.path, label), scopes, ops))

    def _add_ops(self, scope: Scope, label: str, ops: Sequence[int]) -> None:
        """Add a part of some ops directly in a scope, which only their order joins."""
        below = self._below(scope)
        row = title(below) if below else label
        name = f"{title(scope.path)} / {label}" if scope.path else label
        self._parts.append(Part(row, label, name, ops=ops))


def _weigh(scopes: Sequence[Scope]) -> float:
    return sum(scope.weight for scope in scopes)


def _into_ranges(
    members: Sequence[Scope], places: dict[Ordinal, int], size: int
) -> dict[int, list[Scope]]:
    ranges: dict[int, list[Scope]] = {}
    for member in members:
        ranges.setdefault(places[ordinal(member.name)] // size, []).append(member)
    return ranges
