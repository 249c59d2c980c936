"""Planted twins of the measured profiles: how far the search ends above a known optimum.

A twin has as many ops as a profile, with the same times, about as many edges for each op, tensors
of the same sizes, and the cluster's GPUs and channels. Edges lead as far ahead as in the profile,
as a share of all ops. A plan without idle time is planted in it as in :mod:`benchmarks.planted`, so
its optimum is known, and so is how much of a gap is due to the plan. Twins say nothing about the
bound, which is exact wherever no device is ever idle. They have no variables, and one edge in ten
is left out because no op begins late enough to read it.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.place import CLUSTERS, cpu_limit, measured_profiles
from benchmarks.report import Report, publish, spread
from enplace.machine import simulate
from enplace.placers import DEFAULT_METHOD, PlaceOptions, place
from enplace.readers import read_profile
from enplace.readers.clusters import presets
from enplace.values.arrays import inverse
from enplace.values.cluster import Cluster
from enplace.values.plan import Plan
from enplace.values.problem import Problem
from enplace.values.profile import FloatArray, IntArray, Profile, make_profile

SECONDS, QUICK_S, TRIES = 10.0, 1.0, 40

SIDE_BY_SIDE = 3
"""How many twins are solved at once: the limit is one of CPU time, so they may share the cores."""


class Twin(NamedTuple):
    """A planted problem, the plan of it without idle time, and how long that takes."""

    problem: Problem
    plan: Plan
    best_us: float


def plant_twin(profile: Profile, cluster: Cluster, seed: int = 0) -> Twin:
    """Plant a schedule without idle time with the times, tensors and edges of a profile."""
    draw, gpus = np.random.default_rng(seed), np.array(cluster.gpus)
    times = Problem(profile, cluster).time_us[:, gpus[0]]
    times = np.sort(times[np.isfinite(times) & (times > 0)])[::-1]
    n_ops, load_us = len(times), np.zeros(len(gpus))
    row = np.empty(n_ops, np.int64)
    for op, time_us in enumerate(times):  # longest first, so that all have nearly as much work
        row[op] = np.argmin(load_us)
        load_us[row[op]] += time_us
    times *= (load_us.max() / load_us)[row]
    mixed = draw.permutation(n_ops)
    row, times, start = row[mixed], times[mixed], np.empty(n_ops)
    for each in range(len(gpus)):
        here = row == each
        start[here] = np.cumsum(times[here]) - times[here]
    by_start = np.argsort(start, kind="stable")
    row, times, start = row[by_start], times[by_start], start[by_start]
    n_bytes = draw.choice(profile.tensor_bytes[profile.tensor_bytes > 0], n_ops)
    edges = _draw_edges(profile, cluster, gpus[row], start, start + times, n_bytes, draw)
    number = draw.permutation(n_ops)  # so that the numbers of ops give nothing away
    back = np.argsort(number)
    twin = make_profile(
        f"{profile.name}-twin",
        op_names=[f"op_{op}" for op in range(n_ops)],
        op_types=["MatMul"] * n_ops,
        scopes=[""] * n_ops,
        time_us=np.column_stack([times * cluster.speed[gpus[0]], np.full(n_ops, np.nan)])[back],
        persistent_bytes=np.zeros(n_ops, np.int64),
        edge_source=number[edges[:, 0]],
        edge_output=np.zeros(len(edges), np.int64),
        edge_op=number[edges[:, 1]],
        edge_bytes=n_bytes[edges[:, 0]],
    )
    plan = Plan(gpus[row[back]], back, "planted", policy="strict", links="fifo")
    return Twin(Problem(twin, cluster), plan, float(load_us.max()))


def _draw_edges(
    profile: Profile,
    cluster: Cluster,
    device: IntArray,
    start: FloatArray,
    end: FloatArray,
    n_bytes: IntArray,
    draw: np.random.Generator,
) -> IntArray:
    """Draw edges as long as those of the profile, where the planted schedule hides the transfer.

    An op sends to one other device at most, so that no two sends begin at once.
    """
    place = inverse(profile.topological_order)
    lengths = (place[profile.edge_op] - place[profile.edge_source]) * len(start) / profile.n_ops
    wanted = draw.poisson(profile.n_edges / profile.n_ops, len(start))
    links = {(link.source, link.target): link for link in cluster.links}
    free_us = np.zeros(len(cluster.channels))
    edges = set[tuple[int, int]]()
    for op in np.argsort(end, kind="stable").tolist():
        here, sent_to, there_us = int(device[op]), -1, np.inf
        for ahead in draw.choice(lengths, TRIES):
            reader = op + max(1, int(ahead))
            if wanted[op] == 0 or reader >= len(start):
                continue
            there = int(device[reader])
            if there != here and sent_to < 0:
                link = links[here, there]
                channels = list(link.channels)
                begin_us = max(end[op], free_us[channels].max())
                arrives_us = begin_us + link.b0_us + link.b1_us_per_byte * n_bytes[op]
                if arrives_us <= start[reader]:
                    sent_to, there_us, free_us[channels] = there, arrives_us, arrives_us
            ready_us = end[op] if there == here else there_us if there == sent_to else np.inf
            if ready_us <= start[reader] and (op, reader) not in edges:
                edges.add((op, reader))
                wanted[op] -= 1
    return np.array(sorted(edges), np.int64).reshape(-1, 2)


def main(report: Report) -> None:
    """Report how far above its optimum the plan of each twin is."""
    limit_s, raw = report.pick(SECONDS, QUICK_S), list[tuple[str, str, str]]()
    report.text(f"`{DEFAULT_METHOD}` for {limit_s:.0f} s of CPU on the twin of each profile.")

    def rows() -> Iterator[list[str]]:
        pairs = [*product(CLUSTERS, measured_profiles()[: report.pick(None, 1)])]
        clusters, paths = zip(*pairs, strict=True)
        solve = partial(above_optimum, limit_s)
        with ProcessPoolExecutor(SIDE_BY_SIDE) as pool:
            for cluster, path, share in zip(
                clusters, paths, pool.map(solve, clusters, paths), strict=True
            ):
                raw.append((path.name.split(".")[0], cluster, f"{share:.5f}"))
                yield [path.name.split(".")[0], cluster, f"{100 * share:.2f}"]

    report.table(("profile", "cluster", "above the optimum (%)"), rows())
    report.figure("above the optimum (%)", spread([100 * float(share) for *_, share in raw]))
    report.numbers(("profile", "cluster", "above_optimum"), raw)


def above_optimum(limit_s: float, cluster: str, path: Path) -> float:
    """Solve a twin; return how far its plan is above the optimum, as a share of that."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        twin = plant_twin(read_profile(path), presets()[cluster])
    planted_us = simulate(twin.problem, twin.plan).makespan_us
    assert planted_us <= twin.best_us * (1 + 1e-9), "the planted schedule waits"
    options = PlaceOptions(stop=cpu_limit(limit_s))
    found = place(twin.problem, DEFAULT_METHOD, options=options)
    return found.schedule.makespan_us / twin.best_us - 1


if __name__ == "__main__":
    publish(main, "twins", "Planted twins", "Simulated. One run; the spread is over the profiles.")
