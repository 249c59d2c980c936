"""Measure and print for benchmarks: medians of repeated runs, next to the target."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import numpy as np
import psutil

LOOK_S = 0.1


def median_s(work: Callable[[], object], repeats: int = 15) -> float:
    """Return the median wall time of warm runs in seconds; one run before them is not counted."""
    work()
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return float(np.median(seconds))


@contextmanager
def watched_memory() -> Iterator[list[float]]:
    """Watch this process and its children, such as solvers; yield a list: the peak so far in MiB.

    Memory that processes share counts once.
    """
    own, over, peak_mib = psutil.Process(), threading.Event(), [0.0]

    def look() -> None:
        while not over.wait(LOOK_S):
            total = 0
            for process in (own, *own.children(recursive=True)):
                with suppress(psutil.Error):  # the process has just ended
                    total += process.memory_full_info().pss
            peak_mib[0] = max(peak_mib[0], total / 2**20)

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        yield peak_mib
    finally:
        over.set()
        watcher.join()


def title(text: str) -> None:
    """Print a heading."""
    print(f"\n{text}\n{'-' * len(text)}")


def figure(what: str, value: str, target: str = "") -> None:
    """Print one figure and its target."""
    print(f"{what:<58} {value:>14}   {target}")
