"""Improve the incumbent of a search with an integer program."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from enplace.placing.incumbents import Incumbents
from enplace.placing.stop import Stop
from enplace.solvers.milp import FAR_OFF, ROUNDING, MilpAnswer, solve_milp
from enplace.solvers.model import Model
from enplace.values.profile import FloatArray, IntArray


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
    stop: Stop,
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
            return stop.cancelled()

        def take(answer: MilpAnswer, program: ImprovingProgram = program) -> None:
            if answer.values is not None:
                program.offer(answer.values)
            if program.bounds_all:
                incumbents.raise_bound((answer.bound - ROUNDING) * program.scale_us)

        answer = solve_milp(program.model, program.start, stop.left_s, stopped, take, solver=solver)
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
