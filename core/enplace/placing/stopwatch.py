"""The time of one run, without the time that compiling its loops takes.

numba compiles a loop once on each machine, which takes up to a minute, and loads it once in each
process, which takes a second. Neither should count against a method's time limit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from enplace.compiling import watch_compiler


class Stopwatch:
    """Counts seconds from its creation, except while it is paused.

    Parameters
    ----------
    clock : callable
        Seconds since some fixed moment.

    Attributes
    ----------
    paused_s : float
        The seconds of all pauses that have ended.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock, self._started_s = clock, clock()
        self._depth, self._paused_at_s, self.paused_s = 0, 0.0, 0.0

    @property
    def seconds(self) -> float:
        now_s = self._paused_at_s if self._depth else self._clock()
        return now_s - self.paused_s - self._started_s

    def restart(self) -> Stopwatch:
        """Return a stopwatch at zero that uses the same clock."""
        return Stopwatch(self._clock)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Pause the stopwatch in a context; nested pauses count once."""
        self._pause()
        try:
            yield
        finally:
            self._resume()

    @contextmanager
    def paused_by_compiler(self, report: Callable[[], None] | None = None) -> Iterator[None]:
        """Pause whenever numba compiles or loads a loop, and call ``report`` unless paused."""

        def begin(module: str) -> None:
            is_first = self._depth == 0
            self._pause()
            if is_first and report is not None:
                report()

        with watch_compiler(begin, self._resume):
            yield

    def _pause(self) -> None:
        if self._depth == 0:
            self._paused_at_s = self._clock()
        self._depth += 1

    def _resume(self) -> None:
        self._depth -= 1
        if self._depth == 0:
            self.paused_s += self._clock() - self._paused_at_s
