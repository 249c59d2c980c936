"""Run long kernels so that cancelling the placer stops them."""

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
"""Time between two checks for cancellation."""


def find_proof(problem: Problem, options: PlaceOptions) -> Proof:
    """Return the best proof for a problem; compute our own bounds if there is none.

    Cancelling makes them weaker: on a large graph they take seconds.
    """
    known = options.proofs.get(problem)
    if known is not None:
        return known
    stop = np.zeros(1, dtype=bool)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(options.proofs.find, problem, stop)
        while not wait([running], LOOK_S).done:
            stop[0] = options.cancelled()
    return running.result()


def run_interruptibly(run: Callable[[BoolArray], T], options: PlaceOptions) -> T:
    """Run a kernel in a thread of its own; on a large graph, it may take seconds.

    Parameters
    ----------
    run : callable
        Calls the kernel with a flag, shape (1,), and returns its result. The kernel must return
        soon after the flag is set.

    Raises
    ------
    CancelledError
        If cancelled.
    """
    stop = np.zeros(1, dtype=bool)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run, stop)
        try:
            while not wait([running], LOOK_S).done:
                options.check_cancelled()
        finally:
            stop[0] = True
    options.check_cancelled()
    return running.result()
