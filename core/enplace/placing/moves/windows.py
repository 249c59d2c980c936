"""Windowed annealing: placement and order of a few dozen ops at a time, the rest standing still.

The state is a placement and one order of all ops (see :func:`enplace.machine.search_layout.play`).
A window is a run of consecutive ops. What came before it is frozen; what comes after counts through
its tails, the time from each op to the end of the schedule. Inside, simulated annealing moves one
unit, a connected cluster, or an op in the order. The outcome is kept if the whole schedule, played
anew, is no longer than before and fits in memory.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from enplace.machine.search_layout import Graph, first_free, lacking_bytes, play, send, tails
from enplace.values.problem import BoolArray
from enplace.values.profile import IntArray


@njit(cache=True, nogil=True)
def sweep(
    g: Graph,
    order: IntArray,
    device: IntArray,
    first: int,
    width: int,
    stride: int,
    n_windows: int,
    rounds: int,
    hot: float,
    cold: float,
    spread: float,
    draw: np.random.Generator,
    stop: BoolArray,
) -> tuple[float, int]:  # pragma: no cover - compiled
    """Anneal windows one after another from position ``first`` on, around the end if need be.

    Parameters
    ----------
    order, device : int arrays, shape (n_ops,), changed in place
        A topological order and a placement.
    width, stride : int
        Ops in a window, and from one window to the next.
    n_windows, rounds : int
        How many windows, and moves tried in each.
    stop : bool array, shape (1,)
        Once true, the current window is the last.

    Returns
    -------
    float, int
        The makespan of what is left in ``order`` and ``device``, in µs, and the bytes it lacks.
    """
    n_ops, n_devices = len(order), len(g.lane_ptr)
    n_tensors = len(g.tensor_op)
    time_us, unit, unit_ptr, member, allowed = g.time_us, g.unit, g.unit_ptr, g.member, g.allowed
    tensor_ptr, edge_ptr, edge_op = g.tensor_ptr, g.edge_ptr, g.edge_op
    in_ptr, in_tensor, tensor_op = g.in_ptr, g.in_tensor, g.tensor_op
    lane_ptr, lane_end = g.lane_ptr, g.lane_end
    n_lanes = lane_end.max()
    finish, arrival = np.empty(n_ops), np.full((n_tensors, n_devices), -1.0)
    sent = np.empty((n_tensors, n_devices))
    lane_free, channel_free = np.empty(n_lanes), np.empty(g.n_channels)
    lane_now, channel_now = np.empty(n_lanes), np.empty(g.n_channels)
    head, lane_tail, channel_tail = np.empty(n_ops), np.empty(n_lanes), np.empty(g.n_channels)
    late, late_of = np.empty((n_tensors, n_devices)), np.full((n_tensors, n_devices), -1)
    position = np.empty(n_ops, np.int64)
    for at in range(n_ops):
        position[order[at]] = at
    last_start, last_now = np.empty(n_devices), np.empty(n_devices)
    makespan = play(
        g, order, n_ops, device, finish, arrival, sent, lane_free, channel_free, last_start
    )
    lacking = lacking_bytes(g, device, finish, arrival, sent)
    kept_order, kept_device = order.copy(), device.copy()
    width = min(width, n_ops)
    w_order, best_order = np.empty(width, np.int64), np.empty(width, np.int64)
    cluster, in_cluster = np.empty(width, np.int64), np.full(n_ops, -1)
    was, was_device = np.empty(width, np.int64), np.empty(width, np.int64)
    best_device = np.empty(width, np.int64)
    turn, grown = 0, 0

    for number in range(n_windows):
        if stop[0]:
            break
        a = (first + number * stride) % max(1, n_ops - width // 2)
        b = min(n_ops, a + width)
        w = b - a
        play(g, order, a, device, finish, arrival, sent, lane_free, channel_free, last_start)
        tails(g, order, b, device, head, lane_tail, channel_tail)
        mean = 0.0
        for i in range(w):
            w_order[i] = order[a + i]
            mean += time_us[w_order[i], device[w_order[i]]]
        mean = max(mean / w, 1e-9)
        for i in range(w):
            best_device[i] = device[w_order[i]]
        best_order[:w] = w_order[:w]
        current = best = np.inf
        cooling = (cold / hot) ** (1.0 / max(1, rounds))
        temperature = hot * mean
        for attempt in range(rounds + 1):
            # Change something; attempt 0 only measures what there is.
            n_moved, shifted_from, shifted_to = 0, -1, -1
            if attempt > 0:
                temperature *= cooling
                i = int(draw.integers(0, w))
                op = w_order[i]
                kind = draw.random()
                if kind < 0.4:
                    low, high = 0, w - 1
                    for k in range(in_ptr[op], in_ptr[op + 1]):
                        p = position[tensor_op[in_tensor[k]]] - a
                        if p >= low:
                            low = p + 1
                    for k in range(edge_ptr[tensor_ptr[op]], edge_ptr[tensor_ptr[op + 1]]):
                        p = position[edge_op[k]] - a
                        if p <= high:
                            high = p - 1
                    if high <= low:
                        continue
                    j = low + int(draw.integers(0, high - low + 1))
                    if j == i:
                        continue
                    shifted_from, shifted_to = i, j
                    step = 1 if j > i else -1
                    k = i
                    while k != j:
                        w_order[k] = w_order[k + step]
                        position[w_order[k]] = a + k
                        k += step
                    w_order[j] = op
                    position[op] = a + j
                else:
                    d = device[op]
                    to = int(draw.integers(0, n_devices))
                    if to == d:
                        continue
                    limit = 1 if kind < 0.7 else int(draw.integers(1, 13))
                    grown += 1
                    cluster[0] = op
                    in_cluster[op] = grown
                    n_cluster, at = 1, 0
                    while at < n_cluster and n_cluster < limit:
                        node = cluster[at]
                        at += 1
                        for k in range(in_ptr[node], in_ptr[node + 1]):
                            near = tensor_op[in_tensor[k]]
                            if (
                                n_cluster < limit and a <= position[near] < b
                                and in_cluster[near] != grown and device[near] == d
                            ):  # fmt: skip
                                in_cluster[near] = grown
                                cluster[n_cluster] = near
                                n_cluster += 1
                        for k in range(edge_ptr[tensor_ptr[node]], edge_ptr[tensor_ptr[node + 1]]):
                            near = edge_op[k]
                            if (
                                n_cluster < limit and a <= position[near] < b
                                and in_cluster[near] != grown and device[near] == d
                            ):  # fmt: skip
                                in_cluster[near] = grown
                                cluster[n_cluster] = near
                                n_cluster += 1
                    movable = True
                    for k in range(n_cluster):
                        u = unit[cluster[k]]
                        movable &= allowed[u, to]
                        for m in range(unit_ptr[u], unit_ptr[u + 1]):
                            other = member[m]
                            if position[other] < a or position[other] >= b:
                                movable = False
                            elif in_cluster[other] != grown:
                                if n_cluster == width:
                                    movable = False
                                else:
                                    in_cluster[other] = grown
                                    cluster[n_cluster] = other
                                    n_cluster += 1
                    if not movable:
                        continue
                    for k in range(n_cluster):
                        was[k], was_device[k] = cluster[k], device[cluster[k]]
                        device[cluster[k]] = to
                    n_moved = n_cluster
            # Play the window.
            turn += 1
            lane_now[:] = lane_free
            channel_now[:] = channel_free
            last_now[:] = last_start
            longest = 0.0
            for i in range(w):
                op = w_order[i]
                d = device[op]
                ready = last_now[d]
                for k in range(in_ptr[op], in_ptr[op + 1]):
                    tensor = in_tensor[k]
                    maker = tensor_op[tensor]
                    home = device[maker]
                    if home == d:
                        there = finish[maker]
                    elif late_of[tensor, d] == turn:
                        there = late[tensor, d]
                    elif position[maker] < a and arrival[tensor, d] >= 0.0:
                        there = arrival[tensor, d]
                    else:
                        there = send(g, tensor, home, d, finish[maker], channel_now)[1]
                        late[tensor, d], late_of[tensor, d] = there, turn
                    ready = max(ready, there)
                lane = first_free(lane_now, lane_ptr[d], lane_end[d])
                begin = max(ready, lane_now[lane])
                done = begin + time_us[op, d]
                last_now[d] = begin
                lane_now[lane] = done
                finish[op] = done
                for tensor in range(tensor_ptr[op], tensor_ptr[op + 1]):
                    for edge in range(edge_ptr[tensor], edge_ptr[tensor + 1]):
                        user = edge_op[edge]
                        to = device[user]
                        there = done
                        if to != d:
                            if late_of[tensor, to] != turn:
                                late[tensor, to] = send(g, tensor, d, to, done, channel_now)[1]
                                late_of[tensor, to] = turn
                            there = late[tensor, to]
                        if position[user] >= b:
                            longest = max(longest, there + head[user])
            mean_end = 0.0
            for d in range(n_devices):
                end = lane_now[lane_ptr[d]] + lane_tail[lane_ptr[d]]
                longest = max(longest, end)
                mean_end += end
            for channel in range(len(channel_now)):
                longest = max(longest, channel_now[channel] + channel_tail[channel])
            energy = longest + spread * mean_end / n_devices
            if (
                energy <= current
                or draw.random() < np.exp((current - energy) / temperature)
            ):  # fmt: skip
                current = energy
                if energy < best - 1e-9:
                    best = energy
                    best_order[:w] = w_order[:w]
                    for i in range(w):
                        best_device[i] = device[w_order[i]]
                continue
            # Undo.
            if shifted_from >= 0:
                op = w_order[shifted_to]
                step = 1 if shifted_from > shifted_to else -1
                k = shifted_to
                while k != shifted_from:
                    w_order[k] = w_order[k + step]
                    position[w_order[k]] = a + k
                    k += step
                w_order[shifted_from] = op
                position[op] = a + shifted_from
            for k in range(n_moved):
                device[was[k]] = was_device[k]
        for i in range(w):
            order[a + i] = best_order[i]
            device[best_order[i]] = best_device[i]
        found = play(
            g, order, n_ops, device, finish, arrival, sent, lane_free, channel_free, last_start
        )
        if g.shares_channels and found <= makespan:
            # What shares a channel is sent as it is made: only in that order is the play true.
            order[:] = order[np.argsort(finish[order], kind="mergesort")]
            found = play(
                g, order, n_ops, device, finish, arrival, sent, lane_free, channel_free, last_start
            )
        lacks = lacking
        if found <= makespan or lacking > 0:
            lacks = lacking_bytes(g, device, finish, arrival, sent)
        if lacks < lacking or (lacks == lacking and found <= makespan):
            makespan, lacking = found, lacks
            kept_order[:] = order
            kept_device[:] = device
        else:
            order[:] = kept_order
            device[:] = kept_device
        for at in range(n_ops):
            position[order[at]] = at
    return makespan, lacking
