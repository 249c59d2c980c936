"""The connected components of a graph."""

from __future__ import annotations

import numpy as np

from enplace.compiling import kernel
from enplace.values.arrays import IntArray, adjacency


def components(n: int, source: IntArray, target: IntArray) -> IntArray:
    """Number the component of each of ``n`` nodes, by its first node; edges have no direction.

    Each round hands the least number that a component has met to its root, and leads each node to
    its root, so a chain takes few rounds.
    """
    root = np.arange(n)
    while True:
        a, b = root[source], root[target]
        apart = a != b
        if not apart.any():
            break
        source, target, a, b = source[apart], target[apart], a[apart], b[apart]
        np.minimum.at(root, np.maximum(a, b), np.minimum(a, b))
        while (further := root[root]).tobytes() != root.tobytes():
            root = further
    number: IntArray = np.unique(root, return_inverse=True)[1]
    return number


def strong_components(n: int, source: IntArray, target: IntArray) -> IntArray:
    """Number the strongly connected component of each of ``n`` nodes, by its first node."""
    leader = _leaders(*adjacency(source, target, n))
    number: IntArray = np.unique(leader, return_inverse=True)[1]
    return number


@kernel
def _leaders(ptr: IntArray, target: IntArray) -> IntArray:  # pragma: no cover - compiled
    """Find the first node of each node's component, by Tarjan 1972."""
    n = len(ptr) - 1
    leader, seen, low = np.full(n, -1), np.full(n, -1), np.zeros(n, np.int64)
    path, stack = np.empty(n, np.int64), np.empty(n, np.int64)  # the search; nodes without a leader
    edge = ptr[:-1].copy()  # the next one of each node
    n_seen = deep = high = 0
    for first in range(n):
        if seen[first] >= 0:
            continue
        following = first
        while True:
            if following >= 0:
                seen[following] = low[following] = n_seen
                path[deep] = stack[high] = following
                n_seen, deep, high = n_seen + 1, deep + 1, high + 1
            node, following = path[deep - 1], -1
            while edge[node] < ptr[node + 1] and following < 0:
                other = target[edge[node]]
                edge[node] += 1
                if seen[other] < 0:
                    following = other
                elif leader[other] < 0:
                    low[node] = min(low[node], seen[other])
            if following >= 0:
                continue
            deep -= 1
            if low[node] == seen[node]:
                start = high - 1
                while stack[start] != node:
                    start -= 1
                leader[stack[start:high]] = stack[start:high].min()
                high = start
            if deep == 0:
                break
            low[path[deep - 1]] = min(low[path[deep - 1]], low[node])
    return leader
