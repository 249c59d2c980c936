"""The best plan so far: what is better, what is good enough, and reporting each better one.

:class:`Best` keeps it. For the step time, it is a schedule, and the bound is that of its problem.
For the other objectives, it is an :class:`Incumbent`, whose bound holds for the placements of its
kind.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from enplace.bounds import Proof, rivals_of
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

GIVEN = "the plan given"
"""How a search reports the plan that it began from, as if a part of the search had found it."""

BETTER = 1e-9
"""Share by which another objective must fall to count as better, so that rounding errors do not."""


def find_proof(problem: Problem, options: PlaceOptions) -> Proof:
    """Return the best proof for a problem; compute our own bounds if there is none.

    Cancelling, and the end of the time limit, make them weaker: on a large graph they take seconds.
    """
    known = options.proofs.get(problem)
    if known is not None:
        return known
    stop = options.stop.with_grace(problem.profile.n_ops)
    return stop.interrupt(lambda flag: options.proofs.find(problem, flag))


def report_plan(
    options: PlaceOptions,
    plan: Plan | None,
    objective_us: float,
    bound_us: float | None,
    bound_by: str = "",
    engine: str = "",
    fits: bool = True,
) -> None:
    """Report a better plan, or else a better bound and what proved it."""
    what = "a better plan" if plan else "a better bound"
    options.progress(
        Progress(
            options.seconds,
            GIVEN if engine == GIVEN else what,
            incumbent=plan,
            objective_us=objective_us,
            bound_us=bound_us,
            engine=engine,
            bound_by="" if plan else bound_by,
            fits=fits,
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
    excess_bytes : float
        By how much it exceeds the memory.
    """

    device: IntArray
    objective_us: float
    bound_us: float
    why: str = ""
    subgraph: IntArray | None = None
    excess_bytes: float = 0.0

    @property
    def fits(self) -> bool:
        """Whether a placement that fits was found."""
        return math.isfinite(self.objective_us) and not self.excess_bytes

    @property
    def proven(self) -> bool:
        """Whether no placement of this kind is better."""
        return self.fits and self.objective_us <= self.bound_us * (1 + PROVEN_GAP)


Found = TypeVar("Found", bound=Schedule | Incumbent)

Report = Callable[[Incumbent], None]
"""Called with each better placement or bound."""


def is_better(one: Found, other: Found, margin: float = 0.0) -> bool:
    """Whether one has a smaller excess than the other, or the same excess and a smaller value.

    Parameters
    ----------
    margin : float
        Share by which the value of one that fits must be smaller than that of another.
    """
    if other.fits:  # then the memory of a longer schedule need not be computed
        return _value_us(one) < _value_us(other) * (1 - margin) and one.fits
    return (one.excess_bytes, _value_us(one)) < (other.excess_bytes, _value_us(other))


def _value_us(found: Schedule | Incumbent) -> float:
    return found.makespan_us if isinstance(found, Schedule) else found.objective_us


def best_among(candidates: Iterable[Found]) -> Found:
    """Return the best of some candidates; of equals, the first."""
    best = Best[Found]()
    for found in candidates:
        best.offer(found)
    return best.found


class Best(Generic[Found]):
    """The best that a search has found so far. It only gets better, and reports when it does.

    Attributes
    ----------
    kept : Schedule, Incumbent or None
        The best so far; None before the first.
    """

    def __init__(
        self,
        kept: Found | None = None,
        report: Callable[[Found, str], object] = lambda *_: None,
        margin: float = 0.0,
    ) -> None:
        self.kept = kept
        self._report, self._margin = report, margin

    @property
    def found(self) -> Found:
        """The best so far, of a search that has found something."""
        assert self.kept is not None, "a search offers at least one candidate"
        return self.kept

    def offer(self, found: Found, engine: str = "") -> bool:
        """Keep a candidate if it is better; return whether it is."""
        if self.kept is not None and not is_better(found, self.kept, self._margin):
            return False
        self.keep(found, engine)
        return True

    def keep(self, found: Found, engine: str = "") -> None:
        """Keep and report a candidate that is known to be better."""
        self.kept = found
        self._report(found, engine)


class BestSchedule(Best[Schedule]):
    """The shortest schedule that fits so far, and whether it is good enough."""

    def __init__(self, options: PlaceOptions, kept: Schedule | None = None) -> None:
        super().__init__(kept, self._tell)
        self._options = options

    @property
    def is_optimal(self) -> bool:
        """Whether it fits and is proven to be the shortest."""
        return self.found.fits and self._gap() <= 0

    @property
    def is_close(self) -> bool:
        """Whether it fits and is close to the proven optimum."""
        return self.found.fits and self._gap() < CLOSE_ENOUGH

    @property
    def is_enough(self) -> bool:
        """Whether to stop searching: on request, for lack of time, or close to the optimum."""
        stop = self._options.stop
        return stop() or stop.with_grace(self.found.problem.profile.n_ops)() or self.is_close

    def _tell(self, found: Schedule, engine: str) -> None:
        """Report a schedule, which part of the placer found it, and the bound if it is known."""
        options = self._options
        if not options.is_quiet:
            proof = options.proofs.known(rivals_of(found))
            bound_us = proof and proof.bound_us
            us, fits = found.makespan_us, found.fits
            report_plan(options, found.plan, us, bound_us, engine=engine, fits=fits)

    def _gap(self) -> float:
        """Return how far the step time may be above the best possible, as a share of it.

        Infinite if the bound is not known and there is no time left to compute it.
        """
        problem, options = rivals_of(self.found), self._options
        if options.proofs.known(problem) is None and options.stop.left_s() < _bound_s(problem):
            return math.inf
        return find_gap(self.found.makespan_us, find_proof(problem, options).bound_us)


def _bound_s(problem: Problem) -> float:
    n_ops = problem.profile.n_ops
    return min(SMALL_BOUND_OP_S * n_ops, BOUND_S + BOUND_OP_S * n_ops)
