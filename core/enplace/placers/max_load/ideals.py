"""All ideals of a graph: sets of nodes that hold every predecessor of their nodes.

An ideal is a row of 64-bit words. They are found breadth first, so that they are sorted by size,
together with the lattice: which node turns which ideal into which.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import networkx as nx
import numpy as np
from numba import njit
from numpy.typing import NDArray

from enplace.values.profile import IntArray

Bits = NDArray[np.uint64]


@dataclass(frozen=True, eq=False)
class Lattice:
    """The ideals of a graph, the empty one first, by size.

    Attributes
    ----------
    ptr : int array, shape (n_ideals + 1,)
    added, next_ideal : int arrays, shape (n_lattice_edges,)
        Adding node ``added[e]`` to ideal ``i`` gives ``next_ideal[e]``, for ``e`` in
        ``ptr[i] : ptr[i + 1]``.
    """

    ptr: IntArray
    added: IntArray
    next_ideal: IntArray

    @property
    def n_ideals(self) -> int:
        return len(self.ptr) - 1


IDEALS_AT_ONCE = 20_000
"""Between two looks whether to stop: some tenths of a second."""


class _Found(NamedTuple):
    """Ideals so far, and a hash table of them.

    Attributes
    ----------
    ideals : uint64 array, shape (room, n_words)
    came_from, came_by : int arrays, shape (room,)
        An ideal that is smaller by one node, and that node.
    ptr, added, next_ideal : int arrays
        As in :class:`Lattice`.
    table : int array
        Numbers of ideals by the hash of their bits; -1 where there is none.
    counts : int array, shape (3,)
        How many ideals there are, how many of them were looked at, and lattice edges.
    """

    ideals: Bits
    came_from: IntArray
    came_by: IntArray
    ptr: IntArray
    added: IntArray
    next_ideal: IntArray
    table: IntArray
    counts: IntArray


def find_ideals(
    n_nodes: int,
    source: IntArray,
    target: IntArray,
    limit: int,
    stopped: Callable[[], bool] = lambda: False,
) -> Lattice | None:
    """All ideals of a graph, or None if there are more than ``limit`` or it was stopped before."""
    words = n_nodes // 64 + 1
    needs = np.zeros((n_nodes, words), dtype=np.uint64)
    bits = np.uint64(1) << (source % 64).astype(np.uint64)
    np.bitwise_or.at(needs, (target, source // 64), bits)
    by_source = np.argsort(source, kind="stable")
    ptr = np.searchsorted(source[by_source], np.arange(n_nodes + 1))
    roots = np.setdiff1d(np.arange(n_nodes), target)
    found = _Found(
        np.zeros((1024, words), dtype=np.uint64),
        came_from=np.zeros(1024, dtype=np.int64),
        came_by=np.zeros(1024, dtype=np.int64),
        ptr=np.zeros(1025, dtype=np.int64),
        added=np.zeros(4096, dtype=np.int64),
        next_ideal=np.zeros(4096, dtype=np.int64),
        table=np.full(4096, -1, dtype=np.int64),
        counts=np.array([1, 0, 0]),
    )
    found.table[_slot(found.table, found.ideals, found.ideals[0])] = 0
    while found.counts[1] < found.counts[0]:
        if stopped():
            return None
        found = _enumerate(needs, ptr, target[by_source], roots, found, limit, IDEALS_AT_ONCE)
        if found.counts[0] > limit:
            return None
    n_ideals, _, n_edges = found.counts.tolist()
    return Lattice(
        found.ptr[: n_ideals + 1].copy(),
        found.added[:n_edges].copy(),
        found.next_ideal[:n_edges].copy(),
    )


def fewest_ideals(n_nodes: int, source: IntArray, target: IntArray) -> int:
    """No graph with these edges has fewer ideals.

    Of nodes that do not reach each other any subset, with all before it, is another ideal. Nodes as
    far from the first ones are such nodes.
    """
    graph = nx.DiGraph(zip(source.tolist(), target.tolist(), strict=True))
    graph.add_nodes_from(range(n_nodes))
    return 1 << max(map(len, nx.topological_generations(graph)), default=0)


@njit(cache=True, nogil=True)
def _slot(table: IntArray, ideals: Bits, row: Bits) -> np.int64:  # pragma: no cover - compiled
    """Where in the table an ideal is, or would be."""
    value = np.uint64(1469598103934665603)
    for word in row:
        # Every bit of the words has to reach the low bits of the hash.
        value = (value ^ word) * np.uint64(0x9E3779B97F4A7C15)
        value ^= value >> np.uint64(32)
    slot = np.int64(value & np.uint64(len(table) - 1))
    while table[slot] >= 0 and not np.array_equal(ideals[table[slot]], row):
        slot = (slot + 1) % len(table)
    return slot


@njit(cache=True, nogil=True)
def _enumerate(
    needs: Bits,
    succ_ptr: IntArray,
    succ: IntArray,
    roots: IntArray,
    found: _Found,
    limit: int,
    budget: int,
) -> _Found:  # pragma: no cover - compiled
    """Look at ``budget`` more ideals; ends early with more than ``limit``.

    What can be added to an ideal could be added to the one that it came from, or follows the node
    that was added there.
    """
    ideals, came_from, came_by, ptr, added, next_ideal, table, counts = found
    count, done, edges = counts
    last = done + budget
    row = np.zeros(needs.shape[1], dtype=np.uint64)
    ready = np.zeros(len(needs), dtype=np.int64)
    while done < count and done < last and count <= limit:
        n_ready = 0
        if done == 0:
            for node in roots:
                ready[n_ready] = node
                n_ready += 1
        else:
            before, by = came_from[done], came_by[done]
            for edge in range(ptr[before], ptr[before + 1]):
                if added[edge] != by:
                    ready[n_ready] = added[edge]
                    n_ready += 1
            for edge in range(succ_ptr[by], succ_ptr[by + 1]):
                if _is_inside(needs[succ[edge]], ideals[done]):
                    ready[n_ready] = succ[edge]
                    n_ready += 1
        for node in ready[:n_ready]:
            row[:] = ideals[done]
            row[node // 64] |= np.uint64(1) << np.uint64(node % 64)
            slot = _slot(table, ideals, row)
            if table[slot] < 0:
                if count == len(ideals):
                    ideals, ptr = _twice_bits(ideals), _longer(ptr)
                    came_from, came_by = _longer(came_from), _longer(came_by)
                ideals[count] = row
                came_from[count], came_by[count] = done, node
                table[slot] = count
                count += 1
                if 2 * count > len(table):
                    table = _rehashed(ideals, count, 2 * len(table))
                    slot = _slot(table, ideals, row)
            if edges == len(added):
                added, next_ideal = _longer(added), _longer(next_ideal)
            added[edges], next_ideal[edges] = node, table[slot]
            edges += 1
        done += 1
        ptr[done] = edges
    counts[:] = count, done, edges
    return _Found(ideals, came_from, came_by, ptr, added, next_ideal, table, counts)


@njit(cache=True, nogil=True)
def _is_inside(some: Bits, others: Bits) -> bool:  # pragma: no cover - compiled
    return not np.any(some & ~others)


@njit(cache=True, nogil=True)
def _twice_bits(rows: Bits) -> Bits:  # pragma: no cover - compiled
    larger = np.zeros((2 * rows.shape[0], rows.shape[1]), dtype=np.uint64)
    larger[: rows.shape[0]] = rows
    return larger


@njit(cache=True, nogil=True)
def _longer(numbers: IntArray) -> IntArray:  # pragma: no cover - compiled
    larger = np.zeros(2 * len(numbers), dtype=np.int64)
    larger[: len(numbers)] = numbers
    return larger


@njit(cache=True, nogil=True)
def _rehashed(ideals: Bits, count: int, size: int) -> IntArray:  # pragma: no cover - compiled
    table = np.full(size, -1, dtype=np.int64)
    for i in range(count):
        table[_slot(table, ideals, ideals[i])] = i
    return table
