"""Moves of whole blocks: layers, runs of ops, and what lies at the ends of a transfer.

Every candidate is ordered by the upward ranks under its own placement and played by the simulator.
A little worse is accepted at first, less and less later (threshold accepting, Dueck and Scheuer
1990).
"""

from __future__ import annotations

import numpy as np
from numba import njit

from enplace.machine.kernel import LINK_PRIORITY, PRIORITY, _run
from enplace.machine.layout import list_transfers
from enplace.machine.search_layout import Graph, lacking_bytes
from enplace.values.problem import BoolArray
from enplace.values.profile import FloatArray, IntArray


@njit(cache=True, nogil=True)
def placed_ranks(
    g: Graph, topological: IntArray, device: IntArray
) -> FloatArray:  # pragma: no cover - compiled
    """Upward rank under a placement: true times, and only transfers that take place."""
    rank = np.zeros(len(device))
    for op in topological[::-1]:
        d = device[op]
        longest = 0.0
        for tensor in range(g.tensor_ptr[op], g.tensor_ptr[op + 1]):
            for edge in range(g.edge_ptr[tensor], g.edge_ptr[tensor + 1]):
                user = g.edge_op[edge]
                to = device[user]
                after = rank[user]
                if to != d:
                    after += g.b0_us[d, to] + g.b1_us_per_byte[d, to] * g.tensor_bytes[tensor]
                longest = max(longest, after)
        rank[op] = longest + g.time_us[op, d]
    return rank


@njit(cache=True, nogil=True)
def dispatch(
    g: Graph,
    lanes: IntArray,
    owner: IntArray,
    in_degree: IntArray,
    device: IntArray,
    position: IntArray,
    links: int,
    finish_us: FloatArray,
    start_us: FloatArray,
    arrival_us: FloatArray,
    sent_us: FloatArray,
) -> float:  # pragma: no cover - compiled
    """Play a placement in the simulator, ops by priority."""
    n_ops, n_devices = len(device), len(lanes)
    ptr, tensor_of, target, first = list_transfers(
        device, position, n_devices, g.tensor_op, g.edge_ptr, g.edge_op
    )
    n_transfers = len(tensor_of)
    link, duration = np.empty(n_transfers, np.int64), np.empty(n_transfers)
    for x in range(n_transfers):
        home = device[g.tensor_op[tensor_of[x]]]
        link[x] = home * n_devices + target[x]
        rate = g.b1_us_per_byte[home, target[x]]
        duration[x] = g.b0_us[home, target[x]] + rate * g.tensor_bytes[tensor_of[x]]
    heap_ptr = np.zeros(n_devices + 1, np.int64)
    time_us = np.empty(n_ops)
    for op in range(n_ops):
        heap_ptr[owner[device[op]] + 1] += 1
        time_us[op] = g.time_us[op, device[op]]
    heap_ptr = np.cumsum(heap_ptr)
    none = np.zeros(0, np.int64)
    ranked, rank, channel_ptr, queue = none, none, np.zeros(g.n_channels + 1, np.int64), none
    if links == LINK_PRIORITY:
        ranked = np.argsort(first, kind="mergesort")
        rank, queue = np.empty(n_transfers, np.int64), np.empty(n_transfers, np.int64)
        for i in range(n_transfers):
            rank[ranked[i]] = i
            channel_ptr[g.route[g.route_ptr[link[i]]] + 1] += 1
        channel_ptr = np.cumsum(channel_ptr)
    lane = np.zeros(n_ops, np.int64)
    sent_start, sent_finish = np.zeros(n_transfers), np.zeros(n_transfers)
    _run(
        device, position, time_us, in_degree.copy(), lanes, owner, heap_ptr, g.tensor_ptr,
        g.edge_ptr, g.edge_op, ptr, tensor_of, target, duration, link, g.route_ptr, g.route,
        none, none, rank, ranked, channel_ptr, queue, PRIORITY, links,
        start_us, finish_us, lane, sent_start, sent_finish,
    )  # fmt: skip
    arrival_us[:] = -1.0
    longest = float(finish_us.max())
    for x in range(n_transfers):
        arrival_us[tensor_of[x], target[x]] = sent_finish[x]
        sent_us[tensor_of[x], target[x]] = sent_start[x]
        longest = max(longest, sent_finish[x])
    return longest


