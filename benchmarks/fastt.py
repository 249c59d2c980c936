"""FastT's Tables 1 and 4, simulated: speed-ups by ``os-dpos`` over one GPU, and its time to solve.

The paper trains with a fixed global batch on V100s. Our profiles are of other versions of its
models, on another GPU, so speed-ups over one GPU are compared, and not samples per second.
"""

from __future__ import annotations

import re
import time
import warnings
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from matplotlib.figure import Figure

from benchmarks.place import measured_profiles
from benchmarks.report import Report, publish
from enplace.machine import simulate
from enplace.placers import PlaceOptions, Stop, place
from enplace.placers.os_dpos import data_parallel
from enplace.placing.settle import by_placed_rank, settle
from enplace.readers import read_profile
from enplace.readers.clusters import presets
from enplace.values.cluster import Cluster
from enplace.values.plan import Plan
from enplace.values.problem import Problem, split_problem
from enplace.values.profile import Profile

GPUS = (2, 4, 8)
METHODS = ("os-dpos", "dpos", "enplace")
LIMIT_S, QUICK_S = 5.0, 2.0

PAPER = {
    "inception_v3": ("Inception-v3", (191.0, 323.2, 474.1, 438.3), (28.7, 64.5, 124.8)),
    "vgg19": ("VGG-19", (129.0, 199.4, 294.9, 132.5), (24.41, 62.74, 118.4)),
    "resnet50": ("ResNet200", (89.3, 142.2, 132.2, 91.1), (201.2, 481.9, 792.5)),
    "nmt_2_1024": ("GNMT, 4 layers", (301.1, 479.4, 636.8, 606.6), (122.31, 259.43, 522.85)),
    "rnnlm_2_2048": ("RNNLM", (345.9, 395.0, 345.9, 273.5), (48.95, 92.31, 174.22)),
    "transformer_6_16_2048": (
        "Transformer",
        (7613.3, 11346.2, 15515.1, 5258.0),
        (783.0, 1952.6, 5775.2),
    ),
    "bert_large": ("Bert-large", (84.2, 132.2, 152.3, 117.6), (448.9, 470.3, 529.9)),
}
"""Our profile; the paper's model, its samples/s on 1, 2, 4 and 8 GPUs, and its times in s."""

DATA_PARALLEL = {
    "inception_v3": (326.5, 467.1, 432.4),
    "vgg19": (149.5, 184.9, 126.9),
    "resnet50": (114.2, 122.1, 88.4),
    "nmt_2_1024": (435.3, 573.9, 584.4),
    "rnnlm_2_2048": (349.7, 335.0, 254.9),
    "transformer_6_16_2048": (11221.9, 13518.1, 5244.5),
    "bert_large": (115.9, 124.0, 101.2),
}
"""The paper's samples/s of data parallelism on 2, 4 and 8 GPUs."""

Raw = list[tuple[str, int, str, str, str, int]]


