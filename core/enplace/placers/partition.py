"""Graph partitioners: METIS (Karypis and Kumar 1998) and Scotch (Pellegrini 2009).

They cut the graph into one part for each GPU. Parts have about equal work, and the transfers
between them take as little time as possible. They are baselines in Celeritas (section 6.2) and in
Tarnawski et al. 2020 (section 6). Direction, order and memory play no role. Where the papers leave
the choice open, this is what we do:

- A node is a placement unit with the free ops that follow it; its weight is its shortest time on
  any device. The weight of an edge is the time of its tensors on the average link.
- A GPU's share of the work is its share of the speed. The allowed imbalance is each program's
  default, 3 % for METIS and 5 % for Scotch.
- If the step does not fit, the parts are balanced by memory (variables and outputs) instead.
- Neither supports pins: ops that are not allowed on their part's device go elsewhere.
- Ops run in the framework's order, because partitioners do not schedule them.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import NamedTuple

import numpy as np

from enplace.coarsen import find_leaders, group_graph, mean_link
from enplace.errors import EnplaceError
from enplace.placing.candidates import best_of, unordered
from enplace.placing.incumbents import BestSchedule
from enplace.placing.options import PlaceOptions
from enplace.placing.registry import EVERY, HETEROGENEOUS, MEMORY, placer
from enplace.placing.repair import relieve
from enplace.placing.settle import natural_position, settle
from enplace.processes.wire import Message
from enplace.solvers.ask_solver import ask_solver
from enplace.solvers.scotch_process import GET_SCOTCH, SCOTCH
from enplace.values.arrays import FloatArray, IntArray, csr_offsets
from enplace.values.plan import Plan
from enplace.values.problem import Problem

HAS_METIS = importlib.util.find_spec("pymetis") is not None

METIS_IMBALANCE = 30
"""METIS's ufactor: by how many thousandths a part may exceed its share."""

SCOTCH_IMBALANCE = 0.05

_TOTAL = 10**8
"""The sum of the weights; sums of them must fit into 32 bits."""

_PRINTING = Lock()
"""Held while the standard output is not ours."""


class Weighted(NamedTuple):
    """An undirected graph in compressed rows: each edge is in the rows of both its ends.

    Attributes
    ----------
    ptr, neighbour : int arrays, shapes (n_nodes + 1,) and (2 * n_edges,)
    node_weight, edge_weight : int arrays, shapes (n_nodes,) and (2 * n_edges,)
        At least 1.
    share : float array, shape (n_parts,)
        The share of all node weight that each part should have.
    """

    ptr: IntArray
    neighbour: IntArray
    node_weight: IntArray
    edge_weight: IntArray
    share: FloatArray


Partition = Callable[[Weighted], IntArray]


@placer(
    "metis",
    title="METIS, graph partitioning",
    good=(
        "To compare with, and for pipelines, where its even parts make small loads. It does not "
        "know the order of ops, so in a single step the parts often wait for each other."
    ),
    source="Karypis and Kumar (1998), as in Celeritas, section 6.2",
    objectives=EVERY,
    capabilities=(MEMORY, HETEROGENEOUS),
    why_not="" if HAS_METIS else "pymetis is missing; run: pip install 'enplace[metis]'",
)
def metis(problem: Problem, options: PlaceOptions) -> Plan:
    """Cut the graph into even parts with METIS, which chooses recursive bisection or k-way."""
    return _partitioned(problem, lambda graph: run_metis(graph, options.seed), "metis", options)


@placer(
    "scotch",
    title="Scotch, graph partitioning",
    good=(
        "For the same purposes as metis, and to see what another partitioner makes of the graph."
    ),
    source="Pellegrini (2009), as in Tarnawski et al. (NeurIPS 2020), section 6",
    objectives=EVERY,
    capabilities=(MEMORY, HETEROGENEOUS),
    why_not="" if shutil.which(SCOTCH) else f"the program {SCOTCH} is missing; run: {GET_SCOTCH}",
)
def scotch(problem: Problem, options: PlaceOptions) -> Plan:
    """Map the graph onto a complete graph of GPUs with Scotch's command-line program."""
    return _partitioned(problem, lambda graph: run_scotch(graph, options), "scotch", options)


def _partitioned(
    problem: Problem, partition: Partition, method: str, options: PlaceOptions
) -> Plan:
    best = BestSchedule(options)
    best_of(problem, _parts(problem, partition, method, by_memory=False), options, best)
    if not best.found.fits and not options.stop():
        plans = _parts(problem, partition, method, by_memory=True)
        best_of(problem, plans, options, best)
    return relieve(best.found, options).plan


