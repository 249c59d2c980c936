"""Simulated annealing for the latency, where accelerators have a given number of pieces.

A step moves one group, makes two change places, or shifts the border between two pieces: an op
and all that precede it in its piece, or follow it, go to the other. Each placement is evaluated as
a whole; pieces that wait for each other have no latency, so splits stay contiguous.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numba import njit

from enplace.placers.latency.groups import Groups
from enplace.values.problem import BoolArray
from enplace.values.profile import FloatArray, IntArray

OPS_AT_ONCE = 5_000_000
"""Ops evaluated between two looks whether to stop: some tenths of a second."""

HOT, COLD = 0.3, 0.0002
"""First and last temperature, as shares of the latency."""

SWAP, SHIFT = 0.15, 0.35
"""Shares of the kinds of step; the others move one group."""

_SPREAD = 0.02
"""Weight of the mean finish of the pieces: tells when one off the longest path ends earlier."""


class _Graph(NamedTuple):
    """:class:`Groups` for the kernel, with edges by source and by target."""

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
    net_ptr: IntArray
    net_op: IntArray
    net_us: FloatArray


class _Scratch(NamedTuple):
    """Room that evaluations use again and again; pieces first, then ops on CPUs."""

    where: IntArray
    waiting: IntArray
    ready_us: FloatArray
    busy_us: FloatArray
    first: IntArray
    following: IntArray
    stamp: IntArray
    queue: IntArray
    next_piece: IntArray


def anneal(
    groups: Groups,
    start: IntArray,
    n_slots: int,
    steps: int,
    stopped: Callable[[], bool],
    seed: int = 0,
) -> IntArray:
    """The best places found on the way from some that fit.

    Parameters
    ----------
    start : int array, shape (n_groups, 2)
        Place of each group, and which piece of it, 0 to ``n_slots - 1``.
    n_slots : int
        Pieces of an accelerator in each pass.
    stopped : callable
        Asked again and again (:data:`OPS_AT_ONCE`); once true, the best so far is the answer.

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
        best_us = _anneal(graph, _scratch(groups, n_slots), place, best, n_slots, n, hot, cold, rng)
    return best


def places_us(groups: Groups, place: IntArray, n_slots: int) -> float:
    """Latency of places, by the kernel; inf if pieces wait for each other.

    Parameters
    ----------
    place : int array, shape (n_groups, 2)
    """
    latency_us, _ = _evaluate(_graph(groups), _scratch(groups, n_slots), place, n_slots)
    return float(latency_us)


def _graph(groups: Groups) -> _Graph:
    n = groups.n_ops
    by_target = np.argsort(groups.target, kind="stable")
    return _Graph(
        groups.group,
        groups.backward.astype(np.int64),
        groups.op_us,
        groups.allowed,
        groups.group_bytes.astype(np.float64),
        groups.capacity_bytes,
        np.searchsorted(groups.source, np.arange(n + 1)),
        groups.target,
        np.searchsorted(groups.target[by_target], np.arange(n + 1)),
        groups.source[by_target],
        groups.net_ptr,
        groups.net_op,
        groups.net_us,
    )


def _scratch(groups: Groups, n_slots: int) -> _Scratch:
    n_pieces = 2 * n_slots * groups.cpu
    n = n_pieces + groups.n_ops
    ints = [np.zeros(size, dtype=np.int64) for size in (n, n, n, n, n, n_pieces)]
    waiting, first, stamp, queue, _, next_piece = ints
    where, following = (np.zeros(groups.n_ops, dtype=np.int64) for _ in range(2))
    return _Scratch(
        where, waiting, np.zeros(n), np.zeros(n), first, following, stamp, queue, next_piece
    )


