"""Celeritas's Optimal Operation Fusion (sections 4.2.2 and 5.1, Algorithm 1).

Where the paper leaves the choice open, this is what we do:

- A node is an op with its followers (:mod:`enplace.coarsen.followers`), so a constant ends up in
  the cluster of its consumer.
- ``w`` is the shortest time of a node over the devices, ``c`` its transfer over the average link.
- Ties in *cpath* go to the node that comes first in the graph's own topological order.
- Colocation is ignored here: a variable's read and its update are at opposite ends of a step, and
  merging them would close a cycle. It applies when the clusters are placed.
- A node above the memory limit becomes a cluster by itself.
"""

from __future__ import annotations

import numpy as np

from enplace.coarsen.followers import find_leaders
from enplace.coarsen.grouped import GroupedGraph, group_graph, mean_link
from enplace.compiling import helper, kernel
from enplace.values.arrays import (
    FloatArray,
    IntArray,
    csr_offsets,
    inverse,
    topological_order,
    upward_rank,
)
from enplace.values.problem import Problem

RANGE = 200
"""The paper's R: the most nodes in a cluster."""

MEMORY_SHARE = 0.25
"""The paper's M: the most memory of a cluster, as a share of the smallest GPU's."""


def fuse(problem: Problem, *, reach: int = RANGE) -> IntArray:
    """Merge ops into clusters by Optimal Operation Fusion.

    Returns
    -------
    int array, shape (n_ops,)
        Cluster of each op, numbered along CPD-TOPO; no edge leads to a smaller number.
    """
    position = inverse(problem.profile.topological_order)
    leader = find_leaders(problem, position)
    rank = np.unique(position[leader], return_inverse=True)[1]
    graph = group_graph(problem, rank)
    cost = graph.edge_us(mean_link(problem.cluster))
    order = cpd_topo(graph, cost)
    smallest = problem.cluster.capacity_bytes[problem.cluster.gpus].min()
    cluster = np.empty(graph.n_groups, dtype=np.int64)
    cluster[order] = breakpoints(graph, cost, order, reach, int(MEMORY_SHARE * smallest))
    return cluster[rank]


def cpd_topo(graph: GroupedGraph, cost_us: FloatArray) -> IntArray:
    """Sort nodes into the critical path DFS topological order (CPD-TOPO of Algorithm 1).

    Parameters
    ----------
    graph : GroupedGraph
        Acyclic; the numbering of the nodes does not matter.
    cost_us : float array, shape (n_edges,)
        Transfer time c of each edge.
    """
    n, w = graph.n_groups, shortest_time_us(graph)
    out_ptr = csr_offsets(graph.source, n)
    return _cpd_topo(n, out_ptr, graph.target, w, cost_us)


def breakpoints(
    graph: GroupedGraph, cost_us: FloatArray, order: IntArray, reach: int, limit_bytes: int
) -> IntArray:
    """Cut a topological order where the least data crosses (Kernighan; equations 4 to 6).

    Returns
    -------
    int array, shape (n_groups,)
        Number of the segment at each position of ``order``. A segment has at most ``reach`` nodes
        and ``limit_bytes``, unless it is a single node.
    """
    n = graph.n_groups
    position = inverse(order)
    source, target = position[graph.source], position[graph.target]
    by_target = np.argsort(target, kind="stable")
    in_ptr = csr_offsets(target[by_target], n)
    out_cost = np.bincount(source, weights=cost_us, minlength=n).astype(np.float64)
    previous = _cut(
        in_ptr,
        source[by_target],
        cost_us[by_target],
        out_cost,
        graph.memory_bytes[order],
        reach,
        limit_bytes,
    )
    starts = np.zeros(n + 1, dtype=np.int64)
    at = n
    while at > 0:
        at = previous[at]
        starts[at] = 1
    return np.cumsum(starts[:n]) - 1


def shortest_time_us(graph: GroupedGraph) -> FloatArray:
    """Find the time of each node on its fastest device; shape (n_groups,)."""
    shortest: FloatArray = graph.time_us.min(axis=1)
    return shortest


