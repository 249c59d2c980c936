"""The earliest start of each op under any plan, compiled; ``step_time.py`` has the proof."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from enplace.compiling import helper, kernel, loop, step
from enplace.machine.heaps import pop_event, push_event
from enplace.values.arrays import BoolArray, FloatArray, IntArray, inverse

NEAR, PATIENCE, FAR, FORKS = 32, 128, 200, 6
"""Limits on the ancestors that are examined for the head of an op. ``NEAR`` applies to ops with one
producer, the others to ops with several: ``PATIENCE`` more ancestors are examined after one that
raised the head or, among the first ``FAR``, one that showed that the head may still rise; at most
``FORKS`` are examined as forks."""

EXAMINED, FEWEST = 2_300_000, 8
"""Ancestors that may be examined in all before ``PATIENCE`` and ``FAR`` shrink, so that the
bound of a huge graph takes seconds, not minutes; and the least that ``PATIENCE`` shrinks to."""

PASSES = 16
"""How often the ancestors examined are passed to find those on the op's own device."""


class LeastCosts(NamedTuple):
    """A graph, forwards or reversed, with the costs that no plan avoids.

    Attributes
    ----------
    order : int array, shape (n_ops,)
        A topological order.
    unit : int array, shape (n_ops,)
        The placement unit of each op: ops of one unit share a device.
    in_ptr, producer : int arrays, shapes (n_ops + 1,) and (n_edges,)
        Producers of op ``v`` are ``producer[in_ptr[v] : in_ptr[v + 1]]``, one for each edge; the
        arrays of edges are in the same order.
    send_us, sure_us, bus_us : float arrays, shape (n_edges,)
        Cost of each edge if its ends are on different devices; its cost under any plan; and how
        long it occupies the channel that all devices of ``bus_set`` share, if it is sent there.
    time_us, lanes : arrays, shape (n_ops,)
        The least time of each op, and the most lanes of a device that may run it.
    weighted_us, most : float arrays, shapes (n_sets, n_ops) and (n_sets,)
        Work weighted for each set of devices, and the largest weight of one chip.
    bus_set : int
        Number of a set of equal chips whose links all use one channel; -1 if there is none.
    """

    order: IntArray
    unit: IntArray
    in_ptr: IntArray
    producer: IntArray
    send_us: FloatArray
    sure_us: FloatArray
    bus_us: FloatArray
    time_us: FloatArray
    lanes: IntArray
    weighted_us: FloatArray
    most: FloatArray
    bus_set: int


class _Ancestors(NamedTuple):
    """The ancestors of op v that have been reached so far, where v is the op whose head is sought.

    Attributes
    ----------
    place : int array, shape (n_ops,)
        Position of each op in the topological order.
    reached_from : int array, shape (n_ops,)
        The op v for which the next four hold.
    work_us, leave_us, leave_bus_us : float arrays, shape (n_ops,)
        The least time from an ancestor's end to the start of v: under any plan, and if it is not
        on v's device; and how long the bus is occupied in the second case.
    uses : int array, shape (n_ops,)
        Edges from an ancestor to v or to other ancestors.
    examined : int array, shape (n_ops,)
        The op v for which an ancestor was examined last.
    heap_us, heap : arrays, shape (n_ops,)
        Ancestors that have been reached and not examined, the latest head first.
    together, unit_together : int arrays, shapes (n_ops,) and (n_units,)
        The latest trial in which an ancestor or a unit turned out to be on v's device.
    away_us, leaving_us : float arrays, shape (n_ops,)
        The earliest end of an ancestor that is not on v's device, and the least time from there to
        the start of v, given which ancestors are on v's device.
    between : int array, shape (n_ops,)
        Ancestors examined, each before its producers.
    joined_us, joined_leave_us : float arrays, shape (n_sets,)
        Work of the ancestors examined, and the least ``leave_us`` of any of them.
    counts : int array
        How many ancestors are in the heap and between, and how many forks and trials there were.
    """

    place: IntArray
    reached_from: IntArray
    work_us: FloatArray
    leave_us: FloatArray
    leave_bus_us: FloatArray
    uses: IntArray
    examined: IntArray
    heap_us: FloatArray
    heap: IntArray
    together: IntArray
    unit_together: IntArray
    away_us: FloatArray
    leaving_us: FloatArray
    between: IntArray
    joined_us: FloatArray
    joined_leave_us: FloatArray
    counts: IntArray


