"""Groups: a profile's ops gathered into a few dozen parts with names that people know.

Ops are sorted into the tree of their name scopes, and the tree is cut where the parts weigh about
the same. Numbered siblings (``t0`` ... ``t34``) are cut into equal ranges, the same in every part
of the tree, so that the time steps of two recurrent layers line up on screen.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import chain

import numpy as np

from enplace.names.cut_scopes import LEAST_OPS, TIMELESS_US, Part, cut_tree, open_scope
from enplace.names.passes import UPDATE
from enplace.names.paths import OpIndex, index_ops
from enplace.names.scope_tree import Scope, build_tree
from enplace.names.titles import Path, leaf, title
from enplace.text import count
from enplace.values.arrays import IntArray, csr_offsets, inverse, marked
from enplace.values.op_kinds import OpKind
from enplace.values.profile import Profile

PART = re.compile(r"\d+: ")
"""Start of the label of a part without a name; eliding the label must keep the number."""

TARGET = 48
"""Number of groups that fit on one screen."""

FEW = 1.5
"""Up to this many times the target, every op is its own group."""

NO_GROUP = -1


@dataclass(frozen=True, eq=False)
class Grouping:
    """Ops gathered into named groups, numbered roughly in the order in which they run.

    Attributes
    ----------
    group : int array, shape (n_ops,)
        Group of each op; −1 for ops that are not in the grouping.
    names : tuple of str
        Unique full name of each group: ``"lstm 0 / t 24–27"``.
    rows : tuple of str
        The part of the name that the group shares with its neighbours: ``"lstm 0"``.
    labels : tuple of str
        The part that distinguishes it from them: ``"t 24–27"``.
    opened : mapping of str to str
        The groups that are shown as the scopes in them, outer ones first, each with its own row.
        The name of an open group is the row of its parts.
    """

    group: IntArray
    names: tuple[str, ...]
    rows: tuple[str, ...]
    labels: tuple[str, ...]
    opened: Mapping[str, str] = field(default_factory=dict)

    @property
    def n_groups(self) -> int:
        return len(self.names)

    @cached_property
    def _sorted_ops(self) -> IntArray:
        return np.argsort(self.group, kind="stable").astype(np.int64)

    @cached_property
    def _ptr(self) -> IntArray:
        sorted_group = self.group[self._sorted_ops]
        return csr_offsets(sorted_group, self.n_groups)

    @cached_property
    def sizes(self) -> IntArray:
        """The number of ops of each group."""
        return np.diff(self._ptr)

    def ops(self, group: int) -> IntArray:
        """Return the ops of a group, lowest first."""
        return self._sorted_ops[self._ptr[group] : self._ptr[group + 1]]

    def parts_of(self, name: str) -> frozenset[int]:
        """Return the groups that an open group is shown as, at whatever depth."""
        inside = {name}
        inside |= {each for each, row in self.opened.items() if row in inside}
        return frozenset(group for group, row in enumerate(self.rows) if row in inside)

    def shown_as(self, groups: Iterable[int]) -> list[str]:
        """Return the open group that is shown as these groups; in a list that may be empty."""
        some = frozenset(groups)
        return [name for name in self.opened if self.parts_of(name) == some][:1]


def group_ops(profile: Profile, target: int = TARGET) -> Grouping:
    """Gather all ops into at most about ``target`` named groups, or single ops if they are few.

    Few ops in numbered layers of many are gathered too: they read like the model.
    """
    index, every = index_ops(profile), np.arange(profile.n_ops)
    root = build_tree(index, every)
    if profile.n_ops <= FEW * target and not _has_layers(root):
        return single_ops(profile, every)
    return _number_parts(index, cut_tree(root, index, target))


def _has_layers(scope: Scope) -> bool:
    """Whether there are numbered scopes, each of them with too many ops to be read as these."""
    layers = (members for _, members in scope.families if len(members) > 1)
    return any(min(each.n_working for each in members) >= LEAST_OPS for members in layers) or any(
        map(_has_layers, scope.children.values())
    )


@lru_cache(maxsize=4)
def open_groups(profile: Profile, opened: tuple[str, ...] = ()) -> Grouping:
    """Gather all ops into groups, and show some of these as the scopes in them.

    Parameters
    ----------
    opened : tuple of str
        Names of groups, and of groups that appear when these are open; others are left out.
    """
    grouping = group_ops(profile)
    while shown := [name for name in opened if name in grouping.names]:
        grouping = _open(profile, grouping, shown[0])
        opened = tuple(name for name in opened if name != shown[0])
    return grouping


def _open(profile: Profile, grouping: Grouping, name: str) -> Grouping:
    at = grouping.names.index(name)
    inner = inner_scopes(profile, grouping.ops(at))
    if inner is None:
        return grouping
    parts = [
        Part(name if made is inner else made.rows[number], made.labels[number], each, (), ops)
        for made in (grouping, inner)
        for number, each in enumerate(made.names)
        if (made, number) != (grouping, at)
        for ops in [made.ops(number).tolist()]
    ]
    opened = {**grouping.opened, name: grouping.rows[at]}
    return replace(_number_parts(index_ops(profile), parts), opened=opened)


def inner_scopes(profile: Profile, ops: IntArray) -> Grouping | None:
    """Gather some ops by the scopes directly in the one that they share; None if there are none."""
    index = index_ops(profile)
    root = build_tree(index, ops)
    if len(root.children) + bool(root.ops) < 2:
        return None
    few = len(root.children) <= TARGET
    return _number_parts(index, open_scope(root) if few else cut_tree(root, index, TARGET))


def turn_groups(profile: Profile, grouping: Grouping, ops: Collection[int]) -> tuple[str, ...]:
    """Open the groups of some ops, or close what cannot be opened further.

    If the ops are all of an open group, that is closed. If their groups have no parts, the groups
    that these are parts of are closed.

    Returns
    -------
    tuple of str
        The names of the groups that are open then, for :func:`open_groups`.
    """
    opened = tuple(grouping.opened)
    groups = frozenset(grouping.group[list(ops)].tolist()) - {NO_GROUP}
    shut = grouping.shown_as(groups)
    if not shut:
        parted = [g for g in groups if inner_scopes(profile, grouping.ops(g)) is not None]
        if parted:
            return (*opened, *(grouping.names[group] for group in sorted(parted)))
        shut = [name for name in opened if name in {grouping.rows[group] for group in groups}]
    return tuple(name for name in opened if name not in shut)


def subgroups(profile: Profile, ops: Collection[int] | IntArray, target: int = TARGET) -> Grouping:
    """Gather some ops into at most about ``target`` groups, or single ops if there are few.

    Parameters
    ----------
    ops
        Op numbers, for example those of a group that the user opens.
    target
        Number of groups wanted; at least 1.
    """
    chosen = np.unique(np.asarray(list(ops), dtype=np.int64))
    index = index_ops(profile)
    if len(chosen) <= FEW * target:
        return single_ops(profile, chosen)
    return _number_parts(index, cut_tree(build_tree(index, chosen), index, target))


def name_ops(profile: Profile, ops: Collection[int] | IntArray, grouping: Grouping) -> str:
    """Name a selection: ``"lstm 0"``, ``"3 groups"``, ``"MatMul of lstm 0"``.

    Parameters
    ----------
    ops
        Op numbers; an array has each once.
    """
    chosen = ops if isinstance(ops, np.ndarray) else np.fromiter(set(ops), dtype=np.int64)
    if len(chosen) == 0:
        return "nothing"
    sizes = np.bincount(grouping.group[chosen] + 1, minlength=grouping.n_groups + 1)
    n_outside, sizes = int(sizes[0]), sizes[1:]
    groups = np.flatnonzero(sizes)
    if not n_outside and (sizes[groups] == grouping.sizes[groups]).all():
        known = [grouping.names[groups[0]]] if len(groups) == 1 else grouping.shown_as(groups)
        return next(iter(known), count(len(groups), "group"))
    within = f" of {grouping.names[groups[0]]}" if len(groups) == 1 and not n_outside else ""
    what = leaf(profile.op_names[chosen[0]]) if len(chosen) == 1 else count(len(chosen), "op")
    return what + within


def _number_parts(index: OpIndex, parts: Sequence[Part]) -> Grouping:
    """Number parts in the order in which most of their work is done, and the optimiser last."""
    members = [np.array(part.all_ops(), dtype=np.int64) for part in parts]
    time_us = index.time_us + TIMELESS_US
    middle = [np.average(index.rank[ops], weights=time_us[ops]) for ops in members]
    is_update = [index.paths[ops[0]][:1] == (UPDATE,) for ops in members]
    order = np.lexsort((middle, is_update)).tolist()
    group = np.full(index.profile.n_ops, NO_GROUP, dtype=np.int64)
    for number, part in enumerate(order):
        group[members[part]] = number
    return Grouping(
        group,
        _make_unique([parts[part].name for part in order]),
        tuple(parts[part].row for part in order),
        tuple(parts[part].label for part in order),
    )


def single_ops(profile: Profile, ops: IntArray) -> Grouping:
    """Make a group of every op, in the order in which they run."""
    index = index_ops(profile)
    order = ops[np.argsort(index.rank[ops], kind="stable")].tolist()
    group = np.full(profile.n_ops, NO_GROUP, dtype=np.int64)
    group[order] = np.arange(len(order))
    depth = len(_common_start([index.paths[op] for op in order]))
    labels = tuple(leaf(profile.op_names[op]) for op in order)
    rows = tuple(
        title(index.paths[op][depth:]) or label for op, label in zip(order, labels, strict=True)
    )
    return Grouping(group, tuple(profile.op_names[op] for op in order), rows, labels)


def visible_ops(profile: Profile, ops: IntArray) -> Grouping:
    """Make a group of every op, with the constants and identities around it.

    A constant is with the first op that reads it, an identity with the op that makes its tensor.
    The name of a group is that of its op.
    """
    owner = _owners(profile, ops)
    shown = single_ops(profile, ops[owner[ops] == ops])
    group = shown.group.copy()
    group[ops] = shown.group[owner[ops]]
    return replace(shown, group=group)


def _owners(profile: Profile, ops: IntArray) -> IntArray:
    """Find for each of some ops the one with which it is shown, most often itself; (n_ops,)."""
    rank = inverse(profile.topological_order)
    inside = marked(profile.n_ops, ops)
    hidden = [op for op in ops.tolist() if _is_trivial(profile, op)]
    is_hidden = marked(profile.n_ops, hidden)
    makers, readers = defaultdict[int, list[int]](list), defaultdict[int, list[int]](list)
    kept = inside[profile.edge_source] & inside[profile.edge_op]
    ends = np.column_stack([profile.edge_source[kept], profile.edge_op[kept]])
    for source, target in ends.tolist():
        makers[target].append(source)
        readers[source].append(target)
    owner = np.arange(profile.n_ops)
    for op in sorted(hidden, key=lambda op: -rank[op]):  # those that read it have owners by now
        shown = [maker for maker in makers[op] if not is_hidden[maker]]
        later = sorted(readers[op], key=lambda reader: rank[reader])
        owner[op] = owner[[*shown, *later, op][0]]
    return owner


def _is_trivial(profile: Profile, op: int) -> bool:
    is_constant = profile.kinds[op] == OpKind.CONSTANT
    return (is_constant or profile.op_types[op] == "Identity") and not profile.persistent_bytes[op]


def _common_start(paths: Sequence[Path]) -> Path:
    first, last = min(paths), max(paths)
    same = [a == b for a, b in zip(first, last, strict=False)]
    return first[: same.index(False) if False in same else len(same)]


def _make_unique(names: Iterable[str]) -> tuple[str, ...]:
    """Add a number to names that occur more than once."""
    taken: dict[str, None] = {}
    for name in names:
        numbered = (f"{name} ({i})" for i in range(2, len(taken) + 3))
        taken[next(n for n in chain([name], numbered) if n not in taken)] = None
    return tuple(taken)