@njit(cache=True, nogil=True)
def _anneal(
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
    """Change places step by step, and ``best`` whenever the latency falls; returns the least."""
    n_groups = len(graph.group_bytes)
    moved = np.empty(len(graph.group) + 1, np.int64)
    old = np.empty((len(graph.group) + 1, 2), np.int64)
    mark = np.full(len(graph.group), -1, dtype=np.int64)
    room = graph.capacity_bytes.copy()
    for group in range(n_groups):
        room[place[group, 0]] -= graph.group_bytes[group]
    best_us, _ = _evaluate(graph, scratch, best, n_slots)
    _, energy = _evaluate(graph, scratch, place, n_slots)
    cooling = (cold_us / hot_us) ** (1.0 / steps) if hot_us > 0 else 1.0
    temperature = hot_us
    for step in range(steps):
        temperature *= cooling
        n = _choose(graph, place, n_slots, moved, old, mark, step, rng)
        accepted = n > 0
        for i in range(n):
            accepted &= graph.allowed[moved[i], place[moved[i], 0]]
            room[old[i, 0]] += graph.group_bytes[moved[i]]
            room[place[moved[i], 0]] -= graph.group_bytes[moved[i]]
        if accepted and room.min() >= 0:
            latency_us, new = _evaluate(graph, scratch, place, n_slots)
            accepted = new <= energy or rng.random() < np.exp((energy - new) / temperature)
        else:
            accepted = False
        if accepted:
            energy = new
            if latency_us < best_us * (1 - 1e-12):
                best_us = latency_us
                best[:] = place
            continue
        for i in range(n):
            room[place[moved[i], 0]] += graph.group_bytes[moved[i]]
            room[old[i, 0]] -= graph.group_bytes[moved[i]]
            place[moved[i]] = old[i]
    return float(best_us)


@njit(cache=True, nogil=True)
def _choose(
    graph: _Graph,
    place: IntArray,
    n_slots: int,
    moved: IntArray,
    old: IntArray,
    mark: IntArray,
    step: int,
    rng: np.random.Generator,
) -> int:  # pragma: no cover - compiled
    """Move some groups; returns how many, with their numbers and where they were."""
    n_ops, n_places = graph.op_us.shape
    op = rng.integers(0, n_ops)
    group = graph.group[op]
    kind = rng.random()
    if kind < SWAP:
        other = rng.integers(0, len(graph.group_bytes))
        if other == group:
            return 0
        moved[0], moved[1] = group, other
        old[0], old[1] = place[group], place[other]
        place[group], place[other] = old[1], old[0]
        return 2
    near = _neighbour(graph, int(op), rng)
    if near < 0 or rng.random() < 0.1:
        moved[0], old[0] = group, place[group]
        place[group, 0] = rng.integers(0, n_places)
        place[group, 1] = rng.integers(0, n_slots)
        return 1
    target = place[graph.group[near]].copy()
    if (target == place[group]).all():
        if kind < SWAP + SHIFT:
            return 0
        target[0], target[1] = rng.integers(0, n_places), rng.integers(0, n_slots)
    if kind >= SWAP + SHIFT:
        moved[0], old[0] = group, place[group]
        place[group] = target
        return 1
    return _shift(graph, place, int(op), bool(near > op), target, moved, old, mark, step)


@njit(cache=True, nogil=True)
def _neighbour(
    graph: _Graph, op: int, rng: np.random.Generator
) -> int:  # pragma: no cover - compiled
    """An op that feeds another or reads of it; -1 if there is none."""
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
    moved: IntArray,
    old: IntArray,
    mark: IntArray,
    step: int,
) -> int:  # pragma: no cover - compiled
    """Move an op and what follows it in its piece, or precedes it, across the border."""
    source = place[graph.group[op]].copy()
    ptr, near = graph.in_ptr, graph.source
    if forward:
        ptr, near = graph.out_ptr, graph.target
    n, at = 1, 0
    moved[0], mark[op] = op, step
    while at < n:
        for edge in range(ptr[moved[at]], ptr[moved[at] + 1]):
            other = near[edge]
            if mark[other] != step and (place[graph.group[other]] == source).all():
                mark[other] = step
                moved[n] = other
                n += 1
        at += 1
    groups = 0
    for i in range(n):
        group = graph.group[moved[i]]
        if (place[group] == source).all():
            old[groups] = source
            place[group] = target
            moved[groups] = group
            groups += 1
    return groups


