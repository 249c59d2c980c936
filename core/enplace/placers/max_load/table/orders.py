"""Depth-first topological orders, along which partitions are searched (section 5.1.2)."""

from __future__ import annotations

import numpy as np

from enplace.compiling import kernel
from enplace.values.arrays import adjacency, csr_offsets, inverse, raise_along_edges
from enplace.values.problem import BoolArray
from enplace.values.profile import IntArray


def order_depth_first(n: int, source: IntArray, target: IntArray, rank: IntArray) -> IntArray:
    """Order nodes so that each branch is followed as far as possible; ties by rank; shape (n,)."""
    by_rank = np.lexsort((rank[target], source))
    ptr = csr_offsets(source[by_rank], n)
    return _depth_first(n, ptr, target[by_rank], np.argsort(rank))


def find_leading(chosen: BoolArray, source: IntArray, target: IntArray) -> BoolArray:
    """Find the chosen nodes whose predecessors are all chosen; shape (n,)."""
    first = chosen.copy()
    while (late := first[target] & ~first[source]).any():
        first[target[late]] = False
    return first


def order_tied(order: IntArray, tied: IntArray, source: IntArray, target: IntArray) -> IntArray:
    """Move some nodes next to those they are tied to, as far as edges allow; shape (n,).

    Parameters
    ----------
    order : int array, shape (n,)
        A topological order.
    tied : int array, shape (n_tied, 2)
        Pairs of a node and one that should follow soon after it. A node of the second column goes
        behind the last of those it is tied to.
    """
    place = inverse(order)
    preferred = place.copy()
    preferred[tied[:, 1]] = -1
    np.maximum.at(preferred, tied[:, 1], place[tied[:, 0]])
    return order_by_preference(order, preferred, source, target)


def order_by_preference(
    order: IntArray, preferred: IntArray, source: IntArray, target: IntArray
) -> IntArray:
    """Order nodes by their preferred numbers, as far as edges allow; ties by an order; (n,)."""
    granted = grant_preferences(order, preferred, source, target)
    return np.lexsort((inverse(order), granted)).astype(np.int64)


def grant_preferences(
    order: IntArray, preferred: IntArray, source: IntArray, target: IntArray
) -> IntArray:
    """Give nodes numbers near the preferred ones that never fall along an edge; shape (n,).

    Nodes without predecessors get the number of the first node that needs them, whatever they
    prefer: otherwise the gradient of a weight that two layers share would draw the whole backward
    pass behind the later layer.
    """
    n, preferred = len(order), preferred.copy()
    is_root = np.bincount(target, minlength=n) == 0
    inner = ~is_root[source]
    raise_along_edges(order, *adjacency(source[inner], target[inner], n), preferred)
    needed = np.full(n, np.iinfo(np.int64).max)
    of_root = is_root[source]
    np.minimum.at(needed, source[of_root], preferred[target[of_root]])
    is_needed = needed < np.iinfo(np.int64).max
    preferred[is_needed] = needed[is_needed]
    return preferred


@kernel
def _depth_first(
    n: int, ptr: IntArray, target: IntArray, roots: IntArray
) -> IntArray:  # pragma: no cover - compiled
    """Take the last node whose producers are all in the order, again and again."""
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
