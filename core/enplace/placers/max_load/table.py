"""The table of the dynamic program over ideals, and the kernel that fills it (section 5.1.1).

What lies between two ideals goes to one device, or with replication (appendix C.2) to several.
Where the paper lists all pairs of ideals, this searches upward from each ideal through the lattice
and turns back where a device would have more to do than in a split that is known; it stores no
pairs.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from enplace.placers.max_load.contract import Nodes
from enplace.placers.max_load.ideals import Lattice
from enplace.values.load_rule import LoadRule
from enplace.values.problem import BoolArray, Problem
from enplace.values.profile import FloatArray, IntArray

VISITS_AT_ONCE = 1_000_000
"""Ideals reached between two looks whether to stop: some tenths of a second."""


class Costs(NamedTuple):
    """Nodes for the kernel, and the devices that they are split between.

    Passes are those of the rule; the load of a device in the last one is made small, that in the
    first of two is only limited.

    Attributes
    ----------
    gpu_us, cpu_us : float arrays, shape (n_nodes, n_passes)
        0 where a node cannot run.
    gpu_runs, cpu_runs : bool arrays, shape (n_nodes,)
    memory_bytes, sync_us : float arrays, shape (n_nodes,)
    net_ptr, net : int arrays
        Nets of each node.
    net_size : int array, shape (n_nets,)
    touched_us, inside_us, own_us : float arrays
        As in :class:`~enplace.placers.max_load.nets.Nets`, at the one price.
    devices, most_replicas : int arrays, shape (2,)
        How many accelerators and CPUs there are, and how many may take turns.
    capacity_bytes : float
    sums_sync : bool
        Whether the all-reduce of replicas adds to the load, or goes on beside it.
    """

    gpu_us: FloatArray
    cpu_us: FloatArray
    gpu_runs: BoolArray
    cpu_runs: BoolArray
    memory_bytes: FloatArray
    sync_us: FloatArray
    net_ptr: IntArray
    net: IntArray
    net_size: IntArray
    touched_us: FloatArray
    inside_us: FloatArray
    own_us: FloatArray
    devices: IntArray
    most_replicas: IntArray
    capacity_bytes: float
    sums_sync: bool


class Table(NamedTuple):
    """dp[ideal][accelerators used, CPUs used], and how each cell came about.

    A cell is number ``accelerators * (n_cpus + 1) + CPUs``.

    Attributes
    ----------
    best_us : float array, shape (n_ideals, n_cells)
        The least largest load of the last pass; inf where nothing below the limit was found.
    from_ideal : int32 array, from_cell : int16 array
    stamp : int array, shape (n_ideals,)
        The ideal from which each was reached last.
    """

    best_us: FloatArray
    from_ideal: np.ndarray[tuple[int, ...], np.dtype[np.int32]]
    from_cell: np.ndarray[tuple[int, ...], np.dtype[np.int16]]
    stamp: IntArray


BYTES_PER_CELL = 8 + 4 + 2


def costs_of(problem: Problem, nodes: Nodes, rule: LoadRule, devices: IntArray) -> Costs:
    """Costs for so many accelerators and CPUs."""
    nets = nodes.nets
    by_node = np.argsort(nets.node, kind="stable")
    net_of_pin = np.repeat(np.arange(nets.n_nets), np.diff(nets.ptr))
    gpus = problem.cluster.gpus
    gpu_runs: BoolArray = np.isfinite(nodes.accelerator_us.sum(axis=1))
    cpu_runs: BoolArray = np.isfinite(nodes.cpu_us.sum(axis=1))
    return Costs(
        np.where(gpu_runs[:, None], nodes.accelerator_us, 0.0),
        np.where(cpu_runs[:, None], nodes.cpu_us, 0.0),
        gpu_runs,
        cpu_runs,
        nodes.memory_bytes.astype(np.float64),
        nodes.sync_us,
        np.searchsorted(nets.node[by_node], np.arange(nodes.n_nodes + 1)),
        net_of_pin[by_node],
        np.diff(nets.ptr),
        nets.touched_us[0],
        nets.inside_us[0],
        nets.own_us[0],
        devices,
        devices if rule.replicate else np.ones(2, dtype=np.int64),
        float(problem.cluster.capacity_bytes[gpus].min()),
        rule.transfers == "sum",
    )


def n_cells(devices: IntArray) -> int:
    """Cells of each ideal."""
    return int(np.prod(devices + 1))


def empty_table(lattice: Lattice, devices: IntArray, first: int = 0) -> Table:
    """A table to fill from an ideal on."""
    shape = lattice.n_ideals, n_cells(devices)
    best = np.full(shape, np.inf)
    best[first, 0] = 0.0
    return Table(
        best,
        np.full(shape, -1, dtype=np.int32),
        np.full(shape, -1, dtype=np.int16),
        np.full(lattice.n_ideals, -1, dtype=np.int64),
    )


@njit(cache=True, nogil=True)
def below_us(
    ptr: IntArray, added: IntArray, next_ideal: IntArray, of_node: FloatArray
) -> FloatArray:  # pragma: no cover - compiled
    """Sums over the nodes of each ideal; shape (n_ideals, n_columns).

    Parameters
    ----------
    of_node : float array, shape (n_nodes, n_columns)
    """
    total = np.zeros((len(ptr) - 1, of_node.shape[1]))
    for ideal in range(len(ptr) - 1):
        for edge in range(ptr[ideal], ptr[ideal + 1]):
            total[next_ideal[edge]] = total[ideal] + of_node[added[edge]]
    return total


@njit(cache=True, nogil=True)
def fill(
    ptr: IntArray,
    added: IntArray,
    next_ideal: IntArray,
    costs: Costs,
    limit_us: FloatArray,
    capable: BoolArray,
    table: Table,
    first: int,
    budget: int,
) -> int:  # pragma: no cover - compiled
    """Go on from each ideal, from the first on; returns the next one when the budget is spent.

    Parameters
    ----------
    limit_us : float array, shape (n_passes,)
        Loads have to be below.
    capable : bool array, shape (n_ideals, n_cells)
        False where the devices left cannot do what is left.
    """
    best, from_ideal, from_cell, stamp = table
    n_ideals, n_passes = len(ptr) - 1, len(limit_us)
    n_channels = costs.own_us.shape[1]
    n_resources = n_channels // n_passes
    n_gpus, n_cpus = costs.devices
    width = n_cpus + 1
    most_gpus, most_cpus = costs.most_replicas
    last, bound = n_passes - 1, limit_us[n_passes - 1]
    n = len(costs.memory_bytes)
    pins = np.zeros(len(costs.net_size), dtype=np.int64)
    depth_edge, depth_ideal = np.zeros(n + 1, np.int64), np.zeros(n + 1, np.int64)
    alive = np.zeros(best.shape[1], dtype=np.int64)
    level, load = np.zeros(n_channels), np.zeros(n_passes)
    gpu_us, cpu_us = np.zeros(n_passes), np.zeros(n_passes)
    visits = 0
    for base in range(first, n_ideals):
        if visits > budget:
            return base
        n_alive = 0
        for cell in range(best.shape[1]):
            if best[base, cell] < bound and capable[base, cell]:
                alive[n_alive] = cell
                n_alive += 1
        if n_alive == 0:
            continue
        depth, held, sync, no_gpu, no_cpu = 0, 0.0, 0.0, 0, 0
        level[:], gpu_us[:], cpu_us[:] = 0.0, 0.0, 0.0
        depth_ideal[0], depth_edge[0] = base, ptr[base]
        while depth >= 0:
            ideal, edge = depth_ideal[depth], depth_edge[depth]
            if edge == ptr[ideal + 1]:
                if depth > 0:
                    # Take the node that led here out again.
                    node = added[depth_edge[depth - 1] - 1]
                    no_gpu -= not costs.gpu_runs[node]
                    no_cpu -= not costs.cpu_runs[node]
                    held -= costs.memory_bytes[node]
                    sync -= costs.sync_us[node]
                    for p in range(n_passes):
                        gpu_us[p] -= costs.gpu_us[node, p]
                        cpu_us[p] -= costs.cpu_us[node, p]
                    for c in range(n_channels):
                        level[c] -= costs.own_us[node, c]
                    for at in range(costs.net_ptr[node], costs.net_ptr[node + 1]):
                        net = costs.net[at]
                        if pins[net] == costs.net_size[net]:
                            for c in range(n_channels):
                                level[c] += costs.inside_us[net, c]
                        pins[net] -= 1
                        if pins[net] == 0:
                            for c in range(n_channels):
                                level[c] -= costs.touched_us[net, c]
                depth -= 1
                continue
            depth_edge[depth] += 1
            reached, node = next_ideal[edge], added[edge]
            if stamp[reached] == base:
                continue
            stamp[reached] = base
            visits += 1
            no_gpu += not costs.gpu_runs[node]
            no_cpu += not costs.cpu_runs[node]
            held += costs.memory_bytes[node]
            sync += costs.sync_us[node]
            for p in range(n_passes):
                gpu_us[p] += costs.gpu_us[node, p]
                cpu_us[p] += costs.cpu_us[node, p]
            for c in range(n_channels):
                level[c] += costs.own_us[node, c]
            for at in range(costs.net_ptr[node], costs.net_ptr[node + 1]):
                net = costs.net[at]
                pins[net] += 1
                if pins[net] == 1:
                    for c in range(n_channels):
                        level[c] += costs.touched_us[net, c]
                if pins[net] == costs.net_size[net]:
                    for c in range(n_channels):
                        level[c] -= costs.inside_us[net, c]
            # What only grows from here on: work, memory, and nodes that cannot be there.
            gpu_dead = no_gpu > 0 or held > costs.capacity_bytes or n_gpus == 0
            cpu_dead = no_cpu > 0 or n_cpus == 0
            for p in range(n_passes):
                gpu_dead |= gpu_us[p] >= limit_us[p] * most_gpus
                cpu_dead |= cpu_us[p] >= limit_us[p] * most_cpus
            depth += 1
            depth_ideal[depth] = reached
            depth_edge[depth] = ptr[reached] if not (gpu_dead and cpu_dead) else ptr[reached + 1]
            if not gpu_dead:
                for p in range(n_passes):
                    load[p] = gpu_us[p] + level[p * n_resources]
                    for c in range(p * n_resources + 1, (p + 1) * n_resources):
                        load[p] = max(load[p], level[c])
                for count in range(1, most_gpus + 1):
                    reduce_us = (count - 1) * sync / count
                    low = load[0] / count < limit_us[0] if last else True
                    mine = load[last] / count
                    mine = mine + reduce_us if costs.sums_sync else max(mine, reduce_us)
                    if not low or not mine < bound:
                        continue
                    for at in range(n_alive):
                        cell = alive[at]
                        to = cell + count * width
                        if to < best.shape[1]:
                            value = max(best[base, cell], mine)
                            if value < best[reached, to]:
                                best[reached, to] = value
                                from_ideal[reached, to], from_cell[reached, to] = base, cell
            if not cpu_dead:
                for count in range(1, most_cpus + 1):
                    low = cpu_us[0] / count < limit_us[0] if last else True
                    mine = cpu_us[last] / count
                    if not low or not mine < bound:
                        continue
                    for at in range(n_alive):
                        cell = alive[at]
                        to = cell + count
                        if cell % width + count <= n_cpus:
                            value = max(best[base, cell], mine)
                            if value < best[reached, to]:
                                best[reached, to] = value
                                from_ideal[reached, to], from_cell[reached, to] = base, cell
    return n_ideals
