"""Figures 5, 7 and 8 and Table 2 of Pesto's paper, simulated.

The paper solved 200 vertices with CPLEX in 24 to 51 minutes. A free solver manages about 40 of
them in a minute; for the paper's 200, and finer vertices, ``pesto`` searches. ``enplace`` is
shown for comparison.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Iterator, Sequence

import numpy as np
from matplotlib.figure import Figure

from benchmarks.place import BAECHI, measured_profiles
from benchmarks.report import Report, publish
from enplace.coarsen import contract, expand, merge_batches
from enplace.machine import simulate
from enplace.placers import DEFAULT_METHOD, PlaceOptions, Stop, place
from enplace.placers.heft import heft
from enplace.placers.pesto.methods import FREE_TARGET
from enplace.placers.pesto.program import write_program
from enplace.readers import read_profile
from enplace.readers.clusters import presets
from enplace.solvers.milp import solve_milp
from enplace.values.cluster import Cluster
from enplace.values.problem import Problem
from enplace.values.profile import Profile

SECONDS, SWEEP_S = 20.0, 10.0
"""Time for each placement by ``pesto``: of Figure 7, and of the many of Figures 8 and 5."""

SEARCH_S = 5.0
"""Time for ``enplace``, which is compared with them."""

QUICK_S, CUT = 2.0, 2

MODELS = {
    "rnnlm_2_2048": ("18 % under Expert, 35 % under Baechi", ""),
    "rnnlm_4_2048": ("the same, on average of both", ""),
    "nmt_2_1024": ("21 % under Expert, 20 % under Baechi, on average", "30 min, Baechi 1 min"),
    "transformer_6_16_2048": ("8 % under Expert, on average", ""),
    "transformer_10_8_1024": ("the same, on average", ""),
    "nasnet_4_212": ("16 % under Baechi, on average; Expert does not fit", ""),
    "nasnet_6_168": ("the same; Expert does not fit", "24 min, Baechi 3 min, for 6 cells"),
}
"""Profiles of the models of Figure 7; what the paper's text says of them, and its Table 2."""

FIG_5, FIG_8A, FIG_8B = "rnnlm_2_2048_fp32", "rnnlm_2_2048", "nmt_2_1024"

FASTER = (0.5, 1.0, 2.0, 4.0)
LINKS = (0.1, 0.3, 1.0, 3.0, 10.0)


def main(report: Report) -> None:
    """Report the figures and the table."""
    profiles = _profiles()
    search_s = report.pick(SEARCH_S, QUICK_S)
    sweep_s = report.pick(SWEEP_S, QUICK_S)
    _figure_7(report, profiles, report.pick(SECONDS, QUICK_S), search_s)
    sweeps = (
        ("8 (a)", FIG_8A, "compute", report.pick(FASTER, FASTER[1:2])),
        ("8 (b)", FIG_8B, "links", report.pick(LINKS, LINKS[2:3])),
    )
    _figure_8(report, profiles, sweeps, sweep_s, search_s)
    if FIG_5 in profiles:  # it is not bundled
        _congestion(report, profiles[FIG_5], sweep_s)


def _profiles() -> dict[str, Profile]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {
            path.name.split(".")[0].replace("-", "_"): read_profile(path)
            for path in measured_profiles()
        }


def _placed(problem: Problem, method: str, limit_s: float) -> tuple[float, float, bool]:
    """Return the step time in ms, the time to place in seconds, and whether the plan fits."""
    began = time.perf_counter()
    plan = place(problem, method, options=PlaceOptions(stop=Stop(limit_s))).plan
    seconds = time.perf_counter() - began
    schedule = simulate(problem, plan)
    return schedule.makespan_us / 1e3, seconds, schedule.fits


def _figure_7(
    report: Report, profiles: dict[str, Profile], limit_s: float, search_s: float
) -> None:
    report.title("Step times of Figure 7, and times to place of Table 2")
    report.text(
        f"Two V100s with NVLink. `pesto` was given {limit_s:.0f} s, half for HiGHS and 40 vertices "
        f"and half for searches of 200 and more, and `{DEFAULT_METHOD}` {search_s:.0f} s; the "
        "paper gave CPLEX 24 to 51 minutes. Baechi is the best of its three methods. The paper "
        "prints the bars of Figure 7 without numbers, so its column quotes its text."
    )
    head = (
        "model",
        "expert (ms)",
        "Baechi (ms)",
        "pesto (ms)",
        f"{DEFAULT_METHOD} (ms)",
        "pesto against expert",
        "against Baechi",
        "the paper",
        "Baechi took (s)",
        "pesto took (s)",
        "the paper took",
    )
    raw: list[tuple[str, str, float, float, int]] = []
    names = [name for name in MODELS if name in profiles][: report.pick(None, 1)]
    report.table(head, (_row_7(name, profiles[name], limit_s, search_s, raw) for name in names))
    report.picture(_bars(names, raw), "Step times of expert, Baechi, pesto and enplace", "-7")
    report.numbers(("profile", "method", "ms", "seconds", "fits"), raw, "-7")


def _row_7(
    name: str,
    profile: Profile,
    limit_s: float,
    search_s: float,
    raw: list[tuple[str, str, float, float, int]],
) -> list[str]:
    problem = Problem(profile, presets()["pesto"])
    found = {
        method: _placed(problem, method, search_s if method == DEFAULT_METHOD else limit_s)
        for method in ("expert", *BAECHI, "pesto", DEFAULT_METHOD)
    }
    raw += [
        (name, method, round(ms, 3), round(seconds, 3), int(fits))
        for method, (ms, seconds, fits) in found.items()
    ]
    baechi = min(BAECHI, key=lambda method: found[method][0])
    paper, took = MODELS[name]
    ours = found["pesto"][0]
    return [
        name,
        *(_shown(found[method]) for method in ("expert", baechi, "pesto", DEFAULT_METHOD)),
        f"{100 * (ours / found['expert'][0] - 1):+.0f} %",
        f"{100 * (ours / found[baechi][0] - 1):+.0f} %",
        paper,
        f"{found[baechi][1]:.1f}",
        f"{found['pesto'][1]:.1f}",
        took,
    ]