@njit(cache=True, nogil=True)
def _run_of_ops(
    g: Graph, order: IntArray, device: IntArray, draw: np.random.Generator, chosen: IntArray
) -> int:  # pragma: no cover - compiled
    """Choose the units of ops that follow each other on one device; return how many."""
    at = int(draw.integers(0, len(order)))
    most = min(2 ** int(draw.integers(1, 10)), len(chosen))
    where, count = device[order[at]], 0
    while at < len(order) and count < most:
        if device[order[at]] == where:
            chosen[count] = g.unit[order[at]]
            count += 1
        at += 1
    return count


@njit(cache=True, nogil=True)
def _cut_edge(
    g: Graph, device: IntArray, draw: np.random.Generator
) -> tuple[int, int]:  # pragma: no cover - compiled
    """Draw edges until one leads to another device, a few dozen at most; return its ends."""
    source = target = 0
    for _ in range(50):
        edge = int(draw.integers(0, len(g.edge_op)))
        tensor = np.searchsorted(g.edge_ptr, edge, side="right") - 1
        source, target = g.tensor_op[tensor], g.edge_op[edge]
        if device[source] != device[target]:
            break
    return source, target


@njit(cache=True, nogil=True)
def _neighbourhood(
    g: Graph, device: IntArray, op: int, draw: np.random.Generator, chosen: IntArray
) -> int:  # pragma: no cover - compiled
    """Choose units around an op, grown along the graph on its device; return how many."""
    most = min(2 ** int(draw.integers(0, 8)), len(chosen))
    where = device[op]
    chosen[0] = g.unit[op]
    count, at = 1, 0
    while at < count and count < most:
        u = chosen[at]
        at += 1
        for member in g.member[g.unit_ptr[u] : g.unit_ptr[u + 1]]:
            for tensor in g.in_tensor[g.in_ptr[member] : g.in_ptr[member + 1]]:
                near = g.tensor_op[tensor]
                if device[near] == where and count < most:
                    chosen[count] = g.unit[near]
                    count += 1
            first, end = g.tensor_ptr[member], g.tensor_ptr[member + 1]
            for near in g.edge_op[g.edge_ptr[first] : g.edge_ptr[end]]:
                if device[near] == where and count < most:
                    chosen[count] = g.unit[near]
                    count += 1
    return count


@njit(cache=True, nogil=True)
def _order_by_start(
    g: Graph,
    topological: IntArray,
    device: IntArray,
    start_us: FloatArray,
    sent_us: FloatArray,
    order: IntArray,
) -> None:  # pragma: no cover - compiled
    """Write the order in which ops start.

    An op that takes no time stands where it is needed first: what it sends would otherwise hold up
    the channels from the start.
    """
    key = start_us.copy()
    for op in topological[::-1]:
        if g.time_us[op, device[op]] > 0.0:
            continue
        needed = np.inf
        for tensor in range(g.tensor_ptr[op], g.tensor_ptr[op + 1]):
            for user in g.edge_op[g.edge_ptr[tensor] : g.edge_ptr[tensor + 1]]:
                here = device[user] == device[op]
                needed = min(needed, key[user] if here else sent_us[tensor, device[user]])
        if needed < np.inf:
            key[op] = max(key[op], needed)
    order[:] = topological[np.argsort(key[topological], kind="mergesort")]


