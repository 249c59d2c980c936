"""Improve the incumbent of a search with an integer program, and by other means meanwhile."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from queue import SimpleQueue
from typing import NamedTuple

from enplace.linear import Model
from enplace.placing.incumbents import Best, Incumbent
from enplace.placing.stop import Stop
from enplace.solvers.milp import FAR_OFF, ROUNDING, MilpAnswer, solve_milp
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
        Offers the placement of a solution.
    bounds_all : bool
        Whether its bound holds for all placements, or only for some of them.
    """

    model: Model
    start: FloatArray | None
    scale_us: float
    offer: Callable[[FloatArray], None]
    bounds_all: bool = True


def improve_by_program(
    best: Best[Incumbent],
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

    def raise_bound(bound_us: float) -> None:
        bound_us = min(bound_us, best.found.objective_us)
        if bound_us > best.found.bound_us:
            best.keep(replace(best.found, bound_us=bound_us))

    while True:
        program = write()

        def stopped() -> bool:
            take_others()
            return stop.cancelled()

        def take(answer: MilpAnswer, program: ImprovingProgram = program) -> None:
            if answer.values is not None:
                program.offer(answer.values)
            if program.bounds_all:
                raise_bound((answer.bound - ROUNDING) * program.scale_us)

        answer = solve_milp(
            program.model, program.start, stop.left_s(), stopped, take, solver=solver
        )
        take(answer)
        far_off = program.scale_us > FAR_OFF * best.found.objective_us
        if answer.status != "optimal" or best.found.proven or not far_off:
            return answer


@contextmanager
def repeated_aside(
    run: Callable[[int, Callable[[], bool]], IntArray],
    stop: Stop,
    offer: Callable[[IntArray], object],
    times: int | None = None,
) -> Iterator[Callable[[], None]]:
    """Repeat a run in a thread until the context ends; yield what offers its results so far.

    After the context, it still offers what the last run returned.

    Parameters
    ----------
    run : callable
        Takes the number of the run, from 1, and a check for whether to stop. It should release the
        interpreter's lock, as compiled kernels do.
    stop : Stop
        Once it is due, no further run begins.
    offer : callable
        Takes a result; called in the thread of the caller, where solvers report too.
    times : int, optional
        How often it is repeated at most.
    """
    results: SimpleQueue[IntArray] = SimpleQueue()
    over = threading.Event()

    def ended() -> bool:
        return over.is_set() or stop()

    def repeat() -> None:
        for number in itertools.islice(itertools.count(1), times):
            if ended():
                return
            results.put(run(number, ended))

    def take() -> None:
        while not results.empty():
            offer(results.get())

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield take
    finally:
        over.set()
        thread.join()