def _shown(found: tuple[float, float, bool]) -> str:
    return f"{found[0]:.1f}{'' if found[2] else ', does not fit'}"


def _bars(names: Sequence[str], raw: list[tuple[str, str, float, float, int]]) -> Figure:
    """Draw step times relative to the expert's."""
    figure = Figure(figsize=(8, 3.6), layout="constrained")
    axes = figure.subplots()
    ms = {(name, method): value for name, method, value, _, _ in raw}
    shown = ("expert", *BAECHI, "pesto", DEFAULT_METHOD)
    for number, method in enumerate(shown):
        at = np.arange(len(names)) + (number - len(shown) / 2 + 0.5) / (len(shown) + 1)
        heights = [ms[name, method] / ms[name, "expert"] for name in names]
        axes.bar(at, heights, 0.9 / (len(shown) + 1), label=method)
    axes.set_xticks(range(len(names)), [name.replace("_", "\n", 1) for name in names], fontsize=8)
    axes.set(ylabel=f"step time, expert = 1, cut at {CUT}", ylim=(0, CUT))
    figure.legend(fontsize="small", ncols=len(shown), loc="outside upper center")
    return figure


def _figure_8(
    report: Report,
    profiles: dict[str, Profile],
    sweeps: tuple[tuple[str, str, str, tuple[float, ...]], ...],
    limit_s: float,
    search_s: float,
) -> None:
    report.title("Figure 8: faster devices and links")
    raw: list[tuple[str, str, float, str, float]] = []
    drawing = Figure(figsize=(8, 3.4), layout="constrained")
    for axes, (name, profile, what, factors) in zip(drawing.subplots(1, 2), sweeps, strict=True):
        columns = ("expert", "pesto", DEFAULT_METHOD)
        rows = []
        for factor in factors:
            cluster = presets()["pesto"].scaled(**{what: factor})
            problem = Problem(profiles[profile], cluster)
            limits_s = (limit_s, limit_s, search_s)
            row = [_placed(problem, *pair)[0] for pair in zip(columns, limits_s, strict=True)]
            raw += [(name, what, factor, *pair) for pair in zip(columns, row, strict=True)]
            less = [f"{ms:.1f} ({100 * (ms / row[0] - 1):+.0f} %)" for ms in row[1:]]
            rows.append([f"{factor:g}", f"{row[0]:.1f}", *less])
        report.text(
            f"Figure {name}: {profile} with faster {what}; step times in ms, `pesto` in "
            f"{limit_s:.0f} s."
        )
        report.table(("times as fast", *columns), rows)
        for column, method in enumerate(columns):
            values = [row[-1] for row in raw if row[0] == name and row[3] == method]
            axes.plot(factors, values, marker="o", label=columns[column])
        axes.set(xscale="log", yscale="log", xlabel=f"{what}, times as fast", ylabel="step, ms")
        axes.set_title(f"{name}: {profile}", fontsize=10)
        axes.legend(fontsize="small")
    report.text(
        "In the paper, the gain over Expert grows as compute gets faster (a), and Pesto adapts to "
        "slow links while Expert does not (b). It prints no numbers there."
    )
    report.picture(drawing, "Step times as devices and links get faster", "-8")
    report.numbers(("figure", "faster", "factor", "method", "ms"), raw, "-8")


def _congestion(report: Report, profile: Profile, limit_s: float) -> None:
    """Solve the same program without and with constraint 7; simulate both with busy links."""
    report.title("Figure 5: one transfer at a time on a link")
    report.text(
        f"{FIG_5}, 40 vertices, HiGHS for {limit_s:.0f} s, step times in ms. In the paper, "
        "constraint 7 makes the step three times as short."
    )
    head = ("link speed", "constraint 7", "program", "vertices simulated", "ops simulated")

    def rows() -> Iterator[list[str]]:
        for links in report.pick(LINKS[1:3], LINKS[2:3]):
            cluster = presets()["pesto"].scaled(links=links)
            for congestion in (False, True):
                found = _solved(profile, cluster, congestion, limit_s)
                word = "with" if congestion else "without"
                yield [f"{links:g}", word, *(f"{us / 1e3:.1f}" for us in found)]

    report.table(head, rows())


def _solved(
    profile: Profile, cluster: Cluster, congestion: bool, limit_s: float
) -> tuple[float, float, float]:
    """Return the program's step time, and the simulated ones of its plan on vertices and on ops."""
    problem = Problem(profile, cluster)
    vertex = merge_batches(problem, FREE_TARGET)
    coarse = contract(problem, vertex)
    program = write_program(coarse, congestion)
    start = program.values(heft(coarse, PlaceOptions()))
    answer = solve_milp(program.model, start, limit_s, lambda: False, lambda answer: None)
    if answer.values is None:
        return math.nan, math.nan, math.nan
    plan = program.plan(answer.values)
    fine = expand(problem, vertex, plan)
    return (
        answer.objective,
        simulate(coarse, plan).makespan_us,
        simulate(problem, fine).makespan_us,
    )


if __name__ == "__main__":
    publish(
        main,
        "pesto",
        "Figures 7 and 8 and Table 2 of Pesto",
        "Simulated, from op times that were measured on one H200; times to place are measured. "
        "One run.",
    )
