"""Compare schedules, and report the best so far; ``anytime.py`` is for the other objectives."""

from __future__ import annotations

import math

from enplace.placing.interruptible import find_proof, is_over
from enplace.placing.options import PlaceOptions, Progress
from enplace.values.plan import find_gap
from enplace.values.problem import Problem
from enplace.values.schedule import Schedule

BOUND_S, BOUND_OP_S = 2.5, 2.5e-5
"""Seconds that the lower bound of a large graph takes, and seconds per op more."""

SMALL_BOUND_OP_S = 1.3e-4
"""Seconds per op that the lower bound of a smaller graph takes, of which more is examined."""

CLOSE_ENOUGH = 0.002
"""Gap to the lower bound below which no further candidates are tried."""


def is_better(one: Schedule, other: Schedule) -> bool:
    """Whether one has a smaller excess than the other, or the same excess and a shorter step."""
    if other.fits:  # then a longer schedule's memory need not be computed
        return one.makespan_us < other.makespan_us and one.fits
    return (one.excess_bytes, one.makespan_us) < (other.excess_bytes, other.makespan_us)


def gap_of(schedule: Schedule, options: PlaceOptions) -> float:
    """Return how far the step time may be above the best possible, as a share of it.

    Infinite if the bound is not known and there is no time left to compute it.
    """
    problem = schedule.problem
    if options.proofs.known(problem) is None and not options.has_time(_bound_s(problem)):
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
    late = options.stopped or is_over(best.problem, options)
    return late or is_close(best, options)


def report(schedule: Schedule, options: PlaceOptions, engine: str = "") -> None:
    """Report a new incumbent, which part of the placer found it, and the bound if it is known."""
    if options.is_quiet:
        return
    proof = options.proofs.known(schedule.problem)
    options.progress(
        Progress(
            options.seconds,
            "a better plan",
            incumbent=schedule.plan,
            objective_us=schedule.makespan_us,
            bound_us=proof and proof.bound_us,
            engine=engine,
        )
    )
