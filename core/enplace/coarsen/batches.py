"""Coarsening by batches of edge merges: Pesto's rule, and one that protects the critical path.

The first is from section 3.3 of the paper; the second is ours.

Pesto's Theorem 3.5 states when a set M of edges (u_i, v_i) may be merged at once. Its condition
(iii) as printed allows cycles: take a1 -> b1 and a2 -> b2 with the further edges a1 -> b2 and
a2 -> b1, all a of height 1 and all b of height 2. Merging both pairs makes two vertices with edges
both ways, yet h(u_i) = 1 never equals h(v_j) + d_j = 3, so the printed condition is met. What the
proof needs is: for i != j there is no edge (u_i, v_j) with H(v_j) = H(u_i) + d_i. We check this
condition; each batch is still tested for cycles, and halved if there is one.

Where the paper leaves the choice open, this is what we do:

- Ops that must share a device are merged first if that closes no cycle. In a training graph it
  usually does (a variable is read at the start and updated at the end of a step); then the ops stay
  separate and only share their device.
- Ops are merged only with others that are allowed on the same devices.
- A vertex may have up to a quarter of the smallest GPU's memory, and a few times the average work.
  The cap on work is raised by half when nothing else can be merged, never all at once.
- Merging two ops also ties together all ops that must share a device with either of them. Tied
  vertices together may have a few times as much work as one vertex; otherwise all could end up on
  one device.
- When no more edges may be merged, vertices of one height are merged: heights still rise along
  every edge, so this closes no cycle. It also packs ops without edges.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from enplace.coarsen.grouped import GroupedGraph, group_graph, mean_link
from enplace.values.arrays import FloatArray, IntArray, csr_offsets, inverse, topological_order
from enplace.values.problem import Problem

MEMORY_SHARE = 0.25
"""Most memory of a vertex, as a share of the smallest GPU's."""

WORK_SHARE = 2.0
"""Most work of a vertex at first, relative to the average vertex of the target graph."""

TIED_SHARE = 4.0
"""Most work of vertices that must share a device, relative to the most work of one vertex."""

MERGED_A_ROUND = 0.12
"""Share of the vertices that the variant for the critical path merges in one batch."""

STRETCH = 0.02
"""Factor by which that variant lets a merged vertex stretch the longest path beyond its limit."""


class _Graph(NamedTuple):
    """Vertices with their work, memory, device set and tie, and the edges between them, by source.

    Vertices of one tie share a device, because each has an op of one placement unit.
    """

    work_us: FloatArray
    memory_bytes: IntArray
    device_set: IntArray
    tie: IntArray
    source: IntArray
    target: IntArray
    cost_us: FloatArray


def merge_batches(
    problem: Problem, target: int, *, critical: bool = False, device: IntArray | None = None
) -> IntArray:
    """Merge ops until at most ``target`` vertices are left, or nothing more can be merged.

    Parameters
    ----------
    target : int
        The number of vertices wanted; the paper takes 200.
    critical : bool
        False: the paper's rule, heaviest transfer first. True: few merges at a time, first of
        transfers that are long compared with the work of their ends, and none that stretches the
        longest path beyond max(critical path, work / devices).
    device : int array, shape (n_ops,), optional
        If given, only ops on the same device are merged.

    Returns
    -------
    int array, shape (n_ops,)
        Vertex of each op, numbered from 0 without gaps; contracting them leaves no cycle.
    """
    vertex = _colocated(problem)
    graph = _to_graph(problem, group_graph(problem, vertex), device)
    smallest = problem.cluster.capacity_bytes[problem.cluster.gpus].min()
    memory_cap = int(MEMORY_SHARE * smallest)
    n_gpus = len(problem.cluster.gpus)
    work_cap = max(WORK_SHARE * graph.work_us.sum() / target, 1e-9)
    stretch = STRETCH
    while len(graph.work_us) > target:
        root = _one_batch(graph, target, work_cap, memory_cap, n_gpus, critical, stretch)
        if _n_roots(root) == len(root):
            root = _pack(graph, target, work_cap, memory_cap)
        if _n_roots(root) == len(root):
            # Nothing can be merged under these limits: raise them, unless they no longer bind.
            if work_cap > graph.work_us.sum() and stretch > n_gpus:
                break
            work_cap *= 1.5
            stretch = stretch * 1.5 + 0.01
            continue
        number = np.unique(root, return_inverse=True)[1]
        graph = _merged(graph, number)
        vertex = number[vertex]
    return vertex


