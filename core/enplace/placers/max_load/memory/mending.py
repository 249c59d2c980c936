"""What would let a pipeline fit: recomputation, or more GPUs, judged by the simulated memory.

Stages are cut along one order of the graph so that the fullest device holds as little as it can.
What is said of a cut was simulated, on the GPUs that there are or on more like the first of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import combinations, compress, product
from math import comb
from typing import NamedTuple

import numpy as np

from enplace.machine.op_passes import backward_ops
from enplace.machine.pipelines.memory import (
    added_by_stages,
    counts_whole_nodes,
    forward_bytes,
)
from enplace.machine.pipelines.pipeline import samples_that_fill, simulate_pipeline
from enplace.placers.max_load.memory.passing import find_passing
from enplace.placers.max_load.table.dp import Partition, build_task, chains
from enplace.placing.candidates import all_on_one, unordered
from enplace.placing.settle import settle
from enplace.placing.stop import never
from enplace.text import size
from enplace.values.arrays import inverse
from enplace.values.cluster import MAX_DEVICES, Cluster
from enplace.values.cluster_variants import THROUGH_HOST, with_gpus
from enplace.values.load_rule import LoadRule
from enplace.values.problem import Problem
from enplace.values.profile import FloatArray, IntArray

Stopped = Callable[[], bool]

MOST_TIMES = 4
"""The most GPUs that are tried, as a multiple of those that there are."""

SLACK, MOST_TRIES = 1.15, 6
"""A cut is simulated if it counts for at most this share of the memory, and at most so many are."""

HALVINGS = 40

FEW_CUTS = 64
"""If there are no more cuts than this, all are tried where what fits is slower than what need not
fit."""


def list_cuts(problem: Problem, rule: LoadRule) -> Iterator[Partition]:
    """Yield cuts whose fullest stage holds as little as it can, with all samples and with one.

    In the end, one GPU has everything: it receives nothing, of however many samples.
    """
    if not _is_known(problem, rule):
        return
    row, gpus = _Row(problem, rule), problem.cluster.gpus
    for again, alone in ((False, False), (False, True), (True, True))[: 3 if rule.recompute else 2]:
        stage_of, _ = row.cut(len(gpus), recompute=again or alone)
        device = row.place(problem, stage_of)
        yield Partition(device, np.inf, 0.0, recompute=tuple(gpus) if again else ())
    for device in all_on_one(problem):
        for recompute in ((), tuple(gpus))[: 2 if rule.recompute else 1]:
            yield Partition(device, np.inf, 0.0, recompute=recompute)


def list_every_cut(problem: Problem, rule: LoadRule) -> Iterator[Partition]:
    """Yield all cuts along an order with all choices of stages that recompute, if they are few."""
    if not _is_known(problem, rule):
        return
    row, gpus = _Row(problem, rule), problem.cluster.gpus
    n, k = row.n_nodes, len(gpus)
    choices = list(product((False, True), repeat=k)) if rule.recompute else [(False,) * k]
    if n < k or comb(n - 1, k - 1) * len(choices) > FEW_CUTS:
        return
    for cuts in combinations(range(1, n), k - 1):
        device = row.place(problem, np.searchsorted(cuts, np.arange(n), side="right"))
        for again in choices:
            recompute = tuple(compress(gpus, again))
            yield Partition(device, np.inf, 0.0, recompute=recompute)


def _is_known(problem: Problem, rule: LoadRule) -> bool:
    """Whether the memory of stages adds up as here, one stage on each GPU."""
    if counts_whole_nodes(problem.profile) or not backward_ops(problem).any():
        return False
    apart = rule.replicate or rule.two_level or rule.pipeline == "interleaved"
    return not apart and bool(problem.cluster.gpus)


class PipelineFit(NamedTuple):
    """A number of GPUs with which a pipeline fits, whether it recomputes, and what it holds.

    Attributes
    ----------
    most_bytes : int
        What the fullest GPU holds.
    """

    n_gpus: int
    recompute: bool
    most_bytes: int


def find_mends(problem: Problem, rule: LoadRule, stopped: Stopped) -> list[PipelineFit]:
    """Find what lets a pipeline fit: recomputation on the GPUs that there are, or more GPUs.

    Of numbers of GPUs, the least is found without recomputation, and with it if that needs fewer.
    Empty if none is known: in inputs of 2020, with replicas, or without a backward pass; and if
    stopped before one is found.
    """
    if not _is_known(problem, rule) or stopped():
        return []
    row, n = _Row(problem, rule, stopped), len(problem.cluster.gpus)
    again = None if rule.recompute else row.find_number(n, n, recompute=True)
    if again is not None:
        return [again]
    kept = row.find_number(n, MOST_TIMES * n, recompute=False)
    most = MOST_TIMES * n if kept is None else kept.n_gpus - 1
    return [*filter(None, [kept, row.find_number(n, most, recompute=True)])]


def describe_mend(problem: Problem, rule: LoadRule, stopped: Stopped = never) -> str:
    """Say with how many such GPUs a pipeline would fit, or that it would if it recomputes."""
    found = find_mends(problem, rule, stopped)
    if found and found[0].n_gpus == len(problem.cluster.gpus) and found[0].recompute:
        return f"it would fit with --recompute ({size(found[0].most_bytes)} at most on each GPU)"
    ways = [
        f"on {fit.n_gpus} such GPUs{', with --recompute' if fit.recompute else ''} "
        f"({size(fit.most_bytes)} at most on each)"
        for fit in found
    ]
    return f"it would fit {', or '.join(ways)}" if ways else ""


class _Row:
    """The nodes of a problem in one order, with their bytes."""

    def __init__(self, problem: Problem, rule: LoadRule, stopped: Stopped = never) -> None:
        self._problem, self._rule, self._stopped = problem, rule, stopped
        task = build_task(problem, replace(rule, pipeline="1f1b"))
        order = next(iter(chains(task, 1, 0))).added
        self._place = inverse(order)
        self._node = task.nodes.node
        runs = task.costs.runs[task.nodes.kinds.is_gpu].sum(axis=0)
        self._on_gpu = runs[order] > 0
        profile = problem.profile
        resident = profile.persistent_bytes.copy()
        sums = profile.held_bytes * added_by_stages(problem)
        np.add.at(resident, profile.tensor_op, sums)
        at = self._place[self._node]
        self._resident = np.bincount(at, resident, len(order)) * self._on_gpu
        self._kept = np.bincount(at, forward_bytes(problem), len(order)) * self._on_gpu
        self._passing: FloatArray = np.zeros(len(order))
        np.maximum.at(self._passing, at, find_passing(problem))
        self._passing *= self._on_gpu

    @property
    def n_nodes(self) -> int:
        return len(self._place)

    def find_number(self, least: int, most: int, *, recompute: bool) -> PipelineFit | None:
        """Find the least number of GPUs with which a pipeline fits when it is simulated."""
        cluster, tries = self._problem.cluster, 0
        for n in range(least, min(most, MAX_DEVICES - len(cluster.cpus)) + 1):
            if self._stopped():
                return None
            stage_of, share = self.cut(n, recompute=recompute)
            if share > SLACK:
                continue
            held, capacity = self._simulate(stage_of, n, recompute)
            if (held <= capacity).all():
                return PipelineFit(n, recompute, int(held.max()))
            tries += 1
            if tries == MOST_TRIES:
                return None
        return None

    def cut(self, n: int, *, recompute: bool) -> tuple[IntArray, float]:
        """Cut the nodes so that the fullest stage counts least; return each one's stage.

        Returns
        -------
        int array, shape (n_nodes,)
        float
            The largest share of a GPU's memory that a stage counts.
        """
        gpus, devices = self._problem.cluster.gpus, self._problem.cluster.devices
        like = [*gpus, *[gpus[0]] * (n - len(gpus))]
        capacity = [devices[gpu].capacity_bytes for gpu in like]
        all_bytes = self._held(n, n, recompute).sum() + self._passing.max(initial=0.0)
        too_little, enough = 0.0, float(all_bytes) / min(capacity)
        stage_of = np.full(len(self._place), n - 1)
        for _ in range(HALVINGS):
            share = (too_little + enough) / 2
            found = self._fill(share, capacity, n, recompute)
            if found is None:
                too_little = share
            else:
                enough, stage_of = share, found
        return stage_of, enough

    def _fill(self, share: float, capacity: list[int], n: int, recompute: bool) -> IntArray | None:
        """Fill a share of one GPU after another, from the end; None if too many are needed."""
        stage_of, end = np.zeros(len(self._place), dtype=np.int64), len(self._place)
        for samples in range(1, n + 1):
            held = self._held(samples, n, recompute)[:end][::-1].cumsum()
            held += np.maximum.accumulate(self._passing[:end][::-1])
            limit = share * capacity[n - samples]
            begin = end - int(np.searchsorted(held, limit, side="right"))
            stage_of[begin:end] = n - samples
            if begin == 0:
                return stage_of
            if begin == end:
                return None
            end = begin
        return None

    def _held(self, samples: int, n: int, recompute: bool) -> FloatArray:
        """Return what each node holds in the stage that is so many from the end."""
        if self._rule.pipeline == "gpipe":
            samples = self._rule.microbatches
        elif self._rule.pipeline != "1f1b":
            samples = n
        held: FloatArray = self._resident + (1 if recompute else samples) * self._kept
        return held

    def place(self, problem: Problem, stage_of: IntArray) -> IntArray:
        """Return the device of each op if a GPU has each stage."""
        gpus = np.array(problem.cluster.gpus)
        return settle(problem, gpus[stage_of][self._place[self._node]])

    def _simulate(self, stage_of: IntArray, n: int, recompute: bool) -> tuple[IntArray, IntArray]:
        """Return what each GPU holds if such stages are on so many GPUs, and what it has."""
        problem = replace(self._problem, cluster=_of_gpus(self._problem.cluster, n))
        gpus = problem.cluster.gpus
        (plan,) = unordered(problem, self.place(problem, stage_of), "")
        plan = replace(plan, recompute=tuple(gpus) if recompute else ())
        rule = self._rule
        n_samples = samples_that_fill(problem, rule)
        found = simulate_pipeline(problem, plan, rule.pipeline, n_samples, rule)
        return found.peak_bytes[gpus], problem.cluster.capacity_bytes[gpus]


def _of_gpus(cluster: Cluster, n: int) -> Cluster:
    """Return a cluster with so many GPUs, as if on one host: only memory counts."""
    return replace(with_gpus(cluster, n, THROUGH_HOST), hosts=())
