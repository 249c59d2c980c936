"""The profile of a graph in which ops are computed again, so that what they made is not kept.

An op that is computed again has a copy, which reads what the op reads. Some readers of the op read
the copy instead: those that come much later, such as its gradient. The copy waits for an op that
ends just before the first of them needs it, or else it would run at once. What writes a variable
waits for the copies that read it. A reader of one op may be the copy of another: then what lies
between two tensors that are kept is computed again as a whole.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from enplace.errors import SplitError
from enplace.values.op_kinds import OpKind, OpPass
from enplace.values.profile import (
    CONTROL,
    OP_COLUMNS,
    IntArray,
    Profile,
    columns_of,
    edge_columns,
    make_profile,
)
from enplace.values.splits.rules import Split

_AGAIN = "/recomputed"
"""Follows the op's name in the name of its copy."""

_ALIKE_AGAIN = frozenset(
    (
        OpKind.MATMUL, OpKind.BATCH_MATMUL, OpKind.CONV, OpKind.GROUPED_CONV, OpKind.BIAS,
        OpKind.ELEMENTWISE, OpKind.POOL, OpKind.ROWS, OpKind.RESHAPE, OpKind.GATHER,
        OpKind.REDUCE, OpKind.SHAPE, OpKind.REPEAT,
    )
)  # fmt: skip
"""Kinds of ops that make the same of the same inputs: no random numbers, nothing that is fed or
written, and nothing of which only the type is known."""


def copy_name(op: str) -> str:
    """Return the name of the copy of an op that is computed again."""
    return f"{op}{_AGAIN}"


def original_name(name: str) -> str:
    """Return the name of the op that an op is a copy of, or its own."""
    return name.removesuffix(_AGAIN)


def may_run_again(profile: Profile, op: int) -> bool:
    """Whether an op makes the same when it runs again, and holds nothing."""
    return profile.kinds[op] in _ALIKE_AGAIN and not profile.persistent_bytes[op]


def check_again(profile: Profile, again: Collection[Split]) -> None:
    """Refuse what cannot be computed again.

    Raises
    ------
    SplitError
        If the graph lacks an op, or an op would not make the same again.
    """
    made = {copy_name(each.op) for each in again}
    for each in again:
        others = (*filter(None, (each.after,)), *each.readers)
        names = (each.op, *(name for name in others if name not in made))
        missing = next((name for name in names if name not in profile.index), None)
        if missing is not None:
            raise SplitError(f"'{each.op}' is to be computed again, but there is no op '{missing}'")
        if not may_run_again(profile, profile.index[each.op]):
            raise SplitError(
                f"op '{each.op}' cannot be computed again: it holds a variable, or what it makes "
                f"may differ; make a new plan"
            )


@lru_cache(maxsize=8)
def with_copies(profile: Profile, again: tuple[Split, ...]) -> Profile:
    """Add the copies of ops that are computed again, with the costs of the ops themselves.

    Raises
    ------
    SplitError
        If the graph does not allow it.
    """
    check_again(profile, again)
    return _Copying(profile, again).run()


class _Copying:
    def __init__(self, profile: Profile, again: Sequence[Split]) -> None:
        self._profile = profile
        names = [*profile.op_names, *(copy_name(each.op) for each in again)]
        self._names, index = names, {name: op for op, name in enumerate(names)}
        self._copy = {index[each.op]: index[copy_name(each.op)] for each in again}
        if len(self._copy) < len(again):
            twice = max(again, key=lambda one: sum(one.op == each.op for each in again)).op
            raise SplitError(f"op '{twice}' is computed again twice; keep one of the two")
        self._readers = {index[e.op]: {index[name] for name in e.readers} for e in again}
        self._after = [(index[e.after], index[copy_name(e.op)]) for e in again if e.after]

    def run(self) -> Profile:
        profile, ops, edges = self._profile, list(self._copy), self._edges()
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
        columns: dict[str, Any] = {}
        for label, values in columns_of(self._profile).items():
            if OP_COLUMNS[label].type is str:
                more = [own.get(label, values[op]) for op in ops]
                columns[label] = [*values, *more]
            else:
                columns[label] = np.concatenate([values, own.get(label, 1) * values[ops]])
        return columns

    def _source(self, source: int, reader: int) -> int:
        """Return the op that a reader of an op reads: the op or its copy."""
        return self._copy[source] if reader in self._readers.get(source, ()) else source

    def _edges(self) -> IntArray:
        every, copied = self._profile.edges, list(self._copy)
        near = np.isin(every[:, (0, 2)], copied).any(axis=1)
        edges = [(a, CONTROL, b, 0) for a, b in [*self._after, *self._before_updates()]]
        for source, output, op, size in every[near].tolist():
            is_control = output == CONTROL
            for reader in (op, self._copy.get(op)):
                if reader is not None:
                    made_by = source if is_control else self._source(source, reader)
                    edges.append((made_by, output, reader, size))
        return np.concatenate([every[~near], np.array(edges, dtype=np.int64)])

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
        """Hold what is computed again until an op has ended that reads it; else the op's own."""
        if not len(self._profile.holds):
            return []
        near = np.isin(edges[:, 0], [*self._copy.values()])
        read = {(source, output, op) for source, output, op, _ in edges[near].tolist()}
        holds = []
        for source, output, op in self._profile.holds.tolist():
            made_by = self._source(source, op)
            is_read = (made_by, output, op) in read
            holds.append((made_by if is_read else source, output, op))
        return holds

    def _shares(self) -> list[tuple[int, int, int, int]]:
        """Let what lies in the memory of a tensor lie in that of the copy that its op reads."""
        found = []
        for source, output, base, number in self._profile.shares.tolist():
            for made in (source, self._copy.get(source)):
                if made is not None:
                    of = made if base == source else self._source(base, made)
                    found.append((made, output, of, number))
        return found