def _n_roots(root: IntArray) -> int:
    return int((root == np.arange(len(root))).sum())


def _colocated(problem: Problem) -> IntArray:
    """Find placement units that can be merged without a cycle; other ops stay separate."""
    profile = problem.profile
    unit = problem.unit
    shared = np.bincount(unit)[unit] > 1
    vertex = np.where(shared, unit, problem.n_units + np.arange(profile.n_ops))
    while True:
        number = np.unique(vertex, return_inverse=True)[1].astype(np.int64)
        source, target = number[profile.edge_source], number[profile.edge_op]
        apart = source != target
        order = _topological(int(number.max()) + 1, source[apart], target[apart])
        stuck = np.ones(int(number.max()) + 1, dtype=bool)
        stuck[order] = False
        # A unit on or behind a cycle stays in separate ops; taking it apart may free the others.
        split = stuck[number] & shared & (vertex < problem.n_units)
        if not split.any():
            return number
        vertex = np.where(split, problem.n_units + np.arange(profile.n_ops), vertex)


def _to_graph(problem: Problem, grouped: GroupedGraph, device: IntArray | None) -> _Graph:
    first = np.unique(grouped.group, return_index=True)[1]
    alike = problem.device_sets[1][problem.unit[first]]
    if device is not None:
        # Ops on different devices must not merge, so the device becomes part of the set's number.
        alike = alike * problem.cluster.n_devices + device[first]
    return _Graph(
        work_us=grouped.time_us.min(axis=1),
        memory_bytes=grouped.memory_bytes,
        device_set=alike,
        tie=_ties(problem, grouped.group),
        source=grouped.source,
        target=grouped.target,
        cost_us=grouped.edge_us(*mean_link(problem.cluster)),
    )


def _ties(problem: Problem, vertex: IntArray) -> IntArray:
    """Number the set of vertices that each vertex shares a device with; shape (n_vertices,)."""
    n = int(vertex.max()) + 1
    size = n + problem.n_units
    links = coo_array((np.ones(len(vertex)), (vertex, n + problem.unit)), shape=(size, size))
    label: IntArray = connected_components(links, directed=False)[1][:n].astype(np.int64)
    return label


def _merged(graph: _Graph, number: IntArray) -> _Graph:
    """Contract vertices; edges between two of them add up."""
    n = int(number.max()) + 1
    source, target = number[graph.source], number[graph.target]
    apart = source != target
    key, inverse = np.unique(source[apart] * n + target[apart], return_inverse=True)
    memory = np.zeros(n, dtype=np.int64)
    np.add.at(memory, number, graph.memory_bytes)
    device_set = np.empty(n, dtype=np.int64)
    device_set[number] = graph.device_set
    joined = coo_array((np.ones(len(number)), (number, n + graph.tie)))
    size = max(joined.shape)
    joined.resize(size, size)
    tie = connected_components(joined, directed=False)[1][:n].astype(np.int64)
    return _Graph(
        work_us=np.bincount(number, graph.work_us, n).astype(np.float64),
        memory_bytes=memory,
        device_set=device_set,
        tie=tie,
        source=key // n,
        target=key % n,
        cost_us=np.bincount(inverse, graph.cost_us[apart], len(key)).astype(np.float64),
    )


