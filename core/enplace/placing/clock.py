"""The clock that placers go by: it stands still while loops are compiled or loaded.

The first happens once on a machine and takes up to a minute, the second once in a process and takes
a second; neither is what a person gives a method its time for.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from numba.core import event


class _Pauses(event.Listener):
    """Adds up the pauses; one within another counts once."""

    def __init__(self) -> None:
        self.depth, self.began_s, self.total_s = 0, 0.0, 0.0

    def on_start(self, event: event.Event | None = None) -> None:
        if self.depth == 0:
            self.began_s = time.perf_counter()
        self.depth += 1

    def on_end(self, event: event.Event | None = None) -> None:
        self.depth -= 1
        if self.depth == 0:
            self.total_s += time.perf_counter() - self.began_s


_pauses = _Pauses()
event.register("numba:compile", _pauses)


@contextmanager
def standing_still() -> Iterator[None]:
    """Do something that takes no time by this clock."""
    _pauses.on_start()
    try:
        yield
    finally:
        _pauses.on_end()


def now_s() -> float:
    """Seconds since some fixed time, without the pauses."""
    now = _pauses.began_s if _pauses.depth else time.perf_counter()
    return now - _pauses.total_s
