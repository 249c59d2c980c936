"""Proven lower bounds on the step time.

Two look at the work alone: that of any set of ops against the devices that may do it, and the
longest placement unit. The others look at the graph, and at what it costs to leave a device:

*Heads.* Let x be an ancestor of v that is not on v's device. Then every path from x to v is cut
somewhere, and v cannot start before key(x) = the end of x at the earliest, plus the work between on
one path, plus the cheapest transfer on it. So if v starts at s, all x with key(x) > s are on v's
device, which does them one after another: v cannot start before the earliest start of any of them,
plus all their work, plus the shortest way from any of them to v. The smallest s that agrees with
itself is the head of v. (One level of this, with a single path, is the classic bound of scheduling
with communication delays, Fernandez and Bussell 1973; here it goes as far back as it pays.) Tails,
from the end of an op to the end of the step, are heads of the reversed graph.

*Path.* No step is shorter than head + time + tail of any op.

*Windows.* Ops with heads of at least a and tails of at least b all run within the step less a + b;
the devices have no more than that time to do their work.
"""

from __future__ import annotations

from functools import lru_cache
from weakref import WeakKeyDictionary

import numpy as np
from numba import njit

from enplace.problem import BoolArray, Problem
from enplace.profile import FloatArray, IntArray

NEAR, NEAR_IF_LARGE, LARGE = 16, 4, 20_000
"""Ancestors looked at for each head; fewer for graphs of more than :data:`LARGE` ops."""

CELLS = 256
"""Heads and tails at which a window may begin or end."""


_proven: WeakKeyDictionary[Problem, float] = WeakKeyDictionary()


def remember_bound(problem: Problem, bound_us: float) -> None:
    """Keep a bound that a solver has proven, for whoever asks for the problem's bound later."""
    _proven[problem] = max(bound_us, _proven.get(problem, 0.0))


def lower_bound_us(problem: Problem) -> float:
    """No schedule of the problem is shorter than this, on any device, in any order."""
    return max(_cheap_bound_us(problem), _proven.get(problem, 0.0))


@lru_cache(maxsize=8)
def _cheap_bound_us(problem: Problem) -> float:
    time_us = _allowed_time_us(problem)
    unit_us = np.empty((problem.n_units, problem.cluster.n_devices))
    for device, column in enumerate(time_us.T):
        unit_us[:, device] = np.bincount(problem.unit, column, problem.n_units)
    unit_bound = (unit_us / problem.cluster.lanes).min(axis=1).max()
    least_us = time_us.min(axis=1)
    head_us, tail_us = heads_and_tails_us(problem, least_us)
    path_bound = (head_us + least_us + tail_us).max()
    window_bound = _window_bound_us(problem, time_us, head_us, tail_us)
    return float(max(path_bound, window_bound, _work_bound_us(problem, unit_us), unit_bound))


def heads_and_tails_us(problem: Problem, least_us: FloatArray) -> tuple[FloatArray, FloatArray]:
    """When each op can start at the earliest, and how long the step goes on after it at least.

    Parameters
    ----------
    least_us : float array, shape (n_ops,)
        Time of each op on the device that suits it best.
    """
    profile = problem.profile
    near = NEAR if profile.n_ops <= LARGE else NEAR_IF_LARGE
    lanes = np.where(problem.unit_allowed, problem.cluster.lanes, 1).max(axis=1)[problem.unit]
    send_us = _least_send_us(problem)
    by_source = np.argsort(profile.edge_source, kind="stable")
    out_ptr = np.searchsorted(profile.edge_source[by_source], np.arange(profile.n_ops + 1))
    head_us = _heads(
        profile.topological_order,
        profile.in_ptr,
        profile.edge_source[profile.in_edges],
        send_us[profile.in_edges],
        least_us,
        lanes,
        near,
    )
    tail_us = _heads(
        profile.topological_order[::-1].copy(),
        out_ptr,
        profile.edge_op[by_source],
        send_us[by_source],
        least_us,
        lanes,
        near,
    )
    return head_us, tail_us


def _least_send_us(problem: Problem) -> FloatArray:
    """Shortest transfer of each edge between two devices that its ends may be on; shape (n_edges,).

    Infinite where both ends have only one device to be on, the same.
    """
    profile, cluster = problem.profile, problem.cluster
    sets, set_of = problem.device_sets
    size = profile.tensor_bytes[profile.edge_tensor]
    source, target = (set_of[problem.unit[ops]] for ops in (profile.edge_source, profile.edge_op))
    least = np.full(profile.n_edges, np.inf)
    for a, b in np.unique(np.column_stack([source, target]), axis=0).tolist():
        edges = np.flatnonzero((source == a) & (target == b))
        costs = {
            (cluster.b0_us[x, y], cluster.b1_us_per_byte[x, y])
            for x in np.flatnonzero(sets[a]).tolist()
            for y in np.flatnonzero(sets[b]).tolist()
            if x != y
        }
        for b0_us, b1_us_per_byte in costs:
            least[edges] = np.minimum(least[edges], b0_us + b1_us_per_byte * size[edges])
    return least


