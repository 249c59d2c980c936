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


def find_proof(problem: Problem, options: PlaceOptions) -> Proof:
    """Return the best proof for a problem; compute our own bounds if there is none.

    Cancelling, and the end of the time limit, make them weaker: on a large graph they take seconds.
    """
    known = options.proofs.get(problem)
    if known is not None:
        return known
    return run_until(
        lambda: options.over,
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


def run_until(is_over: Callable[[], bool], run: Callable[[BoolArray], T]) -> T:
    """Run a kernel in a thread of its own, and tell it when to end.

    Parameters
    ----------
    is_over : callable
        Called often; once it returns True, the kernel must end.
    run : callable
        Calls the kernel with a flag, shape (1,), and returns its result. The kernel must return
        soon after the flag is set.
    """
    stop = np.array([is_over()])
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run, stop)
        try:
            while not wait([running], LOOK_S).done:
                stop[0] = stop[0] or is_over()
        finally:
            stop[0] = True
    return running.result()
