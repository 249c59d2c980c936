"""Depth-first topological orders, along which splits are sought (section 5.1.2)."""

from __future__ import annotations

import numpy as np
from numba import njit

from enplace.profile import IntArray


def topological_depth_first(n: int, source: IntArray, target: IntArray, rank: IntArray) -> IntArray:
    """Nodes in an order that follows each branch as far as it can; ties by rank; shape (n,)."""
    by_rank = np.lexsort((rank[target], source))
    ptr = np.searchsorted(source[by_rank], np.arange(n + 1))
    return _depth_first(n, ptr, target[by_rank], np.argsort(rank))


@njit(cache=True, nogil=True)
def _depth_first(
    n: int, ptr: IntArray, target: IntArray, roots: IntArray
) -> IntArray:  # pragma: no cover - compiled
    waiting = np.zeros(n, dtype=np.int64)
    for node in target:
        waiting[node] += 1
    stack, height = np.empty(n, dtype=np.int64), 0
    for node in roots:
        if waiting[node] == 0:
            stack[height] = node
            height += 1
    order, filled = np.empty(n, dtype=np.int64), 0
    while height:
        height -= 1
        node = stack[height]
        order[filled] = node
        filled += 1
        for edge in range(ptr[node], ptr[node + 1]):
            waiting[target[edge]] -= 1
            if waiting[target[edge]] == 0:
                stack[height] = target[edge]
                height += 1
    return order
