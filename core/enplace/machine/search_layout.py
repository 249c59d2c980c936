"""What the searches read of a problem, and the schedule that an order of all ops makes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from enplace.values.problem import BoolArray, Problem
from enplace.values.profile import FloatArray, IntArray


class Graph(NamedTuple):
    """A problem as flat arrays.

    A *unit* is what shares a device, as in :attr:`Problem.unit`: its ops are
    ``member[unit_ptr[u] : unit_ptr[u + 1]]``. The other names are those of the problem, its
    profile and its cluster. Lanes are those of all devices in a row: those a device uses are
    ``lane_ptr[d] : lane_end[d]``, its own or those of its chip. ``shares_channels`` tells whether
    a channel carries what several devices send.
    """

    time_us: FloatArray
    unit: IntArray
    unit_ptr: IntArray
    member: IntArray
    allowed: BoolArray
    tensor_ptr: IntArray
    tensor_op: IntArray
    tensor_bytes: IntArray
    held_bytes: IntArray
    edge_ptr: IntArray
    edge_op: IntArray
    in_ptr: IntArray
    in_tensor: IntArray
    lane_ptr: IntArray
    lane_end: IntArray
    route_ptr: IntArray
    route: IntArray
    n_channels: int
    b0_us: FloatArray
    b1_us_per_byte: FloatArray
    shares_channels: bool
    persistent_bytes: IntArray
    temporary_bytes: IntArray
    capacity_bytes: IntArray


def make_graph(problem: Problem) -> Graph:
    """Lay out a problem for the searches."""
    profile, cluster = problem.profile, problem.cluster
    member = np.argsort(problem.unit, kind="stable").astype(np.int64)
    lane_ptr = np.concatenate([[0], np.cumsum(cluster.lanes)]).astype(np.int64)[:-1]
    lane_ptr = lane_ptr[cluster.lane_owner]
    return Graph(
        # Always a copy in rows: of one op, a view would be of another type to what is compiled.
        time_us=np.array(problem.time_us, order="C"),
        unit=problem.unit,
        unit_ptr=np.searchsorted(problem.unit[member], np.arange(problem.n_units + 1)),
        member=member,
        allowed=problem.unit_allowed,
        tensor_ptr=profile.tensor_ptr,
        tensor_op=profile.tensor_op,
        tensor_bytes=profile.tensor_bytes,
        held_bytes=profile.held_bytes,
        edge_ptr=profile.edge_ptr,
        edge_op=profile.edge_op,
        in_ptr=profile.in_ptr,
        in_tensor=profile.edge_tensor[profile.in_edges],
        lane_ptr=lane_ptr,
        lane_end=lane_ptr + cluster.lanes,
        route_ptr=cluster.route_ptr,
        route=cluster.route,
        n_channels=len(cluster.channels),
        b0_us=cluster.b0_us,
        b1_us_per_byte=cluster.b1_us_per_byte,
        shares_channels=_shares_channels(problem),
        persistent_bytes=profile.persistent_bytes,
        temporary_bytes=profile.temporary_bytes,
        capacity_bytes=cluster.capacity_bytes,
    )


def _shares_channels(problem: Problem) -> bool:
    senders = {
        (channel, link.source) for link in problem.cluster.links for channel in link.channels
    }
    return len(senders) > len({channel for channel, _ in senders})


@njit(cache=True, nogil=True)
def first_free(lane_free: FloatArray, first: int, end: int) -> int:  # pragma: no cover - compiled
    """Return the lane of a device that is free first."""
    best = first
    for lane in range(first + 1, end):
        if lane_free[lane] < lane_free[best]:
            best = lane
    return int(best)


@njit(cache=True, nogil=True, inline="always")
def send(
    g: Graph, tensor: int, home: int, to: int, made_us: float, channel_free_us: FloatArray
) -> tuple[float, float]:  # pragma: no cover - compiled
    """Send a tensor behind what its channels carry already; return when that begins and ends."""
    link = home * len(g.lane_ptr) + to
    start = made_us
    for hop in range(g.route_ptr[link], g.route_ptr[link + 1]):
        start = max(start, channel_free_us[g.route[hop]])
    end = start + g.b0_us[home, to] + g.b1_us_per_byte[home, to] * g.tensor_bytes[tensor]
    for hop in range(g.route_ptr[link], g.route_ptr[link + 1]):
        channel_free_us[g.route[hop]] = end
    return start, end


@njit(cache=True, nogil=True)
def play(
    g: Graph,
    order: IntArray,
    upto: int,
    device: IntArray,
    finish_us: FloatArray,
    arrival_us: FloatArray,
    sent_us: FloatArray,
    lane_free_us: FloatArray,
    channel_free_us: FloatArray,
    last_start_us: FloatArray,
) -> float:  # pragma: no cover - compiled
    """Run the first ops of an order: each as soon as its inputs and its device are there.

    This is the simulator's strict order with channels first come, first served, if ops that share a
    channel stand in the order in which they end; else it is close to it.

    Parameters
    ----------
    order : int array, shape (n_ops,)
        Topological.
    upto : int
        How many ops to run.
    finish_us, arrival_us, sent_us, lane_free_us, channel_free_us, last_start_us : float arrays
        What is written: shapes (n_ops,), twice (n_tensors, n_devices), (n_lanes,), (n_channels,)
        and (n_devices,). An arrival is -1 where the tensor is not sent to; ``sent_us`` is when
        sending began.

    Returns
    -------
    float
        When the last op or transfer ends, in µs.
    """
    lane_free_us[:] = 0.0
    channel_free_us[:] = 0.0
    last_start_us[:] = 0.0
    last = 0.0
    for at in range(upto):
        op = order[at]
        d = device[op]
        ready = last_start_us[d]
        for i in range(g.in_ptr[op], g.in_ptr[op + 1]):
            tensor = g.in_tensor[i]
            maker = g.tensor_op[tensor]
            there = finish_us[maker] if device[maker] == d else arrival_us[tensor, d]
            ready = max(ready, there)
        lane = first_free(lane_free_us, g.lane_ptr[d], g.lane_end[d])
        start = max(ready, lane_free_us[lane])
        finish = start + g.time_us[op, d]
        last_start_us[d] = start
        lane_free_us[lane] = finish
        finish_us[op] = finish
        last = max(last, finish)
        for tensor in range(g.tensor_ptr[op], g.tensor_ptr[op + 1]):
            arrival_us[tensor, :] = -1.0
            for edge in range(g.edge_ptr[tensor], g.edge_ptr[tensor + 1]):
                to = device[g.edge_op[edge]]
                if to != d and arrival_us[tensor, to] < 0.0:
                    sent_us[tensor, to], arrival_us[tensor, to] = send(
                        g, tensor, d, to, finish, channel_free_us
                    )
                    last = max(last, arrival_us[tensor, to])
    return last


@njit(cache=True, nogil=True)
def tails(
    g: Graph,
    order: IntArray,
    first: int,
    device: IntArray,
    head_us: FloatArray,
    lane_tail_us: FloatArray,
    channel_tail_us: FloatArray,
) -> None:  # pragma: no cover - compiled
    """Find how long the schedule goes on from each of the last ops, if their order stays.

    Parameters
    ----------
    first : int
        Position of the first op whose tail is wanted.
    head_us : float array, shape (n_ops,), written
        From an op's start to the end of the schedule: its time, then what waits for it.
    lane_tail_us, channel_tail_us : float arrays, shapes (n_lanes,) and (n_channels,), written
        From the moment when the device (its first lane stands for all) or channel is needed next.
    """
    n_devices = len(g.lane_ptr)
    lane_tail_us[:] = 0.0
    channel_tail_us[:] = 0.0
    waits = np.zeros(n_devices)
    for at in range(len(order) - 1, first - 1, -1):
        op = order[at]
        d = device[op]
        one_lane = g.lane_end[d] - g.lane_ptr[d] == 1
        tail = lane_tail_us[g.lane_ptr[d]] if one_lane else 0.0
        for tensor in range(g.tensor_ptr[op + 1] - 1, g.tensor_ptr[op] - 1, -1):
            waits[:] = -1.0
            for edge in range(g.edge_ptr[tensor], g.edge_ptr[tensor + 1]):
                user = g.edge_op[edge]
                waits[device[user]] = max(waits[device[user]], head_us[user])
            tail = max(tail, waits[d])
            for to in range(n_devices):
                if to == d or waits[to] < 0.0:
                    continue
                link = d * n_devices + to
                after = waits[to]
                for hop in range(g.route_ptr[link], g.route_ptr[link + 1]):
                    after = max(after, channel_tail_us[g.route[hop]])
                after += g.b0_us[d, to] + g.b1_us_per_byte[d, to] * g.tensor_bytes[tensor]
                for hop in range(g.route_ptr[link], g.route_ptr[link + 1]):
                    channel_tail_us[g.route[hop]] = after
                tail = max(tail, after)
        head_us[op] = tail + g.time_us[op, d]
        lane_tail_us[g.lane_ptr[d]] = max(lane_tail_us[g.lane_ptr[d]], head_us[op])


@njit(cache=True, nogil=True)
def lacking_bytes(
    g: Graph,
    device: IntArray,
    finish_us: FloatArray,
    arrival_us: FloatArray,
    sent_us: FloatArray,
) -> int:  # pragma: no cover - compiled
    """Return how many bytes the devices lack at their peaks, all together; 0 if the step fits.

    Sums over all tensors are tried first: where they fit, so does any order.
    """
    n_ops, n_devices = len(device), len(g.capacity_bytes)
    held = np.zeros(n_devices, np.int64)
    temporary = np.zeros(n_devices, np.int64)
    for op in range(n_ops):
        d = device[op]
        held[d] += g.persistent_bytes[op]
        temporary[d] = max(temporary[d], g.temporary_bytes[op] * (g.lane_end[d] - g.lane_ptr[d]))
    weights = held.copy()
    n_lives = 0
    for tensor in range(len(g.tensor_op)):
        held[device[g.tensor_op[tensor]]] += g.held_bytes[tensor]
        n_lives += 1
        for to in range(n_devices):
            if to != device[g.tensor_op[tensor]] and arrival_us[tensor, to] >= 0.0:
                held[to] += g.held_bytes[tensor]
                n_lives += 1
    if (held + temporary <= g.capacity_bytes).all():
        return 0
    n_lives += n_ops
    when, what, where = (
        np.empty(2 * n_lives), np.empty(2 * n_lives, np.int64), np.empty(2 * n_lives, np.int64),
    )  # fmt: skip
    n = 0
    ends = np.empty(n_devices)
    for tensor in range(len(g.tensor_op)):
        maker, size = g.tensor_op[tensor], g.held_bytes[tensor]
        if size == 0:
            continue
        home = device[maker]
        ends[:] = -1.0
        ends[home] = finish_us[maker]
        for to in range(n_devices):
            if to != home and arrival_us[tensor, to] >= 0.0:
                ends[to] = arrival_us[tensor, to]
                ends[home] = max(ends[home], arrival_us[tensor, to])
        for edge in range(g.edge_ptr[tensor], g.edge_ptr[tensor + 1]):
            user = g.edge_op[edge]
            ends[device[user]] = max(ends[device[user]], finish_us[user])
        for d in range(n_devices):
            begin = finish_us[maker] - g.time_us[maker, home] if d == home else sent_us[tensor, d]
            if ends[d] >= 0.0 and ends[d] > begin:
                when[n], what[n], where[n] = begin, size, d
                when[n + 1], what[n + 1], where[n + 1] = ends[d], -size, d
                n += 2
    for op in range(n_ops):
        begin, size = finish_us[op] - g.time_us[op, device[op]], g.temporary_bytes[op]
        if size > 0 and finish_us[op] > begin:
            when[n], what[n], where[n] = begin, size, device[op]
            when[n + 1], what[n + 1], where[n + 1] = finish_us[op], -size, device[op]
            n += 2
    rank = np.argsort(when[:n])
    peak = weights.copy()
    for k in range(n):
        i = rank[k]
        weights[where[i]] += what[i]
        # What comes and goes at one instant counts when all of it has come and gone.
        if k + 1 == n or when[rank[k + 1]] > when[i]:
            for d in range(n_devices):
                peak[d] = max(peak[d], weights[d])
    lacking = 0
    for d in range(n_devices):
        lacking += max(0, peak[d] - g.capacity_bytes[d])
    return lacking
