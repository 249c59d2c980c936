"""How long the placers take on 36,000 ops, and what they reach on the measured profiles."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np

from benchmarks.report import figure, median_s, title
from benchmarks.synthetic import transformer_36k
from enplace.clusters import presets
from enplace.frontends import read_profile
from enplace.placers import DEFAULT_METHOD, STEP_TIME, PlaceOptions, place, placers
from enplace.problem import Problem
from enplace.samples import samples
from enplace.simulate import lower_bound_us, simulate

CLUSTERS = ("pesto", "celeritas", "fastt")
"""Testbeds of the papers: two, four and eight V100s."""

SEARCH_S = 10.0
"""Time for the default method."""

BAECHI = ("m-topo", "m-etf", "m-sct")

EXTERNAL = Path(__file__).parents[2] / "shared" / "workloads" / "gpu-profiles"


def main() -> None:
    """Print both tables."""
    problem = Problem(transformer_36k(), presets()["celeritas"])
    title(
        f"Placing {problem.profile.n_ops:,} ops, {problem.profile.n_edges:,} edges on 4 GPUs, warm"
    )
    for method in _quick():
        seconds = median_s(lambda m=method: place(problem, m, options=PlaceOptions()), repeats=5)
        target = "under 2 s (the paper: 95 s)" if method == "celeritas" else ""
        figure(method, f"{seconds:.2f} s", target)
    for cluster in CLUSTERS:
        _step_times(measured_profiles(), cluster)


def measured_profiles() -> list[Path]:
    """All that is there; the bundled samples where there is nothing else."""
    paths = sorted(EXTERNAL.glob("*.json.gz")) or [sample.path for sample in samples()]
    return [path for path in paths if "_gt_" not in path.name]


def _step_times(paths: list[Path], cluster: str) -> None:
    """Step time of each method on each profile, in ms; * does not fit."""
    title(f"Predicted step time in ms on '{cluster}' (* does not fit)")
    methods = [*_quick(), DEFAULT_METHOD]
    print(f"{'':<28}" + "".join(f"{method:>13}" for method in methods) + f"{'bound':>10}")
    ratios, gaps, won = [], [], 0
    for path in paths:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            problem = Problem(read_profile(path), presets()[cluster])
        options = PlaceOptions(time_limit_s=SEARCH_S)
        schedules = [simulate(problem, place(problem, m, options=options)) for m in methods]
        steps = [schedule.makespan_us / 1e3 for schedule in schedules]
        cells = [f"{t:.1f}{'' if s.fits else '*'}" for t, s in zip(steps, schedules, strict=True)]
        bound = lower_bound_us(problem) / 1e3
        name = path.name.split(".")[0]
        print(
            f"{name:<28}" + "".join(f"{cell:>13}" for cell in cells) + f"{bound:>10.1f}", flush=True
        )
        ratios.append(np.array(steps) / steps[methods.index("expert")])
        fitting = [t for t, s in zip(steps[:-1], schedules[:-1], strict=True) if s.fits]
        won += steps[-1] <= min(fitting, default=np.inf)
        gaps.append(1 - bound / steps[-1])
    means = np.exp(np.log(ratios).mean(axis=0))
    print(f"{'against expert (geo. mean)':<28}" + "".join(f"{mean:>13.2f}" for mean in means))
    own = np.array(ratios)[:, -1]
    for name, others, target in (("expert", ["expert"], 15), ("best of Baechi", BAECHI, 20)):
        best = np.array(ratios)[:, [methods.index(method) for method in others]].min(axis=1)
        less = 100 * (1 - np.exp(np.log(own / best).mean()))
        figure(f"{DEFAULT_METHOD} under {name}", f"{less:.0f} %", f"{target} %")
    figure(f"{DEFAULT_METHOD} at or below all others that fit", f"{won} of {len(paths)}", "all")
    figure("gap to the proven bound, median", f"{100 * np.median(gaps):.1f} %")
    figure("profiles with a gap of at most 5 %", f"{sum(g <= 0.05 for g in gaps)} of {len(gaps)}")


def _quick() -> list[str]:
    """Methods that can run here and do not search until their time is up."""
    able = {name: p for name, p in placers(STEP_TIME).items() if p.installed}
    return [name for name, p in able.items() if not p.can("anytime")]


if __name__ == "__main__":
    main()
