"""Groups of ops that share a device, which the placers for the latency move.

A group contains the ops of a placement unit, and of units that depend on each other both ways
(appendix B). On an accelerator they are in one subgraph of each pass; on a CPU each op runs
individually.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from enplace.coarsen.grouped import op_memory_bytes
from enplace.machine.op_passes import backward_ops
from enplace.placers.max_load.table.hyperedges import find_cut_costs
from enplace.placers.max_load.table.orders import order_depth_first
from enplace.values.arrays import inverse
from enplace.values.cluster import Cluster
from enplace.values.components import components, strong_components
from enplace.values.problem import BoolArray, Problem
from enplace.values.profile import FloatArray, IntArray


@dataclass(frozen=True, eq=False)
class Groups:
    """The ops of a graph in a topological order that keeps groups together where possible.

    Attributes
    ----------
    op : int array, shape (n_ops,)
        Number of each op in the profile. All other fields number ops by their place in this array.
    group : int array, shape (n_ops,)
    backward : bool array, shape (n_ops,)
    source, target : int arrays, shape (n_edges,)
        Edges between ops, each once, sorted by source.
    op_us : float array, shape (n_ops, n_gpus + 1)
        Time on each accelerator, and on a CPU in the last column.
    allowed : bool array, shape (n_groups, n_gpus + 1)
    group_bytes : int array, shape (n_groups,)
    capacity_bytes : float array, shape (n_gpus + 1,)
        The last entry is the memory of all CPUs together.
    hyperedge_ptr, hyperedge_op : int arrays
    hyperedge_us : float array, shape (n_hyperedges, n_gpus)
        Hyperedges between ops, from
        :func:`~enplace.placers.max_load.table.hyperedges.find_cut_costs`.
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
    hyperedge_ptr: IntArray
    hyperedge_op: IntArray
    hyperedge_us: FloatArray

    @property
    def n_ops(self) -> int:
        return len(self.group)

    @property
    def n_groups(self) -> int:
        return len(self.group_bytes)

    @property
    def cpu(self) -> int:
        """The place that represents all CPUs."""
        return len(self.capacity_bytes) - 1


def build_groups(problem: Problem) -> Groups:
    """Build the groups of a problem and their costs."""
    profile, cluster = problem.profile, problem.cluster
    backward = backward_ops(problem)
    op, group = _in_order(problem, backward)
    number = inverse(op)
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
    capacity = place_bytes(problem)
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
        *find_cut_costs(problem, number),
    )


def place_of_devices(cluster: Cluster) -> IntArray:
    """Return the number of each accelerator, and the next number for CPUs; shape (n_devices,)."""
    place = np.full(cluster.n_devices, len(cluster.gpus))
    place[cluster.gpus] = np.arange(len(cluster.gpus))
    return place


def place_bytes(problem: Problem) -> FloatArray:
    """Return the memory of each accelerator, and of all CPUs together; shape (n_gpus + 1,)."""
    cluster = problem.cluster
    of_cpus = cluster.capacity_bytes[cluster.cpus].sum(dtype=np.float64)
    return np.append(cluster.capacity_bytes[cluster.gpus].astype(np.float64), of_cpus)


def _in_order(problem: Problem, backward: BoolArray) -> tuple[IntArray, IntArray]:
    """Find a topological order of the ops, and the group of each.

    The order is depth first on the contracted graph (appendix B).
    """
    profile = problem.profile
    part = _strong_parts(problem, backward)
    n_parts = int(part.max()) + 1
    rank = inverse(profile.topological_order)
    first = np.full(n_parts, profile.n_ops)
    np.minimum.at(first, part, rank)
    edges = np.unique(np.stack([part[profile.edge_source], part[profile.edge_op]], axis=1), axis=0)
    edges = edges[edges[:, 0] != edges[:, 1]]
    number = np.argsort(order_depth_first(n_parts, edges[:, 0], edges[:, 1], first))
    return np.lexsort((rank, number[part])), _join_units(problem, part, n_parts)


def _strong_parts(problem: Problem, backward: BoolArray) -> IntArray:
    """Find the strongly connected components of the graph of units in each pass; (n_ops,)."""
    profile = problem.profile
    label = np.unique(2 * problem.unit + backward, return_inverse=True)[1]
    n = int(label.max()) + 1
    part: IntArray = strong_components(n, label[profile.edge_source], label[profile.edge_op])[label]
    return part


def _join_units(problem: Problem, part: IntArray, n_parts: int) -> IntArray:
    """Join units that share a component, and components that share a unit, to groups; (n_ops,)."""
    tied = components(problem.n_units + n_parts, problem.unit, problem.n_units + part)
    group: IntArray = np.unique(tied[problem.unit], return_inverse=True)[1]
    return group


def cpu_us(problem: Problem) -> FloatArray:
    """Return the time of each op on the fastest CPU that it may run on, or inf; shape (n_ops,)."""
    cpus = problem.cluster.cpus
    able = problem.unit_allowed[:, cpus][problem.unit]
    fastest: FloatArray = np.where(able, problem.time_us[:, cpus], np.inf).min(
        axis=1, initial=np.inf
    )
    return fastest


def spread_places(groups: Groups, place: IntArray) -> IntArray:
    """Assign the places of groups, shape (n_groups, ...), to the profile's ops: (n_ops, ...)."""
    of_op = np.empty((groups.n_ops, *place.shape[1:]), dtype=np.int64)
    of_op[groups.op] = place[groups.group]
    return of_op


def choose_devices(problem: Problem, place: IntArray) -> IntArray:
    """Choose the device of each op.

    Units on CPUs go to the fastest allowed CPU, or to the least busy of several equally fast ones.

    Parameters
    ----------
    place : int array, shape (n_ops,)
        Number of the accelerator, or the next number for CPUs; the same for all ops of a unit.
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
