"""Annealing the latency by levels: clusters of groups first, then smaller ones, at last groups.

As :mod:`enplace.placers.max_load.search.levels` does for the largest load.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from enplace.placers.latency.anneal import COLD, HOT, cool
from enplace.placers.latency.groups import Groups
from enplace.placers.max_load.search.clusters import Neighbours, build_levels
from enplace.values.arrays import csr_offsets
from enplace.values.profile import IntArray

LARGEST = 0.1, 0.5
"""Range from which the size of the largest cluster is drawn, as a share of an accelerator's."""

STEPS_PER_GROUP, MOST_STEPS = 1000, 75_000
"""Annealing steps of a level; the first has twice as many."""

USUAL_LEVELS = 4
"""Levels of a graph of a few hundred groups, of which the first has twice as many steps."""

WARM = 0.03
"""First temperature of all levels but the first, as a share of the latency."""


def anneal_by_levels(
    groups: Groups,
    start: IntArray,
    n_slots: int,
    stopped: Callable[[], bool],
    seed: int = 0,
) -> IntArray:
    """Anneal from places that fit, level by level; return the best ones found.

    Parameters
    ----------
    start : int array, shape (n_groups, 2)
        Place of each group, and its subgraph there, 0 to ``n_slots - 1``.
    n_slots : int
        Subgraphs of an accelerator in each pass.
    stopped : callable
        Called often; once it returns true, the best so far is returned.

    Returns
    -------
    int array, shape (n_groups, 2)
    """
    rng = np.random.default_rng(seed)
    n_gpus = max(groups.cpu, 1)
    largest = rng.uniform(*LARGEST) / n_gpus
    describe = partial(_neighbours, n_slots=n_slots)
    levels, labels, place = build_levels(
        groups, start, n_gpus, largest, rng, stopped, describe, merge_groups
    )
    hot, times = HOT, 2
    for number in range(len(levels) - 1, -1, -1):
        level = levels[number]
        steps = times * min(STEPS_PER_GROUP * level.n_groups, MOST_STEPS)
        place = cool(level, place, n_slots, steps, stopped, rng, hot, COLD)
        if number:
            place = place[labels[number - 1]]
        hot, times = WARM, 1
    return place


def most_steps(groups: Groups) -> int:
    """Return how many steps all levels together usually have at most."""
    return (USUAL_LEVELS + 1) * min(STEPS_PER_GROUP * groups.n_groups, MOST_STEPS)


def merge_groups(groups: Groups, label: IntArray) -> Groups:
    """Make clusters the groups of a problem; their ops are those of the old groups.

    Parameters
    ----------
    label : int array, shape (n_groups,)
        Cluster of each group; every number up to the largest is used.
    """
    n = int(label.max()) + 1
    allowed = np.ones((n, groups.allowed.shape[1]), dtype=bool)
    group_bytes = np.zeros(n, dtype=np.int64)
    np.logical_and.at(allowed, label, groups.allowed)
    np.add.at(group_bytes, label, groups.group_bytes)
    return replace(groups, group=label[groups.group], allowed=allowed, group_bytes=group_bytes)


def _neighbours(groups: Groups, place: IntArray, n_slots: int) -> Neighbours:
    """Describe the groups in their places, and how much they exchange."""
    n, n_edges = groups.n_groups, len(groups.hyperedge_us)
    edge = np.repeat(np.arange(n_edges), np.diff(groups.hyperedge_ptr))
    edge, pin = np.divmod(np.unique(edge * n + groups.group[groups.hyperedge_op]), n)
    apart = np.bincount(edge, minlength=n_edges) > 1
    number = np.cumsum(apart) - 1
    work_us = np.bincount(groups.group, groups.op_us.min(axis=1), n)
    memory = groups.group_bytes / max(groups.capacity_bytes[: groups.cpu].sum(), 1.0)
    return Neighbours(
        np.maximum(work_us / max(work_us.sum(), 1e-300), memory),
        groups.allowed,
        place[:, 0] * n_slots + place[:, 1],
        csr_offsets(number[edge[apart[edge]]], int(apart.sum())),
        np.ascontiguousarray(pin[apart[edge]]),
        np.ascontiguousarray(groups.hyperedge_us[apart].mean(axis=1)),
    )
