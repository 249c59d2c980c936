"""Simulated annealing for the latency, with a given number of subgraphs for each accelerator.

A step moves one group, exchanges two, or shifts the border between two subgraphs: an op moves to
the other subgraph together with all ops of its own subgraph that precede it, or all that follow it.
Every placement is evaluated in full. If subgraphs wait for each other, the latency is infinite, so
they stay contiguous.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numba import njit

from enplace.placers.latency.groups import Groups
from enplace.values.arrays import adjacency, csr_offsets
from enplace.values.problem import BoolArray
from enplace.values.profile import FloatArray, IntArray

OPS_AT_ONCE = 5_000_000
"""Ops evaluated between two checks for whether to stop: some tenths of a second."""

HOT, COLD = 0.3, 0.0002
"""First and last temperature, as shares of the latency."""

SWAP, SHIFT = 0.15, 0.35
"""Shares of the kinds of steps; all other steps move one group."""

_SPREAD = 0.02
"""Weight of the subgraphs' mean finish: it falls when one off the longest path ends earlier."""


class _Graph(NamedTuple):
    """The arrays of :class:`Groups` for the kernel, with edges by source and by target."""

    group: IntArray
    backward: IntArray
    op_us: FloatArray
    allowed: BoolArray
    group_bytes: FloatArray
    capacity_bytes: FloatArray
    out_ptr: IntArray
    target: IntArray
    in_ptr: IntArray
    source: IntArray
    hyperedge_ptr: IntArray
    hyperedge_op: IntArray
    hyperedge_us: FloatArray


class _Scratch(NamedTuple):
    """Arrays that every evaluation reuses. Parts are the subgraphs, then the ops on CPUs.

    Attributes
    ----------
    part : int array, shape (n_ops,)
        The part that contains each op.
    waiting, ready_us, busy_us : arrays, shape (n_parts,)
        Number of inputs yet to arrive, when the last one arrives, and the time the part takes.
    first_op, next_op : int arrays, shapes (n_parts,) and (n_ops,)
        A linked list of the ops of each part; it ends with -1.
    stamp : int array, shape (n_parts,)
        The last hyperedge that the part has paid for.
    queue : int array, shape (n_parts,)
        Parts in the order in which they run.
    next_subgraph : int array, shape (n_subgraphs,)
        The next subgraph of the same accelerator; -1 for the last one.
    """

    part: IntArray
    waiting: IntArray
    ready_us: FloatArray
    busy_us: FloatArray
    first_op: IntArray
    next_op: IntArray
    stamp: IntArray
    queue: IntArray
    next_subgraph: IntArray


class _Step(NamedTuple):
    """The groups that a step moves, and their old places.

    Attributes
    ----------
    group : int array, shape (n_ops + 1,)
    old : int array, shape (n_ops + 1, 2)
    mark : int array, shape (n_ops,)
        The last step that visited each op.
    """

    group: IntArray
    old: IntArray
    mark: IntArray


