"""Problems whose best step time is known, because a plan without any idle time is planted in them.

Every device is full of work from 0 to T, so no plan is shorter than T. Edges are drawn only where
the planted schedule respects them at no cost: from an op to a later one on the same device, or to
one on another device after the tensor has arrived there, by a channel that serves first come,
first served.

Edges are drawn at random, or make up layers, recurrences, branches or heads. Devices may differ in
speed, share one channel, or have hardly more memory than the planted schedule needs.

The optimum is planted, not found: no method is told of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from benchmarks.report import Report, publish
from enplace.machine import simulate
from enplace.placers import DEFAULT_METHOD, PlaceOptions, Progress, Stop, place
from enplace.values.cluster import Cluster, Device, Link
from enplace.values.plan import Plan
from enplace.values.problem import Problem
from enplace.values.profile import FloatArray, IntArray, make_profile

B0_US, B1_US_PER_BYTE = 5.0, 1e-4
"""Cost of a link: 5 us, and 10 GB/s."""

MEAN_US = 100.0
"""Mean time of an op."""

CAPACITY = 2**40

RECURRENCES, BRANCHES, HEADS = "recurrences", "branches", "heads"
CHAINS = {BRANCHES: 4, HEADS: 1}
"""Ops of each branch between a fork and the join behind it; a head is one op."""

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
    structure: str = ""
    spread: float = 1.0
    shared: bool = False
    spare: float = np.inf


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
    Case(2000, 4, 4, 0.3, 200, 300, spread=2.0),
    Case(2000, 4, 4, 0.3, 200, 100, shared=True),
    Case(2000, 4, 4, 0.3, 200, 300, spare=0.05),
    Case(2000, 4, 1, 0.3, 20, 100, structure=RECURRENCES),
    Case(2000, 4, 1, 0.5, 24, 100, structure=BRANCHES),
    Case(2000, 4, 1, 0.5, 12, 100, structure=HEADS, copies=5),
)
"""From loose to tight: how many edges cross, how near their ends are, how long tensors travel. Then
devices of several speeds, a shared channel, tight memory, and structures."""


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
    structure: str = "",
    spread: float = 1.0,
    shared: bool = False,
    spare: float = np.inf,
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
    structure : str
        Random edges if empty. *Recurrences*: the ops of each device follow each other, and feed
        those of the next device at times. *Branches* and *heads*: each device has one fork after
        another, ``span`` ops apart, with branches that join before the next; a join may feed forks
        of other devices. These have no degree.
    spread : float
        The last device is this many times as fast as the first, and so on between them.
    shared : bool
        Whether all transfers use one channel.
    spare : float
        Memory beyond what the planted schedule needs, as a share of it.
    """
    draw = np.random.default_rng(seed)
    each = n_ops // (n_gpus * copies)
    layer = _Layer(draw, each, n_gpus, transfer_us, shared)
    if structure:
        layer.draw_structure(structure, crossing, span)
    else:
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
    speed = np.linspace(1.0, spread, n_gpus)
    time_us = np.tile(layer.time_us * speed[layer.device], copies)[inverse]
    size = np.tile(layer.n_bytes, copies)
    profile = make_profile(
        f"planted-{n * copies}-{n_gpus}-{degree:g}",
        op_names=[name[op] for op in inverse],
        op_types=["MatMul"] * (n * copies),
        scopes=[f"layer_{op // n}" for op in inverse],
        time_us=np.column_stack([time_us, np.full(n * copies, np.nan)]),
        persistent_bytes=np.tile(layer.n_bytes, copies)[inverse],
        edge_source=number[source],
        edge_output=np.zeros(len(source), dtype=np.int64),
        edge_op=number[target],
        edge_bytes=size[source],
    )
    position = np.empty(n * copies, dtype=np.int64)
    position[np.lexsort((inverse, starts[inverse]))] = np.arange(n * copies)
    plan = Plan(device[inverse], position, "planted", policy="strict", links="fifo")
    problem = Problem(profile, _cluster(speed, np.full(n_gpus, CAPACITY), shared))
    if np.isfinite(spare):
        needed = simulate(problem, plan).peak_bytes
        capacity = np.ceil(needed * (1 + spare)).astype(np.int64)
        problem = Problem(profile, _cluster(speed, capacity, shared))
    return Planted(problem, plan, copies * layer.length_us)