WAITING, N_BETWEEN, N_FORKS, N_TRIALS = range(4)
"""Indices into ``_Ancestors.counts``."""


class _Fork(NamedTuple):
    """The ops that need an ancestor u, where paths to v part.

    Attributes
    ----------
    number : int array, shape (n_ops,)
        The fork for which the others hold.
    until_us, enter_us, enter_bus_us : float arrays, shape (n_ops,)
        The least time from the end of u to an op's end; to its start if it is not on u's device;
        and how long the bus is occupied in that case.
    ops, ways : arrays, shape (n_ops,)
        The ops that need u, and minus their ``enter_us``.
    """

    number: IntArray
    until_us: FloatArray
    enter_us: FloatArray
    enter_bus_us: FloatArray
    ops: IntArray
    ways: FloatArray


def earliest_starts(costs: LeastCosts, stop: BoolArray) -> FloatArray:
    """Find the head of each op; shape (n_ops,).

    Once ``stop[0]`` is set, the remaining heads only follow paths, which takes hardly any time.
    """
    n = len(costs.order)
    head_us = np.zeros(n)
    ancestors = _Ancestors(
        place=inverse(costs.order),
        reached_from=np.full(n, -1),
        work_us=np.empty(n),
        leave_us=np.empty(n),
        leave_bus_us=np.empty(n),
        uses=np.empty(n, np.int64),
        examined=np.full(n, -1),
        heap_us=np.empty(n),
        heap=np.empty(n, np.int64),
        together=np.full(n, -1),
        unit_together=np.full(costs.unit.max() + 1, -1),
        away_us=np.empty(n),
        leaving_us=np.empty(n),
        between=np.empty(n, np.int64),
        joined_us=np.empty(len(costs.most)),
        joined_leave_us=np.empty(len(costs.most)),
        counts=np.zeros(4, np.int64),
    )
    fork = _Fork(
        number=np.full(n, -1),
        until_us=np.empty(n),
        enter_us=np.empty(n),
        enter_bus_us=np.empty(n),
        ops=np.empty(n, np.int64),
        ways=np.empty(n),
    )
    _find_heads(costs, ancestors, fork, head_us, stop)
    return head_us


@kernel
def _find_heads(
    costs: LeastCosts, ancestors: _Ancestors, fork: _Fork, head_us: FloatArray, stop: BoolArray
) -> None:  # pragma: no cover - compiled
    """Write the head of each op; :func:`_find_in_order` does it without counting references."""
    _find_in_order(costs, ancestors, fork, head_us, stop)


@loop
def _find_in_order(
    c: LeastCosts, a: _Ancestors, f: _Fork, head_us: FloatArray, stop: BoolArray
) -> None:  # pragma: no cover - compiled
    """Find heads in topological order: each depends on those of the ancestors."""
    for v in c.order:
        bound_us = 0.0
        for edge in range(c.in_ptr[v], c.in_ptr[v + 1]):
            x = c.producer[edge]
            bound_us = max(bound_us, head_us[x] + c.time_us[x] + c.sure_us[edge])
        head_us[v] = bound_us
        if stop[0]:
            continue
        a.counts[WAITING] = a.counts[N_BETWEEN] = 0
        a.work_us[v], a.leave_us[v], a.leave_bus_us[v] = 0.0, np.inf, np.inf
        _reach_producers(c, a, head_us, v, v, 0.0)
        if a.counts[WAITING] > 1:
            bound_us = _examine_join(c, a, f, head_us, v, bound_us)
        else:
            _examine_chain(c, a, head_us, v, bound_us)
        head_us[v] = _start_after(c, a, head_us, v, bound_us)