def _one_batch(
    graph: _Graph,
    target: int,
    work_cap: float,
    memory_cap: int,
    n_gpus: int,
    critical: bool,
    stretch: float,
) -> IntArray:
    """Find each vertex's root after one batch of merges; unmerged vertices are their own roots."""
    n = len(graph.work_us)
    order = _topological(n, graph.source, graph.target)
    out_ptr = csr_offsets(graph.source, n)
    by_target = np.argsort(graph.target, kind="stable")
    in_ptr = csr_offsets(graph.target[by_target], n)
    producers = graph.source[by_target]
    height = _heights(order, in_ptr, producers)
    work = graph.work_us
    most = n - target
    limit_us = np.inf
    top = bottom = np.zeros(n)
    rank = -graph.cost_us
    if critical:
        top, bottom = _levels(order, out_ptr, graph.target, in_ptr, producers, work)
        limit_us = (1 + stretch) * max(float((top + work + bottom).max()), work.sum() / n_gpus)
        rank = -graph.cost_us / (work[graph.source] + work[graph.target] + 1e-3)
        most = min(most, max(1, int(MERGED_A_ROUND * n)))
    pairs = _matching(
        np.argsort(rank, kind="stable"),
        most,
        graph.source,
        graph.target,
        out_ptr,
        in_ptr,
        producers,
        height,
        work,
        graph.memory_bytes,
        graph.device_set,
        graph.tie,
        work_cap,
        memory_cap,
        top,
        bottom,
        limit_us,
    )
    while True:
        root = np.arange(n)
        root[graph.target[pairs]] = graph.source[pairs]
        # One edge alone is safe: Theorem 3.5 covers it, and the halving below ends there.
        if len(pairs) < 2 or _is_acyclic(graph, root):
            return root
        pairs = pairs[: len(pairs) // 2]


def _is_acyclic(graph: _Graph, root: IntArray) -> bool:
    source, target = root[graph.source], root[graph.target]
    apart = source != target
    return len(_topological(len(root), source[apart], target[apart])) == len(root)


def _pack(graph: _Graph, target: int, work_cap: float, memory_cap: int) -> IntArray:
    """Merge vertices of one height and device set, neighbours in the order first."""
    n = len(graph.work_us)
    order = _topological(n, graph.source, graph.target)
    by_target = np.argsort(graph.target, kind="stable")
    in_ptr = csr_offsets(graph.target[by_target], n)
    height = _heights(order, in_ptr, graph.source[by_target])
    by_height = np.lexsort((inverse(order), graph.device_set, height))
    return _fill(
        by_height,
        height,
        graph.device_set,
        graph.tie,
        graph.work_us,
        graph.memory_bytes,
        n - target,
        work_cap,
        memory_cap,
    )


@njit(cache=True, nogil=True)
def _fill(
    by_height: IntArray,
    height: IntArray,
    device_set: IntArray,
    tie: IntArray,
    work_us: FloatArray,
    memory_bytes: IntArray,
    most: int,
    work_cap: float,
    memory_cap: int,
) -> IntArray:  # pragma: no cover - compiled
    # Vertices that can be merged are neighbours in ``by_height``, so one open vertex is enough.
    root = np.arange(len(by_height))
    above = np.arange(tie.max() + 1)
    tied_us, tied_bytes = _tied(tie, work_us), _tied(tie, memory_bytes)
    merged, last = 0, -1
    work, memory = 0.0, 0
    for vertex in by_height:
        if (
            last >= 0
            and merged < most
            and height[last] == height[vertex]
            and device_set[last] == device_set[vertex]
            and work + work_us[vertex] <= work_cap
            and memory + memory_bytes[vertex] <= memory_cap
            and _join(above, tied_us, tied_bytes, tie[last], tie[vertex], work_cap, memory_cap)
        ):
            root[vertex] = last
            work += work_us[vertex]
            memory += memory_bytes[vertex]
            merged += 1
        else:
            last, work, memory = vertex, work_us[vertex], memory_bytes[vertex]
    return root


@njit(cache=True, nogil=True)
def _tied(
    tie: IntArray, values: FloatArray | IntArray
) -> FloatArray:  # pragma: no cover - compiled
    total = np.zeros(tie.max() + 1)
    for vertex in range(len(tie)):
        total[tie[vertex]] += values[vertex]
    return total


@njit(cache=True, nogil=True)
def _join(
    above: IntArray,
    tied_us: FloatArray,
    tied_bytes: FloatArray,
    one: int,
    other: int,
    work_cap: float,
    memory_cap: int,
) -> bool:  # pragma: no cover - compiled
    """Join the ties of two vertices unless the result is too much for one device."""
    # A union-find with path halving: ties only grow, and are asked about for every candidate.
    while above[one] != one:
        above[one] = above[above[one]]
        one = above[one]
    while above[other] != other:
        above[other] = above[above[other]]
        other = above[other]
    if one == other:
        return True
    if (
        tied_us[one] + tied_us[other] > TIED_SHARE * work_cap
        or tied_bytes[one] + tied_bytes[other] > memory_cap / MEMORY_SHARE
    ):
        return False
    above[other] = one
    tied_us[one] += tied_us[other]
    tied_bytes[one] += tied_bytes[other]
    return True


def _topological(n: int, source: IntArray, target: IntArray) -> IntArray:
    """Return Kahn's order; it is shorter than ``n`` if there is a cycle."""
    by_source = np.argsort(source, kind="stable")
    out_ptr = csr_offsets(source[by_source], n)
    return topological_order(n, out_ptr, target[by_source])


@njit(cache=True, nogil=True)
def _heights(
    order: IntArray, in_ptr: IntArray, producers: IntArray
) -> IntArray:  # pragma: no cover - compiled
    """Find the heights of Pesto's definition 3.4: the most vertices on a path that ends here."""
    height = np.ones(len(order), dtype=np.int64)
    for vertex in order:
        for i in range(in_ptr[vertex], in_ptr[vertex + 1]):
            height[vertex] = max(height[vertex], height[producers[i]] + 1)
    return height


@njit(cache=True, nogil=True)
def _levels(
    order: IntArray,
    out_ptr: IntArray,
    target: IntArray,
    in_ptr: IntArray,
    producers: IntArray,
    work_us: FloatArray,
) -> tuple[FloatArray, FloatArray]:  # pragma: no cover - compiled
    """Find the most work before and after each vertex on any path, its own work not included."""
    top, bottom = np.zeros(len(order)), np.zeros(len(order))
    for vertex in order:
        for i in range(in_ptr[vertex], in_ptr[vertex + 1]):
            top[vertex] = max(top[vertex], top[producers[i]] + work_us[producers[i]])
    for vertex in order[::-1]:
        for i in range(out_ptr[vertex], out_ptr[vertex + 1]):
            bottom[vertex] = max(bottom[vertex], bottom[target[i]] + work_us[target[i]])
    return top, bottom


@njit(cache=True, nogil=True)
def _matching(
    by_rank: IntArray,
    most: int,
    source: IntArray,
    target: IntArray,
    out_ptr: IntArray,
    in_ptr: IntArray,
    producers: IntArray,
    height: IntArray,
    work_us: FloatArray,
    memory_bytes: IntArray,
    device_set: IntArray,
    tie: IntArray,
    work_cap: float,
    memory_cap: int,
    top_us: FloatArray,
    bottom_us: FloatArray,
    limit_us: float,
) -> IntArray:  # pragma: no cover - compiled
    """Choose edges that may be merged at once by the corrected Theorem 3.5, best first."""
    n = len(work_us)
    chosen, count = np.empty(most, np.int64), 0
    above = np.arange(tie.max() + 1)
    tied_us, tied_bytes = _tied(tie, work_us), _tied(tie, memory_bytes)
    matched = np.zeros(n, np.bool_)
    reaches = np.zeros(n, np.int64)  # H(v_i) for each chosen u_i
    is_end = np.zeros(n, np.bool_)  # whether a vertex is a chosen v_i
    for edge in by_rank:
        if count == most:
            break
        u, v = source[edge], target[edge]
        if (
            matched[u]
            or matched[v]
            or device_set[u] != device_set[v]
            or work_us[u] + work_us[v] > work_cap
            or memory_bytes[u] + memory_bytes[v] > memory_cap
        ):
            continue
        # Merged, u and v run back to back: what v waits for now delays u, and what waits for u
        # waits for v as well.
        before = max(top_us[u], top_us[v] - work_us[u])
        after = max(bottom_us[v], bottom_us[u] - work_us[v])
        if before + work_us[u] + work_us[v] + after > limit_us:
            continue
        # The edge alone closes no cycle if it is the only way out of u or into v, or if no other
        # path from u can reach v, because heights rise along every edge.
        single = out_ptr[u + 1] - out_ptr[u] == 1 or in_ptr[v + 1] - in_ptr[v] == 1
        if not single and height[v] > height[u] + 1:
            beyond = True
            for i in range(out_ptr[u], out_ptr[u + 1]):
                beyond &= target[i] == v or height[target[i]] > height[v]
            if not beyond:
                continue
        # Condition (iii), corrected: no edge from a chosen u_i to this v with H(v) = H(v_i), nor
        # from this u to a chosen v_j of the same height.
        fits = True
        for i in range(in_ptr[v], in_ptr[v + 1]):
            fits &= reaches[producers[i]] != height[v]
        for i in range(out_ptr[u], out_ptr[u + 1]):
            fits &= not (is_end[target[i]] and height[target[i]] == height[v])
        if not fits or not _join(above, tied_us, tied_bytes, tie[u], tie[v], work_cap, memory_cap):
            continue
        matched[u] = matched[v] = is_end[v] = True
        reaches[u] = height[v]
        chosen[count] = edge
        count += 1
    return chosen[:count]
