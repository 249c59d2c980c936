"""Gap of the default method to its proven bound after a minute, on every measured profile."""

from __future__ import annotations

import warnings
from pathlib import Path

from benchmarks.place import CLUSTERS, measured_profiles
from benchmarks.report import Report, publish, spread
from enplace.placers import DEFAULT_METHOD, PlaceOptions, Stop, place
from enplace.readers import read_profile
from enplace.readers.clusters import presets
from enplace.values.problem import Problem

SECONDS, QUICK_S, CLOSE = 60.0, 1.0, 0.05


def main(report: Report) -> None:
    """Report a table for each of the papers' testbeds."""
    limit_s = report.pick(SECONDS, QUICK_S)
    raw: list[tuple[str, str, float, float, float]] = []
    for cluster in CLUSTERS:
        report.title(f"`{DEFAULT_METHOD}` for {limit_s:.0f} s on `{cluster}`")
        paths = measured_profiles()[: report.pick(None, 2)]
        head = ("profile", "step time (ms)", "bound (ms)", "gap (%)")
        own = [(path.name.split(".")[0], cluster, *_gap(path, cluster, limit_s)) for path in paths]
        report.table(head, ((n, f"{s:.2f}", f"{b:.2f}", f"{100 * g:.1f}") for n, _, s, b, g in own))
        _sum_up(report, [row[-1] for row in own])
        raw += own
    report.title("All gaps together")
    _sum_up(report, [row[-1] for row in raw])
    report.numbers(("profile", "cluster", "ms", "bound_ms", "gap"), raw)


def _gap(path: Path, cluster: str, limit_s: float) -> tuple[float, float, float]:
    """Return step time and bound in ms, and the gap between them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        problem = Problem(read_profile(path), presets()[cluster])
    found = place(problem, DEFAULT_METHOD, options=PlaceOptions(stop=Stop(limit_s)))
    step_us, bound_us = found.schedule.makespan_us, found.bound_us or 0.0
    return step_us / 1e3, bound_us / 1e3, 1 - bound_us / step_us


def _sum_up(report: Report, gaps: list[float]) -> None:
    close = sum(gap <= CLOSE for gap in gaps)
    report.figure("gap (%), median and quartiles", spread([100 * gap for gap in gaps]))
    within = f"within {100 * CLOSE:.0f} % of the bound"
    report.figure(within, f"{close} of {len(gaps)}", "half")


if __name__ == "__main__":
    publish(
        main,
        "gap",
        "Gaps after a minute",
        "Simulated. One run; the spread is over profiles. It takes an hour.",
    )
