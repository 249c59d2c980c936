"""The earliest start of each op under any plan, compiled; ``step_time.py`` has the proof."""

from __future__ import annotations

from heapq import heappop, heappush

import numpy as np
from numba import njit

from enplace.values.arrays import BoolArray, FloatArray, IntArray

NEAR, PATIENCE, FAR, FORKS = 16, 64, 100, 6
"""Ancestors examined for each head. For an op with several producers: how many more after the last
ancestor that raised the head, how many while one may still raise it, and how many as forks."""


@njit(cache=True, nogil=True)
def earliest_starts(
    order: IntArray,
    in_ptr: IntArray,
    producer: IntArray,
    send_us: FloatArray,
    sure_us: FloatArray,
    bus_us: FloatArray,
    time_us: FloatArray,
    lanes: IntArray,
    weighted_us: FloatArray,
    most: FloatArray,
    bus_set: int,
) -> FloatArray:  # pragma: no cover - compiled
    """Find the heads, op by op.

    Parameters
    ----------
    order : int array, shape (n_ops,)
        A topological order.
    in_ptr, producer : int arrays
        Producers of op ``v`` are ``producer[in_ptr[v] : in_ptr[v + 1]]``, one for each edge; the
        arrays of edges are in the same order.
    send_us, sure_us, bus_us : float arrays, shape (n_edges,)
        Cost of each edge if its ends are apart; its cost in any case; and how long it then occupies
        the channel that all devices of ``bus_set`` share.
    weighted_us, most : float arrays, shapes (n_sets, n_ops) and (n_sets,)
        Work weighted for each set of devices, and the largest weight of one chip.
    bus_set : int
        The set of like chips whose links all use one channel, or -1.
    """
    n = len(order)
    place = np.empty(n, np.int64)
    for i in range(n):
        place[order[i]] = i
    head = np.zeros(n)
    # For each ancestor of v: the least time from its end to the start of v, in any case and if it
    # is not on v's device; how long it then occupies the bus; how many ops in between need it.
    work, leave, leave_bus = np.empty(n), np.empty(n), np.empty(n)
    uses = np.zeros(n, np.int64)
    seen = np.full(n, -1)
    bound_here, key = np.empty(NEAR, np.int64), np.empty(NEAR)
    together = np.empty(NEAR, np.bool_)
    waiting = [(0.0, 0, 0)]
    joined_us, away_us = np.empty(len(most)), np.empty(len(most))
    later = np.empty(n, np.int64)
    fork = np.full(n, -1)
    until, enter, enter_bus = np.empty(n), np.empty(n), np.empty(n)
    n_forks = 0
    for v in order:
        base = 0.0
        waiting.clear()
        for e in range(in_ptr[v], in_ptr[v + 1]):
            x = producer[e]
            base = max(base, head[x] + time_us[x] + sure_us[e])
            if seen[x] != v:
                seen[x], work[x], leave[x], leave_bus[x], uses[x] = v, 0.0, 0.0, 0.0, 0
                heappush(waiting, (-head[x], -place[x], x))
            work[x], leave[x] = max(work[x], sure_us[e]), max(leave[x], send_us[e])
            leave_bus[x] = max(leave_bus[x], bus_us[e])
            uses[x] += 1
        joins = len(waiting) > 1
        joined_us[:], away_us[:], alone_us = 0.0, np.inf, 0.0
        left, count, n_later, tries = PATIENCE if joins else NEAR, 0, 0, 0
        while len(waiting) > 0 and left > 0:
            x = heappop(waiting)[2]  # the latest: all ops between it and v have been examined
            end = head[x] + time_us[x]
            if end + leave[x] > base and count < NEAR:
                bound_here[count], key[count] = x, -end - leave[x]
                count += 1
            elif not joins:
                continue
            left -= 1
            if joins:
                if uses[x] > 1 and tries < FORKS and end + alone_us > base:
                    n_forks += 1
                    tries += 1
                    base = max(base, end + _between(
                        x, later[:n_later], n_forks, fork, until, enter, enter_bus, leave,
                        leave_bus, in_ptr, producer, send_us, sure_us, bus_us, time_us,
                        weighted_us, most, bus_set,
                    ))  # fmt: skip
                if in_ptr[x] < in_ptr[x + 1]:
                    later[n_later] = x
                    n_later += 1
                for s in range(len(most)):
                    if weighted_us[s, x] > 0.0:
                        joined_us[s] += weighted_us[s, x]
                        away_us[s] = min(away_us[s], leave[x])
                        earliest = head[x] + _shared_us(joined_us[s], most[s], away_us[s])
                        if earliest > base:
                            base, left = earliest, PATIENCE
                        alone_us = max(alone_us, joined_us[s] / most[s])
                if n_later < FAR and head[x] + alone_us > base:
                    left = PATIENCE
            for e in range(in_ptr[x], in_ptr[x + 1]):
                y = producer[e]
                if seen[y] != v:
                    seen[y], work[y], leave[y], leave_bus[y], uses[y] = v, 0.0, 0.0, 0.0, 0
                    heappush(waiting, (-head[y], -place[y], y))
                through = time_us[x] + work[x]
                leaving = min(send_us[e] + through, sure_us[e] + time_us[x] + leave[x])
                work[y], leave[y] = max(work[y], sure_us[e] + through), max(leave[y], leaving)
                leave_bus[y] = max(leave_bus[y], min(bus_us[e], leave_bus[x]))
                uses[y] += 1
        head[v] = _start_after(
            base, bound_here[:count], key[:count], together, head, time_us, work, lanes[v]
        )  # fmt: skip
    return head


