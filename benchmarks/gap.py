"""Gap of the default method to its proven bound after a minute, on every measured profile."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np

from benchmarks.place import CLUSTERS, measured_profiles
from benchmarks.report import figure, title
from enplace.placers import DEFAULT_METHOD, PlaceOptions, place
from enplace.readers import read_profile
from enplace.readers.clusters import presets
from enplace.values.problem import Problem

SECONDS, CLOSE = 60.0, 0.05


def main() -> None:
    """Print a table for each of the papers' testbeds."""
    every = []
    for cluster in CLUSTERS:
        title(f"'{DEFAULT_METHOD}' for {SECONDS:.0f} s on '{cluster}': step time, bound (ms), gap")
        gaps = [_gap(path, cluster) for path in measured_profiles()]
        _sum_up(gaps)
        every += gaps
    title("All together")
    _sum_up(every)


def _gap(path: Path, cluster: str) -> float:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        problem = Problem(read_profile(path), presets()[cluster])
    found = place(problem, DEFAULT_METHOD, options=PlaceOptions(time_limit_s=SECONDS))
    step_us, bound_us = found.schedule.makespan_us, found.bound_us or 0.0
    gap = 1 - bound_us / step_us
    name = path.name.split(".")[0]
    print(f"{name:<28}{step_us / 1e3:>10.2f}{bound_us / 1e3:>10.2f}{100 * gap:>8.1f} %", flush=True)
    return gap


def _sum_up(gaps: list[float]) -> None:
    close = sum(gap <= CLOSE for gap in gaps)
    figure("median gap", f"{100 * np.median(gaps):.1f} %")
    figure(f"within {100 * CLOSE:.0f} % of the bound", f"{close} of {len(gaps)}", "half")


if __name__ == "__main__":
    main()
