"""Run long kernels so that the time limit, or cancelling the placer, stops them."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

import numpy as np

from enplace.bounds.proofs import Proof
from enplace.placing.options import PlaceOptions
from enplace.values.arrays import BoolArray
from enplace.values.problem import Problem

T = TypeVar("T")

LOOK_S = 0.05
"""Time between two checks for whether to stop."""

GRACE_SHARE = 1.05
"""Share of the time limit after which a run should end: many methods need all of the limit for
their plan, and what follows takes a moment on most graphs."""

END_OP_S = 7e-6
"""Seconds per op that the end of a run takes: simulating the last plan, and a quick bound."""


def ends_in_time(problem: Problem, needed_s: float, options: PlaceOptions) -> bool:
    """Whether the run would end soon after the time limit if it first did work that long."""
    return options.has_time(needed_s + END_OP_S * problem.profile.n_ops, GRACE_SHARE)


def is_over(problem: Problem, options: PlaceOptions) -> bool:
    """Whether to stop: on request, or so that the run ends soon after the time limit."""
    return options.cancelled() or not ends_in_time(problem, 0.0, options)


def find_proof(problem: Problem, options: PlaceOptions) -> Proof:
    """Return the best proof for a problem; compute our own bounds if there is none.

    Cancelling, and the end of the time limit, make them weaker: on a large graph they take seconds.
    """
    known = options.proofs.get(problem)
    if known is not None:
        return known
    return run_until(
        lambda: is_over(problem, options),
        lambda stop: options.proofs.find(problem, stop),
    )


def run_interruptibly(run: Callable[[BoolArray], T], options: PlaceOptions) -> T:
    """Run a kernel in a thread of its own; on a large graph, it may take seconds.

    Parameters
    ----------
    run : callable
        See :func:`run_until`.

    Raises
    ------
    CancelledError
        If cancelled.
    """
    result = run_until(options.cancelled, run)
    options.check_cancelled()
    return result


def run_until(stopped: Callable[[], bool], run: Callable[[BoolArray], T]) -> T:
    """Run a kernel in a thread of its own, and tell it when to end.

    Parameters
    ----------
    stopped : callable
        Called often; once it returns True, the kernel must end.
    run : callable
        Calls the kernel with a flag, shape (1,), and returns its result. The kernel must return
        soon after the flag is set.
    """
    stop = np.array([stopped()])
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run, stop)
        try:
            while not wait([running], LOOK_S).done:
                stop[0] = stop[0] or stopped()
        finally:
            stop[0] = True
    return running.result()
