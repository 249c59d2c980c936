"""Splits over machines, and over the devices of each (Tarnawski et al. 2020, appendix C.3).

Every machine gets what lies between two ideals, and splits that between its devices. Devices pay as
ever for what crosses their borders; what crosses that of a machine also goes over its network,
which works beside all else. As in PipeDream, the best split within a machine is worked out from
every ideal on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numba import njit

from enplace.machine.loads import machine_of, max_load_us, network_us
from enplace.placers.max_load.dp import (
    N_ORDERS,
    UNLIKE,
    Placed,
    Solve,
    Split,
    Stopped,
    Task,
    assigned,
    best_in_orders,
    chains,
    least_from_below,
    never,
    task_of,
    unlike,
    walk_back,
)
from enplace.placers.max_load.ideals import Lattice, find_ideals
from enplace.placers.max_load.nets import Nets, rule_nets
from enplace.placers.max_load.table import VISITS_AT_ONCE, Costs, Table, costs_of, empty_table, fill
from enplace.values.load_rule import LoadRule
from enplace.values.problem import Problem
from enplace.values.profile import FloatArray, IntArray

MOST_IDEALS = 2_000
"""Beyond so many ideals only splits along orders are tried: from each of them all are searched."""

N_TRIED = 8
"""Orders that are tried otherwise."""


@dataclass(frozen=True, eq=False)
class _Machines:
    """Machines, and what they send each other.

    Attributes
    ----------
    devices : list of (int array, int array)
        Accelerators and CPUs of each.
    cells : list of int arrays
        Cells of a table in which no more than a machine's devices are used.
    costs : Costs
        For as many devices as any of them has.
    nets : Nets
        What goes over the networks.
    node_ptr, node_net : int arrays
        Nets of each node.
    alike : bool
        Whether they have as many devices and equal ways to each other.
    """

    devices: list[tuple[IntArray, IntArray]]
    cells: list[IntArray]
    costs: Costs
    nets: Nets
    node_ptr: IntArray
    node_net: IntArray
    alike: bool


def split_over_machines(
    problem: Problem,
    rule: LoadRule,
    *,
    seed: int = 0,
    along_order: bool = False,
    stopped: Stopped = never,
) -> Split:
    """Find the best contiguous split over machines and their devices.

    With more than :data:`MOST_IDEALS` ideals, it is the best along some depth-first orders.
    Machines follow each other by their numbers, so of unlike ones another order may be better.
    """
    task = task_of(problem, rule)
    machines = _machines(task)
    nodes = task.nodes
    # As if there were one machine; then with what the networks have to do with that.
    flat = best_in_orders(task, 1 if along_order else N_ORDERS, seed, stopped)
    best = flat
    if np.isfinite(flat.load_us):
        inside = tuple(group for group in flat.replicas if _is_inside(machines, group))
        load_us = max_load_us(task.problem, flat.device, rule, inside)
        best = replace(flat, load_us=load_us, replicas=inside)
    room = 0 if along_order else MOST_IDEALS
    lattice = find_ideals(nodes.n_nodes, nodes.source, nodes.target, room, stopped)
    finished = True
    for each in _lattices(task, lattice, 1 if along_order else N_TRIED, seed):
        solve = _solver(task, machines, each, stopped)
        best, finished = least_from_below(task, solve, best)
        if not finished:
            break
    if not finished:
        return replace(best, note="stopped before the search over machines was over")
    if lattice is None:
        note = f"more than {room:,} ideals: this is the best of {N_TRIED} linear orders"
        return replace(best, note="" if along_order else note)
    best = replace(best, n_ideals=lattice.n_ideals)
    if note := unlike(problem, rule) or UNLIKE * (not machines.alike):
        return replace(best, note=note)
    return replace(best, bound_us=best.load_us, optimal=True)


def has_machines(problem: Problem) -> bool:
    """Whether the accelerators are on more than one machine."""
    return bool(machine_of(problem.cluster).any())


def _lattices(task: Task, lattice: Lattice | None, n: int, seed: int) -> Iterator[Lattice]:
    if lattice is not None:
        yield lattice
    else:
        yield from chains(task, n, seed)


def _machines(task: Task) -> _Machines:
    problem, nodes = task.problem, task.nodes
    machine = machine_of(problem.cluster)
    devices = [
        (task.gpus[machine[task.gpus] == m], task.cpus[machine[task.cpus] == m])
        for m in range(int(machine.max()) + 1)
    ]
    sizes = np.array([(len(gpus), len(cpus)) for gpus, cpus in devices])
    most = sizes.max(axis=0)
    used = np.indices(most + 1).reshape(2, -1).T
    networks_us = network_us(problem)
    network = networks_us.max(axis=1, keepdims=True)
    nets = rule_nets(problem, nodes.node, network, task.rule)
    by_node = np.argsort(nets.node, kind="stable")
    return _Machines(
        devices,
        [np.flatnonzero((used <= size).all(axis=1)) for size in sizes],
        costs_of(problem, nodes, task.rule, most),
        nets,
        np.searchsorted(nets.node[by_node], np.arange(nodes.n_nodes + 1)),
        np.repeat(np.arange(nets.n_nets), np.diff(nets.ptr))[by_node],
        bool((sizes == most).all() and (networks_us == network).all()),
    )


def _is_inside(machines: _Machines, group: Sequence[int]) -> bool:
    """Whether devices that take turns are all of one machine."""
    each = [set(np.concatenate(devices).tolist()) for devices in machines.devices]
    return any(set(group) <= machine for machine in each)


def _solver(task: Task, machines: _Machines, lattice: Lattice, stopped: Stopped) -> Solve:
    def solve(limit_us: FloatArray) -> tuple[Placed | None, bool]:
        return _over_machines(task, machines, lattice, limit_us, stopped)

    return solve


def _over_machines(
    task: Task, machines: _Machines, lattice: Lattice, limit_us: FloatArray, stopped: Stopped
) -> tuple[Placed | None, bool]:
    """The best split below a limit, and whether all were searched."""
    n_machines, n_ideals = len(machines.devices), lattice.n_ideals
    best = np.full((n_machines + 1, n_ideals), np.inf)
    came = np.full((n_machines + 1, n_ideals), -1, dtype=np.int64)
    best[0, 0] = 0.0
    finished = True
    for base in range(n_ideals):
        if not (best[:-1, base] < limit_us[-1]).any():
            continue
        if stopped():
            finished = False
            break
        inner_us = _within(machines, lattice, limit_us, base).best_us
        network = _network_us(machines, lattice, base, task.rule)
        network_load_us = np.where((network >= limit_us).any(axis=1), np.inf, network[:, -1])
        for m, cells in enumerate(machines.cells):
            value = np.maximum(inner_us[:, cells].min(axis=1), network_load_us)
            new = np.maximum(best[m, base], value)
            better = new < best[m + 1]
            best[m + 1, better], came[m + 1, better] = new[better], base
    if not best[:, -1].min() < limit_us[-1]:
        return None, finished
    m, top = int(np.argmin(best[:, -1])), n_ideals - 1
    last_us, placed = float(best[m, top]), []
    while m:
        base = int(came[m, top])
        table = _within(machines, lattice, limit_us, base)
        cells = machines.cells[m - 1]
        cell = int(cells[np.argmin(table.best_us[top, cells])])
        stages = walk_back(table, lattice, machines.costs.devices, cell, top, base)
        placed.append((stages, *machines.devices[m - 1]))
        m, top = m - 1, base
    return Placed(*assigned(task, placed), last_us), finished


def _within(machines: _Machines, lattice: Lattice, limit_us: FloatArray, base: int) -> Table:
    """The table of splits of what lies above an ideal between the devices of one machine."""
    table = empty_table(lattice, machines.costs.devices, base)
    capable = np.ones(table.best_us.shape, dtype=bool)
    arrays = lattice.ptr, lattice.added, lattice.next_ideal
    at = base
    while at < lattice.n_ideals:
        at = fill(*arrays, machines.costs, limit_us, capable, table, at, VISITS_AT_ONCE)
    return table


def _network_us(machines: _Machines, lattice: Lattice, base: int, rule: LoadRule) -> FloatArray:
    """What the network of a machine has to do that has what lies between an ideal and each other.

    Shape (n_ideals, rule.n_passes); inf for ideals that do not lie above.
    """
    nets = machines.nets
    level = _network(
        lattice.ptr,
        lattice.added,
        lattice.next_ideal,
        machines.node_ptr,
        machines.node_net,
        np.diff(nets.ptr),
        nets.touched_us[0],
        nets.inside_us[0],
        nets.own_us[0],
        base,
    )
    loads: FloatArray = level.reshape(-1, rule.n_passes, rule.n_resources).max(axis=2)
    return loads


@njit(cache=True, nogil=True)
def _network(
    ptr: IntArray,
    added: IntArray,
    next_ideal: IntArray,
    node_ptr: IntArray,
    node_net: IntArray,
    net_size: IntArray,
    touched_us: FloatArray,
    inside_us: FloatArray,
    own_us: FloatArray,
    base: int,
) -> FloatArray:  # pragma: no cover - compiled
    n_ideals = len(ptr) - 1
    found = np.full((n_ideals, own_us.shape[1]), np.inf)
    found[base] = 0.0
    pins, level = np.zeros(len(net_size), dtype=np.int64), np.zeros(own_us.shape[1])
    depth_edge = np.zeros(len(own_us) + 1, dtype=np.int64)
    depth_ideal = np.zeros(len(own_us) + 1, dtype=np.int64)
    depth = 0
    depth_ideal[0], depth_edge[0] = base, ptr[base]
    while depth >= 0:
        ideal, edge = depth_ideal[depth], depth_edge[depth]
        if edge == ptr[ideal + 1]:
            if depth > 0:
                node = added[depth_edge[depth - 1] - 1]
                level -= own_us[node]
                for at in range(node_ptr[node], node_ptr[node + 1]):
                    net = node_net[at]
                    if pins[net] == net_size[net]:
                        level += inside_us[net]
                    pins[net] -= 1
                    if pins[net] == 0:
                        level -= touched_us[net]
            depth -= 1
            continue
        depth_edge[depth] += 1
        reached, node = next_ideal[edge], added[edge]
        if found[reached, 0] < np.inf:
            continue
        level += own_us[node]
        for at in range(node_ptr[node], node_ptr[node + 1]):
            net = node_net[at]
            pins[net] += 1
            if pins[net] == 1:
                level += touched_us[net]
            if pins[net] == net_size[net]:
                level -= inside_us[net]
        found[reached] = level
        depth += 1
        depth_ideal[depth], depth_edge[depth] = reached, ptr[reached]
    return found