def anneal(
    groups: Groups,
    start: IntArray,
    n_slots: int,
    steps: int,
    stopped: Callable[[], bool],
    seed: int = 0,
) -> IntArray:
    """Anneal from places that fit; return the best ones found.

    Parameters
    ----------
    start : int array, shape (n_groups, 2)
        Place of each group, and its subgraph there, 0 to ``n_slots - 1``.
    n_slots : int
        Subgraphs of an accelerator in each pass.
    stopped : callable
        Called regularly (:data:`OPS_AT_ONCE`); once it returns true, the best so far is returned.

    Returns
    -------
    int array, shape (n_groups, 2)
    """
    rng = np.random.default_rng(seed)
    graph = _graph(groups)
    place, best = start.copy(), start.copy()
    best_us = places_us(groups, start, n_slots)
    if not np.isfinite(best_us):
        return best
    at_once = max(1, OPS_AT_ONCE // groups.n_ops)
    for first in range(0, steps, at_once):
        if stopped():
            break
        n = min(at_once, steps - first)
        hot, cold = (best_us * HOT * (COLD / HOT) ** (at / steps) for at in (first, first + n))
        best_us = _take_steps(
            graph, _scratch(groups, n_slots), place, best, n_slots, n, hot, cold, rng
        )
    return best


def places_us(groups: Groups, place: IntArray, n_slots: int) -> float:
    """Find the latency of places with the kernel; inf if subgraphs wait for each other.

    Parameters
    ----------
    place : int array, shape (n_groups, 2)
    """
    latency_us, _ = _evaluate(_graph(groups), _scratch(groups, n_slots), place, n_slots)
    return float(latency_us)


def _graph(groups: Groups) -> _Graph:
    n = groups.n_ops
    return _Graph(
        groups.group,
        groups.backward.astype(np.int64),
        groups.op_us,
        groups.allowed,
        groups.group_bytes.astype(np.float64),
        groups.capacity_bytes,
        csr_offsets(groups.source, n),
        groups.target,
        *adjacency(groups.target, groups.source, n),
        groups.hyperedge_ptr,
        groups.hyperedge_op,
        groups.hyperedge_us,
    )


def _scratch(groups: Groups, n_slots: int) -> _Scratch:
    n_subgraphs = 2 * n_slots * groups.cpu
    n_parts = n_subgraphs + groups.n_ops

    def ints(size: int) -> IntArray:
        return np.zeros(size, dtype=np.int64)

    return _Scratch(
        part=ints(groups.n_ops),
        waiting=ints(n_parts),
        ready_us=np.zeros(n_parts),
        busy_us=np.zeros(n_parts),
        first_op=ints(n_parts),
        next_op=ints(groups.n_ops),
        stamp=ints(n_parts),
        queue=ints(n_parts),
        next_subgraph=ints(n_subgraphs),
    )


@njit(cache=True, nogil=True)
def _take_steps(
    graph: _Graph,
    scratch: _Scratch,
    place: IntArray,
    best: IntArray,
    n_slots: int,
    steps: int,
    hot_us: float,
    cold_us: float,
    rng: np.random.Generator,
) -> float:  # pragma: no cover - compiled
    """Change places step by step; update ``best`` when the latency falls; return the least."""
    n_ops = len(graph.group)
    moved = _Step(
        np.empty(n_ops + 1, np.int64), np.empty((n_ops + 1, 2), np.int64), np.full(n_ops, -1)
    )
    free_bytes = graph.capacity_bytes.copy()
    for group in range(len(graph.group_bytes)):
        free_bytes[place[group, 0]] -= graph.group_bytes[group]
    best_us, _ = _evaluate(graph, scratch, best, n_slots)
    _, energy = _evaluate(graph, scratch, place, n_slots)
    cooling = (cold_us / hot_us) ** (1.0 / steps) if hot_us > 0 else 1.0
    temperature = hot_us
    for step in range(steps):
        temperature *= cooling
        n = _choose(graph, place, n_slots, moved, step, rng)
        accepted = _move_bytes(graph, place, moved, n, free_bytes) and free_bytes.min() >= 0
        if accepted:
            latency_us, new = _evaluate(graph, scratch, place, n_slots)
            accepted = new <= energy or rng.random() < np.exp((energy - new) / temperature)
        if accepted:
            energy = new
            if latency_us < best_us * (1 - 1e-12):
                best_us = latency_us
                best[:] = place
        else:
            _undo(graph, place, moved, n, free_bytes)
    return best_us


@njit(cache=True, nogil=True)
def _move_bytes(
    graph: _Graph, place: IntArray, moved: _Step, n: int, free_bytes: FloatArray
) -> bool:  # pragma: no cover - compiled
    """Move the bytes of ``n`` groups; return whether all are allowed in their new places."""
    allowed = n > 0
    for i in range(n):
        group = moved.group[i]
        allowed &= graph.allowed[group, place[group, 0]]
        free_bytes[moved.old[i, 0]] += graph.group_bytes[group]
        free_bytes[place[group, 0]] -= graph.group_bytes[group]
    return allowed


@njit(cache=True, nogil=True)
def _undo(
    graph: _Graph, place: IntArray, moved: _Step, n: int, free_bytes: FloatArray
) -> None:  # pragma: no cover - compiled
    for i in range(n):
        group = moved.group[i]
        free_bytes[place[group, 0]] += graph.group_bytes[group]
        free_bytes[moved.old[i, 0]] -= graph.group_bytes[group]
        place[group] = moved.old[i]


@njit(cache=True, nogil=True)
def _choose(
    graph: _Graph,
    place: IntArray,
    n_slots: int,
    moved: _Step,
    step: int,
    rng: np.random.Generator,
) -> int:  # pragma: no cover - compiled
    """Move some groups, record them in ``moved``, and return their number."""
    n_ops, n_places = graph.op_us.shape
    op = rng.integers(0, n_ops)
    group = graph.group[op]
    kind = rng.random()
    if kind < SWAP:
        return _swap(place, group, int(rng.integers(0, len(graph.group_bytes))), moved)
    near = _neighbour(graph, int(op), rng)
    moved.group[0], moved.old[0] = group, place[group]
    if near < 0 or rng.random() < 0.1:
        place[group, 0] = rng.integers(0, n_places)
        place[group, 1] = rng.integers(0, n_slots)
        return 1
    target = place[graph.group[near]].copy()
    if (target == place[group]).all():
        if kind < SWAP + SHIFT:
            return 0
        target[0], target[1] = rng.integers(0, n_places), rng.integers(0, n_slots)
    if kind >= SWAP + SHIFT:
        place[group] = target
        return 1
    return _shift(graph, place, int(op), bool(near > op), target, moved, step)


@njit(cache=True, nogil=True)
def _swap(
    place: IntArray, group: int, other: int, moved: _Step
) -> int:  # pragma: no cover - compiled
    """Exchange the places of two groups."""
    if other == group:
        return 0
    moved.group[0], moved.group[1] = group, other
    moved.old[0], moved.old[1] = place[group], place[other]
    place[group], place[other] = moved.old[1], moved.old[0]
    return 2


@njit(cache=True, nogil=True)
def _neighbour(
    graph: _Graph, op: int, rng: np.random.Generator
) -> int:  # pragma: no cover - compiled
    """Draw a producer or consumer of an op; -1 if there is none."""
    before = graph.in_ptr[op + 1] - graph.in_ptr[op]
    after = graph.out_ptr[op + 1] - graph.out_ptr[op]
    if before + after == 0:
        return -1
    at = rng.integers(0, before + after)
    if at < before:
        return int(graph.source[graph.in_ptr[op] + at])
    return int(graph.target[graph.out_ptr[op] + at - before])


@njit(cache=True, nogil=True)
def _shift(
    graph: _Graph,
    place: IntArray,
    op: int,
    forward: bool,
    target: IntArray,
    moved: _Step,
    step: int,
) -> int:  # pragma: no cover - compiled
    """Move an op across its subgraph's border, with all ops there that follow or precede it."""
    source = place[graph.group[op]].copy()
    ptr, near = graph.in_ptr, graph.source
    if forward:
        ptr, near = graph.out_ptr, graph.target
    # The array for groups first holds ops: there are never more groups than ops.
    ops, n, at = moved.group, 1, 0
    ops[0], moved.mark[op] = op, step
    while at < n:
        for edge in range(ptr[ops[at]], ptr[ops[at] + 1]):
            other = near[edge]
            if moved.mark[other] != step and (place[graph.group[other]] == source).all():
                moved.mark[other] = step
                ops[n] = other
                n += 1
        at += 1
    n_groups = 0
    for i in range(n):
        group = graph.group[ops[i]]
        if (place[group] == source).all():
            moved.old[n_groups] = source
            place[group] = target
            moved.group[n_groups] = group
            n_groups += 1
    return n_groups


@njit(cache=True, nogil=True)
def _evaluate(
    graph: _Graph, scratch: _Scratch, place: IntArray, n_slots: int
) -> tuple[float, float]:  # pragma: no cover - compiled
    """Find the latency and the annealing energy; inf if subgraphs wait for each other."""
    n_subgraphs = 2 * n_slots * (graph.op_us.shape[1] - 1)
    scratch.waiting[:], scratch.ready_us[:], scratch.busy_us[:] = 0, 0.0, 0.0
    scratch.first_op[:], scratch.stamp[:] = -1, -1
    _fill_parts(graph, scratch, place, n_slots)
    _add_transfers(graph, scratch, n_subgraphs)
    for op in range(len(graph.group)):
        for edge in range(graph.out_ptr[op], graph.out_ptr[op + 1]):
            if scratch.part[graph.target[edge]] != scratch.part[op]:
                scratch.waiting[scratch.part[graph.target[edge]]] += 1
    _chain_subgraphs(scratch, n_slots)
    return _run(graph, scratch, n_subgraphs)


@njit(cache=True, nogil=True)
def _fill_parts(
    graph: _Graph, scratch: _Scratch, place: IntArray, n_slots: int
) -> None:  # pragma: no cover - compiled
    """Put each op into its subgraph, or into a part of its own on a CPU."""
    cpu = graph.op_us.shape[1] - 1
    for op in range(len(graph.group)):
        group = graph.group[op]
        gpu = place[group, 0]
        part = 2 * n_slots * cpu + op
        if gpu < cpu:
            part = (gpu * 2 + graph.backward[op]) * n_slots + place[group, 1]
        scratch.part[op] = part
        scratch.busy_us[part] += graph.op_us[op, gpu]
        scratch.next_op[op], scratch.first_op[part] = scratch.first_op[part], op


@njit(cache=True, nogil=True)
def _chain_subgraphs(scratch: _Scratch, n_slots: int) -> None:  # pragma: no cover - compiled
    """Make each subgraph of an accelerator wait for the previous one."""
    n_subgraphs = len(scratch.next_subgraph)
    for first in range(0, n_subgraphs, 2 * n_slots):
        last = -1
        for part in range(first, first + 2 * n_slots):
            if scratch.first_op[part] >= 0:
                scratch.next_subgraph[part] = -1
                if last >= 0:
                    scratch.next_subgraph[last] = part
                    scratch.waiting[part] += 1
                last = part


@njit(cache=True, nogil=True)
def _add_transfers(
    graph: _Graph, scratch: _Scratch, n_subgraphs: int
) -> None:  # pragma: no cover - compiled
    """Charge each subgraph once for every hyperedge that crosses its border."""
    per_gpu = n_subgraphs // max(graph.hyperedge_us.shape[1], 1)
    for hyperedge in range(len(graph.hyperedge_us)):
        first, last = graph.hyperedge_ptr[hyperedge], graph.hyperedge_ptr[hyperedge + 1]
        home, crossing = scratch.part[graph.hyperedge_op[first]], False
        for pin in range(first + 1, last):
            crossing |= scratch.part[graph.hyperedge_op[pin]] != home
        if not crossing:
            continue
        for pin in range(first, last):
            part = scratch.part[graph.hyperedge_op[pin]]
            if part < n_subgraphs and scratch.stamp[part] != hyperedge:
                scratch.stamp[part] = hyperedge
                scratch.busy_us[part] += graph.hyperedge_us[hyperedge, part // per_gpu]


@njit(cache=True, nogil=True)
def _run(
    graph: _Graph, scratch: _Scratch, n_subgraphs: int
) -> tuple[float, float]:  # pragma: no cover - compiled
    """Run each part as soon as the parts it waits for have ended."""
    n_queued, n_parts = 0, 0
    for part in range(len(scratch.waiting)):
        if scratch.first_op[part] >= 0:
            n_parts += 1
            if scratch.waiting[part] == 0:
                scratch.queue[n_queued] = part
                n_queued += 1
    n_done, latency_us, total_us, n_finished = 0, 0.0, 0.0, 0
    while n_done < n_queued:
        part = scratch.queue[n_done]
        n_done += 1
        finish_us = scratch.ready_us[part] + scratch.busy_us[part]
        latency_us = max(latency_us, finish_us)
        if part < n_subgraphs:
            total_us += finish_us
            n_finished += 1
            if scratch.next_subgraph[part] >= 0:
                n_queued = _arrive(scratch, scratch.next_subgraph[part], finish_us, n_queued)
        op = scratch.first_op[part]
        while op >= 0:
            for edge in range(graph.out_ptr[op], graph.out_ptr[op + 1]):
                other = scratch.part[graph.target[edge]]
                if other != part:
                    n_queued = _arrive(scratch, other, finish_us, n_queued)
            op = scratch.next_op[op]
    if n_done < n_parts:
        return np.inf, np.inf
    return latency_us, latency_us + _SPREAD * total_us / max(n_finished, 1)


@njit(cache=True, nogil=True)
def _arrive(
    scratch: _Scratch, part: int, at_us: float, n_queued: int
) -> int:  # pragma: no cover - compiled
    """Count an input of a part as arrived; queue the part after the last; return queue length."""
    scratch.ready_us[part] = max(scratch.ready_us[part], at_us)
    scratch.waiting[part] -= 1
    if scratch.waiting[part] == 0:
        scratch.queue[n_queued] = part
        n_queued += 1
    return n_queued