def _parts(
    problem: Problem, partition: Partition, method: str, *, by_memory: bool
) -> Iterator[Plan]:
    gpus = np.array(problem.cluster.gpus)
    node, graph = weighted_graph(problem, by_memory=by_memory)
    part = partition(graph) if len(gpus) > 1 else np.zeros(len(graph.node_weight), dtype=np.int64)
    yield from unordered(problem, settle(problem, gpus[part][node]), method)


def weighted_graph(problem: Problem, *, by_memory: bool = False) -> tuple[IntArray, Weighted]:
    """Lay out the graph for a partitioner.

    Parameters
    ----------
    by_memory : bool
        Whether nodes are weighted by memory instead of time.

    Returns
    -------
    node : int array, shape (n_ops,)
        Node of each op.
    graph : Weighted
    """
    unit = problem.unit[find_leaders(problem, natural_position(problem))]
    node = np.unique(unit, return_inverse=True)[1].astype(np.int64)
    grouped = group_graph(problem, node)
    ends = np.concatenate([grouped.source, grouped.target])
    others = np.concatenate([grouped.target, grouped.source])
    edge_us = np.tile(grouped.edge_us(mean_link(problem.cluster)), 2)
    # Two nodes may send to each other; a partitioner expects one edge.
    key, edge = np.unique(ends * grouped.n_groups + others, return_inverse=True)
    weight = np.bincount(edge, weights=edge_us, minlength=len(key))
    size = grouped.memory_bytes if by_memory else grouped.time_us.min(axis=1)
    gpus = problem.cluster.gpus
    of_gpu = problem.cluster.capacity_bytes if by_memory else problem.cluster.speed
    return node, Weighted(
        ptr=csr_offsets(key // grouped.n_groups, grouped.n_groups),
        neighbour=key % grouped.n_groups,
        node_weight=_whole(size.astype(np.float64)),
        edge_weight=_whole(weight.astype(np.float64)),
        share=of_gpu[gpus] / of_gpu[gpus].sum(),
    )


def _whole(weight: FloatArray) -> IntArray:
    """Scale weights to whole numbers of at least 1 that add up to about a fixed total."""
    scaled: IntArray = np.ceil(weight * (_TOTAL / max(weight.sum(), 1e-9))).astype(np.int64)
    return np.maximum(scaled, 1)


def run_metis(graph: Weighted, seed: int) -> IntArray:
    """Find the part of each node with METIS; shape (n_nodes,)."""
    import pymetis

    if len(graph.node_weight) < len(graph.share):
        # METIS would complain. The heaviest nodes go to the largest shares.
        part = np.empty(len(graph.node_weight), dtype=np.int64)
        part[np.argsort(-graph.node_weight)] = np.argsort(-graph.share)[: len(part)]
        return part
    with _unprinted():
        found = pymetis.part_graph(
            len(graph.share),
            pymetis.CSRAdjacency(graph.ptr, graph.neighbour),
            vweights=graph.node_weight,
            eweights=graph.edge_weight,
            tpwgts=graph.share.tolist(),
            options=pymetis.Options(ufactor=METIS_IMBALANCE, seed=seed),
        )
    return np.array(found.vertex_part, dtype=np.int64)


@contextmanager
def _unprinted() -> Iterator[None]:
    """Drop the complaints of METIS: it prints them on the standard output, before a document."""
    libc = ctypes.CDLL("ucrtbase" if os.name == "nt" else None)
    with _PRINTING:
        try:
            ours = os.dup(1)
        except OSError:  # it is closed
            yield
            return
        nowhere = os.open(os.devnull, os.O_WRONLY)
        libc.fflush(None)
        os.dup2(nowhere, 1)
        try:
            yield
        finally:
            libc.fflush(None)
            os.dup2(ours, 1)
            os.close(ours)
            os.close(nowhere)


def run_scotch(graph: Weighted, options: PlaceOptions) -> IntArray:
    """Find the part of each node with Scotch, in a process of its own; shape (n_nodes,).

    Raises
    ------
    CancelledError
        If it is cancelled.
    EnplaceError
        If the program fails, or needs longer than the time limit.
    """
    job = Message("solve", {"imbalance": SCOTCH_IMBALANCE}, graph._asdict())
    for answer in ask_solver(
        "scotch_process:solve", job, options.stop.left_s(), options.stop.cancelled
    ):
        if answer.details["status"] == "done":
            return answer.arrays["part"]
        raise EnplaceError(f"scotch: {answer.details['why']}; try another method")
    options.stop.check()
    raise EnplaceError("scotch: it found nothing within the time limit; allow more time")
