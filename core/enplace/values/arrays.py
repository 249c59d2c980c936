"""Flat arrays: offsets, permutations, and orders of a graph given by its edges."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from enplace.compiling import kernel

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


class Frozen:
    """A frozen dataclass with arrays, which stay read-only in its copies."""

    def __getstate__(self) -> dict[str, Any]:
        fields: dict[str, Any] = self.__dataclass_fields__  # type: ignore[attr-defined]
        return {name: getattr(self, name) for name in fields}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        freeze_arrays(self)


def freeze_arrays(value: object) -> None:
    """Make the arrays of a frozen dataclass read-only; writable ones stay their caller's.

    Called from ``__post_init__``. Arrays that somebody could still write to are copied; see
    :func:`give_away`. Each is a view: numpy lets nobody make it writable again if its base is
    read-only, unless a kernel allocated that.
    """
    for name, array in vars(value).items():
        if isinstance(array, np.ndarray):
            if _is_writable(array):
                array = give_away(array.copy())
            own = array if isinstance(array.base, np.ndarray) else array.view()
            object.__setattr__(value, name, own)


def _is_writable(array: NDArray[Any]) -> bool:
    """Whether an array, or the one that it is a view of, can be written to."""
    whole = array.base if isinstance(array.base, np.ndarray) else array
    return bool(array.flags.writeable or whole.flags.writeable)


def give_away(array: NDArray[Any]) -> NDArray[Any]:
    """Make an array read-only that nobody else uses, so that no frozen dataclass copies it."""
    array.flags.writeable = False
    return array


def is_permutation(numbers: IntArray) -> bool:
    """Whether an array holds each number below its length once."""
    if ((numbers < 0) | (numbers >= len(numbers))).any():
        return False
    return bool((np.bincount(numbers, minlength=len(numbers)) == 1).all())


def marked(n: int, numbers: Sequence[int] | IntArray) -> BoolArray:
    """Return which of the numbers below ``n`` are among some; shape (n,)."""
    found = np.zeros(n, dtype=bool)
    found[np.asarray(numbers, dtype=np.int64)] = True
    return found


def sum_at(
    row: IntArray, column: IntArray, values: NDArray[Any], shape: tuple[int, int]
) -> FloatArray:
    """Sum values by their place in a table of this shape; numpy's ``add.at`` takes much longer."""
    at = row * shape[1] + column
    sums = np.bincount(at, values, minlength=shape[0] * shape[1])
    return sums.reshape(shape).astype(np.float64)


def where_op(chosen: BoolArray, values: NDArray[Any], others: NDArray[Any]) -> Any:
    """Return the values of the ops chosen and those of all others; arrays of a row for each op."""
    rows = chosen.reshape(-1, *[1] * (values.ndim - 1))
    return np.where(rows, values, others)


def inverse(order: IntArray) -> IntArray:
    """Find the position of each number in a permutation."""
    position = np.empty(len(order), dtype=np.int64)
    position[order] = np.arange(len(order))
    return position


def offsets(length: IntArray) -> IntArray:
    """Find where each of several lists begins when they are joined, and where the last one ends.

    Returns
    -------
    int array, shape (n_lists + 1,)
    """
    return np.concatenate([[0], np.cumsum(length)]).astype(np.int64)


def csr_offsets(sorted_owner: IntArray, n_owners: int) -> IntArray:
    """Find the offsets of a list that is sorted by owner (compressed sparse rows).

    Returns
    -------
    int array, shape (n_owners + 1,)
        The entries of owner ``i`` are ``offsets[i] : offsets[i + 1]``.
    """
    return np.searchsorted(sorted_owner, np.arange(n_owners + 1)).astype(np.int64)


def adjacency(source: IntArray, target: IntArray, n_nodes: int) -> tuple[IntArray, IntArray]:
    """List the targets of each node's edges; swap source and target to list the sources.

    Returns
    -------
    int arrays, shapes (n_nodes + 1,) and (n_edges,)
        Offsets and targets: the edges of node ``i`` lead to
        ``targets[offsets[i] : offsets[i + 1]]``, in the order in which they were given.
    """
    by_source = np.argsort(source, kind="stable")
    return csr_offsets(source[by_source], n_nodes), target[by_source]


@kernel
def find_root(parent: IntArray, node: int) -> int:  # pragma: no cover - compiled
    """Find the root of a node in a forest (union-find), and halve the path to it."""
    while parent[node] != node:
        parent[node] = parent[parent[node]]
        node = parent[node]
    return node


