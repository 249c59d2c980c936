"""Simulated annealing for the largest load of a placement that need not be contiguous.

A step moves one unit, makes two change places, gathers the units of one net, or moves a connected
part of one device. Loads follow from how many units of each net a device has, in time proportional
to the nets of what moves. A placement is judged by a norm of all loads, which unlike the largest of
them also tells when a device that is not the busiest gets less to do.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numba import njit

from enplace.placers.max_load.hypergraph import Hypergraph, time_per_sample_us
from enplace.placers.max_load.moves import Costs, State, costs_of, move, state_of
from enplace.values.profile import FloatArray, IntArray

STEPS_AT_ONCE = 200_000
"""Between two looks whether to stop: some tenths of a second."""

STEPS_PER_UNIT, MOST_STEPS = 8000, 1_500_000
"""Steps of one run; beyond, another run from the same start finds more than a longer one."""

HOT, COLD = 0.03, 0.00003
"""First and last temperature, as shares of the load."""

MANY, COOLER = 2000, 2.5
"""With more units than so many, each has less of the load, and fewer steps: the first temperature
falls with this power of their number."""

SWAP, GATHER, CONNECTED = 0.15, 0.1, 0.3
"""Shares of the kinds of step; the others move one unit."""

MOST_MOVED = 48
"""So many units move in one step at most."""


def anneal(
    graph: Hypergraph, start: IntArray, stopped: Callable[[], bool], seed: int = 0
) -> IntArray:
    """The best placement found on the way from one that fits.

    Parameters
    ----------
    start : int array, shape (n_units,)
    stopped : callable
        Asked every :data:`STEPS_AT_ONCE` steps; once true, the best so far is the answer.

    Returns
    -------
    int array, shape (n_units,)
    """
    rng = np.random.default_rng(seed)
    costs, device, best = costs_of(graph), start.copy(), start.copy()
    total = min(MOST_STEPS, STEPS_PER_UNIT * graph.n_units)
    hottest = HOT * (MANY / max(MANY, graph.n_units)) ** COOLER
    coldest = min(COLD, hottest / 10)
    for first in range(0, total, STEPS_AT_ONCE):
        if stopped():
            break
        steps = min(STEPS_AT_ONCE, total - first)
        # Worked out anew each time, without what rounding left over the steps before.
        best_us = time_per_sample_us(graph, best)
        state = state_of(graph, device)
        ends = (first / total, (first + steps) / total)
        hot, cold = (best_us * hottest * (coldest / hottest) ** end for end in ends)
        _anneal(costs, state, best, best_us, steps, hot, cold, rng)
    return best


@njit(cache=True, nogil=True)
def _anneal(
    costs: Costs,
    state: State,
    best: IntArray,
    best_us: float,
    steps: int,
    hot_us: float,
    cold_us: float,
    rng: np.random.Generator,
) -> None:  # pragma: no cover - compiled
    """Change a state step by step, and ``best`` whenever the largest load falls."""
    units, targets = np.empty(MOST_MOVED, np.int64), np.empty(MOST_MOVED, np.int64)
    sources = np.empty(MOST_MOVED, np.int64)
    mark = np.full(len(state.device), -1, dtype=np.int64)
    energy = _norm(state.load_us, best_us)
    cooling = (cold_us / hot_us) ** (1.0 / steps) if hot_us > 0 else 1.0
    temperature = hot_us
    for step in range(steps):
        temperature *= cooling
        n = _choose(costs, state, units, targets, mark, step, rng)
        moved, accepted = 0, True
        for i in range(n):
            if not np.isfinite(costs.unit_us[units[i], targets[i], 0]):
                accepted = False
                break
            sources[i] = state.device[units[i]]
            move(costs, state, units[i], targets[i])
            moved = i + 1
        if accepted and np.all(state.held_bytes <= costs.capacity_bytes):
            new = _norm(state.load_us, best_us)
            accepted = new <= energy or rng.random() < np.exp((energy - new) / temperature)
        else:
            accepted = False
        if not accepted:
            for i in range(moved - 1, -1, -1):
                move(costs, state, units[i], sources[i])
            continue
        energy = new
        largest = 0.0
        for p in range(state.load_us.shape[1]):
            largest += state.load_us[:, p].max()
        if largest < best_us * (1 - 1e-12):
            best_us = largest
            best[:] = state.device
            energy = _norm(state.load_us, best_us)


@njit(cache=True, nogil=True)
def _choose(
    costs: Costs,
    state: State,
    units: IntArray,
    targets: IntArray,
    mark: IntArray,
    step: int,
    rng: np.random.Generator,
) -> int:  # pragma: no cover - compiled
    """Choose what moves and where to; returns how many units do."""
    n_units, n_devices = costs.unit_us.shape[:2]
    device = state.device
    unit = rng.integers(0, n_units)
    if rng.random() < 0.3:
        p = rng.integers(0, state.load_us.shape[1])
        busiest = np.argmax(state.load_us[:, p])
        for _ in range(8):
            if device[unit] != busiest:
                unit = rng.integers(0, n_units)
    target, lonely = rng.integers(0, n_devices), costs.unit_ptr[unit] == costs.unit_ptr[unit + 1]
    net = -1 if lonely else _any_of(costs.unit_net, costs.unit_ptr, int(unit), rng)
    if not lonely and rng.random() < 0.8:
        near = device[_any_of(costs.net_unit, costs.net_ptr, net, rng)]
        if near != device[unit]:
            target = near
    units[0], targets[0] = unit, target
    kind = rng.random()
    if kind < SWAP:
        other = rng.integers(0, n_units)
        units[1], targets[0], targets[1] = other, device[other], device[unit]
        return 2 if other != unit else 1
    if kind < SWAP + GATHER and not lonely:
        first = costs.net_ptr[net]
        n = min(costs.net_ptr[net + 1] - first, MOST_MOVED)
        units[:n], targets[:n] = costs.net_unit[first : first + n], target
        return int(n)
    if kind < SWAP + GATHER + CONNECTED:
        wanted = int(2.0 ** (1.0 + 4.5 * rng.random()))
        n = _connected(costs, device, units, mark, step, wanted)
        targets[:n] = target
        return n
    return 1


@njit(cache=True, nogil=True)
def _any_of(
    values: IntArray, ptr: IntArray, row: int, rng: np.random.Generator
) -> int:  # pragma: no cover - compiled
    return int(values[rng.integers(ptr[row], ptr[row + 1])])


@njit(cache=True, nogil=True)
def _connected(
    costs: Costs, device: IntArray, units: IntArray, mark: IntArray, step: int, wanted: int
) -> int:  # pragma: no cover - compiled
    """Add to ``units[0]`` those near it on its device, breadth first; returns how many there are.

    ``mark`` tells which units have been seen in a step.
    """
    n, at = 1, 0
    mark[units[0]] = step
    while at < n and n < wanted:
        for edge in range(costs.unit_ptr[units[at]], costs.unit_ptr[units[at] + 1]):
            net = costs.unit_net[edge]
            for pin in range(costs.net_ptr[net], costs.net_ptr[net + 1]):
                other = costs.net_unit[pin]
                if n < wanted and mark[other] != step and device[other] == device[units[0]]:
                    mark[other] = step
                    units[n] = other
                    n += 1
        at += 1
    return n


@njit(cache=True, nogil=True)
def _norm(load_us: FloatArray, scale_us: float) -> float:  # pragma: no cover - compiled
    """16-norm of the loads of each pass; the scale keeps the powers within range."""
    norm = 0.0
    for p in range(load_us.shape[1]):
        total = 0.0
        for value in load_us[:, p]:
            share = value / scale_us if scale_us > 0 else 0.0
            share *= share
            share *= share
            share *= share
            total += share * share
        norm += scale_us * total ** (1.0 / 16.0)
    return norm
