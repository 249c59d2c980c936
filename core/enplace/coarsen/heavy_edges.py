"""Ties: edges too heavy to cut, and the ops that they join."""

from __future__ import annotations

import numpy as np

from enplace.coarsen.grouped import mean_link
from enplace.compiling import kernel
from enplace.values.arrays import find_root
from enplace.values.problem import BoolArray, Problem
from enplace.values.profile import FloatArray, IntArray


def tie_heavy_edges(problem: Problem, ratio: float, share: float) -> IntArray:
    """Join placement units along heavy edges, the heaviest first, up to a limit on their work.

    An edge is heavy if its bytes take longer over the mean link than half the link's latency, and
    than ``ratio`` times the longer of its two ops. This keeps the time steps of a recurrent layer
    with the weights that they all read and with the sum of their gradients.

    Parameters
    ----------
    ratio : float
        How many times longer than its longer op a transfer must take; 0 for any time.
    share : float
        Most compute time of ops that are joined, as a share of the whole graph's.

    Returns
    -------
    int array, shape (n_ops,)
        Like ``Problem.unit`` but coarser, numbered from 0 without gaps. Only units that may use the
        same devices are joined. The graph of these units may have cycles: they only share a device.
    """
    profile = problem.profile
    work_us = np.where(np.isfinite(problem.time_us), problem.time_us, np.inf).min(axis=1)
    latency_us, per_byte_us = mean_link(problem.cluster)
    send_us = per_byte_us * profile.tensor_bytes[profile.edge_tensor]
    source, target = profile.edge_source, profile.edge_op
    heavy = send_us > np.maximum(
        latency_us / 2, ratio * np.maximum(work_us[source], work_us[target])
    )
    order = np.argsort(-send_us, kind="stable")
    order = order[heavy[order]]
    root = _join(
        problem.unit[source[order]],
        problem.unit[target[order]],
        np.bincount(problem.unit, weights=work_us).astype(np.float64),
        problem.unit_allowed,
        share * work_us.sum(),
    )
    return np.unique(root[problem.unit], return_inverse=True)[1].astype(np.int64)


@kernel
def _join(
    left: IntArray, right: IntArray, work_us: FloatArray, allowed: BoolArray, limit_us: float
) -> IntArray:  # pragma: no cover - compiled
    """Join pairs of units by union-find, skipping pairs that would grow too large."""
    parent = np.arange(len(work_us))
    for i in range(len(left)):
        a, b = find_root(parent, left[i]), find_root(parent, right[i])
        if a == b or work_us[a] + work_us[b] > limit_us or (allowed[a] != allowed[b]).any():
            continue
        parent[b] = a
        work_us[a] += work_us[b]
    for unit in range(len(parent)):
        parent[unit] = find_root(parent, unit)
    return parent