@loop
def _reach_producers(
    c: LeastCosts, a: _Ancestors, head_us: FloatArray, v: int, x: int, x_us: float
) -> None:  # pragma: no cover - compiled
    """Extend the ways to v by the edges into an ancestor x, or into v itself, which takes no time.

    All ops between x and v have been examined.
    """
    through_us = x_us + a.work_us[x]
    for edge in range(c.in_ptr[x], c.in_ptr[x + 1]):
        y = c.producer[edge]
        if a.reached_from[y] != v:
            a.reached_from[y], a.uses[y] = v, 0
            a.work_us[y], a.leave_us[y], a.leave_bus_us[y] = 0.0, 0.0, 0.0
            code = len(c.order) - 1 - a.place[y]
            push_event(a.heap_us, a.heap, a.counts[WAITING], -head_us[y], code)
            a.counts[WAITING] += 1
        leave_us = min(c.send_us[edge] + through_us, c.sure_us[edge] + x_us + a.leave_us[x])
        a.work_us[y] = max(a.work_us[y], c.sure_us[edge] + through_us)
        a.leave_us[y] = max(a.leave_us[y], leave_us)
        a.leave_bus_us[y] = max(a.leave_bus_us[y], min(c.bus_us[edge], a.leave_bus_us[x]))
        a.uses[y] += 1


@step
def _next_ancestor(c: LeastCosts, a: _Ancestors) -> int:  # pragma: no cover - compiled
    """Take the latest ancestor from the heap: all ops between it and v have been examined."""
    code = pop_event(a.heap_us, a.heap, a.counts[WAITING])
    a.counts[WAITING] -= 1
    return int(c.order[len(c.order) - 1 - code])


@step
def _examine_chain(
    c: LeastCosts, a: _Ancestors, head_us: FloatArray, v: int, bound_us: float
) -> None:  # pragma: no cover - compiled
    """Examine the ancestors of an op with one producer, beyond which no work can be shared."""
    while a.counts[WAITING] > 0 and a.counts[N_BETWEEN] < NEAR:
        x = _next_ancestor(c, a)
        a.between[a.counts[N_BETWEEN]], a.examined[x] = x, v
        a.counts[N_BETWEEN] += 1
        if head_us[x] + c.time_us[x] + a.leave_us[x] > bound_us:
            _reach_producers(c, a, head_us, v, x, c.time_us[x])


