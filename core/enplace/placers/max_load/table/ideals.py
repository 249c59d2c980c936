"""All ideals of a graph: sets of nodes that contain every predecessor of their nodes.

An ideal is a row of 64-bit words. The search is breadth first, so ideals are sorted by size. It
also builds the lattice: which node added to which ideal gives which other ideal.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from enplace.compiling import helper, kernel, loop
from enplace.values.arrays import adjacency, csr_offsets, topological_order, upward_rank
from enplace.values.profile import IntArray

Bits = NDArray[np.uint64]


class Lattice(NamedTuple):
    """The ideals of a graph, sorted by size, beginning with the empty one.

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

    def from_the_end(self) -> Lattice:
        """Return the lattice of the complements: the ideals of the graph with edges reversed."""
        last = self.n_ideals - 1
        before = last - np.repeat(np.arange(self.n_ideals), np.diff(self.ptr))
        after = last - self.next_ideal
        order = np.argsort(after, kind="stable")
        return Lattice(csr_offsets(after[order], self.n_ideals), self.added[order], before[order])


IDEALS_AT_ONCE = 20_000
"""Ideals expanded between two checks for whether to stop: some tenths of a second."""


class _Graph(NamedTuple):
    """A graph for the kernel.

    Attributes
    ----------
    needs : uint64 array, shape (n_nodes, n_words)
        Direct predecessors of each node.
    ptr, target : int arrays
        Successors of each node.
    roots : int array
        Nodes without predecessors.
    """

    needs: Bits
    ptr: IntArray
    target: IntArray
    roots: IntArray


