"""Problems whose best step time is known, because a plan without any idle time is planted in them.

Every device is full of work from 0 to T, so no plan is shorter than T. Edges are drawn only where
the planted schedule respects them at no cost: from an op to a later one on the same device, or to
one on another device after the tensor has arrived there, by a channel that serves first come,
first served.

The optimum is planted, not found: no method is told of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from benchmarks.report import Report, publish
from enplace.placers import DEFAULT_METHOD, PlaceOptions, Progress, place
from enplace.values.cluster import Cluster, Device, Link
from enplace.values.plan import Plan
from enplace.values.problem import Problem
from enplace.values.profile import IntArray, make_profile

B0_US, B1_US_PER_BYTE = 5.0, 1e-4
"""Cost of a link: 5 us, and 10 GB/s."""

MEAN_US = 100.0
"""Mean time of an op."""

CAPACITY = 2**40

SECONDS, QUICK_S, QUICK_CASES, COLOURS = 10.0, 2.0, 3, 7
LISTS = ("heft", "m-etf", "dpos")

Look = tuple[float, float]
"""After how many seconds the best plan so far was how far above the optimum."""


class Case(NamedTuple):
    """What to plant; see :func:`planted`."""

    n_ops: int
    n_gpus: int
    degree: float
    crossing: float
    span: int
    transfer_us: float
    copies: int = 1


CASES = (
    Case(240, 2, 3, 0.3, 20, 300),
    Case(1000, 2, 4, 0.3, 20, 300),
    Case(2000, 4, 4, 0.75, 5, 30),
    Case(2000, 4, 4, 0.3, 5, 100),
    Case(2000, 4, 4, 0.3, 20, 300),
    Case(2000, 4, 4, 0.3, 2000, 300),
    Case(2000, 4, 4, 0.5, 200, 1000),
    Case(2000, 4, 4, 0.3, 20, 300, copies=10),
    Case(2000, 4, 6, 0.3, 8, 300),
    Case(4000, 16, 4, 0.3, 50, 300),
    Case(8000, 4, 5, 0.5, 200, 300),
    Case(36_000, 4, 4, 0.5, 200, 300),
    Case(100_000, 8, 4, 0.5, 200, 300),
)
"""From loose to tight: how many edges cross, how near their ends are, how long tensors travel."""


@dataclass(frozen=True)
class Planted:
    """A problem, and a plan of it that takes ``best_us``, the least possible step time."""

    problem: Problem
    plan: Plan
    best_us: float


def planted(
    n_ops: int,
    n_gpus: int,
    degree: float,
    *,
    crossing: float = 0.3,
    span: int = 100,
    transfer_us: float = 60.0,
    copies: int = 1,
    seed: int = 0,
) -> Planted:
    """Plant a schedule without idle time, and draw a graph around it.

    Parameters
    ----------
    degree : float
        Mean number of inputs that an op is given; few ops at the end of the step have less.
    crossing : float
        Share of the edges that lead to another device.
    span : int
        An edge leads at most this many ops ahead on its target's device.
    transfer_us : float
        Mean time of a transfer, beside a mean op of 100 us.
    copies : int
        The graph consists of this many layers, alike in times, tensors and edges. Each begins when
        the one before has ended on all devices, and takes inputs from it.
    """
    draw = np.random.default_rng(seed)
    each = n_ops // (n_gpus * copies)
    layer = _Layer(draw, each, n_gpus, transfer_us)
    layer.draw_edges(degree * each * n_gpus, crossing, span)
    n, start = each * n_gpus, layer.start
    source = np.concatenate([layer.source + n * copy for copy in range(copies)])
    target = np.concatenate([layer.target + n * copy for copy in range(copies)])
    if copies > 1:
        last, first = _seams(layer)
        seam = n * np.arange(copies - 1)[:, None]
        source = np.concatenate([source, (last + seam).ravel()])
        target = np.concatenate([target, (first + n + seam).ravel()])
    device = np.tile(layer.device, copies)
    starts = (start + layer.length_us * np.arange(copies)[:, None]).ravel()
    number = draw.permutation(n * copies)  # so that the numbers of ops give nothing away
    name = [f"layer_{op // n}/op_{op % n}" for op in range(n * copies)]
    inverse = np.argsort(number)
    time_us = np.tile(layer.time_us, copies)[inverse]
    size = np.tile(layer.n_bytes, copies)
    profile = make_profile(
        f"planted-{n * copies}-{n_gpus}-{degree:g}",
        op_names=[name[op] for op in inverse],
        op_types=["MatMul"] * (n * copies),
        scopes=[f"layer_{op // n}" for op in inverse],
        time_us=np.column_stack([time_us, np.full(n * copies, np.nan)]),
        persistent_bytes=np.zeros(n * copies, dtype=np.int64),
        temporary_bytes=np.zeros(n * copies, dtype=np.int64),
        colocation=[""] * (n * copies),
        edge_source=number[source],
        edge_output=np.zeros(len(source), dtype=np.int64),
        edge_op=number[target],
        edge_bytes=size[source],
    )
    position = np.empty(n * copies, dtype=np.int64)
    position[np.lexsort((inverse, starts[inverse]))] = np.arange(n * copies)
    plan = Plan(device[inverse], position, "planted", policy="strict", links="fifo")
    problem = Problem(profile, _cluster(n_gpus))
    return Planted(problem, plan, copies * layer.length_us)


def _cluster(n_gpus: int) -> Cluster:
    pairs = [(a, b) for a in range(n_gpus) for b in range(n_gpus) if a != b]
    return Cluster(
        f"{n_gpus} GPUs",
        tuple(Device(f"GPU:{k}", "gpu", CAPACITY) for k in range(n_gpus)),
        tuple(f"{a} to {b}" for a, b in pairs),
        tuple(Link(a, b, B0_US, B1_US_PER_BYTE, (k,)) for k, (a, b) in enumerate(pairs)),
    )


def _seams(layer: _Layer) -> tuple[IntArray, IntArray]:
    """Pair each op without consumers with an op without inputs of the same device, in turn."""
    n = len(layer.time_us)
    last, first = [], []
    for device in range(layer.n_gpus):
        here = np.arange(n)[layer.device == device]
        ends = here[~np.isin(here, layer.source)]
        begins = here[~np.isin(here, layer.target)]
        pairs = max(len(ends), len(begins))
        if len(ends) and len(begins):
            last.append(np.resize(ends, pairs))
            first.append(np.resize(begins, pairs))
    return np.concatenate(last), np.concatenate(first)


class _Layer:
    """Ops that fill all devices from 0 to ``length_us``, device by device in order of time."""

    def __init__(
        self, draw: np.random.Generator, each: int, n_gpus: int, transfer_us: float
    ) -> None:
        n = each * n_gpus
        time_us = np.ceil(draw.gamma(2.0, MEAN_US / 2, (n_gpus, each)))
        self.length_us = float(time_us.sum(axis=1).max())
        for row in time_us:  # fill up: longer ops where a device has less work
            short = int(self.length_us - row.sum())
            row += short // each
            row[draw.permutation(each)[: short % each]] += 1
        self.n_gpus, self.each, self.draw = n_gpus, each, draw
        self.time_us = time_us.ravel()
        self.start = (np.cumsum(time_us, axis=1) - time_us).ravel()
        self.device = np.repeat(np.arange(n_gpus), each)
        share = draw.gamma(1.0, 1.0, n)
        self.n_bytes = np.maximum(1, share * (transfer_us - B0_US) / B1_US_PER_BYTE).astype(
            np.int64
        )
        self.source = self.target = np.zeros(0, dtype=np.int64)

    def draw_edges(self, n_edges: float, crossing: float, span: int) -> None:
        """Draw consumers for each op, in the order in which ops end."""
        end_us = self.start + self.time_us
        starts = self.start.reshape(self.n_gpus, self.each)
        free_us = np.zeros((self.n_gpus, self.n_gpus))
        wanted = self.draw.poisson(n_edges / len(end_us), len(end_us))
        edges: set[tuple[int, int]] = set()
        for op in np.argsort(end_us, kind="stable").tolist():
            here = int(self.device[op])
            cost_us = B0_US + B1_US_PER_BYTE * float(self.n_bytes[op])
            arrival_us = {here: float(end_us[op])}
            for _ in range(int(wanted[op])):
                there = here
                if self.n_gpus > 1 and self.draw.random() < crossing:
                    there = (here + 1 + int(self.draw.integers(self.n_gpus - 1))) % self.n_gpus
                arrives = arrival_us.get(there)
                if arrives is None:
                    arrives = max(end_us[op], free_us[here, there]) + cost_us
                first = int(np.searchsorted(starts[there], arrives))
                behind = int(np.searchsorted(starts[there], end_us[op])) + span
                if first < min(behind, self.each):
                    if there not in arrival_us:
                        arrival_us[there] = free_us[here, there] = arrives
                    last = min(behind, self.each)
                    edges.add((op, there * self.each + int(self.draw.integers(first, last))))
        pairs = np.array(sorted(edges), dtype=np.int64).reshape(-1, 2)
        self.source, self.target = pairs[:, 0], pairs[:, 1]


def main(report: Report) -> None:
    """Report how far above the optimum each method ends, and the progress of the default."""
    limit_s = report.pick(SECONDS, QUICK_S)
    report.text(
        "A plan without any idle time is planted in each problem, so its step time is the least "
        "possible. Edges cross between devices only where the planted schedule hides the transfer; "
        "no method is told of it. The cases go from loose to tight: how many edges cross, how far "
        f"ahead they lead, and how long tensors travel. `{DEFAULT_METHOD}` was given "
        f"{limit_s:.0f} s; the others are list schedules. Per cent above the optimum:"
    )
    progress: list[tuple[Case, list[Look]]] = []
    raw: list[tuple[float | str, ...]] = []

    def rows() -> Iterator[list[str]]:
        for case in CASES[: report.pick(None, QUICK_CASES)]:
            found = planted(**case._asdict())
            gaps = [_gap(found, place(found.problem, name).schedule.makespan_us) for name in LISTS]
            looks = _watch(found, limit_s)
            progress.append((case, looks))
            raw.extend(
                (*case, name, "", f"{gap:.5f}") for name, gap in zip(LISTS, gaps, strict=True)
            )
            raw.extend((*case, DEFAULT_METHOD, f"{at:.2f}", f"{gap:.5f}") for at, gap in looks)
            yield [_describe(case), *(f"{100 * gap:.2f}" for gap in (*gaps, looks[-1][1]))]

    report.table(("ops x GPUs", *LISTS, DEFAULT_METHOD), rows())
    report.picture(_picture(progress, limit_s), "Progress of the default method to the optimum")
    report.numbers((*Case._fields, "method", "seconds", "above_optimum"), raw)


def _gap(found: Planted, step_us: float) -> float:
    return step_us / found.best_us - 1


def _watch(found: Planted, limit_s: float) -> list[Look]:
    """Solve; return the progress."""
    looks: list[Look] = []

    def listen(progress: Progress) -> None:
        if progress.objective_us is not None:
            looks.append((progress.seconds, _gap(found, progress.objective_us)))

    options = PlaceOptions(time_limit_s=limit_s, progress=listen)
    result = place(found.problem, DEFAULT_METHOD, options=options)
    looks.append((limit_s, _gap(found, result.schedule.makespan_us)))
    return looks


def _describe(case: Case) -> str:
    layers = f", {case.copies} layers" if case.copies > 1 else ""
    crossing = f"{100 * case.crossing:.0f} % cross"
    return (
        f"{case.n_ops:,} x {case.n_gpus}, degree {case.degree:g}, {crossing}, "
        f"span {case.span}, {case.transfer_us:g} µs{layers}"
    )


def _picture(progress: list[tuple[Case, list[Look]]], limit_s: float) -> Figure:
    figure = Figure(figsize=(9, 4.5), layout="constrained")
    axes = figure.subplots()
    for number, (case, looks) in enumerate(progress):
        seconds, gaps = zip(*looks, strict=True)
        style = ("-", "--")[number // COLOURS % 2]
        axes.step(seconds, 100 * np.maximum(gaps, 1e-4), style, where="post", label=_describe(case))
    axes.set(xscale="log", yscale="log", xlim=(0.1, limit_s))
    axes.set(xlabel="seconds", ylabel="% above the optimum")
    axes.legend(fontsize="x-small", loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


if __name__ == "__main__":
    publish(
        main,
        "planted",
        "Planted optima",
        "Simulated. One run of each case; the spread is over the cases.",
    )
