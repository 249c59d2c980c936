"""Celeritas's Tables 2 to 5: fusion, step times, times to place, and estimates of a large batch.

The paper's models are larger versions, with batches that fit no single V100. Our profiles are of
smaller ones; a synthetic graph is as large as the paper's largest.
"""

from __future__ import annotations

import importlib.util
import tempfile
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from benchmarks.measured import MODELS as SCRIPTS
from benchmarks.measured import SCRIPTS as FOLDER
from benchmarks.measured import enplace
from benchmarks.place import measured_profiles
from benchmarks.report import Report, publish, seconds_of, spread
from benchmarks.synthetic import HEADS, transformer
from enplace.coarsen import fuse, group_graph, mean_link
from enplace.placers import PlaceOptions, Stop, place, placers
from enplace.readers import read_profile
from enplace.readers.clusters import presets
from enplace.values.arrays import IntArray
from enplace.values.problem import Problem
from enplace.values.profile import Profile

METHODS = ("metis", "m-topo", "m-etf", "m-sct", "rl", "order-place", "celeritas", "enplace")
LIMIT_S, QUICK_S, CUT = 5.0, 1.0, 2
SYNTHETIC = "synthetic transformer"

FUSION = {
    "inception_v3": ("Inception_V3", "6,332", "33.1", "59", "8.1"),
    "nmt_2_1024": ("NMT", "25,463", "18.6", "154", "6.4"),
    "transformer_6_16_2048": ("Transformer", "36,352", "112.0", "220", "11.1"),
    SYNTHETIC: ("Transformer", "36,352", "112.0", "220", "11.1"),
}
"""The paper's Table 2: nodes and CCR before and after merging."""

STEPS_S = {
    "inception_v3": ("OOM", "3.100", "10.548", "7.610", "8.565", "2.931", "2.859"),
    "nmt_2_1024": ("OOM", "OOM", "OOM", "OOM", "10.224", "9.117", "9.099"),
    "transformer_6_16_2048": ("OOM", "OOM", "8.613", "8.411", "42.837", "6.935", "6.536"),
}
"""The paper's Table 3 in seconds, in the order of METHODS; HRL stands where ``rl`` does."""

TIMES_S = {
    "inception_v3": ("8.6", "5.4", "7.2"),
    "nmt_2_1024": ("does not fit", "54.7", "59.4"),
    "transformer_6_16_2048": ("129.5", "92.6", "95.3"),
    SYNTHETIC: ("129.5", "92.6", "95.3"),
}
TIMED = ("m-sct", "order-place", "celeritas")
"""The paper's Table 4 in seconds, by these methods; HRL takes 5 hours."""

ESTIMATES = {"vgg19": (16, (4, 8)), "nmt": (32, (8, 16)), "transformer": (16, (4, 8))}
"""Scripts of ours: the batch that is estimated, and those it is estimated from."""

DEVIATIONS = {"vgg19": "", "nmt": "3.93 % / 10.85 %", "transformer": "6.02 % / 14.16 %"}
"""The paper's Table 5: deviations of memory and time."""


def main(report: Report) -> None:
    """Report all tables."""
    problems = _problems(report)
    report.text(
        "Four V100s behind one switch (`celeritas`). The paper's batches fit no single GPU; ours "
        "do, so that methods which keep to one GPU do better here than there."
    )
    report.title("Table 2: nodes, and ratio of communication to computation (CCR)")
    head = ["profile", "ops", "CCR", "clusters", "CCR after"]
    paper = [f"paper's {what}" for what in ("model", "nodes", "CCR", "clusters", "CCR after")]
    report.table([*head, *paper], (_fused(name, p) for name, p in problems.items()))
    _steps(report, problems)
    _times(report, problems)
    _estimates(report)


def _problems(report: Report) -> dict[str, Problem]:
    """Return the problems by the names of the tables above, as far as their profiles are here."""
    profiles: dict[str, Profile] = {}
    for path in measured_profiles():
        name = path.name.split(".")[0].replace("-", "_")
        if name in FUSION:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                profiles[name] = read_profile(path)
    profiles = dict(list(profiles.items())[: report.pick(None, 1)])
    profiles[SYNTHETIC] = transformer(report.pick(69, 8), HEADS)
    return {name: Problem(profile, presets()["celeritas"]) for name, profile in profiles.items()}


def _fused(name: str, problem: Problem) -> list[str]:
    profile, group = problem.profile, fuse(problem)
    cells = (
        f"{profile.n_ops:,}",
        f"{_ratio(problem, np.arange(profile.n_ops)):.1f}",
        f"{group.max() + 1:,}",
        f"{_ratio(problem, group):.1f}",
    )
    return [name, *cells, *FUSION[name]]


