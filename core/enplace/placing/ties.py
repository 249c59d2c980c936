"""Which of several plans to take that are as good as the best: the last step of a search.

A plan is as good as the best one found if its objective is at most :data:`TIE` larger. Of such
plans, the one is taken

1. whose fullest device has the largest share of its memory free, in whole per cent,
2. then with the fewest transfers,
3. then on the first of devices that are alike, in the order of the ops.

Over a link that was never measured, a step may take longer than that by the price of a transfer
(:mod:`enplace.placing.prices`) for each one that the plan saves, and by no more. Finally, if a plan
on fewer devices, with far fewer transfers, is no slower once all of them are charged at that price,
it is taken however much longer it takes by prediction.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from operator import le

import numpy as np

from enplace.errors import EnplaceError
from enplace.machine import simulate
from enplace.machine.latency import find_pass_subgraphs, latency_us
from enplace.machine.op_passes import backward_ops
from enplace.machine.pipelines.loads import max_load_us
from enplace.machine.pipelines.pipeline import most_bytes, planned_rule
from enplace.machine.pipelines.stages import visits_again
from enplace.machine.subgraphs import count_returns
from enplace.placing.candidates import all_on_one, unordered
from enplace.placing.incumbents import BETTER
from enplace.placing.prices import (
    FAR_FEWER,
    FEW,
    MOST,
    PASSED_OVER,
    PRICE_US,
    find_stock_us,
    price_us,
    total_price_us,
)
from enplace.placing.rebalance import TIE, Around, exchanged, in_order, with_fewer_transfers
from enplace.placing.settle import by_placed_rank
from enplace.placing.small import find_roomiest, is_small
from enplace.placing.stop import Stop
from enplace.text import as_clause, count, ms, percent
from enplace.values.arrays import IntArray
from enplace.values.plan import Plan
from enplace.values.problem import LATENCY, STEP_TIME, THROUGHPUT, Problem
from enplace.values.schedule import Schedule

ROOMY = 0.1
"""A plan that fills no device by more than this share of its memory has room enough."""

SHARE, LEAST_S = 0.03, 0.2
"""Share of the time limit that is kept for this step, and the seconds that it gets if the search
has taken longer than it should."""

WORK, EACH, PIPELINE = 400_000, 1000, 20
"""Ops that are simulated at most, how many each plan counts for besides its own, and how often they
count if a pipeline is simulated."""

FEWEST = 20
"""Plans that must be affordable for any to be tried."""


@dataclass(frozen=True, eq=False)
class _Rated:
    """A plan, and what counts in the choice.

    Attributes
    ----------
    charged_us : float
        The objective and the price of all transfers.
    fullest : int
        Share of memory that the fullest device uses, in per cent, rounded up.
    returns : tuple of int
        How often each pass returns to a device, at most.
    """

    schedule: Schedule
    value_us: float
    charged_us: float
    peak_bytes: IntArray
    fullest: int
    returns: tuple[int, ...]

    @property
    def rank(self) -> tuple[int, int, tuple[int, ...]]:
        """What decides between plans that are as good."""
        plan = self.schedule.plan
        used, first = np.unique(plan.device[np.argsort(plan.position)], return_index=True)
        order = tuple(used[np.argsort(first)].tolist())
        return self.fullest, self.n_transfers, order

    @property
    def n_transfers(self) -> int:
        return len(self.schedule.transfer_tensor)

    @property
    def n_devices(self) -> int:
        return len(np.unique(self.schedule.plan.device))


def stop_of_ties(stop: Stop, n_ops: int) -> Stop:
    """Return when this step of a run must end that begins now."""
    grace = stop.with_grace(n_ops)
    if stop.limit_s is None or grace.limit_s is None:
        return grace
    least_s = stop.clock.seconds + max(LEAST_S, SHARE * stop.limit_s)
    return stop.until(max(grace.limit_s, least_s))


def settle_ties(
    schedule: Schedule, others: Iterable[Plan], stop: Stop, alone: Iterable[Schedule] = ()
) -> Schedule:
    """Return the plan to take of those that are as good as a given one, or nearly.

    Parameters
    ----------
    schedule : Schedule
        The best plan found; it fits.
    others : iterable of Plan
        Other plans that were found.
    alone : iterable of Schedule
        Steps with everything on one device (:func:`on_each_alone`); only for the step time.
    """
    problem, plan = schedule.problem, schedule.plan
    if problem.cluster.n_devices < 2 or plan.replicas or plan.recompute or plan.pace_us:
        return schedule
    if visits_again(problem, plan):
        return schedule  # a move would break the order in which samples visit devices
    choice = _Choice(schedule, stop)
    if FEWEST * (EACH + problem.profile.n_ops) <= WORK:
        if plan.objective == STEP_TIME and is_small(problem) and not stop.cancelled():
            longest_us = schedule.makespan_us * (1 + TIE)
            others = [find_roomiest(schedule, longest_us, round(100 * ROOMY)).plan, *others]
        choice.make(others)
    if choice.has_price and not stop.cancelled():
        choice.fall_back(alone)
    return choice.taken()


def on_each_alone(problem: Problem) -> Iterator[Schedule]:
    """Yield a step with everything on one GPU, for each kind of GPU that allows it."""
    for device in all_on_one(problem):
        with suppress(EnplaceError):  # a constraint asks for more devices
            yield from (simulate(problem, plan) for plan in unordered(problem, device, ""))


def choose(schedule: Schedule, others: Iterable[Plan], stop: Stop) -> Schedule:
    """Return the plan to take of a few: the best one, which fits, or another that is as good."""
    choice = _Choice(schedule, stop)
    choice.offer(others)
    return choice.taken()


def _value_us(problem: Problem, plan: Plan) -> float:
    """Return the objective of a plan for throughput or latency."""
    if plan.objective == LATENCY:
        return latency_us(problem, plan.device, plan.subgraph)
    return max_load_us(problem, plan.device, planned_rule(plan))


def _count_returns(problem: Problem, plan: Plan) -> tuple[int, ...]:
    """Count how often each pass returns to a device; for a query, the subgraphs after the first.

    In a pipeline, CPUs have stages too.
    """
    backward = backward_ops(problem)
    if plan.objective == THROUGHPUT:
        place, n_places = 2 * plan.device + backward, 2 * problem.cluster.n_devices
        number = count_returns(problem.profile, place, n_places)
    else:
        number = find_pass_subgraphs(problem, plan.device)
    return tuple(int(number[ops].max(initial=0)) for ops in (~backward, backward))


class _Choice:
    """The plan to take so far."""

    def __init__(self, schedule: Schedule, stop: Stop) -> None:
        self._given, self._stop, self._left = schedule.plan, stop, WORK
        self._problem = schedule.problem
        self._price_us = price_us(self._problem) * (self._given.objective == STEP_TIME)
        has_passes = bool(backward_ops(self._problem).any())
        self._in_flight = self._given.objective == THROUGHPUT and has_passes
        self._first = self._best = self._rate(schedule)
        self._leanest: _Rated | None = None
        self._value_us, self._charged_us = self._best.value_us, self._best.charged_us

    @property
    def has_price(self) -> bool:
        """Whether the transfers of a step have a price that no prediction counts."""
        return bool(self._price_us.any())

    def make(self, others: Iterable[Plan]) -> None:
        """Look at other plans, then at those around the best one."""
        self.offer(others)
        improved = True
        while improved and not self._is_over:
            improved = self._save_transfers() or self._free_memory()
        for others_of in (exchanged, in_order):
            for device in others_of(self._best.schedule):
                if not self._is_over:
                    self._place(device)

    def fall_back(self, alone: Iterable[Schedule]) -> None:
        """Take what needs fewer devices if it is no slower once transfers have their price."""
        given = self._given
        for schedule in alone:
            plan = replace(schedule.plan, method=given.method, note=given.note)
            self._note_lean(self._rate(replace(schedule, plan=plan)))
        lean = self._leanest
        if lean is None:
            return
        known_us = find_stock_us(self._problem) if lean.n_devices == 1 else np.nan
        charged_us = np.fmin(lean.charged_us, known_us)
        if charged_us <= self._best.charged_us * (1 + TIE):
            self._best = lean

    def _note_lean(self, found: _Rated) -> None:
        """Remember the fastest plan so far on fewer devices with far fewer transfers."""
        first, known = self._first, self._leanest
        saved = first.n_transfers - found.n_transfers
        is_lean = saved >= max(FEW, first.n_transfers * (1 - FAR_FEWER))
        is_lean &= found.n_devices < first.n_devices and found.schedule.fits
        if is_lean and (known is None or found.charged_us < known.charged_us):
            self._leanest = found

    def offer(self, others: Iterable[Plan]) -> None:
        """Take another plan rather than the best so far if it is to be taken."""
        for plan in others:
            if len(plan.device) == len(self._given.device) and not self._is_over:
                self._offer(plan)

    @property
    def _is_over(self) -> bool:
        return self._stop() or self._left < 0

    def _save_transfers(self) -> bool:
        began = self._best
        for device in with_fewer_transfers(began.schedule):
            if self._is_over or self._place(device):
                break
        return self._best is not began

    def _free_memory(self) -> bool:
        began = self._best
        if began.fullest <= 100 * ROOMY:
            return False
        around = Around(began.schedule, began.peak_bytes, self._value_us * (1 + TIE))
        for device in around.placements():
            if self._is_over or self._place(device):
                break
        return self._best is not began

    def _place(self, device: IntArray) -> bool:
        """Offer a placement in the best plan's order, or in that of its ranks."""
        if np.array_equal(device, self._best.schedule.plan.device):
            return False
        plan = replace(self._best.schedule.plan, device=device, subgraph=None)
        if self._offer(plan):
            return True
        if plan.objective != STEP_TIME:
            return False  # the order does not matter
        return self._offer(replace(plan, position=by_placed_rank(self._problem, device)))

    def _offer(self, plan: Plan) -> bool:
        """Take a plan if it is to be taken rather than the best so far."""
        given = self._given
        if plan.objective != given.objective:
            return False
        plan = replace(
            given,
            device=plan.device,
            position=plan.position,
            policy=plan.policy,
            links=plan.links,
            subgraph=plan.subgraph,
        )
        self._left -= (EACH + len(plan.device)) * (PIPELINE if self._in_flight else 1)
        try:
            found = self._rate(simulate(self._problem, plan))
        except EnplaceError:  # it breaks a constraint, or its order deadlocks
            return False
        self._note_lean(found)
        if not self._is_as_good(found):
            return False
        loses_proof = self._is_proven(self._best) and not self._is_proven(found)
        if loses_proof and found.fullest >= self._best.fullest:
            return False  # only memory is worth a proof
        slack_us = self._slack_us if self._is_tie(self._best) else 0.0
        lower = found.charged_us < self._best.charged_us - slack_us
        if not lower and not found.rank < self._best.rank:
            return False
        self._best = found
        self._value_us = min(self._value_us, found.value_us)
        self._charged_us = min(self._charged_us, found.charged_us)
        return True

    @property
    def _slack_us(self) -> float:
        """Difference in charged times that decides nothing: a tie's, and the price of a few sends.

        Without the latter, one more transfer at a guessed price would outweigh free memory.
        """
        return TIE * self._value_us + (FEW - 1) * float(self._price_us.max())

    def _is_proven(self, rated: _Rated) -> bool:
        given = self._given
        return given.proven and rated.value_us <= self._first.value_us * (1 + BETTER)

    def _is_tie(self, found: _Rated) -> bool:
        return found.value_us <= self._value_us * (1 + TIE)

    def _is_as_good(self, found: _Rated) -> bool:
        saved = self._first.n_transfers - found.n_transfers
        most_us, slack_us = self._value_us * (1 + TIE), self._slack_us
        if self.has_price and saved >= FEW and not self._is_tie(found):
            # It is no tie by prediction, so what it saves must pay for what it takes longer.
            most_us, slack_us = most_us + self._value_us * MOST, 0.0
        return (
            found.value_us <= most_us
            and found.charged_us <= self._charged_us + slack_us
            and found.fullest <= max(100, self._first.fullest)
            and found.schedule.fits
            and all(map(le, found.returns, self._first.returns))
        )

    def _rate(self, schedule: Schedule) -> _Rated:
        problem, plan = schedule.problem, schedule.plan
        value_us, peak_bytes = schedule.makespan_us, most_bytes(schedule)
        returns: tuple[int, ...] = ()
        if plan.objective != STEP_TIME:
            value_us, returns = _value_us(problem, plan), _count_returns(problem, plan)
        share = float((peak_bytes / problem.cluster.capacity_bytes).max())
        charged_us = value_us + self.has_price * total_price_us(schedule)
        fullest = math.ceil(100 * share - 1e-9)
        return _Rated(schedule, value_us, charged_us, peak_bytes, fullest, returns)

    def taken(self) -> Schedule:
        """Return the plan to take, and say in its note why, if it is not the one given."""
        best, first = self._best, self._first
        if best is first:
            return first.schedule
        plan, why = best.schedule.plan, self._why()
        if plan.objective == STEP_TIME:
            plan = plan.with_notes(plan.note, why)
        else:
            is_proven, bound_us = self._is_proven(best), plan.bound_us
            if is_proven and bound_us == plan.value_us:  # the values differ by rounding
                bound_us = best.value_us
            elif bound_us is not None:  # it may not hold for the plan taken
                bound_us = min(bound_us, best.value_us)
            plan = replace(plan, value_us=best.value_us, bound_us=bound_us, proven=is_proven)
            plan = plan.with_notes(plan.note, as_clause(why), separator="; ")
        return replace(best.schedule, plan=plan)

    def _why(self) -> str:
        best, first = self._best, self._first
        n_saved = first.n_transfers - best.n_transfers
        if best.value_us > first.value_us * (1 + TIE):
            return (
                f"{PASSED_OVER} {ms(first.value_us)}, "
                f"{percent(1 - first.value_us / best.value_us)} less, but it has "
                f"{count(n_saved, 'transfer')} more, each at some {PRICE_US:.0f} µs that "
                f"no prediction counts."
            )
        if best.fullest < first.fullest:
            return f"Of plans within {percent(TIE)}, it is the one found with the most free memory."
        return ""