@kernel
def topological_order(
    n_nodes: int, out_ptr: IntArray, target: IntArray
) -> IntArray:  # pragma: no cover - compiled
    """Find Kahn's order: first in, first out, the lowest node first.

    Parameters
    ----------
    out_ptr, target : int arrays, shapes (n_nodes + 1,) and (n_edges,)
        The edges of node ``i`` lead to ``target[out_ptr[i] : out_ptr[i + 1]]``.

    Returns
    -------
    int array
        All nodes, or only those that are on no cycle and after none.
    """
    waiting = np.zeros(n_nodes, dtype=np.int64)
    for edge in range(len(target)):
        waiting[target[edge]] += 1
    order = np.empty(n_nodes, dtype=np.int64)
    filled = 0
    for node in range(n_nodes):
        if waiting[node] == 0:
            order[filled] = node
            filled += 1
    # The order so far is also the queue: the nodes after ``first`` are yet to be followed.
    first = 0
    while first < filled:
        node = order[first]
        first += 1
        for edge in range(out_ptr[node], out_ptr[node + 1]):
            waiting[target[edge]] -= 1
            if waiting[target[edge]] == 0:
                order[filled] = target[edge]
                filled += 1
    return order[:filled]


@kernel
def upward_rank(
    order: IntArray, out_ptr: IntArray, target: IntArray, work: FloatArray, cost: FloatArray
) -> FloatArray:  # pragma: no cover - compiled
    """Find the longest path from each node to the end, its own work included; shape (n_nodes,).

    Parameters
    ----------
    order : int array, shape (n_nodes,)
        Topological. ``out_ptr`` and ``target`` are those of :func:`topological_order`.
    work, cost : float arrays, shapes (n_nodes,) and (n_edges,)
        Length of each node and of each edge.
    """
    rank = np.zeros(len(work))
    for node in order[::-1]:
        # Backwards, so that the ranks of all targets are known.
        for edge in range(out_ptr[node], out_ptr[node + 1]):
            rank[node] = max(rank[node], cost[edge] + rank[target[edge]])
        rank[node] += work[node]
    return rank


@kernel
def raise_along_edges(
    order: IntArray, ptr: IntArray, target: IntArray, value: IntArray | BoolArray | FloatArray
) -> None:  # pragma: no cover - compiled
    """Raise the values of nodes, in place, until none falls along an edge.

    Parameters
    ----------
    order : int array, shape (n,)
        A topological order.
    ptr, target : int arrays
        Edges of each node lead to ``target[ptr[node] : ptr[node + 1]]``.
    """
    for node in order:
        for edge in range(ptr[node], ptr[node + 1]):
            value[target[edge]] = max(value[target[edge]], value[node])


def assign(cost: FloatArray) -> IntArray:
    """Find a column for each row of a square so that their sum is least; shape (n,).

    The Hungarian method: each row takes the shortest path of exchanges to a free column, by prices
    at which no exchange gains anything (Jonker and Volgenant 1987).
    """
    n = len(cost)
    row_of = np.full(n + 1, -1)  # of each column, and of one in which every search begins
    price, own = np.zeros(n + 1), np.zeros(n)
    for row in range(n):
        row_of[n] = row
        least, before, done = np.full(n + 1, np.inf), np.full(n + 1, n), np.zeros(n + 1, bool)
        at = n
        while row_of[at] >= 0:
            done[at] = True
            left = np.append(cost[row_of[at]] - own[row_of[at]], np.inf) - price
            better = ~done & (left < least)
            least[better], before[better] = left[better], at
            at = int(np.where(done, np.inf, least).argmin())
            step = least[at]
            own[row_of[done]] += step
            price[done] -= step
            least[~done] -= step
        while at != n:
            row_of[at], at = row_of[before[at]], before[at]
    return inverse(row_of[:n])


def longest_rise(values: Sequence[int]) -> list[int]:
    """Find the places of a longest rising subsequence of distinct numbers.

    >>> longest_rise([3, 0, 1, 4, 2])
    [1, 2, 4]
    """
    lowest: list[int] = []
    ends: list[int] = []
    ahead = [-1] * len(values)
    for at, value in enumerate(values):
        length = bisect_left(lowest, value)
        ahead[at] = ends[length - 1] if length else -1
        lowest[length : length + 1] = [value]
        ends[length : length + 1] = [at]
    found, at = [], ends[-1] if ends else -1
    while at >= 0:
        found.append(at)
        at = ahead[at]
    return found[::-1]
