"""The plans that the search starts from: the plans of the quick methods, and the best of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from enplace.errors import CancelledError, EnplaceError
from enplace.machine import simulate
from enplace.placers.enplace.kernels import BLOCKS, SIMULATE, STEPS, load_kernels
from enplace.placers.enplace.methods import LP_START, SEARCHES, STARTS, run_method
from enplace.placing.candidates import best_of, given_start
from enplace.placing.moves.steps import LISTS
from enplace.placing.options import PlaceOptions
from enplace.placing.repair import rearrange
from enplace.values.plan import Plan
from enplace.values.problem import Problem
from enplace.values.schedule import Schedule

SMALL = 300
"""Most ops of a problem that other searches and CP-SAT are tried on."""

SEARCH_SHARE = 0.05
"""Share of the time limit that each of the other searches gets."""

LP_OP_S, LP_SHARE = 2.5e-4, 0.25
"""Seconds per op that the start by a linear program takes, and the share of the time limit that it
may take."""


@dataclass(frozen=True, eq=False)
class Start:
    """The plans that the search begins with.

    Attributes
    ----------
    best : Schedule
        The best list schedule, or the plan to begin from.
    plans : tuple of Plan
        All list schedules, for further starts.
    left_out : tuple of str
        The methods that gave no plan, each with the reason.
    """

    best: Schedule
    plans: tuple[Plan, ...]
    left_out: tuple[str, ...]


def find_start(problem: Problem, options: PlaceOptions) -> Start:
    """Try the quick methods, and report each plan that is better than all before."""
    load_kernels(SIMULATE, options)
    plans: list[Plan] = []
    left_out: list[str] = []

    def keep_all() -> Iterator[Plan]:
        for plan in _try_methods(problem, options, left_out):
            plans.append(plan)
            yield plan

    given = given_start(problem, options, "enplace")
    best = best_of(problem, keep_all(), options, given, engine=LISTS)
    if problem.profile.n_ops <= SMALL:
        best = best_of(problem, _rearranged(problem, plans, options), options, best, engine=LISTS)
    return Start(best, tuple(plans), tuple(left_out))


def _try_methods(problem: Problem, options: PlaceOptions, left_out: list[str]) -> Iterator[Plan]:
    """Yield the plans of the quick methods.

    The first always runs to its end. A method that is still running at the time limit is abandoned,
    and so are those after it.
    """
    for number, (name, own_options) in enumerate(_methods(problem, options)):
        if name in STEPS:
            load_kernels(name, options)
        if number:
            own_options = replace(own_options, cancelled=lambda: options.stopped)
        try:
            plan = run_method(name, problem, own_options)
        except CancelledError:
            options.check_cancelled()
            left_out.append(f"{name} (it takes longer)")
            return
        except EnplaceError as error:  # the other methods may do better
            left_out.append(f"{name} ({error})")
            continue
        yield plan.under_name("enplace")


def _rearranged(problem: Problem, plans: list[Plan], options: PlaceOptions) -> Iterator[Plan]:
    """Yield plans that exceed memory with blocks of ops moved, as their methods return them."""
    for schedule in [simulate(problem, plan) for plan in plans]:
        if not (schedule.fits or options.stopped):
            load_kernels(BLOCKS, options)
            yield rearrange(schedule, options).plan


def _methods(problem: Problem, options: PlaceOptions) -> list[tuple[str, PlaceOptions]]:
    """List the methods that there is time for, each with its options."""
    n_ops, limit_s = problem.profile.n_ops, options.time_limit_s
    methods = [(name, options.quiet) for name in STARTS]
    if limit_s is None or options.seconds + LP_OP_S * n_ops <= LP_SHARE * limit_s:
        methods.append((LP_START, options.quiet))
    if n_ops <= SMALL:
        for number, name in enumerate(SEARCHES, 1):
            until_s = None
            if limit_s is not None:
                until_s = options.seconds + number * SEARCH_SHARE * limit_s
            methods.append((name, replace(options.quiet, time_limit_s=until_s)))
    return methods
