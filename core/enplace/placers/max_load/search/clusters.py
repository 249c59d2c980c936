"""Clusters of units that share much traffic, for moves of many units at once.

Units of a layer, and a forward op and its mirror in the backward pass, exchange more than others,
so they end up in one cluster, whatever they are called. As in multilevel partitioning of
hypergraphs, a unit joins the neighbour with the heaviest traffic for the size of both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import numpy as np

from enplace.compiling import kernel, loop
from enplace.values.arrays import adjacency
from enplace.values.problem import BoolArray
from enplace.values.profile import FloatArray, IntArray

FEWEST = 5
"""Clusters for each place at the first level."""

SHRINK = 1.7
"""Units of a level for each cluster of them."""

HARDLY = 0.95
"""Share of the units of a level; a coarser level with more of them is not worth annealing."""

MOST_PINS = 60
"""Wider hyperedges say nothing about which units belong together."""

LIGHT = 1e-3
"""Size, as a share of the largest cluster's, that is added to each unit: many have no work."""


class Neighbours(NamedTuple):
    """Units or groups, and the hyperedges between them.

    Attributes
    ----------
    size : float array, shape (n_units,)
        Share of the work or of the memory, whichever is larger.
    allowed : bool array, shape (n_units, n_places)
    kind : int array, shape (n_units,)
        Only units of one kind may join, such as those on one device.
    ptr, pin : int arrays
        Units of each hyperedge.
    weight : float array, shape (n_hyperedges,)
    """

    size: FloatArray
    allowed: BoolArray
    kind: IntArray
    ptr: IntArray
    pin: IntArray
    weight: FloatArray


Level = TypeVar("Level")


def build_levels(
    finest: Level,
    place: IntArray,
    n_places: int,
    largest: float,
    rng: np.random.Generator,
    stopped: Callable[[], bool],
    describe: Callable[[Level, IntArray], Neighbours],
    merge: Callable[[Level, IntArray], Level],
) -> tuple[list[Level], list[IntArray], IntArray]:
    """Merge the units of a level into clusters that are each in one place, again and again.

    Parameters
    ----------
    place : int array, shape (n_units, ...)
        Where each unit of the finest level is.
    n_places : int
        Until :data:`FEWEST` clusters are left for each, levels are made.
    largest : float
        No cluster exceeds this size.
    describe, merge : callable
        The units of a level in their places as :class:`Neighbours`; and a level whose units are the
        clusters of another's.

    Returns
    -------
    levels : list
        From the finest one.
    labels : list of int array
        Cluster of each unit of each level but the last.
    place : int array
        Where each unit of the last level is.
    """
    levels, labels = [finest], list[IntArray]()
    while len(place) > FEWEST * n_places and not stopped():
        fewest = max(FEWEST * n_places, int(len(place) / SHRINK))
        label = cluster(describe(levels[-1], place), fewest, largest, rng)
        n_clusters = int(label.max()) + 1
        if n_clusters > HARDLY * len(place):
            break
        of_cluster = np.zeros((n_clusters, *place.shape[1:]), dtype=np.int64)
        of_cluster[label] = place
        levels.append(merge(levels[-1], label))
        labels.append(label)
        place = of_cluster
    return levels, labels, place


def cluster(units: Neighbours, fewest: int, largest: float, rng: np.random.Generator) -> IntArray:
    """Join units, in a random order, until ``fewest`` clusters are left or none may join.

    Parameters
    ----------
    largest : float
        No cluster exceeds this size, unless it is a single unit.

    Returns
    -------
    int array, shape (n_units,)
        Number of each unit's cluster, from 0.
    """
    n_units = len(units.size)
    order = rng.permutation(n_units)
    unit_ptr, hyperedge = adjacency(
        units.pin, np.repeat(np.arange(len(units.weight)), np.diff(units.ptr)), n_units
    )
    joined = _join(units, unit_ptr, hyperedge, order, fewest, largest)
    label: IntArray = np.unique(joined, return_inverse=True)[1].reshape(n_units)
    return label


@kernel
def _join(
    units: Neighbours,
    unit_ptr: IntArray,
    hyperedge: IntArray,
    order: IntArray,
    fewest: int,
    largest: float,
) -> IntArray:  # pragma: no cover - compiled
    """Return the unit that represents each unit's cluster."""
    n_units = len(units.size)
    first, size, allowed = np.arange(n_units), units.size.copy(), units.allowed.copy()
    alone, traffic = np.ones(n_units, np.bool_), np.zeros(n_units)
    near, left = np.empty(n_units, np.int64), n_units
    for unit in order:
        if left <= fewest:
            break
        if not alone[unit]:
            continue
        n_near = _find_near(units, unit_ptr, hyperedge, first, unit, traffic, near)
        best, most = -1, -1.0
        for i in range(n_near):
            other = near[i]
            heavy, traffic[other] = traffic[other], 0.0
            fits = units.kind[other] == units.kind[unit] and size[unit] + size[other] <= largest
            if not (fits and (allowed[unit] & allowed[other]).any()):
                continue
            both = (size[unit] + LIGHT * largest) * (size[other] + LIGHT * largest)
            if heavy / np.sqrt(both) > most:
                best, most = other, heavy / np.sqrt(both)
        if best >= 0:
            first[unit], alone[unit], alone[best] = best, False, False
            size[best] += size[unit]
            for place in range(allowed.shape[1]):
                allowed[best, place] &= allowed[unit, place]
            left -= 1
    return first


@loop
def _find_near(
    units: Neighbours,
    unit_ptr: IntArray,
    hyperedge: IntArray,
    first: IntArray,
    unit: int,
    traffic: FloatArray,
    near: IntArray,
) -> int:  # pragma: no cover - compiled
    """List the clusters that share hyperedges with a unit, and their traffic; return how many."""
    n_near = 0
    for at in range(unit_ptr[unit], unit_ptr[unit + 1]):
        edge = hyperedge[at]
        n_pins = units.ptr[edge + 1] - units.ptr[edge]
        if n_pins > MOST_PINS or units.weight[edge] <= 0:
            continue
        for at_pin in range(units.ptr[edge], units.ptr[edge + 1]):
            other = first[units.pin[at_pin]]
            if other != unit:
                if traffic[other] == 0:
                    near[n_near] = other
                    n_near += 1
                traffic[other] += units.weight[edge] / (n_pins - 1)
    return n_near
