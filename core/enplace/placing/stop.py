"""When a run stops: one object, from which the parts of a run derive earlier ones."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np

from enplace.errors import CancelledError
from enplace.placing.stopwatch import Stopwatch
from enplace.values.arrays import BoolArray

T = TypeVar("T")

LOOK_S = 0.05
"""Time between two checks for whether to stop."""

GRACE_SHARE = 1.05
"""Share of the time limit after which a run should end: many methods need all of the limit for
their plan, and what follows takes a moment on most graphs."""

END_OP_S = 7e-6
"""Seconds per op that the end of a run takes: simulating the last plan, and a quick bound."""


def never() -> bool:
    """Go on for ever."""
    return False


@dataclass(frozen=True)
class Stop:
    """When a run stops: on request, or at its time limit. Call it to learn whether to stop now.

    A placer that has a plan then returns it. Budgets of other kinds, such as rounds of work or a
    proof that nothing better exists, join by :meth:`when`.

    Attributes
    ----------
    limit_s : float or None
        The time limit, in seconds of the clock.
    cancelled : callable
        Called often; once it returns true, the run ends with what it has.
    clock : Stopwatch
        Counts the seconds of the run, without those of compiling.
    """

    limit_s: float | None = None
    cancelled: Callable[[], bool] = never
    clock: Stopwatch = field(default_factory=Stopwatch)

    def __call__(self) -> bool:
        return self.left_s() < 0 or self.cancelled()

    def left_s(self, share: float = 1.0) -> float:
        """Return the seconds left of a share of the time limit; infinite without one."""
        return math.inf if self.limit_s is None else share * self.limit_s - self.clock.seconds

    def check(self) -> None:
        """Leave the placer if the run was cancelled.

        Raises
        ------
        CancelledError
            :func:`~enplace.placing.run.place` then returns the last incumbent, if there is one.
        """
        if self.cancelled():
            raise CancelledError("stopped before there was a plan")

    def until(self, limit_s: float | None) -> Stop:
        """Return a stop with another time limit."""
        return replace(self, limit_s=limit_s)

    def limited(self, usual_s: float) -> Stop:
        """Return a stop with a time limit: the usual one if none is set."""
        return self if self.limit_s is not None else self.until(usual_s)

    def within(self, share: float) -> Stop:
        """Return a stop after a share of the time that is left now."""
        if self.limit_s is None:
            return self
        return self.until(self.limit_s - (1 - share) * self.left_s())

    def when(self, met: Callable[[], bool]) -> Stop:
        """Return a stop that also cancels once a further condition is met."""
        return replace(self, cancelled=lambda: met() or self.cancelled())

    def with_grace(self, n_ops: int) -> Stop:
        """Return a stop after which the run of a graph still ends soon after the time limit."""
        if self.limit_s is None:
            return self
        return self.until(GRACE_SHARE * self.limit_s - END_OP_S * n_ops)

    def interrupt(self, run: Callable[[BoolArray], T]) -> T:
        """Run a kernel in a separate thread, and tell it when to stop.

        Parameters
        ----------
        run : callable
            Calls the kernel with a flag, shape (1,), and returns its result. The kernel must return
            soon after the flag is set.
        """
        flag = np.array([self()])
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(run, flag)
            try:
                while not wait([running], LOOK_S).done:
                    flag[0] = flag[0] or self()
            finally:
                flag[0] = True
        return running.result()

    def interrupt_if_cancelled(self, run: Callable[[BoolArray], T]) -> T:
        """Run a kernel to its end, unless the run is cancelled meanwhile.

        Raises
        ------
        CancelledError
            If cancelled.
        """
        result = self.until(None).interrupt(run)
        self.check()
        return result
