"""Run a long kernel so that cancelling the placer stops it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

import numpy as np

from enplace.placing.options import PlaceOptions
from enplace.values.arrays import BoolArray

T = TypeVar("T")

LOOK_S = 0.05
"""Time between two checks for cancellation."""


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