def _ratio(problem: Problem, group: IntArray) -> float:
    """Return the CCR (equation 1): transfers over the average link by the ops' shortest times."""
    graph = group_graph(problem, group)
    moved_us = float(graph.edge_us(mean_link(problem.cluster)).sum())
    return moved_us / float(graph.time_us.min(axis=1).sum())


def _steps(report: Report, problems: dict[str, Problem]) -> None:
    report.title("Table 3: step times")
    report.text(
        "Ours in ms, and in brackets the paper's in seconds. `rl` stands for its HRL, which took 5 "
        f"hours; `rl` and `enplace` were given {report.pick(LIMIT_S, QUICK_S):.0f} s."
    )
    raw: list[tuple[str, str, float, int]] = []
    methods = [name for name in METHODS if placers()[name].installed]

    def rows() -> Iterator[list[str]]:
        for name, problem in problems.items():
            paper = dict(zip(METHODS, STEPS_S.get(name, ()), strict=False))
            cells = []
            for method in methods:
                options = PlaceOptions(stop=Stop(report.pick(LIMIT_S, QUICK_S)))
                schedule = place(problem, method, options=options).schedule
                raw.append((name, method, schedule.makespan_us / 1e3, int(schedule.fits)))
                cells.append(f"{schedule.makespan_us / 1e3:.1f}{'' if schedule.fits else ' OOM'}")
                if method in paper:
                    cells[-1] += f" ({paper[method]})"
            yield [name, *cells]

    report.table(("profile", *methods), rows())
    report.picture(_picture(list(problems), methods, raw), "Step times beside that of celeritas")
    report.numbers(("profile", "method", "ms", "fits"), raw)


def _picture(
    names: list[str], methods: list[str], raw: list[tuple[str, str, float, int]]
) -> Figure:
    ms = {(name, method): value for name, method, value, _ in raw}
    figure = Figure(figsize=(8, 3.4), layout="constrained")
    axes = figure.subplots()
    for number, method in enumerate(methods):
        at = np.arange(len(names)) + (number - len(methods) / 2 + 0.5) / (len(methods) + 1)
        heights = [ms[name, method] / ms[name, "celeritas"] for name in names]
        axes.bar(at, heights, 0.9 / (len(methods) + 1), label=method)
    axes.axhline(1, color="grey", linewidth=1)
    axes.set_xticks(range(len(names)), names, fontsize=8)
    axes.set(ylabel=f"step time, celeritas = 1, cut at {CUT}", ylim=(0, CUT))
    axes.legend(fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def _times(report: Report, problems: dict[str, Problem]) -> None:
    report.title("Table 4: times to place, in seconds")
    report.text("Ours are medians of three warm runs, quartiles in brackets.")

    def rows() -> Iterator[list[str]]:
        for name, problem in problems.items():
            times = [
                spread(seconds_of(partial(place, problem, method), report.pick(3, 1)), ".2f")
                for method in TIMED
            ]
            pairs = zip(times, TIMES_S[name], strict=True)
            yield [name, *(cell for pair in pairs for cell in pair)]

    head = [f"{who}{method}" for method in TIMED for who in ("", "paper's ")]
    report.table(["profile", *head], rows())


def _estimates(report: Report) -> None:
    """Estimate a batch from smaller ones, then measure it: emulated, on a logical CPU."""
    report.title("Table 5: estimates of a large batch")
    if importlib.util.find_spec("tensorflow") is None:
        report.text("Not run: it needs TensorFlow.")
        return
    report.text(
        "Emulated: our scripts on logical CPUs of this machine, by "
        "`enplace profile --batch-sizes`. Mean deviations over all ops, of memory and of time."
    )

    def rows() -> Iterator[list[str]]:
        for model, (batch, sizes) in list(ESTIMATES.items())[: report.pick(None, 1)]:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder, "model.enplace")
                words = ["--batch", "{batch}", *SCRIPTS[model][2:]]
                enplace(
                    "profile",
                    str(FOLDER / f"{model}.py"),
                    *(f"--arg={word}" for word in words),
                    *("--batch-size", str(batch), "--batch-sizes", ",".join(map(str, sizes))),
                    *("--devices", "cpu:2", "--steps", "10", "--trust", "-o", str(path)),
                )
                found = read_profile(path).measured.evaluation
            assert found is not None
            off = f"{100 * found.memory.mean:.2f} % / {100 * found.time.mean:.2f} %"
            near = f"{100 * found.memory.near:.0f} % / {100 * found.time.near:.0f} %"
            yield [model, str(batch), ", ".join(map(str, sizes)), off, near, DEVIATIONS[model]]

    head = ("model", "batch", "estimated from", "deviation of memory / time")
    report.table((*head, "ops within 20 %", "the paper, other sizes"), rows())


if __name__ == "__main__":
    publish(
        main,
        "celeritas",
        "Tables 2 to 5 of Celeritas",
        "Steps are simulated, from op times that were measured on one H200; times to place are "
        "measured; estimates are emulated. One run where nothing else is said.",
    )