@njit(cache=True, nogil=True)
def move_blocks(
    g: Graph,
    lanes: IntArray,
    owner: IntArray,
    in_degree: IntArray,
    topological: IntArray,
    block_ptr: IntArray,
    block: IntArray,
    order: IntArray,
    device: IntArray,
    links: int,
    ranked: bool,
    rounds: int,
    threshold: float,
    draw: np.random.Generator,
    stop: BoolArray,
) -> tuple[float, int]:  # pragma: no cover - compiled
    """Try moves of blocks to other devices, or within the order.

    Parameters
    ----------
    block_ptr, block : int arrays
        Units of block ``b`` are ``block[block_ptr[b] : block_ptr[b + 1]]``; sizes ascend.
    order, device : int arrays, shape (n_ops,), changed in place
        The placement to begin from; afterwards the best found, and the order in which ops start.
    links : int
        How channels serve, as in the simulator: first come first, or the most urgent first.
    ranked : bool
        Whether devices take their ops by the upward ranks that a placement gives them; else in the
        order that is given, in which blocks move as well.
    rounds : int
        Moves to try.
    threshold : float
        How much worse than the current placement a move may make it, as a share.
    stop : bool array, shape (1,)
        Once true, no further move is tried.

    Returns
    -------
    float, int
        The makespan of the best in µs, and the bytes it lacks.
    """
    n_ops, n_devices, n_tensors = len(order), len(lanes), len(g.tensor_op)
    finish, start = np.empty(n_ops), np.empty(n_ops)
    arrival, sent = np.empty((n_tensors, n_devices)), np.empty((n_tensors, n_devices))
    position = np.empty(n_ops, np.int64)
    key = np.empty(n_ops)
    for at in range(n_ops):
        key[order[at]] = at
    trial_key = key.copy()
    now, trial = device.copy(), device.copy()
    chosen = np.empty(len(g.unit_ptr), np.int64)
    n_blocks, sizes = len(block_ptr) - 1, np.diff(block_ptr)
    current = best = np.inf
    lacking = best_lacking = 0
    for attempt in range(rounds + 1):  # attempt 0 only measures what there is
        if attempt > 0:
            if stop[0]:
                break
            kind = draw.random()
            to = int(draw.integers(0, n_devices))
            if kind < 0.35 and n_blocks > 0:
                # Blocks of every size are as likely, few though the large ones are.
                size = sizes[-1] ** draw.random()
                low = np.searchsorted(sizes, size / 1.5)
                high = np.searchsorted(sizes, size * 1.5)
                at = int(draw.integers(min(low, n_blocks - 1), max(high, low + 1)))
                count = block_ptr[at + 1] - block_ptr[at]
                chosen[:count] = block[block_ptr[at] : block_ptr[at + 1]]
            elif kind < 0.45 or len(g.edge_op) == 0:
                count = _run_of_ops(g, order, now, draw, chosen)
            else:
                one, other = _cut_edge(g, now, draw)
                if draw.random() < 0.5:
                    one, other = other, one
                to = now[other]
                count = _neighbourhood(g, now, one, draw, chosen)
            trial[:] = now
            trial_key[:] = key
            moved = not ranked and draw.random() < 0.5
            if moved:
                by = (2.0 * draw.random() - 1.0) * 2.0 ** (draw.random() * np.log2(n_ops))
                for u in chosen[:count]:
                    for member in g.member[g.unit_ptr[u] : g.unit_ptr[u + 1]]:
                        trial_key[member] += by
            else:
                for u in chosen[:count]:
                    if g.allowed[u, to]:
                        for member in g.member[g.unit_ptr[u] : g.unit_ptr[u + 1]]:
                            moved |= trial[member] != to
                            trial[member] = to
            if not moved:
                continue
        if ranked:
            trial_key = -placed_ranks(g, topological, trial)
        by_key = topological[np.argsort(trial_key[topological], kind="mergesort")]
        for at in range(n_ops):
            position[by_key[at]] = at
        found = dispatch(
            g, lanes, owner, in_degree, trial, position, links, finish, start, arrival, sent
        )
        too_long = attempt > 0 and found > current * (1.0 + threshold)
        if too_long and lacking == 0:
            continue
        lacks = lacking_bytes(g, trial, finish, arrival, sent)
        if attempt > 0 and (lacks > lacking or (lacks == lacking and too_long)):
            continue
        current, lacking = found, lacks
        now[:], key[:] = trial, trial_key
        if attempt == 0 or lacks < best_lacking or (lacks == best_lacking and found < best):
            best, best_lacking = found, lacks
            device[:] = trial
            _order_by_start(g, topological, trial, start, sent, order)
    return best, best_lacking
