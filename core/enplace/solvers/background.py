"""Work in a thread while a solver's process runs."""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

_T = TypeVar("_T")


class BackgroundRuns(Generic[_T]):
    """Repeats a run in a thread until the context ends; :meth:`results` yields what it returned.

    Parameters
    ----------
    run : callable
        Takes the number of the run, from 1, and a check for whether to stop. It should release the
        interpreter's lock, as compiled kernels do.
    stopped : callable
        Once it returns true, no further run begins.
    """

    def __init__(
        self, run: Callable[[int, Callable[[], bool]], _T], stopped: Callable[[], bool]
    ) -> None:
        self._run, self._stopped = run, stopped
        self._results: queue.SimpleQueue[_T] = queue.SimpleQueue()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._repeat, daemon=True)

    def __enter__(self) -> BackgroundRuns[_T]:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def results(self) -> Iterator[_T]:
        """Yield the results since the last call."""
        while not self._results.empty():
            yield self._results.get()

    def _repeat(self) -> None:
        for number in itertools.count(1):
            if self._ended():
                return
            self._results.put(self._run(number, self._ended))

    def _ended(self) -> bool:
        return self._end.is_set() or self._stopped()
