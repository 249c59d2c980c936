"""Local search for the largest load of a placement (Tarnawski et al. 2020, section 6).

The paper's baseline: from a random placement, the best reassignment of a single node is made, again
and again until none helps. A node here is a placement unit. Less memory lacking comes before less
load, so that a descent which begins with full devices can end with a placement that fits.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numba import njit

from enplace.placers.max_load.hypergraph import Hypergraph, held_bytes, time_per_sample_us
from enplace.placers.max_load.moves import Costs, State, costs_of, move, state_of
from enplace.values.profile import IntArray

HELPS = 1e-9
"""Share by which the load has to fall, so that what rounding makes of a load is no help."""


def random_placement(graph: Hypergraph, draw: np.random.Generator) -> IntArray:
    """For each unit any device that it may be on; shape (n_units,)."""
    chance = draw.random((graph.n_units, graph.n_devices))
    device: IntArray = np.where(np.isfinite(graph.unit_us[:, :, 0]), chance, -1.0).argmax(axis=1)
    return device


def judged(graph: Hypergraph, device: IntArray) -> tuple[float, float]:
    """Memory that is lacking and time per sample; the smaller of two pairs is the better one."""
    lacking = np.maximum(held_bytes(graph, device) - graph.capacity_bytes, 0).sum()
    return float(lacking), time_per_sample_us(graph, device)


def descend(graph: Hypergraph, start: IntArray, stopped: Callable[[], bool]) -> IntArray:
    """Make the best single reassignment until none helps.

    Parameters
    ----------
    start : int array, shape (n_units,)
    stopped : callable
        Asked before every step; once true, the descent ends where it is.

    Returns
    -------
    int array, shape (n_units,)
    """
    costs, device = costs_of(graph), start.copy()
    while not stopped():
        # Worked out anew for each step, as what moving to and fro leaves of rounding adds up.
        unit, target = _best_move(costs, state_of(graph, device.copy()))
        if unit < 0:
            break
        device[unit] = target
    return device


@njit(cache=True, nogil=True)
def _best_move(costs: Costs, state: State) -> tuple[int, int]:  # pragma: no cover - compiled
    """The reassignment after which least memory is lacking and the load is least.

    Of equals the first; -1 for the unit if none helps. A move changes the loads of the two devices
    it is between and of no other, so one of them has to be among the busiest, or too full.
    """
    lacking, load_us = _judged(costs, state)
    load_us *= 1 - HELPS
    best_unit, best_target = -1, -1
    matters = state.held_bytes > costs.capacity_bytes
    for p in range(state.load_us.shape[1]):
        matters |= state.load_us[:, p] >= (1 - HELPS) * state.load_us[:, p].max()
    for unit in range(len(state.device)):
        source = state.device[unit]
        for target in range(len(matters)):
            if target == source or not (matters[source] or matters[target]):
                continue
            if not np.isfinite(costs.unit_us[unit, target, 0]):
                continue
            move(costs, state, unit, target)
            found_lacking, found_us = _judged(costs, state)
            move(costs, state, unit, source)
            if found_lacking < lacking or (found_lacking == lacking and found_us < load_us):
                lacking, load_us = found_lacking, found_us
                best_unit, best_target = unit, target
    return best_unit, best_target


@njit(cache=True, nogil=True)
def _judged(costs: Costs, state: State) -> tuple[float, float]:  # pragma: no cover - compiled
    """As :func:`judged`."""
    lacking = 0.0
    for device in range(len(state.held_bytes)):
        lacking += max(state.held_bytes[device] - costs.capacity_bytes[device], 0.0)
    load_us = 0.0
    for p in range(state.load_us.shape[1]):
        load_us += state.load_us[:, p].max()
    return lacking, load_us