@njit(cache=True, nogil=True)
def _heads(
    order: IntArray,
    in_ptr: IntArray,
    producer: IntArray,
    send_us: FloatArray,
    time_us: FloatArray,
    lanes: IntArray,
    near: int,
) -> FloatArray:  # pragma: no cover - compiled
    """Earliest starts, op by op; see the top of the file."""
    n = len(order)
    place = np.empty(n, np.int64)
    for i in range(n):
        place[order[i]] = i
    head = np.zeros(n)
    work, leave = np.empty(n), np.empty(n)  # between an ancestor and v: all work; with a transfer
    seen = np.full(n, -1)
    found, key = np.empty(near, np.int64), np.empty(near)
    for v in order:
        base, count = 0.0, 0
        for e in range(in_ptr[v], in_ptr[v + 1]):
            x = producer[e]
            base = max(base, head[x] + time_us[x])
            if seen[x] == v:
                leave[x] = max(leave[x], send_us[e])
            elif count < near:
                seen[x], work[x], leave[x] = v, 0.0, send_us[e]
                found[count] = x
                count += 1
        done = 0
        while done < count:
            last = done  # the latest in the order: all between it and v has been looked at
            for k in range(done + 1, count):
                if place[found[k]] > place[found[last]]:
                    last = k
            x = found[last]
            found[last], found[done] = found[done], x
            done += 1
            if head[x] + time_us[x] + leave[x] <= base:
                continue
            for e in range(in_ptr[x], in_ptr[x + 1]):
                y = producer[e]
                through = time_us[x] + work[x]
                leaving = min(send_us[e] + through, time_us[x] + leave[x])
                if seen[y] == v:
                    work[y], leave[y] = max(work[y], through), max(leave[y], leaving)
                elif count < near:
                    seen[y], work[y], leave[y] = v, through, leaving
                    found[count] = y
                    count += 1
        for k in range(count):
            key[k] = -(head[found[k]] + time_us[found[k]] + leave[found[k]])
        rank = np.argsort(key[:count])
        earliest, bound = np.inf, base
        first, total, way = np.inf, 0.0, np.inf
        for i in range(count + 1):
            following = -key[rank[i]] if i < count else 0.0
            earliest = min(earliest, max(bound, following))
            if following <= bound:
                break
            x = found[rank[i]]
            first, way = min(first, head[x]), min(way, work[x])
            total += time_us[x]
            bound = max(bound, first + total / lanes[v] + way)
        head[v] = max(base, earliest)
    return head


def _window_bound_us(
    problem: Problem, time_us: FloatArray, head_us: FloatArray, tail_us: FloatArray
) -> float:
    """Work of the ops within a window, against the devices of every set that they may use."""
    best = 0.0
    starts, ends = (
        np.unique(np.quantile(values, np.linspace(0, 1, CELLS), method="lower"))
        for values in (head_us, tail_us)
    )
    for inside, weight in _device_weights(problem):
        ops = inside[problem.unit]
        members = weight > 0
        weighted = (time_us[np.ix_(ops, members)] * weight[members]).min(axis=1)
        work, _, _ = np.histogram2d(
            head_us[ops],
            tail_us[ops],
            bins=(np.append(starts, np.inf), np.append(ends, np.inf)),
            weights=weighted,
        )
        later = work[::-1, ::-1].cumsum(axis=0).cumsum(axis=1)[::-1, ::-1]
        bounds = starts[:, None] + later + ends[None, :]
        best = max(best, float(bounds[later > 0].max(initial=0.0)))
    return best


def _allowed_time_us(problem: Problem) -> FloatArray:
    return np.where(problem.unit_allowed[problem.unit], problem.time_us, np.inf)


def _device_weights(problem: Problem) -> list[tuple[BoolArray, FloatArray]]:
    """Units that must stay on a set of devices, and how much a time on each device counts.

    For weights y >= 0 with sum(lanes * y) = 1, every schedule takes at least the sum over units of
    min over devices of y * time: each unit adds its time to one device's lanes, and the makespan
    is at least the weighted mean of the lanes' loads. Devices of one chip share their lanes, which
    then weigh as much as the heaviest of them.

    Returns
    -------
    list of (bool array, shape (n_units,), float array, shape (n_devices,))
    """
    cluster = problem.cluster
    sets, set_of = problem.device_sets
    found = []
    for members in np.unique(np.vstack([sets, np.ones(cluster.n_devices, dtype=bool)]), axis=0):
        weight = np.where(members, cluster.speed, 0.0)
        of_lane = np.zeros(cluster.n_devices)
        np.maximum.at(of_lane, cluster.lane_owner, weight)
        weight /= (of_lane * cluster.lanes).sum()
        found.append(((sets <= members).all(axis=1)[set_of], weight))
    return found


def _work_bound_us(problem: Problem, unit_us: FloatArray) -> float:
    """Work of all units that must stay on a set of devices, for every such set."""
    best = 0.0
    for inside, weight in _device_weights(problem):
        members = weight > 0
        weighted = unit_us[np.ix_(inside, members)] * weight[members]
        best = max(best, float(weighted.min(axis=1).sum()))
    return best
