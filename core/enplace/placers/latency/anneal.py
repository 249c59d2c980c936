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

from enplace.compiling import helper, kernel, loop
from enplace.placers.latency.evaluate import (
    Graph,
    Scratch,
    evaluate,
    lay_out,
    new_scratch,
    places_us,
)
from enplace.placers.latency.groups import Groups
from enplace.placing.random_numbers import draw_below
from enplace.values.profile import FloatArray, IntArray

OPS_AT_ONCE = 5_000_000
"""Ops evaluated between two checks for whether to stop: some tenths of a second."""

HOT, COLD = 0.3, 0.0002
"""First and last temperature, as shares of the latency."""

SWAP, SHIFT = 0.15, 0.35
"""Shares of the kinds of steps; all other steps move one group."""


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
    return cool(groups, start, n_slots, steps, stopped, np.random.default_rng(seed), HOT, COLD)


def cool(
    groups: Groups,
    start: IntArray,
    n_slots: int,
    steps: int,
    stopped: Callable[[], bool],
    rng: np.random.Generator,
    hottest: float,
    coldest: float,
) -> IntArray:
    """Take steps from places that fit, ever cooler; return the best ones found.

    Parameters
    ----------
    hottest, coldest : float
        First and last temperature, as shares of the latency.
    """
    graph = lay_out(groups)
    place, best = start.copy(), start.copy()
    best_us = places_us(groups, start, n_slots)
    if not np.isfinite(best_us):
        return best
    at_once = max(1, OPS_AT_ONCE // groups.n_ops)
    for first in range(0, steps, at_once):
        if stopped():
            break
        n = min(at_once, steps - first)
        ends = (first / steps, (first + n) / steps)
        hot, cold = (best_us * hottest * (coldest / hottest) ** end for end in ends)
        best_us = _take_steps(
            graph, new_scratch(groups, n_slots), place, best, n_slots, n, hot, cold, rng
        )
    return best


@kernel
def _take_steps(
    graph: Graph,
    scratch: Scratch,
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
    best_us, _ = evaluate(graph, scratch, best, n_slots)
    _, energy = evaluate(graph, scratch, place, n_slots)
    cooling = (cold_us / hot_us) ** (1.0 / steps) if hot_us > 0 else 1.0
    temperature = hot_us
    for step in range(steps):
        temperature *= cooling
        n = _choose(graph, place, n_slots, moved, step, rng)
        # Memory is checked first: it is much cheaper than the latency.
        accepted = _move_bytes(graph, place, moved, n, free_bytes) and free_bytes.min() >= 0
        if accepted:
            latency_us, new = evaluate(graph, scratch, place, n_slots)
            accepted = new <= energy or rng.random() < np.exp((energy - new) / temperature)
        if accepted:
            energy = new
            if latency_us < best_us * (1 - 1e-12):
                best_us = latency_us
                best[:] = place
        else:
            _undo(graph, place, moved, n, free_bytes)
    return best_us


@loop
def _move_bytes(
    graph: Graph, place: IntArray, moved: _Step, n: int, free_bytes: FloatArray
) -> bool:  # pragma: no cover - compiled
    """Move the bytes of ``n`` groups; return whether all are allowed in their new places."""
    allowed = n > 0
    for i in range(n):
        group = moved.group[i]
        allowed &= graph.allowed[group, place[group, 0]]
        free_bytes[moved.old[i, 0]] += graph.group_bytes[group]
        free_bytes[place[group, 0]] -= graph.group_bytes[group]
    return allowed


@loop
def _undo(
    graph: Graph, place: IntArray, moved: _Step, n: int, free_bytes: FloatArray
) -> None:  # pragma: no cover - compiled
    """Move ``n`` groups back to where they were, and their bytes with them."""
    for i in range(n):
        group = moved.group[i]
        free_bytes[place[group, 0]] += graph.group_bytes[group]
        free_bytes[moved.old[i, 0]] -= graph.group_bytes[group]
        place[group, 0], place[group, 1] = moved.old[i, 0], moved.old[i, 1]


@helper
def _choose(
    graph: Graph,
    place: IntArray,
    n_slots: int,
    moved: _Step,
    step: int,
    rng: np.random.Generator,
) -> int:  # pragma: no cover - compiled
    """Move some groups, record them in ``moved``, and return their number."""
    n_ops, n_places = graph.op_us.shape
    op = draw_below(rng, n_ops)
    group = graph.group[op]
    kind = rng.random()
    if kind < SWAP:
        return _swap(place, group, draw_below(rng, len(graph.group_bytes)), moved)
    near = _neighbour(graph, op, rng)
    moved.group[0], moved.old[0] = group, place[group]
    # Most moves follow an edge, because only they save a transfer; some go anywhere, so that
    # every placement can be reached.
    if near < 0 or rng.random() < 0.1:
        place[group, 0] = draw_below(rng, n_places)
        place[group, 1] = draw_below(rng, n_slots)
        return 1
    target = place[graph.group[near]].copy()
    if (target == place[group]).all():
        if kind < SWAP + SHIFT:
            return 0
        target[0], target[1] = draw_below(rng, n_places), draw_below(rng, n_slots)
    if kind >= SWAP + SHIFT:
        place[group] = target
        return 1
    return _shift(graph, place, op, near > op, target, moved, step)


@helper
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


@loop
def _neighbour(
    graph: Graph, op: int, rng: np.random.Generator
) -> int:  # pragma: no cover - compiled
    """Draw a producer or consumer of an op; -1 if there is none."""
    before = graph.in_ptr[op + 1] - graph.in_ptr[op]
    after = graph.out_ptr[op + 1] - graph.out_ptr[op]
    if before + after == 0:
        return -1
    at = draw_below(rng, before + after)
    if at < before:
        return int(graph.source[graph.in_ptr[op] + at])
    return int(graph.target[graph.out_ptr[op] + at - before])


@helper
def _shift(
    graph: Graph,
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
