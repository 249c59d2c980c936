"""Annealing by levels: clusters of units first, then smaller ones, at last single units.

Where each unit exchanges much with its neighbours, moving a unit alone costs more than annealing
accepts, and the layers of a model only change devices as a whole. At each level, the clusters are
the units of a smaller problem with the same loads. Only units that are on one device form a
cluster, so the placement so far is a placement of the clusters too, and never gets worse.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from enplace.placers.max_load.search.anneal import COLD, HOT, cool
from enplace.placers.max_load.search.clusters import Neighbours, build_levels
from enplace.placers.max_load.search.hypergraph import Hypergraph
from enplace.placers.max_load.table.hyperedges import Hyperedges
from enplace.values.arrays import csr_offsets
from enplace.values.problem import BoolArray
from enplace.values.profile import FloatArray, IntArray

LARGEST = 0.2, 0.7
"""Range from which the size of the largest cluster is drawn, as a share of a device's."""

STEPS_PER_UNIT, LEAST_STEPS, MOST_STEPS = 1000, 20_000, 500_000
"""Annealing steps of a level."""

WARM = 0.003
"""First temperature of all levels but the first, as a share of the load."""


def anneal_by_levels(
    graph: Hypergraph, start: IntArray, stopped: Callable[[], bool], seed: int = 0
) -> IntArray:
    """Anneal from a placement that fits, level by level; return the best one found.

    Parameters
    ----------
    start : int array, shape (n_units,)
    stopped : callable
        Called often; once it returns true, the best so far is returned.

    Returns
    -------
    int array, shape (n_units,)
    """
    rng = np.random.default_rng(seed)
    largest = rng.uniform(*LARGEST) / graph.n_devices
    levels, labels, device = build_levels(
        graph, start, graph.n_devices, largest, rng, stopped, _neighbours, merge_units
    )
    hot = HOT
    for number in range(len(levels) - 1, -1, -1):
        level = levels[number]
        steps = min(max(STEPS_PER_UNIT * level.n_units, LEAST_STEPS), MOST_STEPS)
        device = cool(level, device, stopped, rng, steps, hot, COLD)
        if number:
            device = device[labels[number - 1]]
        hot = WARM
    return device


def merge_units(graph: Hypergraph, label: IntArray) -> Hypergraph:
    """Make clusters the units of a graph; a placement of them has the same loads as in the old one.

    Parameters
    ----------
    label : int array, shape (n_units,)
        Cluster of each unit; every number up to the largest is used.
    """
    n = int(label.max()) + 1
    unit_us = np.zeros((n, *graph.unit_us.shape[1:]))
    unit_bytes = np.zeros((n, graph.n_devices), dtype=np.int64)
    np.add.at(unit_us, label, graph.unit_us)
    np.add.at(unit_bytes, label, graph.unit_bytes)
    hyperedges = _merge_nodes(graph.hyperedges, label, n)
    return replace(graph, unit_us=unit_us, unit_bytes=unit_bytes, hyperedges=hyperedges)


def _merge_nodes(hyperedges: Hyperedges, label: IntArray, n: int) -> Hyperedges:
    """Merge the nodes of hyperedges; one that is inside a cluster becomes a cost of the cluster."""
    n_prices, _, n_channels = hyperedges.own_us.shape
    own_us = np.zeros((n, n_prices, n_channels))
    np.add.at(own_us, label, hyperedges.own_us.transpose(1, 0, 2))
    edge, node = np.divmod(np.unique(hyperedges.of_pin * n + label[hyperedges.node]), n)
    n_pins = np.bincount(edge, minlength=hyperedges.n_hyperedges)
    inside = n_pins[edge] == 1
    net_us = hyperedges.touched_us - hyperedges.inside_us
    np.add.at(own_us, node[inside], net_us[:, edge[inside]].transpose(1, 0, 2))
    kept = n_pins > 1
    number = np.cumsum(kept) - 1
    return Hyperedges(
        csr_offsets(number[edge[~inside]], int(kept.sum())),
        np.ascontiguousarray(node[~inside]),
        np.ascontiguousarray(hyperedges.touched_us[:, kept]),
        np.ascontiguousarray(hyperedges.inside_us[:, kept]),
        np.ascontiguousarray(own_us.transpose(1, 0, 2)),
    )


def _neighbours(graph: Hypergraph, device: IntArray) -> Neighbours:
    """Describe the units of a placement, and how much they exchange."""
    hyperedges = graph.hyperedges
    allowed: BoolArray = np.isfinite(graph.unit_us[:, :, 0])
    traffic_us = np.abs(hyperedges.touched_us) + np.abs(hyperedges.inside_us)
    return Neighbours(
        _sizes(graph),
        allowed,
        device,
        hyperedges.ptr,
        hyperedges.node,
        traffic_us.mean(axis=0).sum(axis=1),
    )


def _sizes(graph: Hypergraph) -> FloatArray:
    """Return each unit's share of all work, or of the memory there is if that is larger."""
    work_us = graph.unit_us.sum(axis=2).min(axis=1)
    limited = np.isfinite(graph.capacity_bytes)
    memory = graph.unit_bytes.max(axis=1) / max(graph.capacity_bytes[limited].sum(), 1.0)
    share: FloatArray = np.maximum(work_us / max(work_us.sum(), 1e-300), memory)
    return share