def main(report: Report) -> None:
    """Report both tables."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        profiles = {
            name: read_profile(path)
            for path in measured_profiles()
            if (name := path.name.split(".")[0].replace("-", "_").replace("vgg_", "vgg")) in PAPER
        }
    names = [name for name in PAPER if name in profiles][: report.pick(None, 1)]
    limit_s, gpus = report.pick(LIMIT_S, QUICK_S), report.pick(GPUS, GPUS[:1])
    report.text(
        "The first GPUs of `fastt`, eight V100s with NVLink. Our profiles are of other versions of "
        "the paper's models, on a faster GPU, with TF32, so what is compared is the speed-up over "
        f"one GPU. Methods were given {limit_s:.0f} s. Data parallelism here splits every op that "
        "works on samples into a part for each GPU; what is left runs on the first. Variables are "
        "not copied, as they are in the paper's, so it sends far more."
    )
    raw: Raw = []
    for n_gpus in gpus:
        for name in names:
            raw += _results(name, profiles[name], n_gpus, limit_s)
    speed_up = {(name, n, method): float(value) for name, n, method, _, value, _ in raw}
    report.title("Speed-ups of Table 1")
    head = ["profile", "the paper's model", "GPUs", "paper, DP", "paper, FastT", "ours, DP"]
    report.table([*head, *METHODS], _table_1(names, gpus, speed_up))
    report.picture(_picture(names, gpus, speed_up), "Speed-ups over one GPU, the paper's and ours")
    report.title("Times to solve of Table 4, in seconds")
    report.text("The paper's times include training steps that measure each new strategy's costs.")
    took = {(name, n, method): float(seconds) for name, n, method, seconds, _, _ in raw}
    columns = [f"{who}, {n} GPUs" for n in gpus for who in ("paper", "ours")]
    report.table(["profile", "the paper's model", *columns], _table_4(names, gpus, took))
    report.numbers(("profile", "gpus", "method", "seconds", "speed_up", "fits"), raw)


def _results(name: str, profile: Profile, n_gpus: int, limit_s: float) -> Raw:
    """Compare each method with the model on one GPU."""
    problem = Problem(profile, first_gpus(presets()["fastt"], n_gpus))
    alone_us = simulate(problem, place(problem, "single").plan).makespan_us
    shared_us, shared_fits = _data_parallel(problem)
    found = [(name, n_gpus, "data parallel", "0", f"{alone_us / shared_us:.3f}", int(shared_fits))]
    for method in METHODS:
        start = time.perf_counter()
        result = place(problem, method, options=PlaceOptions(stop=Stop(limit_s)))
        seconds, schedule = time.perf_counter() - start, result.schedule
        up = f"{alone_us / schedule.makespan_us:.3f}"
        found.append((name, n_gpus, method, f"{seconds:.2f}", up, int(schedule.fits)))
        print(*found[-1], flush=True)
    return found


def first_gpus(cluster: Cluster, n_gpus: int) -> Cluster:
    """Keep the first GPUs of a cluster, and its CPUs; channels keep their numbers."""
    kept = [*cluster.gpus[:n_gpus], *cluster.cpus]
    number = {device: new for new, device in enumerate(kept)}
    links = tuple(
        replace(link, source=number[link.source], target=number[link.target])
        for link in cluster.links
        if link.source in number and link.target in number
    )
    devices = tuple(cluster.devices[device] for device in kept)
    return Cluster(f"{n_gpus} of {cluster.name}", devices, cluster.channels, links)


def _data_parallel(problem: Problem) -> tuple[float, bool]:
    """Run part k of every split op on GPU k, and whole ops on the first; return the step in us."""
    splits = data_parallel(problem)
    split = split_problem(problem, splits)
    parts = [re.search(r"/split/part_(\d+)$", name) for name in split.profile.op_names]
    preferred = np.array([split.cluster.gpus[int(part[1]) if part else 0] for part in parts])
    device = settle(split, preferred)
    position = by_placed_rank(split, device)
    schedule = simulate(problem, Plan(device, position, "data parallel", splits=splits))
    return schedule.makespan_us, schedule.fits


def _table_1(
    names: list[str], gpus: tuple[int, ...], speed_up: dict[tuple[str, int, str], float]
) -> Iterator[list[str]]:
    for name in names:
        model, samples, _ = PAPER[name]
        for n in gpus:
            at = GPUS.index(n)
            paper = (DATA_PARALLEL[name][at] / samples[0], samples[1 + at] / samples[0])
            ours = [speed_up[name, n, method] for method in ("data parallel", *METHODS)]
            yield [name, model, str(n), *(f"{value:.2f}" for value in (*paper, *ours))]


def _table_4(
    names: list[str], gpus: tuple[int, ...], took: dict[tuple[str, int, str], float]
) -> Iterator[list[str]]:
    for name in names:
        model, _, seconds = PAPER[name]
        cells = [
            cell
            for n in gpus
            for cell in (f"{seconds[GPUS.index(n)]:,.0f}", f"{took[name, n, 'os-dpos']:.1f}")
        ]
        yield [name, model, *cells]


def _picture(
    names: list[str], gpus: tuple[int, ...], speed_up: dict[tuple[str, int, str], float]
) -> Figure:
    figure = Figure(figsize=(8, 3.6), layout="constrained")
    parts = figure.subplots(1, len(gpus), sharey=True, squeeze=False)[0]
    for axes, n in zip(parts, gpus, strict=True):
        paper = [PAPER[name][1][1 + GPUS.index(n)] / PAPER[name][1][0] for name in names]
        rows = np.arange(len(names))
        axes.barh(rows + 0.2, paper, 0.36, label="FastT, the paper")
        ours = [speed_up[name, n, "os-dpos"] for name in names]
        axes.barh(rows - 0.2, ours, 0.36, label="os-dpos")
        axes.axvline(1, color="grey", linewidth=1)
        axes.set(xlabel=f"times as fast on {n} GPUs")
        axes.set_yticks(rows, names, fontsize=8)
    shown = axes.get_legend_handles_labels()
    figure.legend(*shown, fontsize="small", ncols=2, loc="outside upper center")
    return figure


if __name__ == "__main__":
    publish(
        main,
        "fastt",
        "Tables 1 and 4 of FastT",
        "Simulated, from op times that were measured on one H200; times to solve are measured. One "
        "run.",
    )
