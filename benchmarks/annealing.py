"""Steps of annealing for loads and for latency, compared with the readable evaluators in numpy.

The ratios fall when a kernel is cut into functions that count references or copy arrays.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np

from benchmarks.report import Report, median_s, publish, seconds_of, spread
from enplace.machine.latency import latency_us
from enplace.placers.latency.anneal import anneal as anneal_latency
from enplace.placers.latency.groups import build_groups, choose_devices, spread_places
from enplace.placers.max_load.search.anneal import MOST_STEPS, STEPS_PER_UNIT
from enplace.placers.max_load.search.anneal import anneal as anneal_loads
from enplace.placers.max_load.search.hypergraph import build_hypergraph, time_per_sample_us
from enplace.readers import read_profile
from enplace.readers.clusters import cluster_from
from enplace.readers.samples import samples
from enplace.values.problem import Problem

SAMPLE, STEPS_OF_LATENCY, REPEATS = "bert-3-training", 2000, 5


def main(report: Report) -> None:
    """Report the figures."""
    path = next(sample.path for sample in samples() if SAMPLE in sample.path.name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the unit of the costs
        profile = read_profile(path)
    problem = Problem(profile, cluster_from("from-file", profile))
    report.text(
        f"{SAMPLE}, {profile.n_ops:,} ops. A step of the annealing that searches for pipelines and "
        "for latency, beside the readable evaluator of the same objective."
    )
    _loads(report, problem)
    _latency(report, problem)


def _loads(report: Report, problem: Problem) -> None:
    graph = build_hypergraph(problem)
    start = np.arange(problem.n_units) % graph.n_devices
    steps = min(MOST_STEPS, STEPS_PER_UNIT * graph.n_units)
    seconds = seconds_of(lambda: anneal_loads(graph, start, _never), REPEATS)
    _compare(
        report, "loads", seconds, steps, lambda: time_per_sample_us(graph, start), "25 x or more"
    )


def _latency(report: Report, problem: Problem) -> None:
    groups = build_groups(problem)
    place = np.zeros((groups.n_groups, 2), dtype=np.int64)
    of_op = spread_places(groups, place)
    device = choose_devices(problem, of_op[:, 0])
    seconds = seconds_of(
        lambda: anneal_latency(groups, place, 2, STEPS_OF_LATENCY, _never), REPEATS
    )

    def evaluate() -> float:
        return latency_us(problem, device, of_op[:, 1])

    _compare(report, "latency", seconds, STEPS_OF_LATENCY, evaluate, "60 x or more")


def _compare(
    report: Report,
    what: str,
    seconds: list[float],
    steps: int,
    evaluate: Callable[[], object],
    target: str,
) -> None:
    report.figure(f"{what}: a step", f"{spread([1e6 * s / steps for s in seconds])} µs")
    times = median_s(evaluate) / (float(np.median(seconds)) / steps)
    report.figure(f"{what}: the evaluator takes", f"{times:.0f} x", target)


def _never() -> bool:
    return False


if __name__ == "__main__":
    publish(
        main,
        "annealing",
        "Speed of the annealing",
        "Measured. Medians, and quartiles in brackets, of 5 runs.",
    )
