"""The incumbent of a search and its lower bound: keep, improve by a solver, and report them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple, cast

import numpy as np

from enplace.placing.options import PlaceOptions, Progress
from enplace.solvers.milp import FAR_OFF, ROUNDING, MilpAnswer, solve_milp
from enplace.solvers.model import Model
from enplace.values.plan import Plan
from enplace.values.profile import FloatArray, IntArray

PROVEN_GAP = 1e-5
"""Relative difference to the bound that counts as zero, because solvers round."""

BETTER = 1e-9
"""Share by which the objective must fall to count as better, so that rounding errors do not."""


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


@dataclass(frozen=True)
class Limits:
    """How long a search may take, and the functions that it calls.

    Attributes
    ----------
    left_s : callable
        Returns how many seconds are left, by a clock of the caller's; never infinite.
    cancelled : callable
        Called often; once it returns true, the search ends with its incumbent.
    report : callable
        Called with each better placement or bound.
    """

    left_s: Callable[[], float]
    cancelled: Callable[[], bool]
    report: Callable[[Incumbent], None]

    def is_over(self) -> bool:
        """Whether the search must end."""
        return self.cancelled() or self.left_s() <= 0

    def part(self, share: float) -> Limits:
        """Return limits for a search that takes a share of the time left, and reports nothing."""
        reserve_s = (1 - share) * self.left_s()
        return Limits(lambda: self.left_s() - reserve_s, self.cancelled, lambda _: None)

    def stop_after(self, share: float) -> Callable[[], bool]:
        """Return a check for whether this share of the time that is left now has passed."""
        reserve_s = (1 - share) * self.left_s()
        return lambda: self.cancelled() or self.left_s() <= reserve_s


def limits_of(options: PlaceOptions, report: Callable[[Incumbent], None]) -> Limits:
    """Return the limits of a search by the clock of its options."""
    limit_s = cast("float", options.limited.time_limit_s)
    return Limits(lambda: limit_s - options.seconds, options.cancelled, report)


class Incumbents:
    """The incumbent of a search. It only gets better, and each improvement is reported."""

    def __init__(self, first: Incumbent, report: Callable[[Incumbent], None]) -> None:
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


class ImprovingProgram(NamedTuple):
    """An integer program that looks for a better incumbent.

    Attributes
    ----------
    model : Model
    start : float array, shape (n_variables,), or None
        A solution to start from.
    scale_us : float
        Unit of time in the model.
    offer : callable
        Offers the placement of a solution to the incumbents.
    bounds_all : bool
        Whether its bound holds for all placements, or only for some of them.
    """

    model: Model
    start: FloatArray | None
    scale_us: float
    offer: Callable[[FloatArray], None]
    bounds_all: bool = True


def improve_by_program(
    incumbents: Incumbents,
    write: Callable[[], ImprovingProgram],
    limits: Limits,
    solver: str,
    take_others: Callable[[], None] = lambda: None,
) -> MilpAnswer:
    """Improve the incumbent with an integer program; rewrite it when its unit is far off.

    Parameters
    ----------
    write : callable
        Writes the program for the current incumbent.
    take_others : callable
        Called often while the solver runs, to offer the results of other searches.
    """
    while True:
        program = write()

        def stopped() -> bool:
            take_others()
            return limits.cancelled()

        def take(answer: MilpAnswer, program: ImprovingProgram = program) -> None:
            if answer.values is not None:
                program.offer(answer.values)
            if program.bounds_all:
                incumbents.raise_bound((answer.bound - ROUNDING) * program.scale_us)

        left_s = limits.left_s()
        answer = solve_milp(program.model, program.start, left_s, stopped, take, solver=solver)
        take(answer)
        best = incumbents.best
        far_off = program.scale_us > FAR_OFF * best.objective_us
        if answer.status != "optimal" or best.proven or not far_off:
            return answer


def take_each(
    results: Callable[[], Iterator[IntArray]], offer: Callable[[IntArray], object]
) -> Callable[[], None]:
    """Return a function that offers all results so far of work in the background."""

    def take() -> None:
        for result in results():
            offer(result)

    return take


def report_plan(
    options: PlaceOptions,
    plan: Plan | None,
    objective_us: float,
    bound_us: float,
    bound_by: str = "",
) -> None:
    """Report a better plan, or else a better bound and what proved it."""
    options.progress(
        Progress(
            options.seconds,
            "a better plan" if plan else "a better bound",
            incumbent=plan,
            objective_us=objective_us,
            bound_us=bound_us,
            bound_by="" if plan else bound_by,
        )
    )
