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

from enplace.coarsen.grouped import GroupedGraph, group_graph, mean_link
from enplace.compiling import kernel, step
from enplace.values.arrays import (
    BoolArray,
    FloatArray,
    IntArray,
    adjacency,
    csr_offsets,
    find_root,
    inverse,
    topological_order,
)
from enplace.values.components import components
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


class _Neighbours(NamedTuple):
    """The neighbours of each vertex, and its height, for kernels.

    Attributes
    ----------
    order, height : int arrays, shape (n_vertices,)
        A topological order; the most vertices on a path that ends at each (definition 3.4).
    out_ptr : int array, shape (n_vertices + 1,)
        Edges that leave vertex ``u`` are ``out_ptr[u] : out_ptr[u + 1]``.
    in_ptr, producer : int arrays, shapes (n_vertices + 1,) and (n_edges,)
        Edges into vertex ``v`` come from ``producer[in_ptr[v] : in_ptr[v + 1]]``.
    """

    order: IntArray
    height: IntArray
    out_ptr: IntArray
    in_ptr: IntArray
    producer: IntArray


class _Limits(NamedTuple):
    """The most that merging may reach: vertices merged, and work, memory and paths of a vertex."""

    n_merged: int
    work_us: float
    memory_bytes: int
    path_us: float = np.inf


class _Levels(NamedTuple):
    """The most work before and after each vertex on any path; shape (n_vertices,)."""

    top_us: FloatArray
    bottom_us: FloatArray


class _Ties(NamedTuple):
    """Ties as merging joins them: the tie above each, and the work and memory of the topmost."""

    above: IntArray
    work_us: FloatArray
    memory_bytes: FloatArray


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
    n_gpus = len(problem.cluster.gpus)
    memory_cap = int(MEMORY_SHARE * problem.cluster.capacity_bytes[problem.cluster.gpus].min())
    work_cap = max(WORK_SHARE * graph.work_us.sum() / target, 1e-9)
    stretch = STRETCH
    while len(graph.work_us) > target:
        limits = _Limits(len(graph.work_us) - target, work_cap, memory_cap)
        neighbours = _find_neighbours(graph)
        if critical:
            root = _merge_critical(graph, neighbours, limits, n_gpus, stretch)
        else:
            root = _merge_heaviest(graph, neighbours, limits)
        if _n_roots(root) == len(root):
            root = _pack(graph, neighbours, limits)
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
        cost_us=grouped.edge_us(mean_link(problem.cluster)),
    )


def _ties(problem: Problem, vertex: IntArray) -> IntArray:
    """Number the set of vertices that each vertex shares a device with; shape (n_vertices,)."""
    n = int(vertex.max()) + 1
    return components(n + problem.n_units, vertex, n + problem.unit)[:n]


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
    tie = components(n + int(graph.tie.max()) + 1, number, n + graph.tie)[:n]
    return _Graph(
        work_us=np.bincount(number, graph.work_us, n).astype(np.float64),
        memory_bytes=memory,
        device_set=device_set,
        tie=tie,
        source=key // n,
        target=key % n,
        cost_us=np.bincount(inverse, graph.cost_us[apart], len(key)).astype(np.float64),
    )


def _find_neighbours(graph: _Graph) -> _Neighbours:
    n = len(graph.work_us)
    in_ptr, producer = adjacency(graph.target, graph.source, n)
    order = _topological(n, graph.source, graph.target)
    height = _heights(order, in_ptr, producer)
    return _Neighbours(order, height, csr_offsets(graph.source, n), in_ptr, producer)


def _merge_heaviest(graph: _Graph, neighbours: _Neighbours, limits: _Limits) -> IntArray:
    """Merge a batch by the paper's rule, heaviest transfer first; find each vertex's root.

    Vertices that are not merged are their own roots.
    """
    by_cost = np.argsort(-graph.cost_us, kind="stable")
    unlimited = np.zeros(len(graph.work_us))
    levels = _Levels(unlimited, unlimited)
    return _merge(graph, _matching(graph, neighbours, levels, by_cost, limits))


def _merge_critical(
    graph: _Graph, neighbours: _Neighbours, limits: _Limits, n_gpus: int, stretch: float
) -> IntArray:
    """Merge a small batch that spares the longest path; find roots as :func:`_merge_heaviest`."""
    work_us = graph.work_us
    levels = _find_levels(graph, neighbours)
    longest_us = float((levels.top_us + work_us + levels.bottom_us).max())
    ends_us = work_us[graph.source] + work_us[graph.target]
    by_ratio = np.argsort(-graph.cost_us / (ends_us + 1e-3), kind="stable")
    limits = limits._replace(
        n_merged=min(limits.n_merged, max(1, int(MERGED_A_ROUND * len(work_us)))),
        path_us=(1 + stretch) * max(longest_us, work_us.sum() / n_gpus),
    )
    return _merge(graph, _matching(graph, neighbours, levels, by_ratio, limits))


