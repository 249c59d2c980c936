"""How benchmarks measure and print: medians of repeated runs, beside the target."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np


def median_s(work: Callable[[], object], repeats: int = 15) -> float:
    """Median wall time in seconds of warm runs; one run before them is not counted."""
    work()
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return float(np.median(seconds))


def title(text: str) -> None:
    """Print a heading."""
    print(f"\n{text}\n{'-' * len(text)}")


def figure(what: str, value: str, target: str = "") -> None:
    """Print one figure and what it should be."""
    print(f"{what:<58} {value:>14}   {target}")
