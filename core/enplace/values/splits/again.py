"""The profile of a graph in which what ops make is not kept on their devices for late readers.

An op that is computed again has a copy, which reads what the op reads. Some readers of the op read
the copy instead: those that come much later, such as its gradient. The copy waits for an op that
ends just before the first of them needs it, or else it would run at once. What writes a variable
waits for the copies that read it. A reader of one op may be the copy of another: then what lies
between two tensors that are kept is computed again as a whole.

Or what an op makes is kept on the host: an op there, which takes no time, reads it and gives it to
the late readers. So it is sent when it is made, and sent back when this op has run, which waits for
another op as a copy does. Once it has arrived on the host, it takes no room on the device.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from enplace.errors import SplitError
from enplace.values.arrays import inverse
from enplace.values.columns import Cut
from enplace.values.op_kinds import OpKind, OpPass, is_view_type
from enplace.values.profile import (
    CONTROL,
    OP_COLUMNS,
    IntArray,
    Profile,
    columns_of,
    edge_columns,
    make_profile,
)
from enplace.values.splits.rules import Split, copy_name

FETCH_TYPE = "IdentityN"
"""The type of an op that gives late readers what was kept on the host."""

_FETCH_US = (np.nan, 0.0)
"""Its times on a GPU and on a CPU."""

_ALIKE_AGAIN = frozenset(
    (
        OpKind.MATMUL, OpKind.BATCH_MATMUL, OpKind.CONV, OpKind.GROUPED_CONV, OpKind.BIAS,
        OpKind.ELEMENTWISE, OpKind.POOL, OpKind.ROWS, OpKind.RESHAPE, OpKind.GATHER,
        OpKind.REDUCE, OpKind.SHAPE, OpKind.REPEAT,
    )
)  # fmt: skip
"""Kinds of ops that make the same of the same inputs: no random numbers, nothing that is fed or
written, and nothing of which only the type is known."""


def may_run_again(profile: Profile, op: int) -> bool:
    """Whether an op makes the same when it runs again, and holds nothing.

    One that changes a tensor in place does not, nor one whose input is changed later.
    """
    if profile.op_types[op].endswith("_") or op in _reads_changed(profile):
        return False
    return profile.kinds[op] in _ALIKE_AGAIN and not profile.persistent_bytes[op]


@lru_cache(maxsize=4)
def _reads_changed(profile: Profile) -> frozenset[int]:
    """Find the ops that read a tensor which they or others change in place, as PyTorch's do."""
    over = [t for t in profile.sharing if not is_view_type(profile.op_types[profile.tensor_op[t]])]
    changed = np.isin(profile.edge_tensor, profile.tensor_base[over])
    return frozenset(profile.edge_op[changed].tolist())


def may_be_sent(profile: Profile, op: int) -> bool:
    """Whether what an op makes may wait on the host: it is no variable, which stays anyway."""
    return bool(profile.variable_given[op] < 0)


def check_again(profile: Profile, again: Collection[Split]) -> None:
    """Refuse what cannot be computed again, or kept on the host.

    Raises
    ------
    SplitError
        If the graph lacks an op, an op would not make the same again, or gives a variable.
    """
    made = {copy_name(each.op) for each in again if each.is_again}
    for each in again:
        others = (*filter(None, (each.after,)), *each.readers)
        names = (each.op, *(name for name in others if name not in made))
        missing = next((name for name in names if name not in profile.index), None)
        if missing is not None:
            raise SplitError(f"'{each.op}' is to be {each.how}, but there is no op '{missing}'")
        if each.is_offload and not may_be_sent(profile, profile.index[each.op]):
            raise SplitError(
                f"op '{each.op}' cannot be kept on the host: it gives a variable; make a new plan"
            )
        if each.is_again and not may_run_again(profile, profile.index[each.op]):
            raise SplitError(
                f"op '{each.op}' cannot be computed again: it holds a variable, or what it makes "
                f"may differ; make a new plan"
            )


@lru_cache(maxsize=8)
def with_copies(profile: Profile, again: tuple[Split, ...]) -> Profile:
    """Add copies of ops that are computed again, with their costs, and what fetches from the host.

    Raises
    ------
    SplitError
        If the graph does not allow it.
    """
    check_again(profile, again)
    return _Copying(profile, again).run()


@lru_cache(maxsize=8)
def without_copies(profile: Profile, again: tuple[Split, ...]) -> Profile:
    """Return the graph to which :func:`with_copies` added copies, as far as plans know it."""
    index = profile.index
    original = np.arange(profile.n_ops)
    original[[index[each.added] for each in again]] = [index[each.op] for each in again]
    kept = original == np.arange(profile.n_ops)
    n = int(kept.sum())  # what was added comes last
    edges = profile.edges
    is_own = kept[edges[:, 2]] & (kept[edges[:, 0]] | (edges[:, 1] != CONTROL))
    edges = edges[is_own]
    edges[:, 0] = original[edges[:, 0]]
    holds, shares = profile.holds, profile.shares
    holds[:, 0], shares[:, (0, 2)] = original[holds[:, 0]], original[shares[:, (0, 2)]]
    columns = {label: values[:n] for label, values in columns_of(profile).items()}
    return make_profile(
        profile.name,
        op_names=profile.op_names[:n],
        **columns,
        **edge_columns(edges),
        holds=holds.tolist(),
        shares=np.unique(shares, axis=0).tolist(),
        measured=profile.measured,
    )


