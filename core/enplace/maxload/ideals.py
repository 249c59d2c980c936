"""All ideals of a graph: sets of nodes that hold every predecessor of their nodes.

An ideal is a row of 64-bit words. They are found breadth first, so that they are sorted by size,
together with the lattice: which node turns which ideal into which.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from enplace.profile import IntArray

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


def find_ideals(n_nodes: int, source: IntArray, target: IntArray, limit: int) -> Lattice | None:
    """All ideals of a graph, or None if there are more than ``limit``."""
    words = n_nodes // 64 + 1
    needs = np.zeros((n_nodes, words), dtype=np.uint64)
    bits = np.uint64(1) << (source % 64).astype(np.uint64)
    np.bitwise_or.at(needs, (target, source // 64), bits)
    ptr, added, next_ideal = _enumerate(needs, limit)
    return Lattice(ptr, added, next_ideal) if len(ptr) else None


@njit(cache=True, nogil=True)
def _hash(row: Bits) -> int:  # pragma: no cover - compiled
    value = np.uint64(1469598103934665603)
    for word in row:
        value = (value ^ word) * np.uint64(1099511628211)
        value ^= value >> np.uint64(29)
    return int(value >> np.uint64(2))


@njit(cache=True, nogil=True)
def _enumerate(
    needs: Bits, limit: int
) -> tuple[IntArray, IntArray, IntArray]:  # pragma: no cover - compiled
    n, words = needs.shape
    one = np.uint64(1)
    ideals = np.zeros((1024, words), dtype=np.uint64)
    ptr, count, done, edges = np.zeros(1025, dtype=np.int64), 1, 0, 0
    added, target = np.zeros(4096, dtype=np.int64), np.zeros(4096, dtype=np.int64)
    table = np.full(4096, -1, dtype=np.int64)
    table[_hash(ideals[0]) % len(table)] = 0
    row = np.zeros(words, dtype=np.uint64)
    while done < count:
        for node in range(n):
            word, bit = node // 64, one << np.uint64(node % 64)
            if ideals[done, word] & bit:
                continue
            ready = True
            for w in range(words):
                if needs[node, w] & ~ideals[done, w]:
                    ready = False
                    break
            if not ready:
                continue
            row[:] = ideals[done]
            row[word] |= bit
            slot = _hash(row) % len(table)
            while table[slot] >= 0 and not np.array_equal(ideals[table[slot]], row):
                slot = (slot + 1) % len(table)
            if table[slot] < 0:
                if count >= limit:
                    nothing = np.zeros(0, dtype=np.int64)
                    return nothing, nothing, nothing
                if count == len(ideals):
                    ideals = _twice_bits(ideals)
                    ptr = _longer(ptr)
                ideals[count] = row
                table[slot] = count
                count += 1
                if 2 * count > len(table):
                    table = _rehashed(ideals, count, 2 * len(table))
                    slot = _hash(row) % len(table)
                    while table[slot] != count - 1:
                        slot = (slot + 1) % len(table)
            if edges == len(added):
                added, target = _longer(added), _longer(target)
            added[edges], target[edges] = node, table[slot]
            edges += 1
        done += 1
        ptr[done] = edges
    return ptr[: count + 1].copy(), added[:edges].copy(), target[:edges].copy()


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
        slot = _hash(ideals[i]) % size
        while table[slot] >= 0:
            slot = (slot + 1) % size
        table[slot] = i
    return table
