"""Moves of whole blocks: layers, runs of ops, and the neighbourhoods of a transfer's two ends.

Every candidate is ordered by the upward ranks under its own placement and simulated. A slightly
worse one is accepted, ever less so as time goes on (threshold accepting, Dueck and Scheuer 1990).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from enplace.machine.layout import Machine
from enplace.machine.memory import excess_bytes
from enplace.machine.ranks import placed_rank_us
from enplace.machine.timing import Timing, new_timing, simulate_priority
from enplace.values.arrays import BoolArray, FloatArray, IntArray

BLOCK_MOVES, RUN_MOVES = 0.35, 0.45
"""Share of the moves that move a block, and share that move a block or a run of ops."""

DRAWS = 50
"""How often an edge is drawn at most until one leads to another device."""


class Blocks(NamedTuple):
    """Sets of units that move together: those of block ``b`` are ``unit[ptr[b] : ptr[b + 1]]``.

    They are sorted by size, the smallest first.
    """

    ptr: IntArray
    unit: IntArray


class Accepting(NamedTuple):
    """How moves are tried.

    Attributes
    ----------
    links : int
        How channels choose: an index into :data:`enplace.values.plan.LINK_POLICIES`.
    ranked : bool
        Whether devices take their ops by the upward ranks that a placement gives them, or else in
        the given order, in which blocks then move as well.
    rounds : int
        Number of moves to try.
        Moves to try.
        By what share a move may make the current placement worse.
        How much worse than the current placement a move may make it, as a share.
    """

    links: int
    ranked: bool
    rounds: int
    threshold: float


@njit(cache=True, nogil=True)
def move_blocks(
    machine: Machine,
    blocks: Blocks,
    order: IntArray,
    device: IntArray,
    accepting: Accepting,
    draw: np.random.Generator,
    stop: BoolArray,
) -> tuple[float, int]:  # pragma: no cover - compiled
    """Try moves of blocks to other devices, or within the order.

    Parameters
    ----------
    order, device : int arrays, shape (n_ops,), changed in place
        The placement to begin from; afterwards the best one found, and the order of its starts.
    stop : bool array, shape (1,)
        Once true, no further move is tried.

    Returns
    -------
    float, int
        The makespan of the best one in µs, and its excess in bytes.
    """
    timing = new_timing(machine)
    key = np.empty(len(order))
    for at in range(len(order)):
        key[order[at]] = at
    now, trial, trial_key = device.copy(), device.copy(), key.copy()
    chosen = np.empty(len(machine.unit_ptr), np.int64)
    current = best = np.inf
    excess = best_excess = 0
    for attempt in range(accepting.rounds + 1):  # attempt 0 only measures the start
        if attempt > 0:
            if stop[0]:
                break
            count, to = _choose(machine, blocks, order, now, draw, chosen)
            trial[:], trial_key[:] = now, key
            moved = not accepting.ranked and draw.random() < 0.5
            if moved:
                _move_in_order(machine, chosen[:count], trial_key, draw)
            else:
                moved = _move_to(machine, chosen[:count], to, trial)
            if not moved:
                continue
        if accepting.ranked:
            trial_key = -placed_rank_us(machine, trial)
        position = _position_by(machine, trial_key)
        found = simulate_priority(machine, trial, position, accepting.links, timing)
        too_long = attempt > 0 and found > current * (1.0 + accepting.threshold)
        if too_long and excess == 0:
            continue
        found_excess = excess_bytes(machine, trial, timing)
        if attempt > 0 and (found_excess > excess or (found_excess == excess and too_long)):
            continue
        current, excess = found, found_excess
        now[:], key[:] = trial, trial_key
        better = excess < best_excess or (excess == best_excess and current < best)
        if attempt == 0 or better:
            best, best_excess = current, excess
            device[:], order[:] = trial, _order_by_start(machine, trial, timing)
    return best, best_excess


@njit(cache=True, nogil=True)
def _choose(
    machine: Machine,
    blocks: Blocks,
    order: IntArray,
    device: IntArray,
    draw: np.random.Generator,
    chosen: IntArray,
) -> tuple[int, int]:  # pragma: no cover - compiled
    """Choose units to move, and a device for them; return the number of units and the device."""
    kind = draw.random()
    to = int(draw.integers(0, len(machine.lanes)))
    if kind < BLOCK_MOVES and len(blocks.ptr) > 1:
        return _block(blocks, draw, chosen), to
    if kind < RUN_MOVES or len(machine.edge_op) == 0:
        return _run_of_ops(machine, order, device, draw, chosen), to
    one, other = _cut_edge(machine, device, draw)
    if draw.random() < 0.5:
        one, other = other, one
    return _neighbourhood(machine, device, one, draw, chosen), device[other]


@njit(cache=True, nogil=True)
def _block(
    blocks: Blocks, draw: np.random.Generator, chosen: IntArray
) -> int:  # pragma: no cover - compiled
    """Choose a block; all sizes are equally likely, though there are few large blocks."""
    sizes = np.diff(blocks.ptr)
    size = sizes[-1] ** draw.random()
    low = np.searchsorted(sizes, size / 1.5)
    high = np.searchsorted(sizes, size * 1.5)
    at = int(draw.integers(min(low, len(sizes) - 1), max(high, low + 1)))
    chosen[: sizes[at]] = blocks.unit[blocks.ptr[at] : blocks.ptr[at + 1]]
    return int(sizes[at])


@njit(cache=True, nogil=True)
def _run_of_ops(
    machine: Machine,
    order: IntArray,
    device: IntArray,
    draw: np.random.Generator,
    chosen: IntArray,
) -> int:  # pragma: no cover - compiled
    """Choose the units of consecutive ops on one device; return how many."""
    at = int(draw.integers(0, len(order)))
    most = min(2 ** int(draw.integers(1, 10)), len(chosen))
    where, count = device[order[at]], 0
    while at < len(order) and count < most:
        if device[order[at]] == where:
            chosen[count] = machine.unit[order[at]]
            count += 1
        at += 1
    return count


@njit(cache=True, nogil=True)
def _cut_edge(
    machine: Machine, device: IntArray, draw: np.random.Generator
) -> tuple[int, int]:  # pragma: no cover - compiled
    """Draw up to a few dozen edges until one leads to another device; return its ends."""
    source = target = 0
    for _ in range(DRAWS):
        edge = int(draw.integers(0, len(machine.edge_op)))
        tensor = np.searchsorted(machine.edge_ptr, edge, side="right") - 1
        source, target = machine.tensor_op[tensor], machine.edge_op[edge]
        if device[source] != device[target]:
            break
    return source, target


@njit(cache=True, nogil=True)
def _neighbourhood(
    machine: Machine, device: IntArray, op: int, draw: np.random.Generator, chosen: IntArray
) -> int:  # pragma: no cover - compiled
    """Choose units around an op, grown along the graph on its device; return how many."""
    most = min(2 ** int(draw.integers(0, 8)), len(chosen))
    where = device[op]
    chosen[0] = machine.unit[op]
    count, at = 1, 0
    while at < count and count < most:
        u = chosen[at]
        at += 1
        for member in machine.member[machine.unit_ptr[u] : machine.unit_ptr[u + 1]]:
            for i in range(machine.in_ptr[member], machine.in_ptr[member + 1]):
                near = machine.tensor_op[machine.in_tensor[i]]
                if device[near] == where and count < most:
                    chosen[count] = machine.unit[near]
                    count += 1
            for edge in range(machine.out_ptr[member], machine.out_ptr[member + 1]):
                near = machine.edge_op[edge]
                if device[near] == where and count < most:
                    chosen[count] = machine.unit[near]
                    count += 1
    return count


@njit(cache=True, nogil=True)
def _move_in_order(
    machine: Machine, units: IntArray, key: FloatArray, draw: np.random.Generator
) -> None:  # pragma: no cover - compiled
    """Move units forward or back in the order; short and long distances are equally likely."""
    by = (2.0 * draw.random() - 1.0) * 2.0 ** (draw.random() * np.log2(len(key)))
    for u in units:
        for member in machine.member[machine.unit_ptr[u] : machine.unit_ptr[u + 1]]:
            key[member] += by


@njit(cache=True, nogil=True)
def _move_to(
    machine: Machine, units: IntArray, to: int, device: IntArray
) -> bool:  # pragma: no cover - compiled
    """Move those units to a device that are allowed on it; return whether any op moves."""
    moved = False
    for u in units:
        if machine.allowed[u, to]:
            for member in machine.member[machine.unit_ptr[u] : machine.unit_ptr[u + 1]]:
                moved |= device[member] != to
                device[member] = to
    return moved


@njit(cache=True, nogil=True)
def _position_by(machine: Machine, key: FloatArray) -> IntArray:  # pragma: no cover - compiled
    """Return the position of each op by a key; ties follow the graph's own order."""
    topological = machine.topological_order
    position = np.empty(len(key), np.int64)
    for at, i in enumerate(np.argsort(key[topological], kind="mergesort")):
        position[topological[i]] = at
    return position


@njit(cache=True, nogil=True)
def _order_by_start(
    machine: Machine, device: IntArray, timing: Timing
) -> IntArray:  # pragma: no cover - compiled
    """Order ops by their starts.

    An op that takes no time stands just before its first consumer: otherwise its transfers would
    hold up the channels from the start.
    """
    key = timing.start_us.copy()
    for op in machine.topological_order[::-1]:
        if machine.time_us[op, device[op]] > 0.0:
            continue
        needed = np.inf
        for tensor in range(machine.tensor_ptr[op], machine.tensor_ptr[op + 1]):
            for edge in range(machine.edge_ptr[tensor], machine.edge_ptr[tensor + 1]):
                user = machine.edge_op[edge]
                here = device[user] == device[op]
                needed = min(needed, key[user] if here else timing.sent_us[tensor, device[user]])
        if needed < np.inf:
            key[op] = max(key[op], needed)
    return machine.topological_order[
        np.argsort(key[machine.topological_order], kind="mergesort")
    ]  # fmt: skip
