"""Subgraphs: the ops that a place runs in one go, without waiting in between."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from enplace.compiling import kernel
from enplace.values.arrays import csr_offsets, inverse
from enplace.values.problem import BoolArray
from enplace.values.profile import IntArray, Profile


class _Graph(NamedTuple):
    """The rank of each op in the topological order, and the ops that follow it."""

    rank: IntArray
    out_ptr: IntArray
    target: IntArray


class _Blocks(NamedTuple):
    """The closed blocks: sets of ops of one place that no path leaves and re-enters.

    Attributes
    ----------
    of_op : int array, shape (n_ops,)
        Block of each op; -1 for ops that run by themselves.
    place : int array, shape (n_blocks,)
        Blocks of one place are consecutive, in the order in which they run.
    place_ptr : int array, shape (n_places + 1,)
        Blocks of place ``p`` are ``place_ptr[p] : place_ptr[p + 1]``.
    ptr, op : int arrays
        Ops of each block, in topological order.
    """

    of_op: IntArray
    place: IntArray
    place_ptr: IntArray
    ptr: IntArray
    op: IntArray


class _Progress(NamedTuple):
    """The ops of a graph that have run, and those that can.

    Attributes
    ----------
    waiting : int array, shape (n_ops,)
        Number of inputs of each op that have not run.
    outside : int array, shape (n_blocks,)
        Number of inputs of each block, from outside it, that have not run.
    left : int array, shape (n_blocks,)
        Number of ops of each block that have not run.
    current : int array, shape (n_places,)
        First unfinished block of each place.
    done : bool array, shape (n_ops,)
    ready : int array, shape (n_ops,)
        A stack of ops that run by themselves and wait for nothing.
    taken : int array, shape (n_ops,)
        Ops of the latest subgraph.
        Ops of the latest subgraph.
    """

    waiting: IntArray
    outside: IntArray
    left: IntArray
    current: IntArray
    done: BoolArray
    ready: IntArray
    taken: IntArray


def find_subgraphs(profile: Profile, on: IntArray, n_places: int) -> IntArray:
    """Find the subgraphs of each place, as few as the paths between them allow.

    A contiguous set of ops is one subgraph. Where a path leaves a place and returns, a new one
    begins; if subgraphs would wait for each other, one of them is split further.

    Parameters
    ----------
    on : int array, shape (n_ops,)
        Place of each op; -1 for ops that run by themselves.

    Returns
    -------
    int array, shape (n_ops,)
        Number of each op's subgraph among those of its place, in order; 0 for ops with place -1.
    """
    order = profile.topological_order
    graph = _Graph(inverse(order), profile.out_ptr, profile.edge_op)
    level = _count_returns(order, graph, on, n_places)
    subgraph: IntArray = _number(graph, _build_blocks(order, on, level, n_places))
    return subgraph


def count_returns(profile: Profile, on: IntArray, n_places: int) -> IntArray:
    """Count how often the paths to each op leave its place and return, at most.

    Parameters
    ----------
    on : int array, shape (n_ops,)
        Place of each op; -1 for ops that run by themselves.

    Returns
    -------
    int array, shape (n_ops,)
        0 for all ops of a place that is contiguous (definition 3.1 of the paper).
    """
    order = profile.topological_order
    graph = _Graph(inverse(order), profile.out_ptr, profile.edge_op)
    level: IntArray = _count_returns(order, graph, on, n_places)
    return level


def _build_blocks(order: IntArray, on: IntArray, level: IntArray, n_places: int) -> _Blocks:
    """Group the ops of each place by level."""
    placed = np.flatnonzero(on >= 0)
    pairs = np.column_stack([on[placed], level[placed]])
    blocks, index = np.unique(pairs, axis=0, return_inverse=True)
    of_op = np.full(len(on), -1)
    of_op[placed] = index.reshape(len(placed))
    inside = order[on[order] >= 0]
    inside = inside[np.argsort(of_op[inside], kind="stable")]
    place = blocks[:, 0].copy()
    ptr = csr_offsets(of_op[inside], len(blocks))
    return _Blocks(of_op, place, csr_offsets(place, n_places), ptr, inside)


@kernel
def _count_returns(
    order: IntArray, graph: _Graph, on: IntArray, n_places: int
) -> IntArray:  # pragma: no cover - compiled
    """Count how often the paths to each op leave its place and return; shape (n_ops,)."""
    least = np.zeros((len(order), n_places), dtype=np.int64)
    level = np.zeros(len(order), dtype=np.int64)
    for op in order:
        here = on[op]
        if here >= 0:
            level[op] = least[op, here]
        for edge in range(graph.out_ptr[op], graph.out_ptr[op + 1]):
            other = graph.target[edge]
            for place in range(n_places):
                least[other, place] = max(least[other, place], least[op, place])
            if here >= 0 and on[other] != here:
                least[other, here] = max(least[other, here], level[op] + 1)
    return level


@kernel
def _number(graph: _Graph, blocks: _Blocks) -> IntArray:  # pragma: no cover - compiled
    """Run single ops and whole blocks as they can; if none can, run a part of the first block.

    Return the number of each op's subgraph; shape (n_ops,).
    """
    n, n_places = len(graph.rank), len(blocks.place_ptr) - 1
    progress = _start(graph, blocks)
    subgraph, n_subgraphs = np.zeros(n, dtype=np.int64), np.zeros(n_places, dtype=np.int64)
    n_done, n_ready = 0, 0
    for op in range(n):
        if blocks.of_op[op] < 0 and progress.waiting[op] == 0:
            progress.ready[n_ready] = op
            n_ready += 1
    while n_done < n:
        if n_ready > 0:
            n_ready -= 1
            progress.taken[0] = progress.ready[n_ready]
            n_taken = 1
        else:
            # Only when no single op can run, so that as many of its inputs as possible are there.
            block = _choose_block(graph, blocks, progress)
            n_taken = _take(graph, blocks, progress, block)
            place = blocks.place[block]
            subgraph[progress.taken[:n_taken]] = n_subgraphs[place]
            n_subgraphs[place] += 1
        n_done += n_taken
        for op in progress.taken[:n_taken]:
            n_ready = _release(graph, blocks, progress, op, n_ready)
    return subgraph


@kernel
def _start(graph: _Graph, blocks: _Blocks) -> _Progress:  # pragma: no cover - compiled
    """Set up the progress before anything has run."""
    n, n_blocks = len(graph.rank), len(blocks.place)
    waiting, outside = np.zeros(n, dtype=np.int64), np.zeros(n_blocks, dtype=np.int64)
    for op in range(n):
        for edge in range(graph.out_ptr[op], graph.out_ptr[op + 1]):
            other = graph.target[edge]
            waiting[other] += 1
            if blocks.of_op[other] >= 0 and blocks.of_op[other] != blocks.of_op[op]:
                outside[blocks.of_op[other]] += 1
    return _Progress(
        waiting,
        outside,
        blocks.ptr[1:] - blocks.ptr[:-1],
        blocks.place_ptr[:-1].copy(),
        np.zeros(n, dtype=np.bool_),
        np.empty(n, dtype=np.int64),
        np.empty(n, dtype=np.int64),
    )


@kernel
def _choose_block(
    graph: _Graph, blocks: _Blocks, progress: _Progress
) -> int:  # pragma: no cover - compiled
    """Choose a block that waits for nothing outside it, or else the first with a ready op."""
    chosen = -1
    for place in range(len(progress.current)):
        block = progress.current[place]
        if block < blocks.place_ptr[place + 1] and progress.outside[block] == 0:
            chosen = block
    if chosen >= 0:
        return chosen
    first = len(graph.rank)
    for block in range(len(blocks.place)):
        rank = _first_rank(graph, blocks, progress, block, first)
        if rank < first:
            first, chosen = rank, block
    return chosen


@kernel
def _first_rank(
    graph: _Graph, blocks: _Blocks, progress: _Progress, block: int, limit: int
) -> int:  # pragma: no cover - compiled
    """Find the rank of a block's first unfinished op; ``limit`` if not below or no op is ready."""
    first = limit
    for at in range(blocks.ptr[block], blocks.ptr[block + 1]):
        op = blocks.op[at]
        if not progress.done[op]:
            first = min(first, int(graph.rank[op]))
            if first >= limit:
                return limit
            if progress.waiting[op] == 0:
                return first
    return limit