class _Ideals(NamedTuple):
    """Ideals found so far, and a hash table of them.

    Attributes
    ----------
    bits : uint64 array, shape (n_rows, n_words)
        Later rows are not used yet.
    came_from, came_by : int arrays, shape (n_rows,)
        An ideal with one node less, and that node.
    ptr, added, next_ideal : int arrays
        As in :class:`Lattice`.
    table : int array
        Numbers of ideals by the hash of their bits; -1 for empty slots.
    counts : int array, shape (3,)
        Number of ideals, of expanded ideals, and of lattice edges.
    """

    bits: Bits
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
    """Find all ideals of a graph; None if there are more than ``limit``, or if stopped."""
    words = n_nodes // 64 + 1
    needs = np.zeros((n_nodes, words), dtype=np.uint64)
    bits = np.uint64(1) << (source % 64).astype(np.uint64)
    np.bitwise_or.at(needs, (target, source // 64), bits)
    roots = np.setdiff1d(np.arange(n_nodes), target)
    graph = _Graph(needs, *adjacency(source, target, n_nodes), roots)
    rows = np.zeros((1024, words), dtype=np.uint64)
    found = _Ideals(
        rows,
        came_from=np.zeros(1024, dtype=np.int64),
        came_by=np.zeros(1024, dtype=np.int64),
        ptr=np.zeros(1025, dtype=np.int64),
        added=np.zeros(4096, dtype=np.int64),
        next_ideal=np.zeros(4096, dtype=np.int64),
        table=_rehashed(rows, 1, 4096),
        counts=np.array([1, 0, 0]),
    )
    while found.counts[1] < found.counts[0]:
        if stopped():
            return None
        found = _expand_some(graph, found, limit, IDEALS_AT_ONCE)
        if found.counts[0] > limit:
            return None
    n_ideals, _, n_edges = found.counts.tolist()
    return Lattice(
        found.ptr[: n_ideals + 1].copy(),
        found.added[:n_edges].copy(),
        found.next_ideal[:n_edges].copy(),
    )


def bound_ideals(n_nodes: int, source: IntArray, target: IntArray) -> int:
    """Return a lower bound on the number of ideals of a graph.

    Every set of nodes that do not reach each other gives a different ideal: the set with all its
    predecessors. Nodes at the same distance from the first nodes form such a set.
    """
    graph = adjacency(target, source, n_nodes)
    depth = upward_rank(
        topological_order(n_nodes, *graph), *graph, np.ones(n_nodes), np.zeros(len(source))
    )
    return 1 << int(np.bincount(depth.astype(np.int64), minlength=1).max())


@loop
def _slot(table: IntArray, ideals: Bits, row: Bits) -> np.int64:  # pragma: no cover - compiled
    """Return the slot of the table for an ideal, whether or not the ideal is in it."""
    value = np.uint64(1469598103934665603)
    for word in row:
        # Every bit of the words must affect the low bits of the hash.
        value = (value ^ word) * np.uint64(0x9E3779B97F4A7C15)
        value ^= value >> np.uint64(32)
    slot = np.int64(value & np.uint64(len(table) - 1))
    while table[slot] >= 0 and not _is_equal(ideals[table[slot]], row):
        slot = (slot + 1) % len(table)
    return slot


@kernel
def _expand_some(
    graph: _Graph, found: _Ideals, limit: int, budget: int
) -> _Ideals:  # pragma: no cover - compiled
    """Expand ``budget`` more ideals; end early if there are more than ``limit``."""
    last = found.counts[1] + budget
    row = np.zeros(graph.needs.shape[1], dtype=np.uint64)
    ready = np.zeros(len(graph.needs), dtype=np.int64)
    while found.counts[1] < min(found.counts[0], last) and found.counts[0] <= limit:
        ideal = found.counts[1]
        for node in ready[: _find_ready(graph, found, ideal, ready)]:
            row[:] = found.bits[ideal]
            row[node // 64] |= np.uint64(1) << np.uint64(node % 64)
            found = _with_ideal(found, row, ideal, node)
        found.counts[1] += 1
        found.ptr[ideal + 1] = found.counts[2]
    return found


@loop
def _find_ready(
    graph: _Graph, found: _Ideals, ideal: int, ready: IntArray
) -> int:  # pragma: no cover - compiled
    """Write the nodes that can be added to an ideal into ``ready``; return their number.

    Such a node could already be added to the ideal that this one came from, or follows the node
    that was added then.
    """
    if ideal == 0:
        for i in range(len(graph.roots)):
            ready[i] = graph.roots[i]
        return len(graph.roots)
    n = 0
    before, by = found.came_from[ideal], found.came_by[ideal]
    for edge in range(found.ptr[before], found.ptr[before + 1]):
        if found.added[edge] != by:
            ready[n] = found.added[edge]
            n += 1
    for edge in range(graph.ptr[by], graph.ptr[by + 1]):
        node = graph.target[edge]
        if _is_inside(graph.needs[node], found.bits[ideal]):
            ready[n] = node
            n += 1
    return n


@helper
def _with_ideal(
    found: _Ideals, row: Bits, before: int, node: int
) -> _Ideals:  # pragma: no cover - compiled
    """Add a lattice edge, and its target if that ideal is new; enlarge the arrays if necessary."""
    bits, came_from, came_by, ptr, added, next_ideal, table, counts = found
    slot = _slot(table, bits, row)
    if table[slot] < 0:
        count = counts[0]
        if count == len(bits):
            bits, ptr = _twice_bits(bits), _longer(ptr)
            came_from, came_by = _longer(came_from), _longer(came_by)
        bits[count], came_from[count], came_by[count] = row, before, node
        table[slot] = count
        counts[0] += 1
        if 2 * counts[0] > len(table):
            table = _rehashed(bits, counts[0], 2 * len(table))
            slot = _slot(table, bits, row)
    if counts[2] == len(added):
        added, next_ideal = _longer(added), _longer(next_ideal)
    added[counts[2]], next_ideal[counts[2]] = node, table[slot]
    counts[2] += 1
    return _Ideals(bits, came_from, came_by, ptr, added, next_ideal, table, counts)


@loop
def _is_equal(one: Bits, other: Bits) -> bool:  # pragma: no cover - compiled
    """Whether two sets have the same nodes."""
    equal = True
    for word in range(len(one)):
        equal &= one[word] == other[word]
    return equal


@loop
def _is_inside(some: Bits, others: Bits) -> bool:  # pragma: no cover - compiled
    """Whether the nodes of a set are all in another."""
    inside = True
    for word in range(len(some)):
        inside &= some[word] & ~others[word] == 0
    return inside


@helper
def _twice_bits(rows: Bits) -> Bits:  # pragma: no cover - compiled
    """Copy the rows into an array with twice as many."""
    larger = np.zeros((2 * rows.shape[0], rows.shape[1]), dtype=np.uint64)
    larger[: rows.shape[0]] = rows
    return larger


@helper
def _longer(numbers: IntArray) -> IntArray:  # pragma: no cover - compiled
    """Copy numbers into an array of twice the length."""
    larger = np.zeros(2 * len(numbers), dtype=np.int64)
    larger[: len(numbers)] = numbers
    return larger


@kernel
def _rehashed(ideals: Bits, count: int, size: int) -> IntArray:  # pragma: no cover - compiled
    """Make a hash table of a given size for the first ``count`` ideals."""
    table = np.full(size, -1, dtype=np.int64)
    for i in range(count):
        table[_slot(table, ideals, ideals[i])] = i
    return table