@step
def _examine_join(
    c: LeastCosts, a: _Ancestors, f: _Fork, head_us: FloatArray, v: int, bound_us: float
) -> float:  # pragma: no cover - compiled
    """Examine the ancestors of an op with several producers; return a better bound on its start."""
    a.joined_us[:], a.joined_leave_us[:] = 0.0, np.inf
    patience = min(PATIENCE, max(FEWEST, EXAMINED // len(c.order)))
    far = min(FAR, 2 * patience)
    alone_us, left, tries = 0.0, patience, 0
    while a.counts[WAITING] > 0 and left > 0:
        x = _next_ancestor(c, a)
        left -= 1
        end_us = head_us[x] + c.time_us[x]
        if a.uses[x] > 1 and tries < FORKS and end_us + alone_us > bound_us:
            tries += 1
            bound_us = max(bound_us, end_us + _fork_us(c, a, f, x))
        a.between[a.counts[N_BETWEEN]], a.examined[x] = x, v
        a.counts[N_BETWEEN] += 1
        joined_us, alone_us = _join(c, a, x)
        if head_us[x] + joined_us > bound_us:
            bound_us, left = head_us[x] + joined_us, patience
        if a.counts[N_BETWEEN] < far and head_us[x] + alone_us > bound_us:
            left = patience
        _reach_producers(c, a, head_us, v, x, c.time_us[x])
    return bound_us


@step
def _join(
    c: LeastCosts, a: _Ancestors, x: int
) -> tuple[float, float]:  # pragma: no cover - compiled
    """Add an ancestor's work; return the least time for all of it, with and without transfers."""
    joined_us, alone_us = 0.0, 0.0
    for s in range(len(c.most)):
        if c.weighted_us[s, x] > 0.0:
            a.joined_us[s] += c.weighted_us[s, x]
            a.joined_leave_us[s] = min(a.joined_leave_us[s], a.leave_us[x])
            joined_us = max(joined_us, _shared_us(a.joined_us[s], c.most[s], a.joined_leave_us[s]))
        alone_us = max(alone_us, a.joined_us[s] / c.most[s])
    return joined_us, alone_us


@step
def _shared_us(work_us: float, most: float, away_us: float) -> float:  # pragma: no cover - compiled
    """Return the least time for work that chips share, if all but one of them lose ``away_us``."""
    alone_us = work_us / most
    return alone_us if most == 1.0 else min(alone_us, work_us + (1.0 - most) * away_us)


@loop
def _fork_us(
    c: LeastCosts, a: _Ancestors, f: _Fork, u: int
) -> float:  # pragma: no cover - compiled
    """Find the least time from the end of ``u`` to the start of v, for the ops between them."""
    n = _find_fork(c, a, f, u)
    _sort_by_way(f.ops, f.ways, n)
    longest_us = 0.0
    for s in range(len(c.most)):
        longest_us = max(longest_us, _pass_fork(c, a, f, n, s))
    return longest_us


@step
def _find_fork(
    c: LeastCosts, a: _Ancestors, f: _Fork, u: int
) -> int:  # pragma: no cover - compiled
    """List the ancestors of v that need ``u``, with their ways from it; return their number."""
    a.counts[N_FORKS] += 1
    fork, n = a.counts[N_FORKS], 0
    f.number[u], f.until_us[u], f.enter_us[u], f.enter_bus_us[u] = fork, 0.0, np.inf, np.inf
    for at in range(a.counts[N_BETWEEN] - 1, -1, -1):
        y = a.between[at]
        start_us, enter_us, bus_us = -1.0, -1.0, -1.0
        for edge in range(c.in_ptr[y], c.in_ptr[y + 1]):
            x = c.producer[edge]
            if f.number[x] == fork:
                here_us = f.enter_us[x] + c.time_us[x] + c.sure_us[edge]
                enter_us = max(enter_us, min(f.until_us[x] + c.send_us[edge], here_us))
                start_us = max(start_us, f.until_us[x] + c.sure_us[edge])
                bus_us = max(bus_us, min(c.bus_us[edge], f.enter_bus_us[x]))
        if start_us >= 0.0:
            f.number[y], f.until_us[y] = fork, start_us + c.time_us[y]
            f.enter_us[y], f.enter_bus_us[y] = enter_us, bus_us
            f.ops[n], f.ways[n] = y, -enter_us
            n += 1
    return n


@helper
def _sort_by_way(ops: IntArray, ways: FloatArray, n: int) -> None:  # pragma: no cover - compiled
    """Sort the first ``n`` ops, the longest way first."""
    ops[:n] = ops[:n][np.argsort(ways[:n])]


@step
def _pass_fork(
    c: LeastCosts, a: _Ancestors, f: _Fork, n: int, s: int
) -> float:  # pragma: no cover - compiled
    """Find the least time that the ops of a fork take on one set of devices, ways included."""
    longest_us, work_us = 0.0, 0.0
    out_us, in_bus_us, out_bus_us = np.inf, np.inf, np.inf
    for at in range(n):
        x = f.ops[at]
        if c.weighted_us[s, x] == 0.0:
            continue
        work_us += c.weighted_us[s, x]
        in_us, out_us = f.enter_us[x], min(out_us, a.leave_us[x])
        in_bus_us = min(in_bus_us, f.enter_bus_us[x])
        out_bus_us = min(out_bus_us, a.leave_bus_us[x])
        if s == c.bus_set:
            least_us = _on_bus_us(work_us, c.most[s], in_us, out_us, in_bus_us, out_bus_us)
        else:
            least_us = _shared_us(work_us, c.most[s], in_us + out_us)
        longest_us = max(longest_us, least_us)
    return longest_us


@step
def _on_bus_us(
    work_us: float, most: float, in_us: float, out_us: float, in_bus_us: float, out_bus_us: float
) -> float:  # pragma: no cover - compiled
    """Return the least time for work that equal chips share if they send on one channel.

    If ``others`` chips help the first one, the last of them waits for that many transfers at both
    ends.
    """
    total_us = least_us = work_us / most
    for others in range(1, round(1.0 / most)):
        total_us += max(in_us, others * in_bus_us) + max(out_us, others * out_bus_us)
        least_us = min(least_us, total_us / (others + 1))
    return least_us


@loop
def _start_after(
    c: LeastCosts, a: _Ancestors, head_us: FloatArray, v: int, bound_us: float
) -> float:  # pragma: no cover - compiled
    """Find the smallest consistent start of v that is not before the bound."""
    start_us, until_us = bound_us, np.inf
    _forget_together(c, a, v)
    for _ in range(PASSES):
        _find_leaving(c, a, v)
        grows, until_us = _keep_together(c, a, head_us, v, start_us, until_us)
        least_us = _start_together(c, a, head_us, v)
        if least_us > start_us:
            start_us, until_us = min(least_us, until_us), np.inf
            _forget_together(c, a, v)
        elif not grows:
            break
    return start_us


@step
def _forget_together(c: LeastCosts, a: _Ancestors, v: int) -> None:  # pragma: no cover - compiled
    """Begin a trial: only v and its unit are known to be on v's device."""
    a.counts[N_TRIALS] += 1
    a.unit_together[c.unit[v]] = a.counts[N_TRIALS]


@step
def _find_leaving(c: LeastCosts, a: _Ancestors, v: int) -> None:  # pragma: no cover - compiled
    """Find how long before v each ancestor ends that is not on v's device."""
    for at in range(a.counts[N_BETWEEN]):
        a.leaving_us[a.between[at]] = 0.0
    for at in range(-1, a.counts[N_BETWEEN]):
        x = v if at < 0 else a.between[at]
        from_x_us = a.work_us[x] if at < 0 else c.time_us[x] + a.work_us[x]
        away_us = np.inf
        if at >= 0 and a.together[x] != a.counts[N_TRIALS]:
            away_us = c.time_us[x] + a.leaving_us[x]
        for edge in range(c.in_ptr[x], c.in_ptr[x + 1]):
            y = c.producer[edge]
            leaving_us = min(c.send_us[edge] + from_x_us, c.sure_us[edge] + away_us)
            if a.examined[y] == v:
                a.leaving_us[y] = max(a.leaving_us[y], leaving_us)


@step
def _keep_together(
    c: LeastCosts, a: _Ancestors, head_us: FloatArray, v: int, start_us: float, until_us: float
) -> tuple[bool, float]:  # pragma: no cover - compiled
    """Mark the ancestors that are on v's device if v starts at ``start_us``.

    Return whether there are new ones, and up to which start of v all of them are there.
    """
    trial, grows = a.counts[N_TRIALS], False
    for at in range(a.counts[N_BETWEEN] - 1, -1, -1):
        x = a.between[at]
        away_us = head_us[x]
        for edge in range(c.in_ptr[x], c.in_ptr[x + 1]):
            y = c.producer[edge]
            if a.examined[y] != v:
                continue
            there_us = head_us[y] + c.time_us[y] + c.send_us[edge]
            if a.together[y] != trial:
                there_us = min(there_us, a.away_us[y] + c.sure_us[edge])
            away_us = max(away_us, there_us)
        a.away_us[x] = away_us + c.time_us[x]
        key_us = a.away_us[x] + a.leaving_us[x]
        if key_us > start_us:
            until_us = min(until_us, key_us)
            a.unit_together[c.unit[x]] = trial
        if a.together[x] != trial and a.unit_together[c.unit[x]] == trial:
            a.together[x], grows = trial, True
    return grows, until_us


@step
def _start_together(
    c: LeastCosts, a: _Ancestors, head_us: FloatArray, v: int
) -> float:  # pragma: no cover - compiled
    """Return when v can start if its device runs the marked ancestors one after another."""
    start_us, total_us, way_us = 0.0, 0.0, np.inf
    for at in range(a.counts[N_BETWEEN]):
        x = a.between[at]
        if a.together[x] == a.counts[N_TRIALS]:
            total_us, way_us = total_us + c.time_us[x], min(way_us, a.work_us[x])
            start_us = max(start_us, head_us[x] + total_us / c.lanes[v] + way_us)
    return start_us
