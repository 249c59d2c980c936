"""Which ops to compute again, and where their copies go in the plan of a graph without them.

What a forward op makes for a backward op is kept from the one to the other. If the forward op is
computed again, its copy makes it anew just before the first backward op that reads it. A set of ops
decides everything: the copy of an op reads the copies of those ops that are in the set.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from enplace.errors import EnplaceError
from enplace.machine import simulate
from enplace.machine.op_passes import backward_ops, given_by_variables
from enplace.values.arrays import BoolArray, FloatArray, IntArray, inverse
from enplace.values.op_kinds import OpKind
from enplace.values.plan import Plan
from enplace.values.problem import Problem
from enplace.values.profile import CONTROL
from enplace.values.schedule import Schedule
from enplace.values.splits import RECOMPUTE, Split
from enplace.values.splits.again import copy_name, may_run_again

PARTS = (8, 1, 4, 16, 2, 24, 3, 12, 6)
"""Numbers of parts of a model, each of which is computed again by itself, the best bets first."""

SHARES = (1.0, 0.5, 0.75, 0.9, 0.25, 0.1)
"""Shares of what is kept that are computed again, the cheapest part of it for its bytes."""


@dataclass(frozen=True, eq=False)
class Kept:
    """What a problem's ops make for backward ops, and what it takes to make it again.

    Attributes
    ----------
    problem : Problem
        Without ops that are computed again.
    """

    problem: Problem

    @cached_property
    def backward(self) -> BoolArray:
        return backward_ops(self.problem)

    @cached_property
    def data(self) -> list[tuple[int, int]]:
        """The pairs of an op and one that reads what it makes."""
        profile = self.problem.profile
        is_data = profile.tensor_output[profile.edge_tensor] != CONTROL
        pairs = zip(profile.edge_source[is_data], profile.edge_op[is_data], strict=True)
        return list(dict.fromkeys((int(a), int(b)) for a, b in pairs))

    @cached_property
    def readers(self) -> list[list[int]]:
        found: list[list[int]] = [[] for _ in range(self.problem.profile.n_ops)]
        for source, reader in self.data:
            found[source].append(reader)
        return found

    @cached_property
    def inputs(self) -> list[list[int]]:
        found: list[list[int]] = [[] for _ in range(self.problem.profile.n_ops)]
        for source, reader in self.data:
            found[reader].append(source)
        return found

    def late(self, op: int) -> list[int]:
        """Return the backward ops that read what an op makes, and not only its shape."""
        kinds = self.problem.profile.kinds
        readers = (reader for reader in self.readers[op] if self.backward[reader])
        return [reader for reader in readers if kinds[reader] != OpKind.SHAPE]

    @cached_property
    def can(self) -> BoolArray:
        """Which ops may be computed again; what variables hold stays there anyway."""
        problem = self.problem
        found = ~self.backward
        found[problem.profile.tensor_op[given_by_variables(problem.profile)]] = False
        found[[op for pair in problem.before for op in pair]] = False
        for op in np.flatnonzero(found).tolist():
            found[op] = may_run_again(problem.profile, op)
        return found

    @cached_property
    def kept_bytes(self) -> IntArray:
        """The bytes of each op that are kept for backward ops, views of others excepted."""
        profile = self.problem.profile
        is_shape = np.array([kind == OpKind.SHAPE for kind in profile.kinds])
        until = np.zeros(profile.n_tensors, dtype=bool)
        until[profile.edge_tensor[(self.backward & ~is_shape)[profile.edge_op]]] = True
        until &= ~self.backward[profile.tensor_op]
        found = np.zeros(profile.n_ops, dtype=np.int64)
        np.add.at(found, profile.tensor_op[until], profile.held_bytes[until])
        return found

    @cached_property
    def time_us(self) -> FloatArray:
        """The least time of each op on any device."""
        time_us = self.problem.time_us
        least: FloatArray = np.where(np.isfinite(time_us), time_us, np.inf).min(axis=1)
        return least

    @cached_property
    def order(self) -> IntArray:
        return self.problem.profile.topological_order

    def families(self) -> Iterator[frozenset[int]]:
        """Yield sets of ops: the cheapest for their bytes, within parts of the model."""
        seen = set[frozenset[int]]()
        ops = np.flatnonzero(self.can & (self.kept_bytes > 0))
        worth = ops[np.argsort(self.time_us[ops] / self.kept_bytes[ops], kind="stable")]
        total = np.cumsum(self.kept_bytes[worth])
        for share in SHARES:
            n = int(np.searchsorted(total, share * total[-1])) + 1 if len(worth) else 0
            for closed in (True, False):
                chosen = self._completed(worth[:n].tolist(), closed)
                for parts in PARTS:
                    found = self._in_parts(chosen, parts)
                    if found and found not in seen:
                        seen.add(found)
                        yield found

    def _completed(self, ops: Iterable[int], closed: bool) -> set[int]:
        """Add views of what is computed again and, if asked, what else would have to be kept."""
        found, left = set(ops), list(ops)
        while closed and left:
            for source in self.inputs[left.pop()]:
                if self.can[source] and source not in found and not self.late(source):
                    found.add(source)
                    left.append(source)
        profile = self.problem.profile
        views = set(profile.tensor_op[profile.tensor_base >= 0].tolist())
        for op in self.order.tolist():
            if op in views and self.can[op] and found.intersection(self.inputs[op]):
                found.add(op)
        return found

    def _in_parts(self, ops: Collection[int], parts: int) -> frozenset[int]:
        """Keep what passes from one part of the model to the next."""
        made = np.cumsum(self.kept_bytes[self.order])
        part = np.zeros(len(made), dtype=np.int64)
        part[self.order] = np.minimum(parts * made // max(int(made[-1]), 1), parts - 1)
        return frozenset(
            op
            for op in ops
            if all(part[r] == part[op] for r in self.readers[op] if not self.backward[r])
        )

    def copied(self, base: Schedule, ops: Collection[int]) -> Plan:
        """Return a schedule's plan with ops computed again, each copy just before it is needed."""
        problem, n = self.problem, self.problem.profile.n_ops
        names, rank = problem.profile.op_names, self._rank(base)
        first: dict[int, int] = {}
        readers: dict[int, list[str]] = {}
        home: dict[int, int] = {}
        for op in sorted(ops, key=lambda each: -rank[each]):
            late = sorted(self.late(op), key=lambda each: rank[each])
            again = [reader for reader in self.readers[op] if reader in first]
            # Where each reader is, and the backward op for which it is needed.
            wanted = [(r, int(base.plan.device[r])) for r in late[:1]]
            wanted += [(first[r], home[r]) for r in again]
            if wanted:
                first[op], home[op] = min(wanted, key=lambda each: rank[each[0]])
                readers[op] = [names[r] for r in late] + [copy_name(names[r]) for r in again]
        made = sorted(first, key=lambda op: rank[op])
        splits = tuple(
            Split(names[op], RECOMPUTE, 2, tuple(readers[op]), self._after(op, first, rank))
            for op in made
        )
        key = np.concatenate([rank, [rank[first[op]] - 0.5 + 0.4 * rank[op] / n for op in made]])
        device = [*base.plan.device.tolist(), *(home[op] for op in made)]
        position = inverse(np.argsort(key, kind="stable"))
        return replace(
            base.plan, device=np.array(device), position=position, splits=splits, subgraph=None
        )

    def _rank(self, base: Schedule) -> IntArray:
        """Return the place of each op in the order in which a schedule starts them."""
        along = inverse(self.order)
        return inverse(np.lexsort((along, base.op_start_us)))

    def _after(self, op: int, first: dict[int, int], rank: IntArray) -> str:
        """Name the op that a copy waits for; empty if it waits for another copy that does."""
        own = first[op]
        if any(first.get(source) == own for source in self.inputs[op]):
            return ""
        before = [each for each in self.inputs[own] if self.backward[each]]
        before = before or self._just_before(own, rank)
        names = self.problem.profile.op_names
        return names[max(before, key=lambda each: rank[each])] if before else ""

    def _just_before(self, op: int, rank: IntArray) -> list[int]:
        """Return the op before one in the order of all, if that is no op that it leads to."""
        return np.flatnonzero(rank == rank[op] - 1).tolist()


def simulate_again(kept: Kept, base: Schedule, ops: Collection[int]) -> Schedule | None:
    """Simulate a plan with ops computed again; None if the copies cannot be there."""
    try:
        return simulate(kept.problem, kept.copied(base, ops))
    except EnplaceError:  # a copy cannot run where it is read, or waits for what comes later
        return None
