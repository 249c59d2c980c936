"""Depth-first topological orders, along which splits are sought (section 5.1.2)."""

from __future__ import annotations

import numpy as np
from numba import njit

from enplace.machine.loads import push_on
from enplace.values.problem import BoolArray
from enplace.values.profile import IntArray


def topological_depth_first(n: int, source: IntArray, target: IntArray, rank: IntArray) -> IntArray:
    """Nodes in an order that follows each branch as far as it can; ties by rank; shape (n,)."""
    by_rank = np.lexsort((rank[target], source))
    ptr = np.searchsorted(source[by_rank], np.arange(n + 1))
    return _depth_first(n, ptr, target[by_rank], np.argsort(rank))


def before_all_others(chosen: BoolArray, source: IntArray, target: IntArray) -> BoolArray:
    """Those of some nodes that wait for no node but such ones; shape (n,)."""
    first = chosen.copy()
    while (late := first[target] & ~first[source]).any():
        first[target[late]] = False
    return first


def beside(order: IntArray, tied: IntArray, source: IntArray, target: IntArray) -> IntArray:
    """An order with some nodes moved to where others are, as far as edges allow; shape (n,).

    Parameters
    ----------
    order : int array, shape (n,)
        A topological order.
    tied : int array, shape (n_tied, 2)
        A node, and one that should come soon after it. Those in the second column go behind the
        last that they are tied to, or as early as can be.
    """
    place = np.argsort(order)
    wish = place.copy()
    wish[tied[:, 1]] = -1
    np.maximum.at(wish, tied[:, 1], place[tied[:, 0]])
    return by_wish(order, wish, source, target)


def by_wish(order: IntArray, wish: IntArray, source: IntArray, target: IntArray) -> IntArray:
    """Nodes by a number that each wishes for, as far as edges allow, ties by an order; (n,)."""
    found: IntArray = np.lexsort((np.argsort(order), granted(order, wish, source, target)))
    return found


def granted(order: IntArray, wish: IntArray, source: IntArray, target: IntArray) -> IntArray:
    """Numbers near those that nodes wish for, none less than one that its node waits for; (n,).

    Nodes that wait for none get that of the first that needs them, whatever they wish: the gradient
    of a weight that two layers share would else draw all of the backward pass behind the later one.
    """
    place, wish = np.argsort(order), wish.copy()
    early = (np.bincount(target, minlength=len(order)) == 0)[source]
    late = np.flatnonzero(~early)
    late = late[np.argsort(place[target[late]], kind="stable")]
    push_on(source[late], target[late], wish)
    needed = np.full(len(order), np.iinfo(np.int64).max)
    np.minimum.at(needed, source[early], wish[target[early]])
    is_needed = needed < np.iinfo(np.int64).max
    wish[is_needed] = needed[is_needed]
    return wish


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
