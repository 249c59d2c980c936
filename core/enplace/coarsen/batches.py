"""Coarsening by batches of edge merges: Pesto's rule, and one that spares the critical path.

Section 3.3 of the paper; the second variant is ours.

Theorem 3.5 of Pesto says when a set M of edges (u_i, v_i) may be merged at once. Its condition
(iii) as printed lets cycles through: take a1 -> b1 and a2 -> b2 with the further edges a1 -> b2 and
a2 -> b1, all a of height 1 and all b of height 2. Merging both pairs makes two vertices with edges
both ways, yet h(u_i) = 1 never equals h(v_j) + d_j = 3, so the printed condition is met. What the
proof needs is: for i != j there is no edge (u_i, v_j) with H(v_j) = H(u_i) + d_i. That is what is
checked here; each batch is tried for cycles all the same, and halved should there be one.

Where the paper leaves room, this is what we do:

- Ops that must share a device are merged first where that closes no cycle. In a training graph it
  mostly does (a variable is read at the start and updated at the end of a step); those stay apart
  and merely share their device.
- Ops are merged only with others that may be on the same devices.
- A vertex may hold a quarter of the smallest GPU's memory, and a few times the average work. The
  cap on work is raised by half when nothing else can be merged, never all at once.
- Merging two ops also ties all that must share a device with either. What is tied together may
  have a few times as much work as a vertex, or all would end up on one device.
- Where no edge may be merged any more, vertices of one height are: heights still rise along every
  edge, so that closes no cycle. That is how ops without edges are packed.
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
"""Most work of a vertex at first, in terms of the average vertex of the target graph."""

TIED_SHARE = 4.0
"""Most work of vertices that must share a device, in terms of the most work of one."""

MERGED_A_ROUND = 0.12
"""Share of the vertices that the critical-path-aware variant merges in one batch."""

STRETCH = 0.02
"""How much that variant lets a merged vertex stretch the longest path beyond its limit."""


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
        How many vertices are wanted; the paper takes 200.
    critical : bool
        False: the paper's rule, heaviest transfer first. True: transfers that are long beside the
        work of their ends first, no merge that stretches the longest path beyond
        max(critical path, work / devices), and few merges at a time.
    device : int array, shape (n_ops,), optional
        Only ops that are on one device here are merged.

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
    """Placement units that can be merged without closing a cycle; other ops by themselves."""
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
        split = stuck[number] & shared & (vertex < problem.n_units)
        if not split.any():
            return number
        vertex = np.where(split, problem.n_units + np.arange(profile.n_ops), vertex)


def _to_graph(problem: Problem, grouped: GroupedGraph, device: IntArray | None) -> _Graph:
    first = np.unique(grouped.group, return_index=True)[1]
    alike = problem.device_sets[1][problem.unit[first]]
    if device is not None:
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
    """Number of the set that each vertex shares a device with; shape (n_vertices,)."""
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
    """Root of each vertex after one batch of merges; a vertex that is not merged is its own."""
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
        if len(pairs) < 2 or _is_acyclic(graph, root):
            return root
        pairs = pairs[: len(pairs) // 2]


def _is_acyclic(graph: _Graph, root: IntArray) -> bool:
    source, target = root[graph.source], root[graph.target]
    apart = source != target
    return len(_topological(len(root), source[apart], target[apart])) == len(root)


def _pack(graph: _Graph, target: int, work_cap: float, memory_cap: int) -> IntArray:
    """Put vertices of one height and device set together, neighbours in the order first."""
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
    """Join the ties of two vertices, unless that is too much for one device."""
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
    """Kahn's order; shorter than ``n`` if there is a cycle."""
    by_source = np.argsort(source, kind="stable")
    out_ptr = csr_offsets(source[by_source], n)
    return topological_order(n, out_ptr, target[by_source])


@njit(cache=True, nogil=True)
def _heights(
    order: IntArray, in_ptr: IntArray, producers: IntArray
) -> IntArray:  # pragma: no cover - compiled
    """Return Pesto's definition 3.4: the most vertices on a path that ends here."""
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
    """Return the longest work before and after each vertex, its own not counted."""
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
    """Edges that may be merged at once by the corrected Theorem 3.5, best first."""
    n = len(work_us)
    chosen, count = np.empty(most, np.int64), 0
    above = np.arange(tie.max() + 1)
    tied_us, tied_bytes = _tied(tie, work_us), _tied(tie, memory_bytes)
    matched = np.zeros(n, np.bool_)
    reaches = np.zeros(n, np.int64)  # H(v_i) of a chosen u_i
    is_end = np.zeros(n, np.bool_)  # whether it is a chosen v_i
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
        before = max(top_us[u], top_us[v] - work_us[u])
        after = max(bottom_us[v], bottom_us[u] - work_us[v])
        if before + work_us[u] + work_us[v] + after > limit_us:
            continue
        single = out_ptr[u + 1] - out_ptr[u] == 1 or in_ptr[v + 1] - in_ptr[v] == 1
        if not single and height[v] > height[u] + 1:
            beyond = True
            for i in range(out_ptr[u], out_ptr[u + 1]):
                beyond &= target[i] == v or height[target[i]] > height[v]
            if not beyond:
                continue
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