class _Copying:
    def __init__(self, profile: Profile, again: Sequence[Split]) -> None:
        self._profile = profile
        names = [*profile.op_names, *(each.added for each in again)]
        self._names, index = names, {name: op for op, name in enumerate(names)}
        self._added = {index[each.op]: index[each.added] for each in again}
        self._copy = {index[each.op]: index[each.added] for each in again if each.is_again}
        if len(self._added) < len(again):
            twice = max(again, key=lambda one: sum(one.op == each.op for each in again))
            raise SplitError(f"op '{twice.op}' is {twice.how} twice; keep one of the two")
        self._readers = {index[e.op]: {index[name] for name in e.readers} for e in again}
        self._after = [(index[e.after], index[e.added]) for e in again if e.after]

    def run(self) -> Profile:
        profile, ops, edges = self._profile, list(self._added), self._edges()
        return make_profile(
            profile.name,
            op_names=self._names,
            **self._columns(ops),
            **edge_columns(edges),
            holds=self._holds(edges),
            shares=self._shares(),
            measured=profile.measured,
        )

    def _columns(self, ops: list[int]) -> dict[str, Any]:
        own: dict[str, Any] = {
            "persistent_bytes": 0,
            "colocation": "",
            "op_passes": OpPass.BACKWARD,
        }
        fetch = own | {"op_types": FETCH_TYPE, "op_kinds": OpKind.OTHER, "time_us": _FETCH_US}
        columns: dict[str, Any] = {}
        for label, values in columns_of(self._profile).items():
            column = OP_COLUMNS[label]
            usual = {} if column.cut is Cut.SAME else {label: column.default}
            more = [
                own.get(label, values[op])
                if op in self._copy
                else (usual | fetch).get(label, values[op])
                for op in ops
            ]
            is_text = column.type is str
            columns[label] = [*values, *more] if is_text else np.concatenate([values, more])
        return columns

    def _source(self, source: int, reader: int) -> int:
        """Return the op that a reader of an op reads: the op, its copy, or what fetches."""
        return self._added[source] if reader in self._readers.get(source, ()) else source

    def _edges(self) -> IntArray:
        every = self._profile.edges
        near = np.isin(every[:, (0, 2)], list(self._added)).any(axis=1)
        edges = [(a, CONTROL, b, 0) for a, b in [*self._after, *self._before_updates()]]
        fetched = set()
        for source, output, op, size in every[near].tolist():
            is_control = output == CONTROL
            for reader in (op, self._copy.get(op)):
                if reader is not None:
                    made_by = source if is_control else self._source(source, reader)
                    edges.append((made_by, output, reader, size))
                    if made_by != source and source not in self._copy:
                        fetched.add((source, output, made_by, size))
        return np.concatenate([every[~near], np.array([*edges, *sorted(fetched)], dtype=np.int64)])

    def _before_updates(self) -> list[tuple[int, int]]:
        """Let the ops that write a variable wait for the copies that read it."""
        profile = self._profile
        variable, kinds = profile.variable_given, profile.kinds
        pairs = list(zip(profile.edge_source.tolist(), profile.edge_op.tolist(), strict=True))
        writers: dict[int, list[int]] = {}
        for source, op in pairs:
            if variable[source] >= 0 and kinds[op] == OpKind.UPDATE:
                writers.setdefault(int(variable[source]), []).append(op)
        return [
            (self._copy[op], writer)
            for source, op in pairs
            if op in self._copy and variable[source] >= 0
            for writer in writers.get(int(variable[source]), ())
        ]

    def _holds(self, edges: IntArray) -> list[tuple[int, int, int]]:
        """Hold what an op really reads: what was added, if it reads that, or what the op made.

        Until a backward op that reads neither, hold what the last reader read: eager frameworks
        keep what they have saved a little longer than it is read.
        """
        if not len(self._profile.holds):
            return []
        near = np.isin(edges[:, 0], [*self._added.values()])
        read = {(source, output, op) for source, output, op, _ in edges[near].tolist()}
        given = {(source, output) for source, output, _ in read}
        last, passes = self._last_readers(), self._profile.op_passes
        holds = []
        for source, output, op in self._profile.holds.tolist():
            made_by = self._source(source, op)
            is_read = (made_by, output, op) in read
            if not is_read and passes[op] == OpPass.BACKWARD and (source, output) in last:
                made_by = self._source(source, last[source, output])
                is_read = (made_by, output) in given
            holds.append((made_by if is_read else source, output, op))
        return holds

    def _last_readers(self) -> dict[tuple[int, int], int]:
        """Return the last reader of each tensor of what is not kept."""
        profile = self._profile
        rank = inverse(profile.topological_order)
        found: dict[tuple[int, int], int] = {}
        edges = profile.edges[np.isin(profile.edges[:, 0], [*self._added])]
        for source, output, op, _ in edges[np.argsort(rank[edges[:, 2]])].tolist():
            found[source, output] = op
        return found

    def _shares(self) -> list[tuple[int, int, int, int]]:
        """Let what lies in the memory of a tensor lie in that of the one that its op now reads."""
        found = []
        for source, output, base, number in self._profile.shares.tolist():
            for made in (source, self._copy.get(source)):
                if made is not None:
                    of = made if base == source else self._source(base, made)
                    found.append((made, output, of, number))
        return found
