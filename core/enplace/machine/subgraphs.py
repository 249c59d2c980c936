"""Pieces: the ops of a place, in parts each of which can go from start to end at once."""

from __future__ import annotations

import numpy as np
from numba import njit

from enplace.values.profile import IntArray, Profile


def pieces_of(profile: Profile, on: IntArray, n_places: int) -> IntArray:
    """Pieces in which places can process their ops, as few as paths between them demand.

    A contiguous set of ops is one piece. Where a path leaves a place and returns, a new piece
    begins; where pieces would wait for each other, one of them is split further.

    Parameters
    ----------
    on : int array, shape (n_ops,)
        Place of each op; -1 for ops that go by themselves.

    Returns
    -------
    int array, shape (n_ops,)
        Number of each op's piece in its place, in order; 0 for those by themselves.
    """
    order, source = profile.topological_order, profile.edge_source
    by_source = np.argsort(source, kind="stable")
    out_ptr = np.searchsorted(source[by_source], np.arange(profile.n_ops + 1))
    target = profile.edge_op[by_source]
    level = _returns(order, out_ptr, target, on, n_places)
    # Wholes: the ops of one place and level. Those of one place are consecutive.
    placed = np.flatnonzero(on >= 0)
    pairs = np.column_stack([on[placed], level[placed]])
    wholes, index = np.unique(pairs, axis=0, return_inverse=True)
    whole = np.full(profile.n_ops, -1)
    whole[placed] = index.reshape(len(placed))
    inside = order[on[order] >= 0]
    inside = inside[np.argsort(whole[inside], kind="stable")]
    ptr = np.searchsorted(whole[inside], np.arange(len(wholes) + 1))
    rank = np.empty(profile.n_ops, dtype=np.int64)
    rank[order] = np.arange(profile.n_ops)
    pieces: IntArray = _pieces(rank, out_ptr, target, whole, wholes[:, 0], ptr, inside, n_places)
    return pieces


@njit(cache=True, nogil=True)
def _returns(
    order: IntArray, out_ptr: IntArray, target: IntArray, on: IntArray, n_places: int
) -> IntArray:  # pragma: no cover - compiled
    """How often paths to each op have left its place and come back; shape (n_ops,)."""
    least = np.zeros((len(order), n_places), dtype=np.int64)
    level = np.zeros(len(order), dtype=np.int64)
    for op in order:
        here = on[op]
        if here >= 0:
            level[op] = least[op, here]
        for edge in range(out_ptr[op], out_ptr[op + 1]):
            other = target[edge]
            for g in range(n_places):
                least[other, g] = max(least[other, g], least[op, g])
            if here >= 0 and on[other] != here:
                least[other, here] = max(least[other, here], level[op] + 1)
    return level


@njit(cache=True, nogil=True)
def _pieces(
    rank: IntArray,
    out_ptr: IntArray,
    target: IntArray,
    whole: IntArray,
    place_of: IntArray,
    ptr: IntArray,
    inside: IntArray,
    n_places: int,
) -> IntArray:  # pragma: no cover - compiled
    """Take ops by themselves and wholes as they can go; if none can, what is ready of the first.

    Parameters
    ----------
    whole : int array, shape (n_ops,)
        Which whole an op belongs to; -1 for those by themselves.
    place_of : int array, shape (n_wholes,)
    ptr, inside : int arrays
        Ops of each whole in topological order.
    """
    n, n_wholes = len(rank), len(place_of)
    # What is not done before each op, and what is not done outside each whole that it waits for.
    waiting, outside = np.zeros(n, dtype=np.int64), np.zeros(n_wholes, dtype=np.int64)
    for op in range(n):
        for edge in range(out_ptr[op], out_ptr[op + 1]):
            waiting[target[edge]] += 1
            if whole[target[edge]] >= 0 and whole[target[edge]] != whole[op]:
                outside[whole[target[edge]]] += 1
    left = ptr[1:] - ptr[:-1]
    current = np.searchsorted(place_of, np.arange(n_places))  # the first whole that is left
    piece, pieces = np.zeros(n, dtype=np.int64), np.zeros(n_places, dtype=np.int64)
    done = np.zeros(n, dtype=np.bool_)
    taken, ready = np.empty(n, dtype=np.int64), np.empty(n, dtype=np.int64)
    n_ready, n_done = 0, 0
    for op in range(n):
        if whole[op] < 0 and waiting[op] == 0:
            ready[n_ready] = op
            n_ready += 1
    while n_done < n:
        n_taken, from_whole = 0, -1
        if n_ready > 0:
            n_ready -= 1
            taken[0] = ready[n_ready]
            n_taken = 1
        else:
            for g in range(n_places):
                w = current[g]
                if w < n_wholes and place_of[w] == g and outside[w] == 0:
                    from_whole = w
            if from_whole < 0:
                # The first whole, by its first op that is left, with an op that is ready.
                first = n
                for w in range(n_wholes):
                    first_left, any_ready = n, False
                    for at in range(ptr[w], ptr[w + 1]):
                        op = inside[at]
                        if not done[op]:
                            first_left = min(first_left, rank[op])
                            any_ready |= waiting[op] == 0
                            if first_left >= first or any_ready:
                                break
                    if any_ready and first_left < first:
                        first, from_whole = first_left, w
            # In topological order, so that ops inside follow those they wait for.
            for at in range(ptr[from_whole], ptr[from_whole + 1]):
                op = inside[at]
                if not done[op] and waiting[op] == 0:
                    taken[n_taken] = op
                    n_taken += 1
                    done[op] = True
                    for edge in range(out_ptr[op], out_ptr[op + 1]):
                        if whole[target[edge]] == from_whole:
                            waiting[target[edge]] -= 1
            g = place_of[from_whole]
            piece[taken[:n_taken]] = pieces[g]
            pieces[g] += 1
            left[from_whole] -= n_taken
            while current[g] < n_wholes and place_of[current[g]] == g and left[current[g]] == 0:
                current[g] += 1
        n_done += n_taken
        for op in taken[:n_taken]:
            done[op] = True
            for edge in range(out_ptr[op], out_ptr[op + 1]):
                other = target[edge]
                if whole[other] >= 0 and whole[other] == whole[op]:
                    continue
                waiting[other] -= 1
                if whole[other] >= 0:
                    outside[whole[other]] -= 1
                elif waiting[other] == 0:
                    ready[n_ready] = other
                    n_ready += 1
    return piece
