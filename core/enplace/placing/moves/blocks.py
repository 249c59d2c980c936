"""Moves of whole blocks: layers, runs of ops, and the neighbourhoods of a transfer's two ends.

Every candidate is ordered by the upward ranks under its own placement and simulated. A slightly
worse one is accepted, ever less so as time goes on (threshold accepting, Dueck and Scheuer 1990).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from enplace.compiling import helper, kernel, loop, step
from enplace.machine.layout import Machine
from enplace.machine.memory import find_excess, find_peak_ops
from enplace.machine.placement import STRICT
from enplace.machine.ranks import placed_rank_us
from enplace.machine.timing import Timing, new_timing, simulate_order
from enplace.placing.moves.thrifty import thrifty_start_us
from enplace.placing.random_numbers import draw_below
from enplace.values.arrays import BoolArray, FloatArray, IntArray

BLOCK_MOVES, RUN_MOVES = 0.35, 0.45
"""Share of the moves that move a block, and share that move a block or a run of ops."""

PEAK_MOVES = 0.5
"""Share of the moves that move what holds memory at the highest peak, if memory is exceeded."""

MOST_AT_PEAK, MOST_NEAR = 3, 8
"""Bits of the largest neighbourhood that moves from a peak, and from a transfer's ends."""

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
    policy, links : int
        How devices and channels choose: indices into :data:`enplace.values.plan.POLICIES` and
        :data:`~enplace.values.plan.LINK_POLICIES`. Devices that follow their lists strictly keep
        the given order.
    ranked : bool
        Whether devices take their ops by the upward ranks that a placement gives them, or else in
        the given order, in which blocks then move as well unless it is kept.
    room : float
        If positive, they take, of those ranked, what has room first; this share of the memory
        counts as room.
    rounds : int
        Number of moves to try.
    threshold : float
        How much worse than the current placement a move may make it, as a share.
    slack : float
        How much longer it may make it for less excess, as a share.
    """

    policy: int
    links: int
    ranked: bool
    room: float
    rounds: int
    threshold: float
    slack: float


def move_blocks(
    machine: Machine,
    blocks: Blocks,
    order: IntArray,
    device: IntArray,
    accepting: Accepting,
    draw: np.random.Generator,
    stop: BoolArray,
) -> tuple[float, int]:
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
    makespan_us, excess = _move_blocks(
        machine, blocks, order, device, accepting, draw, stop, timing
    )
    return makespan_us, excess


@kernel
def _move_blocks(
    machine: Machine,
    blocks: Blocks,
    order: IntArray,
    device: IntArray,
    accepting: Accepting,
    draw: np.random.Generator,
    stop: BoolArray,
    timing: Timing,
) -> tuple[float, int]:  # pragma: no cover - compiled
    """Try moves one after another; see :func:`move_blocks`."""
    n_ops, topological = len(order), machine.topological_order
    now, key, trial, trial_key = device.copy(), np.empty(n_ops), device.copy(), np.empty(n_ops)
    chosen, position = np.empty(n_ops + 1, np.int64), np.empty(n_ops, np.int64)
    for at in range(n_ops):
        key[order[at]] = at
    _copy(now, key, trial, trial_key)
    peak_ops, n_peak = np.empty(n_ops + len(machine.tensor_op) + len(machine.edge_op), np.int64), 0
    current = best = np.inf
    excess = best_excess = 0
    for attempt in range(accepting.rounds + 1):  # attempt 0 only measures the start
        if attempt > 0:
            if stop[0]:
                break
            _copy(now, key, trial, trial_key)
            at_peak = peak_ops[:n_peak]
            if not _try_move(
                machine, blocks, accepting, order, at_peak, trial, trial_key, chosen, draw
            ):
                continue
        if accepting.ranked:
            rank_us = placed_rank_us(machine, trial)
            for op in range(n_ops):
                trial_key[op] = -rank_us[op]
            if accepting.room > 0.0:
                trial_key[:] = thrifty_start_us(machine, trial, rank_us, accepting.room)
        by_key = _sort_by(topological, trial_key)
        for at in range(n_ops):
            position[by_key[at]] = at
        found = simulate_order(machine, trial, position, accepting.policy, accepting.links, timing)
        # The excess is costly to find, and not needed for what is too long anyway.
        too_long = attempt > 0 and found > current * (1.0 + accepting.threshold)
        if too_long and (excess == 0 or found > current * (1.0 + accepting.slack)):
            continue
        found_excess = find_excess(machine, trial, timing)
        if attempt > 0 and (found_excess > excess or (found_excess == excess and too_long)):
            continue
        current, excess = found, found_excess
        n_peak = 0 if excess == 0 else find_peak_ops(machine, trial, timing, peak_ops)
        _copy(trial, trial_key, now, key)
        better = excess < best_excess or (excess == best_excess and current < best)
        if attempt == 0 or better:
            best, best_excess = current, excess
            _find_start_keys(machine, trial, timing, trial_key)
            by_start = _sort_by(topological, trial_key)
            for op in range(n_ops):
                device[op], order[op] = trial[op], by_start[op]
    return best, best_excess


@loop
def _copy(
    device: IntArray, key: FloatArray, to_device: IntArray, to_key: FloatArray
) -> None:  # pragma: no cover - compiled
    """Copy a placement and the keys that order it."""
    for op in range(len(device)):
        to_device[op], to_key[op] = device[op], key[op]


@loop
def _try_move(
    m: Machine,
    blocks: Blocks,
    accepting: Accepting,
    order: IntArray,
    at_peak: IntArray,
    device: IntArray,
    key: FloatArray,
    chosen: IntArray,
    draw: np.random.Generator,
) -> bool:  # pragma: no cover - compiled
    """Move some units to another device, or within the order; return whether any op moves."""
    count, to = _choose(m, blocks, order, at_peak, device, draw, chosen)
    has_order = not accepting.ranked and accepting.policy != STRICT
    moved = has_order and draw.random() < 0.5
    if moved:
        _move_in_order(m, chosen, count, key, draw)
    else:
        moved = _move_to(m, chosen, count, to, device)
    return moved


@loop
def _choose(
    m: Machine,
    blocks: Blocks,
    order: IntArray,
    at_peak: IntArray,
    device: IntArray,
    draw: np.random.Generator,
    chosen: IntArray,
) -> tuple[int, int]:  # pragma: no cover - compiled
    """Choose units to move, and a device for them; return the number of units and the device.

    Ops that hold memory at a peak (``at_peak``) are chosen most often.
    """
    if len(at_peak) > 0 and draw.random() < PEAK_MOVES:
        to, op = draw_below(draw, len(m.lanes)), at_peak[draw_below(draw, len(at_peak))]
        return _choose_neighbourhood(m, device, op, MOST_AT_PEAK, draw, chosen), to
    kind = draw.random()
    to = draw_below(draw, len(m.lanes))
    if kind < BLOCK_MOVES and len(blocks.ptr) > 1:
        count = _choose_block(blocks, draw, chosen)
    elif kind < RUN_MOVES or len(m.edge_op) == 0:
        count = _choose_run(m, order, device, draw, chosen)
    else:
        one, other = _cut_edge(m, device, draw)
        if draw.random() < 0.5:
            one, other = other, one
        count = _choose_neighbourhood(m, device, one, MOST_NEAR, draw, chosen)
        to = device[other]
    return count, to


@step
def _choose_block(
    blocks: Blocks, draw: np.random.Generator, chosen: IntArray
) -> int:  # pragma: no cover - compiled
    """Choose a block; all sizes are equally likely, though there are few large blocks."""
    n_blocks = len(blocks.ptr) - 1
    largest = blocks.ptr[n_blocks] - blocks.ptr[n_blocks - 1]
    size = largest ** draw.random()
    low = high = 0
    for block in range(n_blocks):
        length = blocks.ptr[block + 1] - blocks.ptr[block]
        low += length < size / 1.5
        high += length < size * 1.5
    first = min(low, n_blocks - 1)
    at = first + draw_below(draw, max(high, low + 1) - first)
    length = blocks.ptr[at + 1] - blocks.ptr[at]
    for i in range(length):
        chosen[i] = blocks.unit[blocks.ptr[at] + i]
    return int(length)


@step
def _choose_run(
    m: Machine,
    order: IntArray,
    device: IntArray,
    draw: np.random.Generator,
    chosen: IntArray,
) -> int:  # pragma: no cover - compiled
    """Choose the units of consecutive ops on one device; return how many."""
    at = draw_below(draw, len(order))
    most = min(2 << draw_below(draw, int(np.int64(9))), len(m.unit_ptr))
    where, count = device[order[at]], 0
    while at < len(order) and count < most:
        if device[order[at]] == where:
            chosen[count] = m.unit[order[at]]
            count += 1
        at += 1
    return count


@step
def _cut_edge(
    m: Machine, device: IntArray, draw: np.random.Generator
) -> tuple[int, int]:  # pragma: no cover - compiled
    """Draw up to a few dozen edges until one leads to another device; return its ends."""
    source = target = 0
    for _ in range(DRAWS):
        edge = draw_below(draw, len(m.edge_op))
        tensor, end = 0, len(m.tensor_op)
        while end - tensor > 1:  # bisection
            middle = (tensor + end) >> 1
            if m.edge_ptr[middle] <= edge:
                tensor = middle
            else:
                end = middle
        source, target = m.tensor_op[tensor], m.edge_op[edge]
        if device[source] != device[target]:
            break
    return source, target


@step
def _choose_neighbourhood(
    m: Machine, device: IntArray, op: int, bits: int, draw: np.random.Generator, chosen: IntArray
) -> int:  # pragma: no cover - compiled
    """Choose units around an op, grown along the graph on its device; return how many."""
    most = min(1 << draw_below(draw, int(np.int64(bits))), len(m.unit_ptr))
    where = device[op]
    chosen[0] = m.unit[op]
    count, at = 1, 0
    while at < count and count < most:
        u = chosen[at]
        at += 1
        for i in range(m.unit_ptr[u], m.unit_ptr[u + 1]):
            member = m.member[i]
            for k in range(m.in_ptr[member], m.in_ptr[member + 1]):
                near = m.tensor_op[m.in_tensor[k]]
                if device[near] == where and count < most:
                    chosen[count] = m.unit[near]
                    count += 1
            for edge in range(m.out_ptr[member], m.out_ptr[member + 1]):
                near = m.edge_op[edge]
                if device[near] == where and count < most:
                    chosen[count] = m.unit[near]
                    count += 1
    return count


@step
def _move_in_order(
    m: Machine, chosen: IntArray, count: int, key: FloatArray, draw: np.random.Generator
) -> None:  # pragma: no cover - compiled
    """Move units forward or back in the order; short and long distances are equally likely."""
    by = (2.0 * draw.random() - 1.0) * 2.0 ** (draw.random() * np.log2(len(key)))
    for k in range(count):
        for i in range(m.unit_ptr[chosen[k]], m.unit_ptr[chosen[k] + 1]):
            key[m.member[i]] += by


@step
def _move_to(
    m: Machine, chosen: IntArray, count: int, to: int, device: IntArray
) -> bool:  # pragma: no cover - compiled
    """Move those units to a device that are allowed on it; return whether any op moves."""
    moved = False
    for k in range(count):
        if m.allowed[chosen[k], to]:
            for i in range(m.unit_ptr[chosen[k]], m.unit_ptr[chosen[k] + 1]):
                moved |= device[m.member[i]] != to
                device[m.member[i]] = to
    return moved


@helper
def _sort_by(topological: IntArray, key: FloatArray) -> IntArray:  # pragma: no cover - compiled
    """Sort ops by a key; ties follow the graph's own order."""
    order, sorted_key = np.empty(len(key), np.int64), np.empty(len(key))
    for at in range(len(key)):
        sorted_key[at] = key[topological[at]]
    rank = np.argsort(sorted_key, kind="mergesort")
    for at in range(len(key)):
        order[at] = topological[rank[at]]
    return order


@loop
def _find_start_keys(
    m: Machine, device: IntArray, timing: Timing, key: FloatArray
) -> None:  # pragma: no cover - compiled
    """Write the start of each op.

    An op that takes no time stands just before its first consumer: otherwise its transfers would
    hold up the channels from the start.
    """
    for at in range(len(key) - 1, -1, -1):
        op = m.topological_order[at]
        key[op] = timing.start_us[op]
        if m.time_us[op, device[op]] > 0.0:
            continue
        needed = np.inf
        for tensor in range(m.tensor_ptr[op], m.tensor_ptr[op + 1]):
            for edge in range(m.edge_ptr[tensor], m.edge_ptr[tensor + 1]):
                user = m.edge_op[edge]
                here = device[user] == device[op]
                needed = min(needed, key[user] if here else timing.sent_us[tensor, device[user]])
        if needed < np.inf:
            key[op] = max(key[op], needed)