@njit(cache=True, nogil=True)
def _evaluate(
    graph: _Graph, scratch: _Scratch, place: IntArray, n_slots: int
) -> tuple[float, float]:  # pragma: no cover - compiled
    """The latency, and what annealing makes small; inf if pieces wait for each other."""
    n_ops, cpu = len(graph.group), graph.op_us.shape[1] - 1
    n_pieces = 2 * n_slots * cpu
    where, waiting, busy_us = scratch.where, scratch.waiting, scratch.busy_us
    waiting[:], scratch.ready_us[:], busy_us[:] = 0, 0.0, 0.0
    scratch.first[:], scratch.stamp[:] = -1, -1
    for op in range(n_ops):
        group = graph.group[op]
        gpu = place[group, 0]
        at = n_pieces + op
        if gpu < cpu:
            at = (gpu * 2 + graph.backward[op]) * n_slots + place[group, 1]
        where[op] = at
        busy_us[at] += graph.op_us[op, gpu]
        scratch.following[op], scratch.first[at] = scratch.first[at], op
    _send(graph, scratch, n_pieces)
    for op in range(n_ops):
        for edge in range(graph.out_ptr[op], graph.out_ptr[op + 1]):
            if where[graph.target[edge]] != where[op]:
                waiting[where[graph.target[edge]]] += 1
    for gpu in range(cpu):
        last = -1
        for at in range(2 * n_slots * gpu, 2 * n_slots * (gpu + 1)):
            if scratch.first[at] >= 0:
                scratch.next_piece[at] = -1
                if last >= 0:
                    scratch.next_piece[last] = at
                    waiting[at] += 1
                last = at
    return _play(graph, scratch, n_pieces)


@njit(cache=True, nogil=True)
def _send(graph: _Graph, scratch: _Scratch, n_pieces: int) -> None:  # pragma: no cover - compiled
    """Add to each piece the nets that cross its border, each once."""
    per_gpu = n_pieces // max(graph.net_us.shape[1], 1)
    for net in range(len(graph.net_us)):
        first, last = graph.net_ptr[net], graph.net_ptr[net + 1]
        home, crossing = scratch.where[graph.net_op[first]], False
        for pin in range(first + 1, last):
            crossing |= scratch.where[graph.net_op[pin]] != home
        if not crossing:
            continue
        for pin in range(first, last):
            at = scratch.where[graph.net_op[pin]]
            if at < n_pieces and scratch.stamp[at] != net:
                scratch.stamp[at] = net
                scratch.busy_us[at] += graph.net_us[net, at // per_gpu]


@njit(cache=True, nogil=True)
def _play(
    graph: _Graph, scratch: _Scratch, n_pieces: int
) -> tuple[float, float]:  # pragma: no cover - compiled
    """Run pieces and ops on CPUs as what they wait for ends."""
    where, waiting, ready_us, queue = (
        scratch.where,
        scratch.waiting,
        scratch.ready_us,
        scratch.queue,
    )
    filled, todo = 0, 0
    for at in range(len(waiting)):
        if scratch.first[at] >= 0:
            todo += 1
            if waiting[at] == 0:
                queue[filled] = at
                filled += 1
    done, latency_us, total_us, n_whole = 0, 0.0, 0.0, 0
    while done < filled:
        at = queue[done]
        done += 1
        finish = ready_us[at] + scratch.busy_us[at]
        latency_us = max(latency_us, finish)
        if at < n_pieces:
            total_us += finish
            n_whole += 1
            following = scratch.next_piece[at]
            if following >= 0:
                ready_us[following] = max(ready_us[following], finish)
                waiting[following] -= 1
                if waiting[following] == 0:
                    queue[filled] = following
                    filled += 1
        op = scratch.first[at]
        while op >= 0:
            for edge in range(graph.out_ptr[op], graph.out_ptr[op + 1]):
                other = where[graph.target[edge]]
                if other != at:
                    ready_us[other] = max(ready_us[other], finish)
                    waiting[other] -= 1
                    if waiting[other] == 0:
                        queue[filled] = other
                        filled += 1
            op = scratch.following[op]
    if done < todo:
        return np.inf, np.inf
    return latency_us, latency_us + _SPREAD * total_us / max(n_whole, 1)
