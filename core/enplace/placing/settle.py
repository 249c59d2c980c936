"""Placements that respect the constraints, and orders for them."""

from __future__ import annotations

from heapq import heappop, heappush

import numpy as np

from enplace.coarsen import find_leaders, mean_link
from enplace.machine import ranks
from enplace.machine.layout import build_machine
from enplace.values.arrays import inverse, raise_along_edges, upward_rank
from enplace.values.problem import Problem
from enplace.values.profile import FloatArray, IntArray


def settle(problem: Problem, preferred: IntArray, position: IntArray | None = None) -> IntArray:
    """Turn a preferred device for each op into a placement that breaks no constraint.

    Free ops follow their leaders. Of the ops of a placement unit, the first in ``position`` decides
    for all (Celeritas, section 6.1, after Baechi). A unit that may not run on its preferred device
    goes to the allowed device that runs it fastest.

    Parameters
    ----------
    preferred : int array, shape (n_ops,)
        Device numbers; those of followers are ignored.
    position : int array, shape (n_ops,), optional
        A topological order; the graph's own by default.
    """
    unit_preferred = preferred[deciding_op(problem, position)]
    goes = device_by_preference(problem)
    device: IntArray = goes[np.arange(problem.n_units), unit_preferred][problem.unit]
    return device


def deciding_op(problem: Problem, position: IntArray | None = None) -> IntArray:
    """Find the op that decides for each placement unit, see :func:`settle`; shape (n_units,)."""
    if position is None:
        position = natural_position(problem)
    leader = find_leaders(problem, position)
    by_rank = np.lexsort((position, position[leader]))
    _, first = np.unique(problem.unit[by_rank], return_index=True)
    decider: IntArray = leader[by_rank[first]]
    return decider


def device_by_preference(problem: Problem) -> IntArray:
    """Find where a unit goes for each preferred device: there, or else where it runs fastest.

    Returns
    -------
    int array, shape (n_units, n_devices)
    """
    there = np.arange(problem.cluster.n_devices)
    return np.where(problem.unit_allowed, there, fastest_device(problem)[:, None])


def fastest_device(problem: Problem) -> IntArray:
    """Find the allowed device with the least time for all ops of a unit; shape (n_units,).

    Ties go to a GPU, then to the first.
    """
    time_us = np.zeros(problem.unit_allowed.shape)
    np.add.at(time_us, problem.unit, problem.time_us)
    time_us[~problem.unit_allowed] = np.inf
    gpus_first = np.argsort(problem.cluster.kind, kind="stable").astype(np.int64)
    fastest: IntArray = gpus_first[np.argmin(time_us[:, gpus_first], axis=1)]
    return fastest


def natural_position(problem: Problem) -> IntArray:
    """Return the position of each op in the graph's own topological order; shape (n_ops,)."""
    return inverse(problem.profile.topological_order)


def position_by(problem: Problem, key: FloatArray) -> IntArray:
    """Order ops by a key that never decreases along an edge; ties by the graph's own order."""
    return inverse(np.lexsort((natural_position(problem), key)))


def position_by_start(problem: Problem, start_us: FloatArray) -> IntArray:
    """Order ops by when they start.

    Schedulers start free ops at time 0, but their producers still come before them.
    """
    profile = problem.profile
    key = start_us.copy()
    first_edge = profile.edge_ptr[profile.tensor_ptr]
    raise_along_edges(profile.topological_order, first_edge, profile.edge_op, key)
    return position_by(problem, key)


def frugal_position(problem: Problem) -> IntArray:
    """Return the position of each op in an order that holds few bytes at once.

    Of the ops that are ready, the next is the one that adds least: what it makes, without what is
    read for the last time.
    """
    profile = problem.profile
    sources, ops = profile.edge_source.tolist(), profile.edge_op.tolist()
    # What lies in the memory of another tensor keeps that, which counts as read with it.
    tensors = profile.tensor_root[profile.edge_tensor].tolist()
    held = profile.held_bytes.tolist()
    readers: dict[int, set[int]] = {}
    reads: list[set[int]] = [set() for _ in range(profile.n_ops)]
    before: list[set[int]] = [set() for _ in range(profile.n_ops)]
    after: list[set[int]] = [set() for _ in range(profile.n_ops)]
    for source, op, tensor in zip(sources, ops, tensors, strict=True):
        readers.setdefault(tensor, set()).add(op)
        reads[op].add(tensor)
        before[op].add(source)
        after[source].add(op)
    made = np.bincount(profile.tensor_op, profile.held_bytes, profile.n_ops).tolist()
    waits = [len(each) for each in before]

    def added(op: int) -> float:
        return float(made[op] - sum(held[t] for t in reads[op] if len(readers[t]) == 1))

    ready = sorted((added(op), op) for op in range(profile.n_ops) if not waits[op])
    order: list[int] = []
    while ready:
        n_bytes, op = heappop(ready)
        now = added(op)
        if now < n_bytes:  # since then, others have read what it reads
            heappush(ready, (now, op))
            continue
        order.append(op)
        for tensor in reads[op]:
            readers[tensor].discard(op)
        for other in after[op]:
            waits[other] -= 1
            if not waits[other]:
                heappush(ready, (added(other), other))
    return inverse(np.array(order, dtype=np.int64))


def mean_rank_us(problem: Problem, link_weight: float = 1.0) -> FloatArray:
    """Compute HEFT's upward ranks: mean times over devices, every edge at the mean link's cost.

    Parameters
    ----------
    link_weight : float
        Factor on the transfers; 1 as in Topcuoglu et al., equation 8.
    """
    runs = problem.unit_allowed[problem.unit]
    work_us = np.where(runs, problem.time_us, 0.0).sum(axis=1) / runs.sum(axis=1)
    edge_bytes = problem.profile.tensor_bytes[problem.profile.edge_tensor]
    edge_us = mean_link(problem.cluster).transfer_us(edge_bytes)
    return upward_rank_us(problem, work_us, link_weight * edge_us)


def placed_rank_us(problem: Problem, device: IntArray) -> FloatArray:
    """Compute upward ranks under a placement: true times, and only transfers that take place."""
    rank_us: FloatArray = ranks.placed_rank_us(build_machine(problem), device.astype(np.int64))
    return rank_us


def by_placed_rank(problem: Problem, device: IntArray) -> IntArray:
    """Return the position of each op in the order of the upward ranks under a placement."""
    return position_by(problem, -placed_rank_us(problem, device))


def upward_rank_us(problem: Problem, work_us: FloatArray, edge_us: FloatArray) -> FloatArray:
    """Find the longest path from each op to the end, its own work included; shape (n_ops,)."""
    profile = problem.profile
    rank_us: FloatArray = upward_rank(
        profile.topological_order, profile.out_ptr, profile.edge_op, work_us, edge_us
    )
    return rank_us
