"""Time of the placers on 36,000 ops, and their step times on the measured profiles."""

from __future__ import annotations

import warnings
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.report import figure, median_s, title
from benchmarks.synthetic import transformer_36k
from enplace.placers import DEFAULT_METHOD, STEP_TIME, PlaceOptions, place, placers
from enplace.placing.registry import ANYTIME
from enplace.readers import read_profile
from enplace.readers.clusters import presets
from enplace.readers.samples import samples
from enplace.values.problem import BoolArray, Problem
from enplace.values.profile import FloatArray

CLUSTERS = ("pesto", "celeritas", "fastt")
"""Testbeds of the papers: two, four and eight V100s."""

SEARCH_S = 10.0
"""Time for the default method."""

BAECHI = ("m-topo", "m-etf", "m-sct")
BRANCHY = ("inception", "nasnet")

EXTERNAL = Path(__file__).parents[2] / "shared" / "workloads" / "gpu-profiles"


class Row(NamedTuple):
    """The methods' results on a profile."""

    name: str
    steps_ms: FloatArray
    fits: BoolArray
    bound_ms: float


def main() -> None:
    """Print both tables."""
    problem = Problem(transformer_36k(), presets()["celeritas"])
    title(
        f"Placing {problem.profile.n_ops:,} ops, {problem.profile.n_edges:,} edges on 4 GPUs, warm"
    )
    for method in _quick():
        seconds = median_s(partial(place, problem, method, options=PlaceOptions()), repeats=5)
        target = "under 2 s (the paper: 95 s)" if method == "celeritas" else ""
        figure(method, f"{seconds:.2f} s", target)
    everywhere = []
    for cluster in CLUSTERS:
        rows = _step_times(measured_profiles(), cluster)
        _sum_up(rows)
        everywhere += rows
    title("All testbeds together")
    _sum_up(everywhere)


def measured_profiles() -> list[Path]:
    """List all measured profiles; without any, the bundled samples."""
    paths = sorted(EXTERNAL.glob("*.json.gz")) or [sample.path for sample in samples()]
    return [path for path in paths if "_gt_" not in path.name]


def _step_times(paths: list[Path], cluster: str) -> list[Row]:
    """Print the step time of each method on each profile, in ms; * does not fit."""
    title(f"Predicted step time in ms on '{cluster}' (* does not fit)")
    methods = [*_quick(), DEFAULT_METHOD]
    print(f"{'':<28}" + "".join(f"{method:>13}" for method in methods) + f"{'bound':>10}")
    rows = []
    for path in paths:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            problem = Problem(read_profile(path), presets()[cluster])
        options = PlaceOptions(time_limit_s=SEARCH_S)
        results = [place(problem, m, options=options) for m in methods]
        schedules = [result.schedule for result in results]
        steps = np.array([schedule.makespan_us / 1e3 for schedule in schedules])
        fits = np.array([schedule.fits for schedule in schedules])
        row = Row(path.name.split(".")[0], steps, fits, (results[-1].bound_us or 0.0) / 1e3)
        cells = [f"{t:.1f}{'' if ok else '*'}" for t, ok in zip(steps, fits, strict=True)]
        line = "".join(f"{cell:>13}" for cell in cells)
        print(f"{row.name:<28}{line}{row.bound_ms:>10.1f}", flush=True)
        rows.append(row)
    return rows


def _sum_up(rows: list[Row]) -> None:
    """Compare the default method with others and with the bound, which nothing can beat."""
    methods = [*_quick(), DEFAULT_METHOD]
    steps = np.array([row.steps_ms for row in rows])
    own, bound = steps[:, -1], np.array([row.bound_ms for row in rows])
    branchy = np.array([row.name.startswith(BRANCHY) for row in rows])
    every = np.ones(len(rows), dtype=bool)
    for name, others, of, target in (
        ("expert", ["expert"], every, 15),
        ("best of Baechi", BAECHI, every, 20),
        ("celeritas", ["celeritas"], every, 20),
        ("heft on branchy graphs", ["heft"], branchy, 5),
    ):
        best = steps[:, [methods.index(method) for method in others]].min(axis=1)
        less, least = (1 - np.exp(np.log(us[of] / best[of]).mean()) for us in (own, bound))
        text = f"{100 * less:.0f} % (bound {100 * least:.0f} %)"
        figure(f"{DEFAULT_METHOD} under {name}, geometric mean", text, f"{target} %")
    fitting = np.where([row.fits[:-1] for row in rows], steps[:, :-1], np.inf).min(axis=1)
    won, gaps = int((own <= fitting).sum()), 1 - bound / own
    figure(f"{DEFAULT_METHOD} at or below all others that fit", f"{won} of {len(rows)}", "all")
    figure("gap to the proven bound, median", f"{100 * np.median(gaps):.1f} %")
    figure("profiles with a gap of at most 5 %", f"{(gaps <= 0.05).sum()} of {len(gaps)}")


def _quick() -> list[str]:
    """List the methods that can run here and end before their time is up."""
    able = {name: p for name, p in placers(STEP_TIME).items() if p.installed}
    return [name for name, p in able.items() if not p.can(ANYTIME)]


if __name__ == "__main__":
    main()
