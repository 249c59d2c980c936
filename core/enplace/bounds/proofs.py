"""Proven bounds of problems, kept as long as someone needs them."""

from __future__ import annotations

from operator import itemgetter
from threading import Lock
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from enplace.bounds.step_time import lower_bound_us
from enplace.values.problem import STEP_TIME, BoolArray, Problem
from enplace.values.result import Result
from enplace.values.schedule import Schedule


class Proof(NamedTuple):
    """A lower bound on the step time, and the solver that proved it; empty for our own bounds."""

    bound_us: float
    by: str = ""


def rivals_of(schedule: Schedule) -> Problem:
    """Return the problem of all plans that a schedule's plan is compared with.

    Where a plan computes ops again or keeps what they make on the host, or was sought among such
    plans, the others may do so with any ops. Every bound that is shown of a plan is that of this
    problem.
    """
    return schedule.problem if schedule.plan.keeps_all else schedule.problem.with_any_copies


def step_bound_us(schedule: Schedule, known_us: float | None = None) -> float:
    """Return a lower bound on the step time of a plan's rivals; ours if none is known already."""
    return lower_bound_us(rivals_of(schedule)) if known_us is None else known_us


def with_bound(schedule: Schedule, known: Proof | None = None) -> Result:
    """Return a schedule with a lower bound on its plan's objective.

    Parameters
    ----------
    known : Proof, optional
        Of a bound on the step time; without one, ours is computed.
    """
    plan = schedule.plan
    if plan.objective != STEP_TIME:
        return Result(schedule, plan.bound_us)
    return Result(schedule, *(known or Proof(step_bound_us(schedule))))


class Proofs:
    """The best proof of each problem, collected during one run or while a document is open.

    Methods that run side by side share them: none computes a bound that another is computing.
    """

    def __init__(self) -> None:
        self._best: WeakKeyDictionary[Problem, Proof] = WeakKeyDictionary()
        self._known: WeakKeyDictionary[Problem, Proof | None] = WeakKeyDictionary()
        self._access, self._computing = Lock(), Lock()

    def add(self, problem: Problem, proof: Proof) -> None:
        """Keep a proof if it is better than the known bound of the problem.

        It replaces our own bounds, so a solver has to start from them.
        """
        with self._access:
            best = self._best.get(problem)
            if best is None or proof.bound_us > best.bound_us:
                self._best[problem] = proof
                self._known.clear()

    def drop(self, problem: Problem) -> None:
        """Forget a proof that a plan disproves."""
        with self._access:
            self._best.pop(problem, None)
            self._known.clear()

    def get(self, problem: Problem) -> Proof | None:
        """Return the best proof that was found for just this problem."""
        with self._access:
            return self._best.get(problem)

    def find(self, problem: Problem, stop: BoolArray | None = None) -> Proof:
        """Return the best proof for a problem; compute our own bounds if there is none.

        They are weaker if ``stop[0]`` is set meanwhile, and then not kept.
        """
        with self._computing:
            found = self.get(problem)
            if found is None:
                found = Proof(lower_bound_us(problem, stop))
                if stop is None or not stop[0]:
                    self.add(problem, found)
        return found

    def of_rivals(self, schedule: Schedule) -> Proof:
        """Return the best proof for the step time of a plan's rivals; ours is among those."""
        problem = rivals_of(schedule)
        return max(self.find(problem), self.known(problem) or Proof(0.0))

    def known(self, problem: Problem) -> Proof | None:
        """Return the best proof for a problem without computing anything; None if there is none.

        Constraints only remove plans, so a bound of one problem also holds for every problem that
        has all of its constraints and more. A window asks again for each of its plans after each
        edit, so the answer is kept until there is another proof.
        """
        with self._access:
            if problem not in self._known:
                best_first = sorted(self._best.items(), key=itemgetter(1), reverse=True)
                holding = (proof for other, proof in best_first if has_all_of(problem, other))
                self._known[problem] = next(holding, None)
            return self._known[problem]


def has_all_of(problem: Problem, other: Problem) -> bool:
    """Whether every plan of a problem is a plan of the other: same costs, no fewer constraints.

    Nor may the other allow fewer copies.
    """
    return problem is other or (
        problem.measured_profile is other.measured_profile
        and problem.cluster == other.cluster
        and problem.splits == other.splits
        and problem.any_copies <= other.any_copies
        and all(
            set(problem.constraints[kind.key]) >= set(other.constraints[kind.key])
            for kind in other.constraints
            if not kind.is_mask
        )
        and _allows_no_more(problem, other)
    )


def _allows_no_more(problem: Problem, other: Problem) -> bool:
    """Whether each op may use only devices that it may use in the other problem."""
    mine, theirs = problem.unit_allowed, other.unit_allowed
    if not np.array_equal(problem.unit, other.unit):
        mine, theirs = mine[problem.unit], theirs[other.unit]
    return bool((mine <= theirs).all())