def _merge(graph: _Graph, chosen: IntArray) -> IntArray:
    """Merge the ends of the chosen edges; of half of them, and so on, if that makes a cycle."""
    while True:
        root = np.arange(len(graph.work_us))
        root[graph.target[chosen]] = graph.source[chosen]
        # One edge alone is safe: Theorem 3.5 covers it, and the halving below ends there.
        if len(chosen) < 2 or _is_acyclic(graph, root):
            return root
        chosen = chosen[: len(chosen) // 2]


def _is_acyclic(graph: _Graph, root: IntArray) -> bool:
    source, target = root[graph.source], root[graph.target]
    apart = source != target
    return len(_topological(len(root), source[apart], target[apart])) == len(root)


def _pack(graph: _Graph, neighbours: _Neighbours, limits: _Limits) -> IntArray:
    """Merge vertices of one height and device set, neighbours in the order first."""
    place = inverse(neighbours.order)
    by_height = np.lexsort((place, graph.device_set, neighbours.height))
    return _fill(graph, neighbours.height, by_height, limits)


@kernel
def _fill(
    graph: _Graph, height: IntArray, by_height: IntArray, limits: _Limits
) -> IntArray:  # pragma: no cover - compiled
    """Merge each vertex into the one before while both fit together; return the roots."""
    root = np.arange(len(by_height))
    ties = _new_ties(graph)
    # Vertices that can be merged are neighbours in ``by_height``, so one open vertex is enough.
    n_merged, last = 0, -1
    work_us, memory_bytes = 0.0, 0
    for vertex in by_height:
        if (
            last >= 0
            and n_merged < limits.n_merged
            and height[last] == height[vertex]
            and graph.device_set[last] == graph.device_set[vertex]
            and work_us + graph.work_us[vertex] <= limits.work_us
            and memory_bytes + graph.memory_bytes[vertex] <= limits.memory_bytes
            and _join(ties, graph.tie[last], graph.tie[vertex], limits)
        ):
            root[vertex] = last
            work_us += graph.work_us[vertex]
            memory_bytes += graph.memory_bytes[vertex]
            n_merged += 1
        else:
            last = vertex
            work_us, memory_bytes = graph.work_us[vertex], graph.memory_bytes[vertex]
    return root


@step
def _new_ties(graph: _Graph) -> _Ties:  # pragma: no cover - compiled
    """Sum the work and the memory of each tie before any are joined."""
    n = graph.tie.max() + 1
    ties = _Ties(np.arange(n), np.zeros(n), np.zeros(n))
    for vertex in range(len(graph.tie)):
        ties.work_us[graph.tie[vertex]] += graph.work_us[vertex]
        ties.memory_bytes[graph.tie[vertex]] += graph.memory_bytes[vertex]
    return ties


@step
def _join(
    ties: _Ties, one: int, other: int, limits: _Limits
) -> bool:  # pragma: no cover - compiled
    """Join two ties unless the result is too much for one device; return whether they are one."""
    # A union-find: ties only grow, and are asked about for every candidate.
    one, other = find_root(ties.above, one), find_root(ties.above, other)
    if one == other:
        return True
    if (
        ties.work_us[one] + ties.work_us[other] > TIED_SHARE * limits.work_us
        or ties.memory_bytes[one] + ties.memory_bytes[other] > limits.memory_bytes / MEMORY_SHARE
    ):
        return False
    ties.above[other] = one
    ties.work_us[one] += ties.work_us[other]
    ties.memory_bytes[one] += ties.memory_bytes[other]
    return True


def _topological(n: int, source: IntArray, target: IntArray) -> IntArray:
    """Return Kahn's order; it is shorter than ``n`` if there is a cycle."""
    return topological_order(n, *adjacency(source, target, n))


@kernel
def _heights(
    order: IntArray, in_ptr: IntArray, producers: IntArray
) -> IntArray:  # pragma: no cover - compiled
    """Find the heights of Pesto's definition 3.4: the most vertices on a path that ends here."""
    height = np.ones(len(order), dtype=np.int64)
    for vertex in order:
        for i in range(in_ptr[vertex], in_ptr[vertex + 1]):
            height[vertex] = max(height[vertex], height[producers[i]] + 1)
    return height


@kernel
def _find_levels(graph: _Graph, neighbours: _Neighbours) -> _Levels:  # pragma: no cover - compiled
    """Find the most work before and after each vertex on any path."""
    n, work_us = len(graph.work_us), graph.work_us
    top_us, bottom_us = np.zeros(n), np.zeros(n)
    for vertex in neighbours.order:
        for i in range(neighbours.in_ptr[vertex], neighbours.in_ptr[vertex + 1]):
            producer = neighbours.producer[i]
            top_us[vertex] = max(top_us[vertex], top_us[producer] + work_us[producer])
    for vertex in neighbours.order[::-1]:
        for edge in range(neighbours.out_ptr[vertex], neighbours.out_ptr[vertex + 1]):
            target = graph.target[edge]
            bottom_us[vertex] = max(bottom_us[vertex], bottom_us[target] + work_us[target])
    return _Levels(top_us, bottom_us)


class _Matched(NamedTuple):
    """The edges chosen so far: whether a vertex is an end, whether a target, H(v) of each source.

    All have the shape (n_vertices,); ``reaches`` is 0 for other vertices.
    """

    is_end: BoolArray
    is_target: BoolArray
    reaches: IntArray


@kernel
def _matching(
    graph: _Graph, neighbours: _Neighbours, levels: _Levels, by_rank: IntArray, limits: _Limits
) -> IntArray:  # pragma: no cover - compiled
    """Choose edges that may be merged at once by the corrected Theorem 3.5, best first."""
    n = len(graph.work_us)
    chosen, count = np.empty(limits.n_merged, np.int64), 0
    ties = _new_ties(graph)
    matched = _Matched(np.zeros(n, np.bool_), np.zeros(n, np.bool_), np.zeros(n, np.int64))
    for edge in by_rank:
        if count == limits.n_merged:
            break
        u, v = graph.source[edge], graph.target[edge]
        if (
            not matched.is_end[u]
            and not matched.is_end[v]
            and _may_merge(graph, levels, limits, u, v)
            and _is_only_path(graph, neighbours, u, v)
            and _agrees(graph, neighbours, matched, u, v)
            and _join(ties, graph.tie[u], graph.tie[v], limits)
        ):
            matched.is_end[u] = matched.is_end[v] = matched.is_target[v] = True
            matched.reaches[u] = neighbours.height[v]
            chosen[count] = edge
            count += 1
    return chosen[:count]


@step
def _may_merge(
    graph: _Graph, levels: _Levels, limits: _Limits, u: int, v: int
) -> bool:  # pragma: no cover - compiled
    """Whether two vertices may share a device, and the merged one stays within the limits."""
    work_us, top_us, bottom_us = graph.work_us, levels.top_us, levels.bottom_us
    # Merged, u and v run back to back: what v waits for now delays u, and what waits for u
    # waits for v as well.
    before_us = max(top_us[u], top_us[v] - work_us[u])
    after_us = max(bottom_us[v], bottom_us[u] - work_us[v])
    return bool(
        graph.device_set[u] == graph.device_set[v]
        and work_us[u] + work_us[v] <= limits.work_us
        and graph.memory_bytes[u] + graph.memory_bytes[v] <= limits.memory_bytes
        and before_us + work_us[u] + work_us[v] + after_us <= limits.path_us
    )


@step
def _is_only_path(
    graph: _Graph, neighbours: _Neighbours, u: int, v: int
) -> bool:  # pragma: no cover - compiled
    """Whether heights show that no other path leads from ``u`` to ``v``."""
    # The edge alone closes no cycle if it is the only way out of u or into v, or if no other path
    # from u can reach v, because heights rise along every edge.
    n_out = neighbours.out_ptr[u + 1] - neighbours.out_ptr[u]
    n_in = neighbours.in_ptr[v + 1] - neighbours.in_ptr[v]
    height = neighbours.height
    if n_out == 1 or n_in == 1 or height[v] <= height[u] + 1:
        return True
    for edge in range(neighbours.out_ptr[u], neighbours.out_ptr[u + 1]):
        target = graph.target[edge]
        if target != v and height[target] <= height[v]:
            return False
    return True


@step
def _agrees(
    graph: _Graph, neighbours: _Neighbours, matched: _Matched, u: int, v: int
) -> bool:  # pragma: no cover - compiled
    """Whether no edge leads between the pair and a chosen pair whose target is as high as v."""
    # Condition (iii), corrected: no edge from a chosen u_i to this v with H(v) = H(v_i), nor
    # from this u to a chosen v_j of the same height.
    height = neighbours.height[v]
    for i in range(neighbours.in_ptr[v], neighbours.in_ptr[v + 1]):
        if matched.reaches[neighbours.producer[i]] == height:
            return False
    for edge in range(neighbours.out_ptr[u], neighbours.out_ptr[u + 1]):
        target = graph.target[edge]
        if matched.is_target[target] and neighbours.height[target] == height:
            return False
    return True