@kernel
def _critical_path_lengths(
    order: IntArray, out_ptr: IntArray, target: IntArray, w: FloatArray, c: FloatArray
) -> FloatArray:  # pragma: no cover - compiled
    """Return cpath = tlevel + blevel of each node (equations 2 and 3)."""
    top = np.zeros(len(w))
    for node in order:
        for edge in range(out_ptr[node], out_ptr[node + 1]):
            child = target[edge]
            top[child] = max(top[child], top[node] + w[node] + c[edge])
    return top + upward_rank(order, out_ptr, target, w, c)


@kernel
def _cpd_topo(
    n: int, out_ptr: IntArray, target: IntArray, w: FloatArray, c: FloatArray
) -> IntArray:  # pragma: no cover - compiled
    """Order nodes by CPD-TOPO, Algorithm 1; see :func:`cpd_topo`."""
    kahn = topological_order(n, out_ptr, target)
    cpath = _critical_path_lengths(kahn, out_ptr, target, w, c)
    waiting = np.zeros(n, dtype=np.int64)
    for edge in range(len(target)):
        waiting[target[edge]] += 1
    n_roots = 0
    for node in range(n):
        n_roots += waiting[node] == 0
    # The paper's queue adds and removes only at its head: a stack, whose top is the end here.
    stack, height = np.empty(n, dtype=np.int64), 0
    # Among equals the first in Kahn's order ends on top of the stack.
    for node in _by_path_length(kahn[:n_roots], cpath):
        stack[height] = node
        height += 1
    order = np.empty(n, dtype=np.int64)
    for filled in range(n):
        # A child that becomes ready goes on top, so a path is followed to its end.
        height -= 1
        node = stack[height]
        order[filled] = node
        for child in _by_path_length(target[out_ptr[node] : out_ptr[node + 1]], cpath):
            waiting[child] -= 1
            if waiting[child] == 0:
                stack[height] = child
                height += 1
    return order


@helper
def _by_path_length(nodes: IntArray, cpath: FloatArray) -> IntArray:  # pragma: no cover - compiled
    """Sort nodes by their critical paths; of equal nodes, the last comes first."""
    n = len(nodes)
    length, found = np.empty(n), np.empty(n, dtype=np.int64)
    for i in range(n):
        length[i] = cpath[nodes[n - 1 - i]]
    order = np.argsort(length, kind="mergesort")
    for i in range(n):
        found[i] = nodes[n - 1 - order[i]]
    return found


@kernel
def _cut(
    in_ptr: IntArray,
    in_source: IntArray,
    in_cost: FloatArray,
    out_cost: FloatArray,
    memory: IntArray,
    reach: int,
    limit_bytes: int,
) -> IntArray:  # pragma: no cover - compiled
    """Return P(j), the breakpoint before each breakpoint j, by S(j) = min S(i) + cost(i, j)."""
    n = len(out_cost)
    total, previous = np.zeros(n + 1), np.zeros(n + 1, dtype=np.int64)
    cost = np.zeros(n + 1)  # cost(i, j) at [i] for the current j; equation 5 gives the next j's
    for j in range(1, n + 1):
        first = max(0, j - reach)
        # The edges out of the node at j - 1 now cross the cut; those into it no longer do.
        for i in range(first, j):
            cost[i] += out_cost[j - 1]
        for edge in range(in_ptr[j - 1], in_ptr[j]):
            for i in range(first, in_source[edge] + 1):
                cost[i] -= in_cost[edge]
        # A segment of one node is always allowed, even if it exceeds the limit.
        total[j], previous[j] = total[j - 1] + cost[j - 1], j - 1
        used = memory[j - 1]
        for i in range(j - 2, first - 1, -1):
            used += memory[i]
            if used > limit_bytes:
                break
            if total[i] + cost[i] < total[j]:
                total[j], previous[j] = total[i] + cost[i], i
    return previous
