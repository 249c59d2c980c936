"""The best plan so far: what is better, what is good enough, and reporting each better one.

For the step time, it is a schedule, and the bound is that of its problem. For the other objectives,
it is an :class:`Incumbent`, whose bound holds for the placements of its kind.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from enplace.bounds.proofs import Proof
from enplace.placing.options import PlaceOptions, Progress
from enplace.values.plan import Plan, find_gap
from enplace.values.problem import Problem
from enplace.values.profile import IntArray
from enplace.values.schedule import Schedule

BOUND_S, BOUND_OP_S = 2.5, 2.5e-5
"""Seconds that the lower bound of a large graph takes, and seconds per op more."""

SMALL_BOUND_OP_S = 1.3e-4
"""Seconds per op that the lower bound of a smaller graph takes, of which more is examined."""

CLOSE_ENOUGH = 0.002
"""Gap to the lower bound below which no further candidates are tried."""

PROVEN_GAP = 1e-5
"""Relative difference to the bound that counts as zero, because solvers round."""

BETTER = 1e-9
"""Share by which another objective must fall to count as better, so that rounding errors do not."""


def is_better(one: Schedule, other: Schedule) -> bool:
    """Whether one has a smaller excess than the other, or the same excess and a shorter step."""
    if other.fits:  # then a longer schedule's memory need not be computed
        return one.makespan_us < other.makespan_us and one.fits
    return (one.excess_bytes, one.makespan_us) < (other.excess_bytes, other.makespan_us)


def keep_better(
    found: Schedule, best: Schedule | None, options: PlaceOptions, engine: str = ""
) -> Schedule:
    """Return the better of a new schedule and the best so far; report the new one if it is."""
    if best is not None and not is_better(found, best):
        return best
    report(found, options, engine)
    return found


def find_proof(problem: Problem, options: PlaceOptions) -> Proof:
    """Return the best proof for a problem; compute our own bounds if there is none.

    Cancelling, and the end of the time limit, make them weaker: on a large graph they take seconds.
    """
    known = options.proofs.get(problem)
    if known is not None:
        return known
    stop = options.stop.with_grace(problem.profile.n_ops)
    return stop.interrupt(lambda flag: options.proofs.find(problem, flag))


def gap_of(schedule: Schedule, options: PlaceOptions) -> float:
    """Return how far the step time may be above the best possible, as a share of it.

    Infinite if the bound is not known and there is no time left to compute it.
    """
    problem = schedule.problem
    if options.proofs.known(problem) is None and not options.stop.has_time(_bound_s(problem)):
        return math.inf
    return find_gap(schedule.makespan_us, find_proof(problem, options).bound_us)


def _bound_s(problem: Problem) -> float:
    n_ops = problem.profile.n_ops
    return min(SMALL_BOUND_OP_S * n_ops, BOUND_S + BOUND_OP_S * n_ops)


def is_close(schedule: Schedule, options: PlaceOptions) -> bool:
    """Whether a schedule fits and is close to the proven optimum."""
    return schedule.fits and gap_of(schedule, options) < CLOSE_ENOUGH


def is_enough(best: Schedule, options: PlaceOptions) -> bool:
    """Whether to stop searching: on request, for lack of time, or close to the proven optimum."""
    late = options.stop() or options.stop.with_grace(best.problem.profile.n_ops)()
    return late or is_close(best, options)


def report(schedule: Schedule, options: PlaceOptions, engine: str = "") -> None:
    """Report a new incumbent, which part of the placer found it, and the bound if it is known."""
    if options.is_quiet:
        return
    proof = options.proofs.known(schedule.problem)
    bound_us = proof and proof.bound_us
    report_plan(options, schedule.plan, schedule.makespan_us, bound_us, engine=engine)


def report_plan(
    options: PlaceOptions,
    plan: Plan | None,
    objective_us: float,
    bound_us: float | None,
    bound_by: str = "",
    engine: str = "",
) -> None:
    """Report a better plan, or else a better bound and what proved it."""
    options.progress(
        Progress(
            options.seconds,
            "a better plan" if plan else "a better bound",
            incumbent=plan,
            objective_us=objective_us,
            bound_us=bound_us,
            engine=engine,
            bound_by="" if plan else bound_by,
        )
    )


@dataclass(frozen=True, eq=False)
class Incumbent:
    """The best placement so far and what is known about it.

    Attributes
    ----------
    device : int array, shape (n_ops,)
    objective_us : float
        inf if no placement that fits was found.
    bound_us : float
        A lower bound for every placement of this kind.
    why : str
        A note about the solver; usually empty.
    subgraph : int array, shape (n_ops,), optional
        Number of each op's subgraph within its pass on its accelerator; only for the latency.
    """

    device: IntArray
    objective_us: float
    bound_us: float
    why: str = ""
    subgraph: IntArray | None = None

    @property
    def proven(self) -> bool:
        """Whether no placement of this kind is better."""
        found = bool(np.isfinite(self.objective_us))
        return found and self.objective_us <= self.bound_us * (1 + PROVEN_GAP)


Report = Callable[[Incumbent], None]
"""Called with each better placement or bound."""


class Incumbents:
    """The incumbent of a search. It only gets better, and each improvement is reported."""

    def __init__(self, first: Incumbent, report: Report) -> None:
        self.best = first
        self._report = report

    def offer(
        self, device: IntArray, objective_us: float, subgraph: IntArray | None = None
    ) -> bool:
        """Keep a placement if it is better; return whether it is."""
        if objective_us >= self.best.objective_us * (1 - BETTER):
            return False
        self._keep(Incumbent(device, objective_us, self.best.bound_us, subgraph=subgraph))
        return True

    def raise_bound(self, bound_us: float) -> None:
        """Keep a bound if it is better."""
        bound_us = min(bound_us, self.best.objective_us)
        if bound_us > self.best.bound_us:
            self._keep(replace(self.best, bound_us=bound_us))

    def _keep(self, found: Incumbent) -> None:
        self.best = found
        self._report(found)
