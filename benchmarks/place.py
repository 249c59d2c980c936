"""Time of the placers on 36,000 ops, and their step times on the measured profiles."""

from __future__ import annotations

import time
import warnings
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from benchmarks.report import SHARED, Report, publish, seconds_of, spread
from benchmarks.synthetic import HEADS, transformer
from enplace.placers import DEFAULT_METHOD, STEP_TIME, PlaceOptions, Stop, place, placers
from enplace.placing.registry import ANYTIME
from enplace.placing.stopwatch import Stopwatch
from enplace.readers import read_profile
from enplace.readers.clusters import presets
from enplace.readers.samples import samples
from enplace.values.problem import BoolArray, Problem
from enplace.values.profile import FloatArray

CLUSTERS = ("pesto", "celeritas", "fastt")
"""Testbeds of the papers: two, four and eight V100s."""

SEARCH_S = 10.0
"""Time for the default method."""

QUICK_S, QUICK_PROFILES = 1.0, 1

BAECHI = ("m-topo", "m-etf", "m-sct")
BRANCHY = ("inception", "nasnet")

EXTERNAL = SHARED / "workloads" / "gpu-profiles"


class Row(NamedTuple):
    """The methods' results on a profile."""

    name: str
    steps_ms: FloatArray
    fits: BoolArray
    bound_ms: float


def main(report: Report) -> None:
    """Report the times of the quick methods, then the step times of all."""
    problem = Problem(transformer(report.pick(69, 4), HEADS), presets()["celeritas"])
    size = f"{problem.profile.n_ops:,} ops, {problem.profile.n_edges:,} edges"
    report.title("Time of the quick methods on a large graph")
    report.text(f"{size}, 4 GPUs, warm: median and quartiles of 5 runs.")
    repeats = report.pick(5, 1)
    for method in _quick():
        seconds = seconds_of(partial(place, problem, method, options=PlaceOptions()), repeats)
        target = "under 2 s (the paper: 95 s)" if method == "celeritas" else ""
        report.figure(f"`{method}`", f"{spread(seconds, '.2f')} s", target)
    limit_s = report.pick(SEARCH_S, QUICK_S)
    report.title("Step times")
    report.text(
        f"`{DEFAULT_METHOD}` in {limit_s:.0f} s on each profile and testbed, against the methods "
        "that end by themselves and split no ops. The raw numbers have every step time and bound."
    )
    everywhere, raw = [], []
    methods = [*_quick(), DEFAULT_METHOD]
    for cluster in CLUSTERS:
        report.title(f"Step times on `{cluster}`")
        paths = measured_profiles()[: report.pick(None, QUICK_PROFILES)]
        rows = [_step_times(path, cluster, methods, limit_s) for path in paths]
        _sum_up(report, rows)
        everywhere += rows
        raw += [
            (row.name, cluster, method, f"{ms:.3f}", int(fits), f"{row.bound_ms:.3f}")
            for row in rows
            for method, ms, fits in zip(methods, row.steps_ms, row.fits, strict=True)
        ]
    report.title("All testbeds together")
    report.text(f"{len(everywhere)} problems, {len(everywhere) // len(CLUSTERS)} profiles.")
    _sum_up(report, everywhere)
    report.picture(_picture(everywhere, methods), "Step times above the proven bound, by method")
    report.numbers(("profile", "cluster", "method", "ms", "fits", "bound_ms"), raw)


def cpu_limit(seconds: float | None) -> Stop:
    """Count the CPU time of all threads, and limit it, so that a busy machine finds the same."""
    return Stop(seconds, clock=Stopwatch(time.process_time))


def measured_profiles() -> list[Path]:
    """List all measured profiles; without any, the bundled samples."""
    paths = sorted(EXTERNAL.glob("*.json.gz")) or [sample.path for sample in samples()]
    return [path for path in paths if "_gt_" not in path.name]


def _step_times(path: Path, cluster: str, methods: list[str], limit_s: float) -> Row:
    """Place a profile with each method; print the step times in ms, * where it does not fit."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        problem = Problem(read_profile(path), presets()[cluster])
    options = PlaceOptions(stop=Stop(limit_s))
    results = [place(problem, m, options=options) for m in methods]
    schedules = [result.schedule for result in results]
    steps = np.array([schedule.makespan_us / 1e3 for schedule in schedules])
    fits = np.array([schedule.fits for schedule in schedules])
    cells = [f"{t:.1f}{'' if ok else '*'}" for t, ok in zip(steps, fits, strict=True)]
    row = Row(path.name.split(".")[0], steps, fits, (results[-1].bound_us or 0.0) / 1e3)
    line = "".join(f"{cell:>9}" for cell in cells)
    print(f"{row.name:<28}{line}{row.bound_ms:>10.1f}", flush=True)
    return row


def _picture(rows: list[Row], methods: list[str]) -> Figure:
    """Draw how far the plans that fit are above the bound: a box from quartile to quartile."""
    above = [
        [row.steps_ms[n] / row.bound_ms - 1 for row in rows if row.fits[n]]
        for n in range(len(methods))
    ]
    order = np.argsort([np.median(values) if values else np.inf for values in above])[::-1]
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    axes.boxplot(
        [100 * np.array(above[n]) for n in order],
        orientation="horizontal",
        tick_labels=[methods[n] for n in order],
        whis=(0, 100),
    )
    axes.set(xscale="log", xlabel="% above the proven bound: quartiles, least and most")
    return figure


def _sum_up(report: Report, rows: list[Row]) -> None:
    """Compare the default method with others and with the bound, which nothing can beat."""
    methods = [*_quick(), DEFAULT_METHOD]
    steps = np.array([row.steps_ms for row in rows])
    own, bound = steps[:, -1], np.array([row.bound_ms for row in rows])
    branchy = np.array([row.name.startswith(BRANCHY) for row in rows])
    every = np.ones(len(rows), dtype=bool)
    for name, others, of, target in (
        ("the expert's", ["expert"], every, 15),
        ("the best of Baechi's methods", BAECHI, every, 20),
        ("that of `celeritas`", ["celeritas"], every, 20),
        ("that of `heft`, Inception and NASNet", ["heft"], branchy, 5),
    ):
        if not of.any():
            continue
        best = steps[:, [methods.index(method) for method in others]].min(axis=1)
        less, least = (1 - np.exp(np.log(us[of] / best[of]).mean()) for us in (own, bound))
        text = f"{_change(less)} (the bound allows {100 * least:.0f} %)"
        report.figure(f"step time against {name}, geometric mean", text, f"{target} % shorter")
    fitting = np.where([row.fits[:-1] for row in rows], steps[:, :-1], np.inf).min(axis=1)
    won, gaps = int((own <= fitting).sum()), 1 - bound / own
    what = "no longer than the plan of any other method that fits"
    report.figure(what, f"{won} of {len(rows)}", "all")
    report.figure("gap to the proven bound, median", f"{100 * np.median(gaps):.1f} %")
    report.figure("profiles with a gap of at most 5 %", f"{(gaps <= 0.05).sum()} of {len(gaps)}")


def _change(less: float) -> str:
    return f"{100 * abs(less):.0f} % {'shorter' if less >= 0 else 'longer'}"


def _quick() -> list[str]:
    """List the methods that can run here and end before their time is up."""
    able = {name: p for name, p in placers(STEP_TIME).items() if p.installed}
    return [name for name, p in able.items() if not p.can(ANYTIME)]


if __name__ == "__main__":
    publish(
        main,
        "place",
        "The default method against the quick ones",
        "Step times are simulated, from op times that were measured on one H200; times to solve "
        "are measured. The spread is over profiles.",
    )
