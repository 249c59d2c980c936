"""Gap of the default method to its proven bound, and its progress on 36,000 ops."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

from benchmarks.place import measured_profiles
from benchmarks.report import figure, title, watched_memory
from benchmarks.synthetic import transformer_36k
from enplace.coarsen import contract, merge_batches
from enplace.placers import DEFAULT_METHOD, PlaceOptions, Progress, place
from enplace.readers import read_profile
from enplace.readers.clusters import presets
from enplace.readers.samples import samples
from enplace.values.problem import Problem

VERTICES, SECONDS, LONG_S, CLOSE = 200, 10.0, 60.0, 0.03
PROVED = 1e-4
"""Gap that counts as zero: CP-SAT works with whole units of time."""

CLUSTERS = ("pesto", "a100-4-nvlink")
LOOKS_S = (1.0, 2.0, 5.0, 10.0, 20.0, 40.0, 60.0)


def main() -> None:
    """Print all tables."""
    with watched_memory() as coarse_mib:
        for cluster in CLUSTERS:
            _coarse(cluster, measured_profiles(), SECONDS)
        for cluster in CLUSTERS:
            _coarse(cluster, [sample.path for sample in samples()], LONG_S)
    figure("memory of all processes at the peak", f"{coarse_mib[0]:.0f} MiB")
    with watched_memory() as large_mib:
        _large()
    figure("memory of all processes at the peak", f"{large_mib[0]:.0f} MiB", "under 1.5 GB")


def _coarse(cluster: str, paths: Sequence[Path], seconds: float) -> None:
    """Print the gap of profiles merged to 200 vertices: small enough for CP-SAT to help."""
    title(f"{VERTICES} vertices on '{cluster}': step time, bound and gap after {seconds:.0f} s")
    gaps = []
    for path in paths:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            whole = Problem(read_profile(path), presets()[cluster])
        problem = contract(whole, merge_batches(whole, VERTICES, critical=True))
        found = place(problem, DEFAULT_METHOD, options=PlaceOptions(time_limit_s=seconds))
        step_us, bound_us = found.schedule.makespan_us, found.bound_us or 0.0
        gaps.append(1 - bound_us / step_us)
        name = path.name.split(".")[0]
        row = f"{name:<28}{step_us / 1e3:>10.2f}{bound_us / 1e3:>10.2f}{100 * gaps[-1]:>8.1f} %"
        print(row, flush=True)
    figure("within 3 % of the bound", f"{sum(g <= CLOSE for g in gaps)} of {len(gaps)}")
    figure("proved optimal", f"{sum(g <= PROVED for g in gaps)} of {len(gaps)}", "half in 60 s")


def _large() -> None:
    """Print the step time of the best plan so far, over a minute."""
    problem = Problem(transformer_36k(), presets()["celeritas"])
    title(f"{problem.profile.n_ops:,} ops on 4 GPUs: best plan so far")
    found: list[tuple[float, float]] = []

    def listen(progress: Progress) -> None:
        if progress.objective_us is not None:
            found.append((progress.seconds, progress.objective_us))

    options = PlaceOptions(time_limit_s=LOOKS_S[-1], progress=listen)
    bound_us = place(problem, DEFAULT_METHOD, options=options).bound_us or 0.0
    figure("first plan after", f"{found[0][0]:.2f} s", "under 1 s")
    for look_s in LOOKS_S:
        known = [step_us for at_s, step_us in found if at_s <= look_s]
        if known:
            figure(f"after {look_s:.0f} s", f"{known[-1] / 1e3:.1f} ms")
    figure("proven not below", f"{bound_us / 1e3:.1f} ms")


if __name__ == "__main__":
    main()
