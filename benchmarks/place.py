"""How long the placers take on 36,000 ops, and what they reach on the measured profiles."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np

from benchmarks.report import figure, median_s, title
from benchmarks.synthetic import transformer_36k
from enplace.clusters import presets
from enplace.frontends import read_profile
from enplace.placers import STEP_TIME, PlaceOptions, place, placers
from enplace.problem import Problem
from enplace.samples import samples
from enplace.simulate import simulate

CLUSTERS = ("pesto", "celeritas", "fastt")
EXTERNAL = Path(__file__).parents[2] / "shared" / "workloads" / "gpu-profiles"


def main() -> None:
    """Print both tables."""
    problem = Problem(transformer_36k(), presets()["celeritas"])
    title(
        f"Placing {problem.profile.n_ops:,} ops, {problem.profile.n_edges:,} edges on 4 GPUs, warm"
    )
    for method in placers(STEP_TIME):
        seconds = median_s(lambda m=method: place(problem, m, options=PlaceOptions()), repeats=5)
        target = "under 2 s (the paper: 95 s)" if method == "celeritas" else ""
        figure(method, f"{seconds:.2f} s", target)
    paths = sorted(EXTERNAL.glob("*.json.gz")) or [sample.path for sample in samples()]
    measured = [path for path in paths if "_gt_" not in path.name]
    for cluster in CLUSTERS:
        _step_times(measured, cluster)


def _step_times(paths: list[Path], cluster: str) -> None:
    """Step time of each method on each profile, in ms; * does not fit."""
    title(f"Predicted step time in ms on '{cluster}' (* does not fit)")
    methods = list(placers(STEP_TIME))
    print(f"{'':<28}" + "".join(f"{method:>13}" for method in methods) + f"{'bound':>10}")
    ratios = []
    for path in paths:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            problem = Problem(read_profile(path), presets()[cluster])
        schedules = [simulate(problem, place(problem, m, options=PlaceOptions())) for m in methods]
        steps = [schedule.makespan_us / 1e3 for schedule in schedules]
        cells = [f"{t:.1f}{'' if s.fits else '*'}" for t, s in zip(steps, schedules, strict=True)]
        bound = schedules[0].lower_bound_us / 1e3
        name = path.name.split(".")[0]
        print(f"{name:<28}" + "".join(f"{cell:>13}" for cell in cells) + f"{bound:>10.1f}")
        ratios.append(np.array(steps) / steps[methods.index("expert")])
    means = np.exp(np.log(ratios).mean(axis=0))
    print(f"{'against expert (geo. mean)':<28}" + "".join(f"{mean:>13.2f}" for mean in means))


if __name__ == "__main__":
    main()
