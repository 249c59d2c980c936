"""Gap of the default method to its proven bound, on profiles merged to 200 vertices."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.place import measured_profiles
from benchmarks.report import Report, publish, watched_memory
from enplace.coarsen import contract, merge_batches
from enplace.placers import DEFAULT_METHOD, PlaceOptions, Stop, place
from enplace.readers import read_profile
from enplace.readers.clusters import presets
from enplace.readers.samples import samples
from enplace.values.problem import Problem

VERTICES, SECONDS, LONG_S, CLOSE = 200, 10.0, 60.0, 0.03
PROVED = 1e-4
"""Gap that counts as zero: CP-SAT works with whole units of time."""

CLUSTERS = ("pesto", "a100-4-nvlink")
QUICK_S = 2.0


def main(report: Report) -> None:
    """Report all tables."""
    paths = measured_profiles()
    with watched_memory() as peak_mib:
        for chosen, limit_s in (
            (paths, report.pick(SECONDS, QUICK_S)),
            ([sample.path for sample in samples()], report.pick(LONG_S, QUICK_S)),
        ):
            for cluster in CLUSTERS:
                _coarse(report, cluster, chosen[: report.pick(None, 1)], limit_s)
    report.figure("memory of all processes at the peak", f"{peak_mib[0]:.0f} MiB")


def _coarse(report: Report, cluster: str, paths: Sequence[Path], seconds: float) -> None:
    """Report the gaps of some profiles: small enough for CP-SAT to help."""
    report.title(f"{VERTICES} vertices on `{cluster}` for {seconds:.0f} s")
    gaps: list[float] = []

    def rows() -> Iterator[list[str]]:
        for path in paths:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                whole = Problem(read_profile(path), presets()[cluster])
            problem = contract(whole, merge_batches(whole, VERTICES, critical=True))
            found = place(problem, DEFAULT_METHOD, options=PlaceOptions(stop=Stop(seconds)))
            step_us, bound_us = found.schedule.makespan_us, found.bound_us or 0.0
            gaps.append(1 - bound_us / step_us)
            times = (f"{us / 1e3:.2f}" for us in (step_us, bound_us))
            yield [path.name.split(".")[0], *times, f"{100 * gaps[-1]:.1f}"]

    report.table(("profile", "step time (ms)", "bound (ms)", "gap (%)"), rows())
    report.figure("within 3 % of the bound", f"{sum(g <= CLOSE for g in gaps)} of {len(gaps)}")
    proved = f"{sum(g <= PROVED for g in gaps)} of {len(gaps)}"
    report.figure("proved optimal", proved, "half in 60 s")


if __name__ == "__main__":
    publish(
        main,
        "coarse",
        "Gaps on merged profiles",
        "Simulated. One run; the spread is over profiles.",
    )
