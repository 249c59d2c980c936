"""What not to keep for late readers, and where copies and fetches go in the plan of a graph.

What a forward op makes for a backward op is kept from the one to the other. If the forward op is
computed again, its copy makes it anew just before the first backward op that reads it. A set of ops
decides everything: the copy of an op reads the copies of those ops that are in the set.

Or it is sent to the host and fetched. The op that fetches it waits until the transfer back ends
just in time, as the transfers that follow on the same link allow, but no longer than for the first
backward op: a fetch during the forward pass would free nothing where memory is shortest.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product, starmap
from typing import NamedTuple

import numpy as np

from enplace.errors import EnplaceError
from enplace.machine import simulate
from enplace.machine.op_passes import backward_ops
from enplace.placing.settle import position_by, position_by_start
from enplace.values.arrays import BoolArray, FloatArray, IntArray, inverse
from enplace.values.op_kinds import OpKind
from enplace.values.plan import Plan
from enplace.values.problem import Problem, split_problem
from enplace.values.profile import CONTROL
from enplace.values.schedule import Schedule
from enplace.values.splits import OFFLOAD, RECOMPUTE, Split
from enplace.values.splits.again import may_run_again
from enplace.values.splits.rules import copy_name

PARTS = (8, 1, 4, 16, 2, 24, 3, 12, 6)
"""Numbers of parts of a model, each of which is computed again by itself, the best bets first."""

SHARES = (1.0, 0.5, 0.75, 0.9, 0.25, 0.1)
"""Shares of what is kept that are computed again, the cheapest part of it for its bytes."""

KEEP, AGAIN = -1, -2
"""What may be done with what an op makes, besides sending it: see :class:`Way`."""


class Way(NamedTuple):
    """What is done with what an op makes.

    Attributes
    ----------
    after : int
        The op after which it is fetched from the host, or :data:`KEEP` or :data:`AGAIN`.
    readers : tuple of int
        The late readers that read what is fetched or made again; empty for all.
    """

    after: int
    readers: tuple[int, ...]


AHEAD = (1.0, 0.0)
"""How long before its first reader a tensor is fetched, in times of its transfer: 0 delays the
reader and takes the least memory."""


@dataclass(frozen=True, eq=False)
class Kept:
    """What a problem's ops make for backward ops, and what it takes to make it again.

    Attributes
    ----------
    problem : Problem
        Without ops that are computed again.
    recompute, offload : bool
        What may be done with what is not kept: compute it again, send it to the host.
    """

    problem: Problem
    recompute: bool = True
    offload: bool = False

    @cached_property
    def host(self) -> IntArray:
        """The CPU with the fastest link to each device and back, in a cluster that has CPUs."""
        cluster = self.problem.cluster
        us = cluster.b0_us + cluster.b1_us_per_byte * 1e6
        found: IntArray = np.array(cluster.cpus)[(us + us.T)[:, cluster.cpus].argmin(axis=1)]
        return found

    @cached_property
    def backward(self) -> BoolArray:
        return backward_ops(self.problem)

    @cached_property
    def reads_late(self) -> BoolArray:
        """The backward ops that need what they read, and not only its shape."""
        found: BoolArray = self.backward & ~self.problem.profile.of_kind(OpKind.SHAPE)
        return found

    @cached_property
    def readers(self) -> list[list[int]]:
        """Of each op, those that read what it makes."""
        profile = self.problem.profile
        return self._other_ends(profile.edge_source, profile.edge_op)

    @cached_property
    def inputs(self) -> list[list[int]]:
        """Of each op, those that make what it reads."""
        profile = self.problem.profile
        return self._other_ends(profile.edge_op, profile.edge_source)

    def _other_ends(self, near: IntArray, far: IntArray) -> list[list[int]]:
        """List for each op the other ends of its edges that carry data, each once."""
        profile = self.problem.profile
        is_data = profile.tensor_output[profile.edge_tensor] != CONTROL
        found: list[dict[int, None]] = [{} for _ in range(profile.n_ops)]
        for op, other in zip(near[is_data].tolist(), far[is_data].tolist(), strict=True):
            found[op][other] = None
        return list(map(list, found))

    def late(self, op: int) -> list[int]:
        """Return the backward ops that read what an op makes, and not only its shape."""
        return [reader for reader in self.readers[op] if self.reads_late[reader]]

    @cached_property
    def can(self) -> BoolArray:
        """Which ops may be computed again; what variables hold stays there anyway."""
        problem = self.problem
        found = self.recompute & ~self.backward & (problem.profile.variable_given < 0)
        found[[op for pair in problem.before for op in pair]] = False
        for op in np.flatnonzero(found).tolist():
            found[op] = may_run_again(problem.profile, op)
        return found

    @cached_property
    def can_send(self) -> BoolArray:
        """Which forward ops make what a late reader may fetch from the host."""
        problem = self.problem
        found: BoolArray = ~self.backward & (self.late_bytes > 0)
        found &= self.offload and bool(problem.cluster.cpus)
        found &= problem.profile.variable_given < 0
        return found

    @cached_property
    def late_bytes(self) -> IntArray:
        """The bytes of each op that backward ops read."""
        return self._bytes_for_late(self.problem.profile.copy_bytes)

    @cached_property
    def kept_bytes(self) -> IntArray:
        """The bytes of each op that are kept for backward ops, views of others excepted."""
        return self._bytes_for_late(self.problem.profile.held_bytes)

    def _bytes_for_late(self, n_bytes: IntArray) -> IntArray:
        """Sum some bytes of the tensors of each forward op that backward ops read."""
        profile = self.problem.profile
        is_kept = np.zeros(profile.n_tensors, dtype=bool)
        is_kept[profile.edge_tensor[self.reads_late[profile.edge_op]]] = True
        is_kept &= ~self.backward[profile.tensor_op]
        found = np.zeros(profile.n_ops, dtype=np.int64)
        np.add.at(found, profile.tensor_op[is_kept], n_bytes[is_kept])
        return found

    @cached_property
    def time_us(self) -> FloatArray:
        """The least time of each op on any device."""
        least: FloatArray = self.problem.time_us.min(axis=1)
        return least

    def families(self) -> Iterator[frozenset[int]]:
        """Yield sets of ops: the cheapest for their bytes, within parts of the model."""
        seen = set[frozenset[int]]()
        ops = np.flatnonzero(self.can & (self.kept_bytes > 0))
        if not len(ops):
            return
        worth = ops[np.argsort(self.time_us[ops] / self.kept_bytes[ops], kind="stable")]
        total = np.cumsum(self.kept_bytes[worth])
        for share in SHARES:
            n = int(np.searchsorted(total, share * total[-1])) + 1
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
        for op in profile.topological_order.tolist():
            if op in views and self.can[op] and found.intersection(self.inputs[op]):
                found.add(op)
        return found

    def _in_parts(self, ops: Collection[int], parts: int) -> frozenset[int]:
        """Keep what passes from one part of the model to the next."""
        order = self.problem.profile.topological_order
        made = np.cumsum(self.kept_bytes[order])
        part = np.zeros(len(made), dtype=np.int64)
        part[order] = np.minimum(parts * made // max(int(made[-1]), 1), parts - 1)
        return frozenset(
            op
            for op in ops
            if all(part[r] == part[op] for r in self.readers[op] if not self.backward[r])
        )

    def sets_to_send(self, base: Schedule) -> Iterator[frozenset[int]]:
        """Yield sets of ops to keep on the host: those whose readers are latest in a schedule."""
        ops = self.by_wait(base, np.flatnonzero(self.can_send).tolist())
        total = np.cumsum(self.late_bytes[ops])
        for share in SHARES if ops else ():
            yield frozenset(ops[: int(np.searchsorted(total, share * total[-1])) + 1])

    def by_wait(self, base: Schedule, ops: Iterable[int]) -> list[int]:
        """Sort ops that late readers read by how long what they make waits, the longest first."""
        return sorted(ops, key=lambda op: -self._gap_us(base, op))

    def _gap_us(self, base: Schedule, op: int) -> float:
        """Return how long a schedule holds what an op makes between early and late readers."""
        readers, late = self.readers[op], self.late(op)
        early = [base.op_finish_us[each] for each in (op, *readers) if not self.backward[each]]
        return float(min(base.op_start_us[each] for each in late) - max(early))

    def views_of(self, ops: Iterable[int]) -> frozenset[int]:
        """Return the views of what some ops make, to be made again of what is fetched."""
        given = set(ops)
        return frozenset(self._completed(given, closed=False) - given)

    def ways(
        self, base: Schedule, choose: Callable[[list[int]], list[tuple[int, ...]]]
    ) -> dict[int, list[Way]]:
        """List what may be done with what each op makes: keep it, compute it again, fetch it.

        A fetch may begin after any op between the op and its last reader.

        Parameters
        ----------
        choose : callable
            Lists, for the late readers of an op, the sets of those that read what was not kept.
        """
        rank = position_by(self.problem, base.op_start_us)
        found = {}
        for op in np.flatnonzero(self.can | self.can_send).tolist():
            if self.readers[op]:
                begins = [AGAIN] * bool(self.can[op])
                last = max(rank[self.readers[op]])
                between = np.flatnonzero((rank >= rank[op]) & (rank < last))
                begins += between.tolist() if self.can_send[op] else []
                late = choose(self.late(op)) or [()]
                found[op] = [Way(KEEP, ()), *starmap(Way, product(begins, late))]
        return found

    def copied(
        self,
        base: Schedule,
        ops: Collection[int],
        sent: Collection[int] | Mapping[int, int] = (),
        ahead: float = AHEAD[0],
        readers_of: Mapping[int, Sequence[int]] | None = None,
    ) -> Plan:
        """Return a schedule's plan with ops computed again, each copy just before it is needed.

        Parameters
        ----------
        sent : collection of int, or mapping
            Other ops, whose outputs wait on the host; if known, each with the op after which it is
            fetched.
        ahead : float
            How early they are fetched: :data:`AHEAD`.
        readers_of : mapping, optional
            The late readers of some ops that read what was not kept; else all of them do.
        """
        of_some = readers_of or {}
        problem, n = self.problem, self.problem.profile.n_ops
        names, rank = problem.profile.op_names, position_by(problem, base.op_start_us)
        first: dict[int, int] = {}
        readers: dict[int, list[str]] = {}
        home: dict[int, int] = {}
        for op in sorted({*ops, *sent}, key=lambda each: -rank[each]):
            late = sorted(of_some.get(op) or self.late(op), key=lambda each: rank[each])
            again = [r for r in self.readers[op] if r in first and r not in sent]
            # Where each reader is, and the backward op for which it is needed.
            wanted = [(r, int(base.plan.device[r])) for r in late[:1]]
            wanted += [(first[r], home[r]) for r in again]
            if wanted:
                first[op], home[op] = min(wanted, key=lambda each: rank[each[0]])
                readers[op] = [names[r] for r in late] + [copy_name(names[r]) for r in again]
        made = sorted(first, key=lambda op: rank[op])
        fetches = {op: first[op] for op in made if op in sent}
        if isinstance(sent, Mapping):
            fetched = {op: sent[op] for op in fetches}
        else:
            fetched = self._fetches(base, fetches, home, rank, ahead) if fetches else {}
        after = {op: self._after(op, first, rank) for op in made if op not in fetched}
        after |= {op: "" if end == op else names[end] for op, end in fetched.items()}
        splits = tuple(
            Split(
                names[op], OFFLOAD if op in fetched else RECOMPUTE, 2, tuple(readers[op]), after[op]
            )
            for op in made
        )
        needed = [
            rank[fetched.get(op, first[op])] + (0.5 if op in fetched else -0.5) for op in made
        ]
        key = np.concatenate([rank, np.array(needed) + 0.4 * rank[made] / n])
        added = [int(self.host[home[op]]) if op in fetched else home[op] for op in made]
        device = [*base.plan.device.tolist(), *added]
        position = inverse(np.argsort(key, kind="stable"))
        return replace(
            base.plan, device=np.array(device), position=position, splits=splits, subgraph=None
        )

    def _after(self, op: int, first: dict[int, int], rank: IntArray) -> str:
        """Name the op that a copy waits for; empty if it waits for another copy that does."""
        own = first[op]
        if any(first.get(source) == own for source in self.inputs[op]):
            return ""
        before = [each for each in self.inputs[own] if self.backward[each]]
        before = before or np.flatnonzero(rank == rank[own] - 1).tolist()  # the op just before it
        names = self.problem.profile.op_names
        return names[max(before, key=lambda each: rank[each])] if before else ""

    def _fetches(
        self,
        base: Schedule,
        first: dict[int, int],
        home: dict[int, int],
        rank: IntArray,
        ahead: float,
    ) -> dict[int, int]:
        """Find the op after which each fetch begins: the last to have ended by then, or its own."""
        order = np.argsort(rank)
        n_devices = self.problem.cluster.n_devices
        there = [order[base.plan.device[order] == d] for d in range(n_devices)]
        ended_us = [np.maximum.accumulate(base.op_finish_us[ops]) for ops in there]
        turn_us = float(base.op_start_us[self.backward].min(initial=np.inf))
        free_us: dict[tuple[int, int], float] = {}
        found = {}
        for op in sorted(first, key=lambda each: -rank[first[each]]):
            at, needed_us = home[op], float(base.op_start_us[first[op]])
            link = int(self.host[at]), at
            takes_us = self.problem.cluster.transfer_us(self.late_bytes[op], *link)
            begin_us = min(needed_us, free_us.get(link, np.inf)) - ahead * float(takes_us)
            free_us[link] = begin_us = min(max(begin_us, turn_us), needed_us)
            n_ended = int(np.searchsorted(ended_us[at], begin_us, "right"))
            n_before = int(np.searchsorted(rank[there[at]], rank[first[op]]))
            last = there[at][min(n_ended, n_before) - 1] if min(n_ended, n_before) else op
            found[op] = max(op, int(last), key=lambda each: rank[each])
        return found


def simulate_again(
    kept: Kept,
    base: Schedule,
    ops: Collection[int],
    sent: Collection[int] = (),
    ahead: float = AHEAD[0],
) -> Schedule | None:
    """Simulate a plan that does not keep all; None if the copies cannot be there.

    What waits for a copy, such as the update of a variable that it reads, moves behind it.
    """
    plan = kept.copied(base, ops, sent, ahead)
    try:
        graph = split_problem(kept.problem, plan.splits)
        position = position_by_start(graph, plan.position.astype(np.float64))
        return simulate(graph, replace(plan, position=position))
    except EnplaceError:  # a copy cannot run where it is read, or waits for what comes later
        return None
