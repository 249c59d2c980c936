"""The exchange of gradients between replicas (Tarnawski et al. 2020, appendix C.2)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from enplace.machine.host_links import machine_of
from enplace.machine.op_passes import backward_ops
from enplace.values.cluster import Cluster
from enplace.values.problem import Problem
from enplace.values.profile import FloatArray, IntArray


def all_reduce_us(problem: Problem, device: IntArray, group: Sequence[int]) -> float:
    """Return the time of the all-reduce between replicas, for each sample.

    Parameters
    ----------
    group : sequence of int
        The replicas; their ops are placed on the first.
    """
    n = len(group)
    return float((n - 1) / n * sync_us(problem, group)[device == group[0]].sum())


def sync_us(problem: Problem, group: Sequence[int]) -> FloatArray:
    """Return the time to move the weights of each op between replicas; shape (n_ops,).

    Every step of an all-reduce takes as long as on the slowest link between any two replicas. 0 for
    CPUs, which share one copy of the weights in the host's memory, and 0 without a backward pass,
    because then weights do not change.
    """
    gpus = [device for device in group if device in problem.cluster.gpus]
    if len(gpus) < 2 or not backward_ops(problem).any():
        return np.zeros(problem.profile.n_ops)
    us: FloatArray = (
        _reduce_us_per_byte(problem.cluster, gpus).max() * problem.profile.persistent_bytes
    )
    return us


def slowest_sync_us(problem: Problem, two_level: bool) -> FloatArray:
    """Return the largest :func:`sync_us` over all accelerators that may be replicas; (n_ops,)."""
    groups = _possible_groups(problem.cluster, two_level)
    us: FloatArray = np.max([sync_us(problem, group) for group in groups], 0)
    return us


def syncs_alike(cluster: Cluster, two_level: bool) -> bool:
    """Whether it makes no difference which accelerators are replicas of each other."""
    links = [_reduce_us_per_byte(cluster, group) for group in _possible_groups(cluster, two_level)]
    return len(np.unique(np.concatenate(links))) < 2


def _possible_groups(cluster: Cluster, two_level: bool) -> list[list[int]]:
    """List the accelerators that may be replicas: all, or with two levels, those of one machine."""
    machine = machine_of(cluster) * two_level
    return [
        [gpu for gpu in cluster.gpus if machine[gpu] == number]
        for number in np.unique(machine).tolist()
    ]


def _reduce_us_per_byte(cluster: Cluster, gpus: Sequence[int]) -> FloatArray:
    """Return the time per byte of each link between two of the given accelerators."""
    between: FloatArray = cluster.b1_us_per_byte[np.ix_(gpus, gpus)]
    return between[~np.eye(len(gpus), dtype=bool)]
