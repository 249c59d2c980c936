"""The clock that placers go by: it stands still while loops are compiled.

That happens once on a machine, takes up to a minute, and is not what a person gives a method its
time for.
"""

from __future__ import annotations

import time

from numba.core import event


class _Compiling(event.Listener):
    """Adds up how long loops are compiled; one may call for another, which counts once."""

    def __init__(self) -> None:
        self.depth, self.began_s, self.total_s = 0, 0.0, 0.0

    def on_start(self, event: event.Event) -> None:
        if self.depth == 0:
            self.began_s = time.perf_counter()
        self.depth += 1

    def on_end(self, event: event.Event) -> None:
        self.depth -= 1
        if self.depth == 0:
            self.total_s += time.perf_counter() - self.began_s


_compiling = _Compiling()
event.register("numba:compile", _compiling)


def now_s() -> float:
    """Seconds since some fixed time, without those spent compiling."""
    now = _compiling.began_s if _compiling.depth else time.perf_counter()
    return now - _compiling.total_s
