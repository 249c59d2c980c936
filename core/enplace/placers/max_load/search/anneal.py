"""Simulated annealing for the largest load of a placement that need not be contiguous.

A step moves one unit, exchanges two, gathers the units of one hyperedge, or moves a connected set
of units from one device. Updating the loads takes time proportional to the hyperedges of the units
that move. The energy of a placement is a norm of all loads: unlike the largest load, it also falls
when a device that is not the busiest gets less work.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from enplace.compiling import kernel, loop
from enplace.placers.max_load.search.hypergraph import Hypergraph, time_per_sample_us
from enplace.placers.max_load.search.moves import (
    Loads,
    UnitCosts,
    build_loads,
    build_unit_costs,
    find_busiest,
    largest_us,
    move,
)
from enplace.placing.random_numbers import draw_below
from enplace.values.profile import FloatArray, IntArray

STEPS_AT_ONCE = 200_000
"""Steps between two checks for whether to stop: some tenths of a second."""

STEPS_PER_UNIT, MOST_STEPS = 8000, 1_500_000
"""Steps of one run; further runs from the same start find more than a longer run would."""

HOT, COLD = 0.03, 0.00003
"""First and last temperature, as shares of the load."""

COOL, COLDEST = 0.0003, 0.00001
"""The same, where a placement is only changed in detail: from the hot ones, little of it is left,
and small units that fill the gaps of many devices are only found at the cold ones."""

MANY, COOLER = 2000, 2.5
"""With more units than :data:`MANY`, each unit has a smaller share of the load and gets fewer
steps, so the first temperature falls with this power of the number of units."""

SWAP, GATHER, CONNECTED = 0.15, 0.1, 0.3
"""Shares of the kinds of steps; all other steps move one unit."""

MOST_MOVED = 48
"""Most units that move in one step."""


def anneal(
    graph: Hypergraph, start: IntArray, stopped: Callable[[], bool], seed: int = 0
) -> IntArray:
    """Anneal from a placement that fits; return the best one found.

    Parameters
    ----------
    start : int array, shape (n_units,)
    stopped : callable
        Called every :data:`STEPS_AT_ONCE` steps; once it returns true, the best so far is returned.

    Returns
    -------
    int array, shape (n_units,)
    """
    total = min(MOST_STEPS, STEPS_PER_UNIT * graph.n_units)
    return cool(graph, start, stopped, np.random.default_rng(seed), total, HOT, COLD)


def refine(
    graph: Hypergraph, start: IntArray, stopped: Callable[[], bool], seed: int = 0
) -> IntArray:
    """Anneal a good placement at low temperatures; parameters as for :func:`anneal`."""
    total = min(MOST_STEPS, STEPS_PER_UNIT * graph.n_units)
    return cool(graph, start, stopped, np.random.default_rng(seed), total, COOL, COLDEST)


def cool(
    graph: Hypergraph,
    start: IntArray,
    stopped: Callable[[], bool],
    rng: np.random.Generator,
    total: int,
    hottest: float,
    coldest: float,
) -> IntArray:
    """Take ``total`` steps from a placement that fits, ever cooler; return the best one found.

    Parameters
    ----------
    hottest, coldest : float
        First and last temperature, as shares of the load, of a graph with few units.
    """
    costs, device, best = build_unit_costs(graph), start.copy(), start.copy()
    hottest *= (MANY / max(MANY, graph.n_units)) ** COOLER
    coldest = min(coldest, hottest / 10)
    for first in range(0, total, STEPS_AT_ONCE):
        if stopped():
            break
        steps = min(STEPS_AT_ONCE, total - first)
        # Built again each time, without the rounding errors of the steps before.
        best_us = time_per_sample_us(graph, best)
        loads = build_loads(graph, device)
        ends = (first / total, (first + steps) / total)
        hot, cold = (best_us * hottest * (coldest / hottest) ** end for end in ends)
        _take_steps(costs, loads, best, best_us, steps, hot, cold, rng)
    return best


@kernel
def _take_steps(
    costs: UnitCosts,
    loads: Loads,
    best: IntArray,
    best_us: float,
    steps: int,
    hot_us: float,
    cold_us: float,
    rng: np.random.Generator,
) -> None:  # pragma: no cover - compiled
    """Move units step by step; update ``best`` whenever the largest load falls."""
    units, targets = np.empty(MOST_MOVED, np.int64), np.empty(MOST_MOVED, np.int64)
    sources = np.empty(MOST_MOVED, np.int64)
    mark = np.full(len(loads.device), -1, dtype=np.int64)
    energy = _norm(loads.load_us, best_us)
    cooling = (cold_us / hot_us) ** (1.0 / steps) if hot_us > 0 else 1.0
    temperature = hot_us
    for step in range(steps):
        temperature *= cooling
        n = _choose(costs, loads, units, targets, mark, step, rng)
        moved = _move_all(costs, loads, units[:n], targets, sources)
        accepted = moved == n and _fits(costs, loads)
        if accepted:
            new = _norm(loads.load_us, best_us)
            accepted = new <= energy or rng.random() < np.exp((energy - new) / temperature)
        if not accepted:
            for i in range(moved - 1, -1, -1):
                move(costs, loads, units[i], sources[i])
            continue
        energy = new
        largest = largest_us(loads)
        if largest < best_us * (1 - 1e-12):
            best_us = largest
            best[:] = loads.device
            # With another scale the norm is rounded differently, so the old one does not compare.
            energy = _norm(loads.load_us, best_us)


@loop
def _move_all(
    costs: UnitCosts, loads: Loads, units: IntArray, targets: IntArray, sources: IntArray
) -> int:  # pragma: no cover - compiled
    """Move units until one may not go to its target; return how many moved, and from where."""
    for i in range(len(units)):
        if not np.isfinite(costs.unit_us[units[i], targets[i], 0]):
            return i
        sources[i] = loads.device[units[i]]
        move(costs, loads, units[i], targets[i])
    return len(units)


@loop
def _fits(costs: UnitCosts, loads: Loads) -> bool:  # pragma: no cover - compiled
    """Whether no device holds more than its memory."""
    for device in range(len(loads.held_bytes)):
        if loads.held_bytes[device] > costs.capacity_bytes[device]:
            return False
    return True


@loop
def _choose(
    costs: UnitCosts,
    loads: Loads,
    units: IntArray,
    targets: IntArray,
    mark: IntArray,
    step: int,
    rng: np.random.Generator,
) -> int:  # pragma: no cover - compiled
    """Choose units and their new devices; return the number of units."""
    n_units, n_devices = costs.unit_us.shape[:2]
    device = loads.device
    unit = _choose_unit(loads, n_units, rng)
    target, lonely = draw_below(rng, n_devices), costs.unit_ptr[unit] == costs.unit_ptr[unit + 1]
    hyperedge = -1 if lonely else _any_of(costs.unit_hyperedge, costs.unit_ptr, unit, rng)
    # Mostly a device that a neighbour is on: other moves rarely save a transfer.
    if not lonely and rng.random() < 0.8:
        near = device[_any_of(costs.pin, costs.ptr, hyperedge, rng)]
        if near != device[unit]:
            target = near
    units[0], targets[0] = unit, target
    kind = rng.random()
    if kind < SWAP:
        other = draw_below(rng, n_units)
        units[1], targets[0], targets[1] = other, device[other], device[unit]
        return 2 if other != unit else 1
    if kind < SWAP + GATHER and not lonely:
        first = costs.ptr[hyperedge]
        n = min(costs.ptr[hyperedge + 1] - first, MOST_MOVED)
        for i in range(n):
            units[i], targets[i] = costs.pin[first + i], target
        return int(n)
    if kind < SWAP + GATHER + CONNECTED:
        # From 2 to 45 units, small and large sets equally likely.
        wanted = int(2.0 ** (1.0 + 4.5 * rng.random()))
        n = _connected(costs, device, units, mark, step, wanted)
        targets[:n] = target
        return n
    return 1


@loop
def _choose_unit(
    loads: Loads, n_units: int, rng: np.random.Generator
) -> int:  # pragma: no cover - compiled
    """Choose any unit, or sometimes, within a few tries, a unit of the busiest device."""
    unit = draw_below(rng, n_units)
    if rng.random() < 0.3:
        p = draw_below(rng, loads.load_us.shape[1])
        busiest = find_busiest(loads, p)
        for _ in range(8):
            if loads.device[unit] != busiest:
                unit = draw_below(rng, n_units)
    return unit


@loop
def _any_of(
    values: IntArray, ptr: IntArray, row: int, rng: np.random.Generator
) -> int:  # pragma: no cover - compiled
    """Draw an entry of a row of a list in compressed sparse rows."""
    return int(values[ptr[row] + draw_below(rng, ptr[row + 1] - ptr[row])])


@loop
def _connected(
    costs: UnitCosts, device: IntArray, units: IntArray, mark: IntArray, step: int, wanted: int
) -> int:  # pragma: no cover - compiled
    """Add the units near ``units[0]`` on its device, breadth first; return their number.

    ``mark`` is the last step that visited each unit.
    """
    n, at = 1, 0
    mark[units[0]] = step
    while at < n and n < wanted:
        for edge in range(costs.unit_ptr[units[at]], costs.unit_ptr[units[at] + 1]):
            hyperedge = costs.unit_hyperedge[edge]
            for at_pin in range(costs.ptr[hyperedge], costs.ptr[hyperedge + 1]):
                other = costs.pin[at_pin]
                if n < wanted and mark[other] != step and device[other] == device[units[0]]:
                    mark[other] = step
                    units[n] = other
                    n += 1
        at += 1
    return n


@loop
def _norm(load_us: FloatArray, scale_us: float) -> float:  # pragma: no cover - compiled
    """Return the 16-norm of the loads of each pass; the scale keeps the powers within range."""
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