@njit(cache=True, nogil=True)
def _start_after(
    base: float,
    near: IntArray,
    key: FloatArray,
    together: BoolArray,
    head: FloatArray,
    time_us: FloatArray,
    work: FloatArray,
    n_lanes: int,
) -> float:  # pragma: no cover - compiled
    """Find the smallest consistent start of v.

    If v starts before ``-key`` of an ancestor, that ancestor is on v's device, which runs all such
    ancestors one after another.

    Parameters
    ----------
    base : float
        A lower bound on the start without this argument.
    near, key : arrays, shape (n_near,)
        Ancestors of v, the latest head first.
    together : bool array, written
    """
    rank = np.argsort(key)
    earliest, bound = np.inf, base
    together[: len(key)] = False
    for i in range(len(key) + 1):
        following = -key[rank[i]] if i < len(key) else 0.0
        earliest = min(earliest, max(bound, following))
        if following <= bound:
            break
        together[rank[i]] = True
        total, way = 0.0, np.inf
        for k in range(len(near)):
            if together[k]:
                x = near[k]
                total, way = total + time_us[x], min(way, work[x])
                bound = max(bound, head[x] + total / n_lanes + way)
    return max(base, earliest)


@njit(cache=True, nogil=True)
def _shared_us(work_us: float, most: float, away_us: float) -> float:  # pragma: no cover - compiled
    """Return the least time for work that chips share, if all but one of them lose ``away_us``."""
    alone_us = work_us / most
    return alone_us if most == 1.0 else min(alone_us, work_us + (1.0 - most) * away_us)


@njit(cache=True, nogil=True)
def _between(
    u: int,
    later: IntArray,
    number: int,
    fork: IntArray,
    until: FloatArray,
    enter: FloatArray,
    enter_bus: FloatArray,
    leave: FloatArray,
    leave_bus: FloatArray,
    in_ptr: IntArray,
    producer: IntArray,
    send_us: FloatArray,
    sure_us: FloatArray,
    bus_us: FloatArray,
    time_us: FloatArray,
    weighted_us: FloatArray,
    most: FloatArray,
    bus_set: int,
) -> float:  # pragma: no cover - compiled
    """Find the least time from the end of ``u`` to the start of v, for the ops between them.

    ``later`` has ancestors of v, the last first; ``fork[x]`` becomes ``number`` if x needs u.
    For such ops, ``until`` is the least time from the end of u to their end, ``enter`` the least
    time to their start if they are not on u's device, and ``enter_bus`` how long they then occupy
    the bus.
    """
    fork[u], until[u], enter[u], enter_bus[u] = number, 0.0, np.inf, np.inf
    ops, ways = np.empty(len(later), np.int64), np.empty(len(later))
    n = 0
    for y in later[::-1]:
        started, entered, bus = -1.0, -1.0, -1.0
        for e in range(in_ptr[y], in_ptr[y + 1]):
            x = producer[e]
            if fork[x] == number:
                here = enter[x] + time_us[x] + sure_us[e]
                entered = max(entered, min(until[x] + send_us[e], here))
                started = max(started, until[x] + sure_us[e])
                bus = max(bus, min(bus_us[e], enter_bus[x]))
        if started >= 0.0:
            fork[y], until[y], enter[y], enter_bus[y] = number, started + time_us[y], entered, bus
            ops[n], ways[n] = y, -entered
            n += 1
    longest = 0.0
    by_way = ops[:n][np.argsort(ways[:n])]
    for s in range(len(most)):
        work, way_in, way_out, bus_in, bus_out = 0.0, np.inf, np.inf, np.inf, np.inf
        for x in by_way:
            if weighted_us[s, x] == 0.0:
                continue
            work += weighted_us[s, x]
            way_in, way_out = enter[x], min(way_out, leave[x])
            bus_in, bus_out = min(bus_in, enter_bus[x]), min(bus_out, leave_bus[x])
            shortest = _shared_us(work, most[s], way_in + way_out)
            if s == bus_set:
                total = shortest = work / most[s]
                for others in range(1, round(1.0 / most[s])):
                    total += max(way_in, others * bus_in) + max(way_out, others * bus_out)
                    shortest = min(shortest, total / (others + 1))
            longest = max(longest, shortest)
    return longest