def _cluster(speed: FloatArray, capacity: IntArray, shared: bool) -> Cluster:
    n_gpus = len(speed)
    pairs = [(a, b) for a in range(n_gpus) for b in range(n_gpus) if a != b]
    return Cluster(
        f"{n_gpus} GPUs",
        tuple(Device(f"GPU:{k}", "gpu", int(capacity[k]), float(speed[k])) for k in range(n_gpus)),
        ("switch",) if shared else tuple(f"{a} to {b}" for a, b in pairs),
        tuple(
            Link(a, b, B0_US, B1_US_PER_BYTE, (0 if shared else k,))
            for k, (a, b) in enumerate(pairs)
        ),
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
        self,
        draw: np.random.Generator,
        each: int,
        n_gpus: int,
        transfer_us: float,
        shared: bool,
    ) -> None:
        n = each * n_gpus
        time_us = np.ceil(draw.gamma(2.0, MEAN_US / 2, (n_gpus, each)))
        self.length_us = float(time_us.sum(axis=1).max())
        for row in time_us:  # fill up: longer ops where a device has less work
            short = int(self.length_us - row.sum())
            row += short // each
            row[draw.permutation(each)[: short % each]] += 1
        self.n_gpus, self.each, self.draw, self.shared = n_gpus, each, draw, shared
        self.time_us = time_us.ravel()
        self.start = (np.cumsum(time_us, axis=1) - time_us).ravel()
        self.device = np.repeat(np.arange(n_gpus), each)
        share = draw.gamma(1.0, 1.0, n)
        self.n_bytes = np.maximum(1, share * (transfer_us - B0_US) / B1_US_PER_BYTE).astype(
            np.int64
        )
        self.end_us = self.start + self.time_us
        self.starts = self.start.reshape(n_gpus, each)
        pairs = np.arange(n_gpus * n_gpus).reshape(n_gpus, n_gpus)
        self.channel = np.zeros_like(pairs) if shared else pairs
        self.free_us = np.zeros(n_gpus * n_gpus)
        self.edges: set[tuple[int, int]] = set()

    @property
    def source(self) -> IntArray:
        return self._pairs[:, 0]

    @property
    def target(self) -> IntArray:
        return self._pairs[:, 1]

    @cached_property
    def _pairs(self) -> IntArray:
        return np.array(sorted(self.edges), dtype=np.int64).reshape(-1, 2)

    def draw_edges(self, n_edges: float, crossing: float, span: int) -> None:
        """Draw consumers for each op, in the order in which ops end."""
        wanted = self.draw.poisson(n_edges / len(self.end_us), len(self.end_us))
        for op in np.argsort(self.end_us, kind="stable").tolist():
            here = int(self.device[op])
            arrival_us: dict[int, float] = {}
            for _ in range(int(wanted[op])):
                there = here
                if self.n_gpus > 1 and self.draw.random() < crossing:
                    there = self._elsewhere(here)
                    if self.shared:
                        there = next(iter(arrival_us), there if self._ends_alone(op) else here)
                first = self._first(op, there, arrival_us)
                last = min(
                    int(np.searchsorted(self.starts[there], self.end_us[op])) + span, self.each
                )
                if first < last:
                    self._send(op, there, arrival_us)
                    self._add(op, there, int(self.draw.integers(first, last)))

    def draw_structure(self, structure: str, crossing: float, span: int) -> None:
        """Draw recurrences, or forks and joins; see :func:`planted`."""
        block = 1 if structure == RECURRENCES else span
        for op in np.argsort(self.end_us, kind="stable").tolist():
            here, at = divmod(op, self.each)
            for follower in _following(at, block, CHAINS.get(structure, 1)):
                if follower < self.each:
                    self._add(op, here, follower)
            crosses = self.n_gpus > 1 and at % block == block - 1 and self.draw.random() < crossing
            if crosses and (not self.shared or self._ends_alone(op)):
                there = (here + 1) % self.n_gpus if block == 1 else self._elsewhere(here)
                first = -(-self._first(op, there, {}) // block) * block
                if first < self.each:
                    self._send(op, there, {})
                    self._add(op, there, first)

    def _ends_alone(self, op: int) -> bool:
        """Whether no other op ends at the same time: of two sends, either may get a channel first.

        For the same reason, an op sends to one device only if all share a channel.
        """
        return int((self.end_us == self.end_us[op]).sum()) == 1

    def _elsewhere(self, here: int) -> int:
        return (here + 1 + int(self.draw.integers(self.n_gpus - 1))) % self.n_gpus

    def _arrives_us(self, op: int, there: int, sent: dict[int, float]) -> float:
        """Return when an op's tensor is on a device: as it was sent before, or sent at its end."""
        here = int(self.device[op])
        if there == here:
            return float(self.end_us[op])
        cost_us = B0_US + B1_US_PER_BYTE * float(self.n_bytes[op])
        begins_us = max(self.end_us[op], self.free_us[self.channel[here, there]])
        return sent.get(there, float(begins_us) + cost_us)

    def _first(self, op: int, there: int, sent: dict[int, float]) -> int:
        """Return the first place on a device whose op starts after the tensor is there."""
        return int(np.searchsorted(self.starts[there], self._arrives_us(op, there, sent)))

    def _send(self, op: int, there: int, sent: dict[int, float]) -> None:
        here = int(self.device[op])
        if there != here and there not in sent:
            sent[there] = self._arrives_us(op, there, sent)
            self.free_us[self.channel[here, there]] = sent[there]

    def _add(self, op: int, there: int, at: int) -> None:
        self.edges.add((op, there * self.each + at))


def _following(at: int, block: int, chain: int) -> list[int]:
    """List the places of the consumers of the op at a place, in blocks that fork and join.

    A block is a fork, then branches side by side, each a chain of ops, then a join. A block of one
    op is a recurrence.
    """
    inside, n_branches = at % block, max(1, (block - 2) // chain)
    begin, join = at - inside, at - inside + block - 1
    if inside == block - 1:
        return [at + 1]
    if inside == 0:
        return [begin + 1 + branch for branch in range(n_branches)]
    return [min(at + n_branches, join)]


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

    options = PlaceOptions(stop=Stop(limit_s), progress=listen)
    result = place(found.problem, DEFAULT_METHOD, options=options)
    looks.append((limit_s, _gap(found, result.schedule.makespan_us)))
    return looks


def _describe(case: Case) -> str:
    edges = case.structure or f"degree {case.degree:g}"
    more = [
        f", {case.copies} layers" if case.copies > 1 else "",
        f", speeds 1 to {case.spread:g}" if case.spread != 1 else "",
        ", one channel" if case.shared else "",
        f", memory +{100 * case.spare:.0f} %" if np.isfinite(case.spare) else "",
    ]
    return (
        f"{case.n_ops:,} x {case.n_gpus}, {edges}, {100 * case.crossing:.0f} % cross, "
        f"span {case.span}, {case.transfer_us:g} µs{''.join(more)}"
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
