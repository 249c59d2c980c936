"""Local search for the largest load of a placement (Tarnawski et al. 2020, section 6).

The paper's baseline: from a random placement, make the best reassignment of a single node until
none helps. Here a node is a placement unit. A smaller excess matters more than a smaller load, so a
descent that begins with full devices can end with a placement that fits.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from enplace.compiling import kernel, loop
from enplace.placers.max_load.search.hypergraph import Hypergraph, held_bytes, time_per_sample_us
from enplace.placers.max_load.search.moves import (
    Loads,
    UnitCosts,
    build_loads,
    build_unit_costs,
    largest_us,
    move,
)
from enplace.values.profile import IntArray

HELPS = 1e-9
"""Share by which the load must fall to count as an improvement, and not as a rounding error."""


def draw_placement(graph: Hypergraph, draw: np.random.Generator) -> IntArray:
    """Draw one of the allowed devices for each unit; shape (n_units,)."""
    chance = draw.random((graph.n_units, graph.n_devices))
    device: IntArray = np.where(np.isfinite(graph.unit_us[:, :, 0]), chance, -1.0).argmax(axis=1)
    return device


def score(graph: Hypergraph, device: IntArray) -> tuple[float, float]:
    """Return the excess in bytes and the time per sample; the smaller of two pairs is better."""
    excess = np.maximum(held_bytes(graph, device) - graph.capacity_bytes, 0).sum()
    return float(excess), time_per_sample_us(graph, device)


def descend(graph: Hypergraph, start: IntArray, stopped: Callable[[], bool]) -> IntArray:
    """Make the best single reassignment until none helps.

    Parameters
    ----------
    start : int array, shape (n_units,)
    stopped : callable
        Called before every step; once it returns true, the descent ends where it is.

    Returns
    -------
    int array, shape (n_units,)
    """
    costs, device = build_unit_costs(graph), start.copy()
    while not stopped():
        # Built again for each step, because rounding errors of moves back and forth add up.
        unit, target = _best_move(costs, build_loads(graph, device.copy()))
        if unit < 0:
            break
        device[unit] = target
    return device


@kernel
def _best_move(costs: UnitCosts, loads: Loads) -> tuple[int, int]:  # pragma: no cover - compiled
    """Find the reassignment with the least excess afterwards, and then the least load.

    Ties go to the first; the unit is -1 if none helps. A move changes the loads of only two
    devices, so one of them must be among the busiest, or exceed its memory.
    """
    excess, load_us = _score(costs, loads)
    load_us *= 1 - HELPS
    best_unit, best_target = -1, -1
    matters = loads.held_bytes > costs.capacity_bytes
    for p in range(loads.load_us.shape[1]):
        matters |= loads.load_us[:, p] >= (1 - HELPS) * loads.load_us[:, p].max()
    for unit in range(len(loads.device)):
        source = loads.device[unit]
        for target in range(len(matters)):
            if target == source or not (matters[source] or matters[target]):
                continue
            if not np.isfinite(costs.unit_us[unit, target, 0]):
                continue
            # There and back again is cheaper than the loads of a copy.
            move(costs, loads, unit, target)
            found_excess, found_us = _score(costs, loads)
            move(costs, loads, unit, source)
            if found_excess < excess or (found_excess == excess and found_us < load_us):
                excess, load_us = found_excess, found_us
                best_unit, best_target = unit, target
    return best_unit, best_target


@loop
def _score(costs: UnitCosts, loads: Loads) -> tuple[float, float]:  # pragma: no cover - compiled
    """Do the same as :func:`score`."""
    excess = 0.0
    for device in range(len(loads.held_bytes)):
        excess += max(loads.held_bytes[device] - costs.capacity_bytes[device], 0.0)
    return excess, largest_us(loads)
