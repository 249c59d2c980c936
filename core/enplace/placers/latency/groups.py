"""What placers for the latency move: groups of ops that share a device.

A group has the ops of a placement unit, and of units that depend on each other both ways
(appendix B). On an accelerator they are in one piece of each pass; on a CPU each is on its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from enplace.coarsen.grouped import op_memory_bytes
from enplace.machine.loads import backward_ops
from enplace.placers.max_load.nets import nets_of
from enplace.placers.max_load.orders import topological_depth_first
from enplace.values.problem import BoolArray, Problem
from enplace.values.profile import FloatArray, IntArray


@dataclass(frozen=True, eq=False)
class Groups:
    """The ops of a graph in a topological order, which keeps groups together where it can.

    Attributes
    ----------
    op : int array, shape (n_ops,)
        Number of each op in the profile. All else counts ops by their place in this.
    group : int array, shape (n_ops,)
    backward : bool array, shape (n_ops,)
    source, target : int arrays, shape (n_edges,)
        Edges between ops, each once, sorted by source.
    op_us : float array, shape (n_ops, n_gpus + 1)
        Time on each accelerator; in the last column on a CPU.
    allowed : bool array, shape (n_groups, n_gpus + 1)
    group_bytes : int array, shape (n_groups,)
    capacity_bytes : float array, shape (n_gpus + 1,)
        inf for CPUs.
    net_ptr, net_op : int arrays
    net_us : float array, shape (n_nets, n_gpus)
        Nets between ops, as in :class:`~enplace.placers.max_load.contract.Nodes`.
    """

    op: IntArray
    group: IntArray
    backward: BoolArray
    source: IntArray
    target: IntArray
    op_us: FloatArray
    allowed: BoolArray
    group_bytes: IntArray
    capacity_bytes: FloatArray
    net_ptr: IntArray
    net_op: IntArray
    net_us: FloatArray

    @property
    def n_ops(self) -> int:
        return len(self.group)

    @property
    def n_groups(self) -> int:
        return len(self.group_bytes)

    @property
    def cpu(self) -> int:
        """The place that stands for all CPUs."""
        return len(self.capacity_bytes) - 1


def groups_of(problem: Problem) -> Groups:
    """The groups of a problem and what they cost."""
    profile, cluster = problem.profile, problem.cluster
    backward = backward_ops(problem)
    op, group = _in_order(problem, backward)
    number = np.empty(profile.n_ops, dtype=np.int64)
    number[op] = np.arange(profile.n_ops)
    ends = np.stack([number[profile.edge_source], number[profile.edge_op]], axis=1)
    edges = np.unique(ends, axis=0)
    n_gpus, n_groups = len(cluster.gpus), int(group.max()) + 1
    op_us = np.full((profile.n_ops, n_gpus + 1), np.inf)
    op_us[:, :n_gpus] = problem.time_us[:, cluster.gpus]
    may = np.zeros((problem.n_units, n_gpus + 1), dtype=bool)
    may[:, :n_gpus] = problem.unit_allowed[:, cluster.gpus]
    op_us[:, n_gpus] = cpu_us(problem)
    may[:, n_gpus] = problem.unit_allowed[:, cluster.cpus].any(axis=1)
    allowed = np.ones((n_groups, n_gpus + 1), dtype=bool)
    np.logical_and.at(allowed, group, may[problem.unit])
    group_bytes = np.zeros(n_groups, dtype=np.int64)
    np.add.at(group_bytes, group, op_memory_bytes(problem))
    capacity = np.append(cluster.capacity_bytes[cluster.gpus], np.inf)
    return Groups(
        op,
        group[op],
        backward[op],
        edges[:, 0],
        edges[:, 1],
        op_us[op],
        allowed,
        group_bytes,
        capacity,
        *nets_of(problem, number),
    )


def _in_order(problem: Problem, backward: BoolArray) -> tuple[IntArray, IntArray]:
    """A topological order of the ops, and the group of each.

    The order is that of the contracted graph (appendix B), depth first.
    """
    profile = problem.profile
    label = np.unique(2 * problem.unit + backward, return_inverse=True)[1]
    n = int(label.max()) + 1
    ends = label[profile.edge_source], label[profile.edge_op]
    graph = coo_array((np.ones(len(ends[0])), ends), shape=(n, n))
    n_groups, component = connected_components(graph, directed=True, connection="strong")
    part = component[label].astype(np.int64)
    rank = np.empty(profile.n_ops, dtype=np.int64)
    rank[profile.topological_order] = np.arange(profile.n_ops)
    first = np.full(n_groups, profile.n_ops)
    np.minimum.at(first, part, rank)
    edges = np.unique(np.stack([part[profile.edge_source], part[profile.edge_op]], axis=1), axis=0)
    edges = edges[edges[:, 0] != edges[:, 1]]
    order = topological_depth_first(n_groups, edges[:, 0], edges[:, 1], first)
    number = np.argsort(order)
    ties = coo_array(
        (np.ones(len(part)), (problem.unit, problem.n_units + part)),
        shape=(problem.n_units + n_groups,) * 2,
    )
    _, tied = connected_components(ties, directed=False)
    group = np.unique(tied[problem.unit], return_inverse=True)[1]
    return np.lexsort((rank, number[part])), group


def cpu_us(problem: Problem) -> FloatArray:
    """Time of each op on the fastest CPU that it may be on, inf without one; shape (n_ops,)."""
    cpus = problem.cluster.cpus
    able = problem.unit_allowed[:, cpus][problem.unit]
    fastest: FloatArray = np.where(able, problem.time_us[:, cpus], np.inf).min(
        axis=1, initial=np.inf
    )
    return fastest


def op_places(groups: Groups, place: IntArray) -> IntArray:
    """Places of groups as those of the profile's ops; shapes (n_groups, ...) and (n_ops, ...)."""
    of_op = np.empty((groups.n_ops, *place.shape[1:]), dtype=np.int64)
    of_op[groups.op] = place[groups.group]
    return of_op


def devices_of(problem: Problem, place: IntArray) -> IntArray:
    """Device of each op.

    Units on CPUs go to the fastest that they may be on, of equals to the one with the least to do.

    Parameters
    ----------
    place : int array, shape (n_ops,)
        Number of the accelerator, or one more for CPUs; the same for ops of one unit.
    """
    gpus, cpus = problem.cluster.gpus, problem.cluster.cpus
    device = np.array([*gpus, -1])[place]
    work_us = np.zeros(problem.cluster.n_devices)
    for unit in np.unique(problem.unit[device < 0]).tolist():
        ops = np.flatnonzero(problem.unit == unit)
        able = [cpu for cpu in cpus if problem.unit_allowed[unit, cpu]]
        unit_us = problem.time_us[ops].sum(axis=0)
        chosen = min(able, key=lambda cpu: (unit_us[cpu], work_us[cpu], cpu))
        work_us[chosen] += unit_us[chosen]
        device[ops] = chosen
    return device
