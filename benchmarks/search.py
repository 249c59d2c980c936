"""How close the default method comes to its proven bound, and how it goes on 36,000 ops."""

from __future__ import annotations

import warnings

from benchmarks.place import measured_profiles
from benchmarks.report import figure, title, watched_memory
from benchmarks.synthetic import transformer_36k
from enplace.clusters import presets
from enplace.coarsen import contract, merge_batches
from enplace.frontends import read_profile
from enplace.placers import DEFAULT_METHOD, PlaceOptions, Progress, place
from enplace.problem import Problem
from enplace.simulate import lower_bound_us, simulate

VERTICES, SECONDS = 200, 10.0
CLUSTERS = ("pesto", "a100-4-nvlink")
LOOKS_S = (1.0, 2.0, 5.0, 10.0, 20.0, 40.0, 60.0)


def main() -> None:
    """Print both tables."""
    for cluster in CLUSTERS:
        with watched_memory() as coarse_mib:
            _coarse(cluster)
        figure("memory of all processes at the peak", f"{coarse_mib[0]:.0f} MiB")
    with watched_memory() as large_mib:
        _large()
    figure("memory of all processes at the peak", f"{large_mib[0]:.0f} MiB", "under 1.5 GB")


def _coarse(cluster: str) -> None:
    """Gap of the measured profiles, merged to 200 vertices: small enough for CP-SAT to help."""
    title(f"{VERTICES} vertices on '{cluster}': step time, bound and gap after {SECONDS:.0f} s")
    for path in measured_profiles():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            whole = Problem(read_profile(path), presets()[cluster])
        problem = contract(whole, merge_batches(whole, VERTICES, critical=True))
        plan = place(problem, DEFAULT_METHOD, options=PlaceOptions(time_limit_s=SECONDS))
        step_us, bound_us = simulate(problem, plan).makespan_us, lower_bound_us(problem)
        name = path.name.split(".")[0]
        print(
            f"{name:<28}{step_us / 1e3:>10.2f}{bound_us / 1e3:>10.2f}"
            f"{100 * (1 - bound_us / step_us):>8.1f} %",
            flush=True,
        )


def _large() -> None:
    """Step time of the best plan so far, over a minute."""
    problem = Problem(transformer_36k(), presets()["celeritas"])
    title(f"{problem.profile.n_ops:,} ops on 4 GPUs: best plan so far")
    found: list[tuple[float, float]] = []

    def listen(progress: Progress) -> None:
        if progress.objective_us is not None:
            found.append((progress.seconds, progress.objective_us))

    options = PlaceOptions(time_limit_s=LOOKS_S[-1], progress=listen)
    place(problem, DEFAULT_METHOD, options=options)
    figure("first plan after", f"{found[0][0]:.2f} s", "under 1 s")
    for look_s in LOOKS_S:
        known = [step_us for at_s, step_us in found if at_s <= look_s]
        if known:
            figure(f"after {look_s:.0f} s", f"{known[-1] / 1e3:.1f} ms")
    figure("proven not below", f"{lower_bound_us(problem) / 1e3:.1f} ms")


if __name__ == "__main__":
    main()
