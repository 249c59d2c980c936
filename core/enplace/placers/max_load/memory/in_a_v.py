"""Partitions with two stages on each accelerator, in a V.

The first accelerator has the first and the last stage, the last one has the two in the middle. So a
load is that of two stages, which the dynamic programs do not know together. Cuts are moved along an
order instead: first by sums of the nodes' times, then by the loads of devices. Inputs that only a
host can make come before the first stage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import chain, combinations, islice, pairwise
from math import comb

import numpy as np

from enplace.machine import simulate
from enplace.machine.host_links import sample_us
from enplace.machine.op_passes import once_per_step, optimiser_ops, work_per_sample_us
from enplace.machine.pipelines.loads import pass_loads_us
from enplace.machine.pipelines.pipeline import simulate_pipeline
from enplace.machine.pipelines.v_shape import IN_A_V, is_in_v
from enplace.placers.max_load.memory.in_flight import find_fullest, samples_matter
from enplace.placers.max_load.table.dp import Partition, Stopped, build_task, chains
from enplace.placers.max_load.table.pruning import shared_work_us
from enplace.placing.candidates import unordered
from enplace.values.arrays import inverse
from enplace.values.load_rule import LoadRule
from enplace.values.plan import Plan
from enplace.values.problem import Problem
from enplace.values.profile import FloatArray, IntArray

NO_V = f"no cut with {IN_A_V}, was found that fits: each has one"
NO_V_YET = (
    f"the search for a cut with {IN_A_V}, ran out of time, so each has one: with more time, "
    "one may be found"
)

ORDERS = 4
"""Depth-first orders to cut along."""

FEW_CUTS = 1_000
"""If an order can be cut in no more ways than this, all are tried."""

MOST_TRIES = 300
"""Most cuts of a long order whose loads are computed, and most that are asked for a V."""

BEST = 20
"""Cuts that are a V, the best first, of which one must fit."""

NEAR = 0.01
"""Loads that differ by a smaller share are equal; then the shorter step counts."""

Cuts = tuple[int, ...]
"""Where each stage after the first begins in an order; the two in the middle are one here."""

Rank = tuple[float, float]
"""The largest load, and the sum of squares."""


def cut_in_v(problem: Problem, rule: LoadRule, *, seed: int, stopped: Stopped) -> Partition | None:
    """Cut a graph into two stages for each accelerator; None if no such cut is found that fits.

    Of those that fit, it is the one with the least load, or nearly. No accelerator is idle.
    """
    gpus = problem.cluster.gpus
    task = build_task(problem, replace(rule, pipeline="1f1b", replicate=False, two_level=False))
    found: dict[bytes, tuple[Rank, IntArray]] = {}
    for number, lattice in enumerate(chains(task, ORDERS, seed)):
        if number and stopped():
            break
        row = _Row(problem, rule, task.nodes.node, lattice.added)
        for cuts in row.best_cuts():
            device = row.place(cuts)
            found[device.tobytes()] = row.rank(cuts), device
    allowed = [each for each in found.values() if np.isfinite(each[0][0])]
    in_v = (
        (us, plan)
        for (us, _), device in sorted(allowed, key=lambda each: each[0])[:MOST_TRIES]
        for plan in unordered(problem, device, "")
        if not stopped() and is_in_v(problem, plan)
    )
    best = [*islice(in_v, BEST)]
    near = [plan for us, plan in best if us <= best[0][0] * (1 + NEAR)]
    far = [plan for _, plan in best[len(near) :]]
    for plan in [*sorted(near, key=partial(_makespan_us, problem, rule, stopped)), *far]:
        for again in ((), tuple(gpus)) if rule.recompute else ((),):
            if _fits(problem, plan, rule, again):
                parts_us = pass_loads_us(problem, plan.device, rule, (), again)
                load_us, bound_us = float(parts_us.sum(axis=1).max()), shared_work_us(problem, rule)
                return Partition(plan.device, load_us, bound_us, recompute=again)
    return None


def _makespan_us(problem: Problem, rule: LoadRule, stopped: Stopped, plan: Plan) -> float:
    if stopped():
        return np.inf
    return simulate_pipeline(problem, plan, "zbv", rule.microbatches, rule).makespan_us


def _fits(problem: Problem, plan: Plan, rule: LoadRule, recompute: tuple[int, ...]) -> bool:
    if rule.in_flight:
        is_certain = not samples_matter(problem, rule)
        return is_certain or find_fullest(problem, plan.device, rule, (), recompute) <= 1
    return simulate(problem, plan).fits


class _Row:
    """Nodes in an order, cut into stages."""

    def __init__(self, problem: Problem, rule: LoadRule, node: IntArray, order: IntArray) -> None:
        self.problem, self.rule = problem, rule
        gpus = problem.cluster.gpus
        self._devices = np.array([*gpus, *gpus[:-1][::-1]])
        allowed = np.ones((len(order), problem.cluster.n_devices), dtype=bool)
        np.logical_and.at(allowed, node, problem.unit_allowed[problem.unit])
        on_host = np.logical_not(allowed[:, gpus].any(axis=1))
        self._on_host, self._host = on_host[node], allowed.argmax(axis=1)[node]
        counts = np.bincount(node, ~optimiser_ops(problem), len(order)) > 0
        counts &= ~on_host  # no stage is of a host's inputs, or of updates alone
        self._at = np.maximum(np.cumsum(counts[order]) - 1, 0)[inverse(order)][node]
        self.n = int(counts.sum())
        each_us = work_per_sample_us(problem, rule.microbatches)[:, gpus].max(axis=1)
        each_us[self._on_host] = 0
        work_us = np.bincount(self._at, each_us, self.n)
        self._until_us = np.concatenate([[0.0], np.cumsum(work_us)]).tolist()
        self._sent_us = self._find_sent_us().tolist()

    def _find_sent_us(self) -> FloatArray:
        """Sum the time of the tensors of each sample that a cut before each node divides."""
        profile = self.problem.profile
        cost_us = sample_us(self.problem).max(axis=1) * ~once_per_step(profile)
        maker = self._at[profile.tensor_op]
        first, last = maker.copy(), maker.copy()
        reader = self._at[profile.edge_op]
        np.minimum.at(first, profile.edge_tensor, reader)
        np.maximum.at(last, profile.edge_tensor, reader)
        change = np.zeros(self.n + 1)
        np.add.at(change, first + 1, cost_us)
        np.add.at(change, last + 1, -cost_us)
        return np.cumsum(change)

    def place(self, cuts: Cuts) -> IntArray:
        """Return the device of each op."""
        on_gpu = self._devices[np.searchsorted(cuts, self._at, side="right")]
        device: IntArray = np.where(self._on_host, self._host, on_gpu)
        return device

    def rank(self, cuts: Cuts) -> Rank:
        """Rank a cut by the loads of devices; inf if an op may not be where it is."""
        problem, device = self.problem, self.place(cuts)
        if not problem.unit_allowed[problem.unit, device].all():
            return np.inf, np.inf
        loads_us = pass_loads_us(problem, device, self.rule).sum(axis=1)
        return float(loads_us.max()), float((loads_us**2).sum())

    def guess(self, cuts: Cuts) -> Rank:
        """Rank a cut by sums of times."""
        stages = [
            b - a
            for a, b in pairwise([0.0, *(self._until_us[c] for c in cuts), self._until_us[-1]])
        ]
        sent_us = [0.0, *(self._sent_us[c] for c in cuts), 0.0]
        each = [us + a + b for us, (a, b) in zip(stages, pairwise(sent_us), strict=True)]
        k = (len(each) + 1) // 2
        loads_us = [*(a + b for a, b in zip(each[: k - 1], each[::-1], strict=False)), each[k - 1]]
        return max(loads_us), sum(us**2 for us in loads_us)

    def best_cuts(self) -> list[Cuts]:
        """List all cuts, or the best of many, the best first."""
        n_cuts = len(self._devices) - 1
        if self.n < n_cuts + 2 or n_cuts < 2:
            return []
        if comb(self.n - 1, n_cuts) <= FEW_CUTS:
            every = filter(self._is_cut, combinations(range(1, self.n), n_cuts))
            return sorted(every, key=self.rank)
        even = np.linspace(0, self._until_us[-1], n_cuts + 3)[1:-1]
        even = np.delete(even, n_cuts // 2)  # the two stages in the middle are one
        at = np.searchsorted(self._until_us, even) - np.arange(n_cuts)
        at = np.clip(np.maximum.accumulate(at), 1, self.n - n_cuts - 1) + np.arange(n_cuts)
        guessed = self._descend(tuple(at.tolist()), self.guess, MOST_TRIES**2)
        best = min(guessed[-BEST:], key=self.rank)
        return self._descend(best, self.rank, MOST_TRIES)[: -BEST - 1 : -1]

    def _is_cut(self, cuts: Cuts) -> bool:
        """Whether each stage has a node, and the middle has two."""
        middle = len(cuts) // 2
        sizes = [b - a for a, b in pairwise([0, *cuts, self.n])]
        return min(sizes) > 0 and sizes[middle] > 1

    def _descend(self, start: Cuts, rank: Callable[[Cuts], Rank], most: int) -> list[Cuts]:
        """Move one cut after another as long as that helps; list the steps."""
        steps, best, tried = [start], rank(start), 0
        moved = True
        while moved:
            moved = False
            for cuts in self._around(steps[-1]):
                tried += 1
                if tried > most:
                    return steps
                found = rank(cuts)
                if found < best:
                    steps.append(cuts)
                    best, moved = found, True
                    break
        return steps

    def _around(self, cuts: Cuts) -> Iterator[Cuts]:
        """Yield cuts of which one or two neighbours are elsewhere."""
        shifts = [sign << power for power in range(self.n.bit_length()) for sign in (1, -1)]
        single = ((i,) for i in range(len(cuts)))
        for places in chain(single, combinations(range(len(cuts)), 2)):
            for shift in shifts:
                for signs in ((1, 1), (1, -1))[: len(places)]:
                    moved = list(cuts)
                    for i, sign in zip(places, signs, strict=False):
                        moved[i] += sign * shift
                    if self._is_cut(tuple(moved)):
                        yield tuple(moved)
