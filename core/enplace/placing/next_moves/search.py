"""The search for next moves: it simulates one edit after another, and keeps the best.

Prices are exact: each edit is simulated as the plan would run with it. Of a plan that fits, no move
is offered that does not; of one that does not fit, those that lack the least memory come first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from enplace.errors import EnplaceError
from enplace.machine import simulate
from enplace.machine.check_claims import check_claims
from enplace.machine.pipelines.pipeline import most_bytes
from enplace.names.groups import Grouping, open_groups
from enplace.placing.next_moves.edits import MOVE, SPLIT, Edit, edits_of, graph_of
from enplace.placing.next_moves.together import moves_together
from enplace.placing.next_moves.words import reason_of, title_apart, title_of
from enplace.placing.stop import Stop
from enplace.placing.stopwatch import Stopwatch
from enplace.text import ms, size
from enplace.values.arrays import IntArray
from enplace.values.plan import Plan
from enplace.values.problem import Problem
from enplace.values.schedule import Schedule

MOST = 8
"""How many moves are offered at most."""

LEAST = 1e-4
"""Share by which a move must shorten a step to be offered."""

SAME = 0.5
"""Of two moves of which this share of the ops is the same, the better one is offered."""

USUAL_S = 20.0
"""How long the search goes on at most, in seconds."""

SINGLE, MANY = 0.2, 0.8
"""Shares of the time after which many moves at once are tried, instead of the most promising single
edits, and after which the other single edits have their turn."""

WITHIN = 0.5
"""Share of what moves to a device that must run in an idle time there to fit in."""

STEP_S = 1.0
"""How long a climb looks for each of its moves, once it has found one."""


class Idle(NamedTuple):
    """A time in which a device is idle."""

    device: int
    since_us: float
    until_us: float


@dataclass(frozen=True, eq=False)
class NextMove:
    """An edit of a plan with its price.

    Attributes
    ----------
    kind : str
        One of ``move``, ``order``, ``split``, ``swap``, ``recompute`` and ``together``.
    title, reason : str
        What it does, and why that helps.
    ops : int array
        The ops that run elsewhere, or at another time, by their numbers before the move.
    devices : tuple of int
        Where they run then.
    plan : Plan
        The plan after the move.
    before_us, after_us : float
        What the plan minimises, before and after.
    before_excess_bytes, after_excess_bytes : int
        By how much it exceeds memory.
    """

    kind: str
    title: str
    reason: str
    ops: IntArray
    devices: tuple[int, ...]
    plan: Plan
    before_us: float
    after_us: float
    before_excess_bytes: int
    after_excess_bytes: int

    def __repr__(self) -> str:
        return f"<NextMove: {self.title}, {self.change}>"

    @property
    def change(self) -> str:
        """The change as a text: ``−11.8 ms``, or ``lacks 1.2 GiB less, +3.0 ms``."""
        time = ms(self.after_us - self.before_us, signed=True)
        less_bytes = self.before_excess_bytes - self.after_excess_bytes
        return f"lacks {size(less_bytes)} less, {time}" if less_bytes else time


@dataclass(frozen=True, eq=False)
class _Priced:
    """An edit that improves the plan."""

    edit: Edit
    plan: Plan
    value_us: float
    excess_bytes: int

    @property
    def key(self) -> tuple[int, float, int]:
        return self.excess_bytes, self.value_us, len(self.edit.ops) + len(self.edit.others)


Report = Callable[[Sequence[NextMove]], object]


def ignore(_: Sequence[NextMove]) -> None:
    """Take no notice of the moves found so far."""


def next_moves(
    problem: Problem,
    plan: Plan,
    *,
    most: int = MOST,
    stop: Stop | None = None,
    idle: Idle | None = None,
    again: Sequence[tuple[IntArray, int]] = (),
    opened: Sequence[str] = (),
    wide: bool = True,
    report: Report = ignore,
) -> tuple[NextMove, ...]:
    """Find the edits that most improve a plan: single ones, and many moves at once.

    Parameters
    ----------
    problem : Problem
        With the plan's splits applied.
    plan : Plan
        A plan of the problem.
    most : int
        How many to return.
    stop : Stop, optional
        When to end with the best so far; by default, after :data:`USUAL_S`.
    idle : Idle, optional
        Find only what would run in this idle time of a device.
    again : sequence of (int array, int)
        Ops and devices of moves to try first.
    opened : sequence of str
        Groups that people see as their parts, which give the names.
    wide : bool
        Whether ops may be split, and many moved at once.
    report : callable
        Called with the moves found so far whenever there is a better one.

    Returns
    -------
    tuple of NextMove
        The best first: that with the least excess of memory, then with the least time. Each
        improves the plan, and differs in more than a few ops from those before it.
    """
    search = _Search(problem, plan, most, idle, open_groups(problem.profile, tuple(opened)))
    until = stop or Stop(USUAL_S)
    single, turns = edits_of(search.before, again), []
    if wide and idle is None:
        many = until.within(MANY)
        turns = [(single, until.within(SINGLE)), (moves_together(search.before, many), many)]
    for edits, is_over in (*turns, (single, until)):
        for edit in () if until() else edits:
            if (wide or edit.kind != SPLIT) and search.try_edit(edit):
                report(search.offers())
            if is_over():
                break
    return search.offers()


def climb(
    problem: Problem, plan: Plan, stop: Stop, tell: Callable[[NextMove], object] = lambda _: None
) -> Plan:
    """Make one of the best moves after another, until none improves the plan.

    A plan that breaks a constraint stays as it is. Its graph stays the same: no op is split.

    Parameters
    ----------
    tell : callable
        Called with each move that is made.
    """
    again: list[tuple[IntArray, int]] = []
    while not stop():
        try:
            found = _some_moves(problem, plan, stop, again)
        except EnplaceError:
            return plan
        if not found:
            return plan
        plan = found[0].plan
        tell(found[0])
        again = [(move.ops, move.devices[0]) for move in found[1:] if move.kind == MOVE]
    return plan


def _some_moves(
    problem: Problem, plan: Plan, stop: Stop, again: Sequence[tuple[IntArray, int]]
) -> tuple[NextMove, ...]:
    """Find the best moves among those tried in a moment, or the first one if it takes longer."""
    clock = Stopwatch()
    seen: list[Sequence[NextMove]] = []

    def has_some() -> bool:
        return stop() or bool(seen and clock.seconds > STEP_S)

    turn = Stop(cancelled=has_some)
    return next_moves(problem, plan, stop=turn, again=again, wide=False, report=seen.append)


class _Search:
    """The best edits so far, no two of them much alike."""

    def __init__(
        self, problem: Problem, plan: Plan, most: int, idle: Idle | None, grouping: Grouping
    ) -> None:
        self._problem, self._most, self._idle = problem, most, idle
        self.before = simulate(problem, check_claims(problem, plan))
        self._excess = _excess_bytes(problem, self.before)
        self._best: list[_Priced] = []
        self._told: dict[_Priced, NextMove] = {}
        self._grouping = grouping

    def try_edit(self, edit: Edit) -> bool:
        """Price an edit, and return whether it is among the best."""
        if self._idle is not None and not _may_fill(edit, self._idle):
            return False
        try:
            plan = edit.make()
            graph = graph_of(self._problem, plan.splits) if edit.kind == SPLIT else self._problem
            after = simulate(graph, check_claims(graph, plan))
        except EnplaceError:  # a constraint forbids it, or ops would wait for each other
            return False
        time_us, most_us = after.value_us, (1 - LEAST) * self.before.value_us
        if not self._excess and time_us >= most_us:
            return False
        excess = _excess_bytes(graph, after)
        if excess > self._excess or (excess == self._excess and time_us >= most_us):
            return False
        if self._idle is not None and not _runs_within(after, edit, self._idle):
            return False
        return self._keep(_Priced(edit, after.plan, time_us, excess))

    def _keep(self, priced: _Priced) -> bool:
        """Keep an edit unless a better one is much like it, and drop worse ones like it."""
        alike = [each for each in self._best if _is_alike(each.edit, priced.edit)]
        if any(each.key <= priced.key for each in alike):
            return False
        kept = [each for each in self._best if each not in alike]
        self._best = sorted([*kept, priced], key=lambda each: each.key)
        return priced in self._best[: self._most]

    def offers(self) -> tuple[NextMove, ...]:
        """Return the best edits, each with its reason."""
        found = [self._offer(each) for each in self._best[: self._most]]
        alike = Counter(each.title for each in found)
        return tuple(self._apart(each, found) if alike[each.title] > 1 else each for each in found)

    def _apart(self, move: NextMove, among: Sequence[NextMove]) -> NextMove:
        """Name a move by an op that only it has of those with the same title."""
        rest = [each.ops for each in among if each is not move and each.title == move.title]
        title = title_apart(self.before, self._grouping, move.title, move.ops, rest)
        return replace(move, title=title)

    def _offer(self, priced: _Priced) -> NextMove:
        known = self._told.get(priced)
        if known is not None:
            return known
        edit, graph = priced.edit, graph_of(self._problem, priced.plan.splits)
        after = simulate(graph, priced.plan)
        made = NextMove(
            edit.kind,
            title_of(self.before, self._grouping, edit),
            reason_of(self.before, after, edit),
            edit.moved,
            edit.devices,
            priced.plan,
            self.before.value_us,
            priced.value_us,
            self._excess,
            priced.excess_bytes,
        )
        self._told[priced] = made
        return made


def _excess_bytes(problem: Problem, schedule: Schedule) -> int:
    """Sum by how much the peaks exceed memory, in a step and with samples in flight."""
    over = most_bytes(schedule) - problem.cluster.capacity_bytes
    return int(over[over > 0].sum())


def _is_alike(one: Edit, other: Edit) -> bool:
    """Whether two edits move much the same ops, whatever they are swapped with."""
    shared = len(np.intersect1d(one.ops, other.ops, assume_unique=True))
    return shared >= SAME * (len(one.ops) + len(other.ops) - shared)


def _may_fill(edit: Edit, idle: Idle) -> bool:
    """Whether an edit may have a device run more; the parts of a split have other numbers."""
    return idle.device in edit.devices and edit.kind != SPLIT


def _runs_within(after: Schedule, edit: Edit, idle: Idle) -> bool:
    """Whether most of what an edit has a device run is run in its idle time."""
    ops = edit.moved[after.plan.device[edit.moved] == idle.device]
    start_us, finish_us = after.op_start_us[ops], after.op_finish_us[ops]
    within_us = np.minimum(finish_us, idle.until_us) - np.maximum(start_us, idle.since_us)
    work_us = float((finish_us - start_us).sum())
    return work_us > 0 and float(within_us.clip(0).sum()) >= WITHIN * work_us
