"""How long a search may take, and work in a thread while a solver's process has the floor."""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

_T = TypeVar("_T")


@dataclass(frozen=True)
class Limits(Generic[_T]):
    """How long a search may take, and whom it tells.

    Attributes
    ----------
    seconds : float
    cancelled : callable
        Asked often; once true, the search ends with what it has.
    report : callable
        Told of each better placement and bound.
    """

    seconds: float
    cancelled: Callable[[], bool]
    report: Callable[[_T], None]


class Beside(Generic[_T]):
    """Repeats work in a thread until it is left as a context; calling it gives what was found.

    Parameters
    ----------
    work : callable
        Takes the number of the repetition, from 1, and what to ask whether to stop. It should
        leave the interpreter alone, as compiled kernels do.
    stopped : callable
        Once true, there is no more work.
    """

    def __init__(
        self, work: Callable[[int, Callable[[], bool]], _T], stopped: Callable[[], bool]
    ) -> None:
        self._work, self._stopped = work, stopped
        self._found: queue.SimpleQueue[_T] = queue.SimpleQueue()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Beside[_T]:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def __call__(self) -> Iterator[_T]:
        """What was found since the last call."""
        while not self._found.empty():
            yield self._found.get()

    def _run(self) -> None:
        for number in itertools.count(1):
            if self._ended():
                return
            self._found.put(self._work(number, self._ended))

    def _ended(self) -> bool:
        return self._end.is_set() or self._stopped()