@kernel
def _take(
    graph: _Graph, blocks: _Blocks, progress: _Progress, block: int
) -> int:  # pragma: no cover - compiled
    """Take all ops of a block that wait for nothing outside it as a subgraph; return how many."""
    n_taken = 0
    # In topological order, so an op comes after the ops of the block that it waits for.
    for at in range(blocks.ptr[block], blocks.ptr[block + 1]):
        op = blocks.op[at]
        if progress.done[op] or progress.waiting[op] > 0:
            continue
        progress.taken[n_taken] = op
        n_taken += 1
        progress.done[op] = True
        for edge in range(graph.out_ptr[op], graph.out_ptr[op + 1]):
            if blocks.of_op[graph.target[edge]] == block:
                progress.waiting[graph.target[edge]] -= 1
    progress.left[block] -= n_taken
    current, place = progress.current, blocks.place[block]
    end = blocks.place_ptr[place + 1]
    while current[place] < end and progress.left[current[place]] == 0:
        current[place] += 1
    return n_taken


@kernel
def _release(
    graph: _Graph, blocks: _Blocks, progress: _Progress, op: int, n_ready: int
) -> int:  # pragma: no cover - compiled
    """Count an op as done for its consumers outside its block; return the number of ready ops."""
    progress.done[op] = True
    for edge in range(graph.out_ptr[op], graph.out_ptr[op + 1]):
        other = graph.target[edge]
        block = blocks.of_op[other]
        if block >= 0 and block == blocks.of_op[op]:
            continue
        progress.waiting[other] -= 1
        if block >= 0:
            progress.outside[block] -= 1
        elif progress.waiting[other] == 0:
            progress.ready[n_ready] = other
            n_ready += 1
    return n_ready
