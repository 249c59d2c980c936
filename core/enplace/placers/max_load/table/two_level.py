"""Partitions over machines, and over the devices of each (Tarnawski et al. 2020, appendix C.3).

Every machine gets the nodes between two ideals and divides them between its devices. Devices pay as
usual for tensors that cross their borders. Tensors that cross the border of a machine also use its
network, which works at the same time as everything else. As in PipeDream, the best partition within
a machine is found from every ideal on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, combinations_with_replacement, permutations, product

import numpy as np

from enplace.compiling import kernel
from enplace.machine.host_links import machine_of, sample_network_us, sample_us
from enplace.machine.pipelines.loads import max_load_us
from enplace.placers.max_load.table.caveats import UNLIKE_DEVICES, find_unlike
from enplace.placers.max_load.table.dp import (
    N_ORDERS,
    Partition,
    Solution,
    Solve,
    Stopped,
    Task,
    best_in_orders,
    build_task,
    chains,
    least_from_below,
)
from enplace.placers.max_load.table.dp_table import (
    VISITS_AT_ONCE,
    NodeCosts,
    Table,
    build_node_costs,
    empty_table,
    fill,
)
from enplace.placers.max_load.table.hyperedges import build_hyperedges
from enplace.placers.max_load.table.ideals import Lattice, find_ideals
from enplace.placers.max_load.table.stages import assign, walk_back
from enplace.placers.max_load.table.walk import (
    TransferCosts,
    add_transfers,
    advance,
    begin,
    build_transfer_costs,
    new_walk,
    node_between,
    remove_transfers,
)
from enplace.placing.stop import never
from enplace.values.load_rule import LoadRule
from enplace.values.problem import Problem
from enplace.values.profile import FloatArray, IntArray

MOST_IDEALS = 2_000
"""With more ideals, only partitions along orders are tried, because each ideal needs its own
search."""

MOST_ORDERS = 24
"""Most orders of unequal machines."""

N_TRIED = 8
"""Number of orders that are then tried."""


@dataclass(frozen=True, eq=False)
class _Machines:
    """Machines, and their transfers to each other.

    Attributes
    ----------
    devices : list of lists of int arrays
        Devices of each kind of each machine.
    cells : list of int arrays
        For each machine, the cells of a table that use no more than its devices.
    costs : list of NodeCosts
        For each machine, costs at the price of its slowest link, for as many devices as the largest
        machine has. Machines of one price share one object.
    network : TransferCosts
        Costs of tensors between machines.
    alike : bool
        Whether all have equal links to each other.
    """

    devices: list[list[IntArray]]
    cells: list[IntArray]
    costs: list[NodeCosts]
    network: TransferCosts
    alike: bool


@dataclass(frozen=True, eq=False)
class _Outer:
    """The best partition of each ideal over the first machines.

    Attributes
    ----------
    best_us : float array, shape (n_machines + 1, n_ideals)
        The smallest largest load of the last pass, or at a given pace, how long samples stay.
    came_from : int array, shape (n_machines + 1, n_ideals)
        The ideal of the machines before.
    finished : bool
        Whether the search was complete.
    """

    best_us: FloatArray
    came_from: IntArray
    finished: bool


def partition_over_machines(
    problem: Problem,
    rule: LoadRule,
    *,
    seed: int = 0,
    along_order: bool = False,
    stopped: Stopped = never,
    op_bytes: IntArray | None = None,
) -> Partition:
    """Find the best contiguous partition over machines and their devices.

    With more than :data:`MOST_IDEALS` ideals, it is the best along some depth-first orders.
    Machines with different numbers of devices are tried in all orders, up to :data:`MOST_ORDERS`.
    """
    task = build_task(problem, rule, op_bytes)
    machines = _build_machines(task)
    orders = _machine_orders(machines)
    nodes = task.nodes
    best = _begin_flat(task, machines, 1 if along_order else N_ORDERS, seed, stopped)
    limit = 0 if along_order else MOST_IDEALS
    lattice = find_ideals(nodes.n_nodes, nodes.source, nodes.target, limit, stopped)
    finished = True
    lattices = _lattices(task, lattice, 1 if along_order else N_TRIED, seed)
    for each, order in product(lattices, orders[:MOST_ORDERS]):
        solve = _solve_over(task, _in_order(machines, order), each, stopped)
        best, finished = least_from_below(task, solve, best)
        if not finished:
            break
    if not finished:
        return replace(best, note="the search over machines was stopped before its end")
    if lattice is None:
        note = f"more than {limit:,} cuts: this is the best of {N_TRIED} linear orders"
        return replace(best, note="" if along_order else note)
    best = replace(best, n_ideals=lattice.n_ideals)
    certain = machines.alike and len(orders) <= MOST_ORDERS
    if note := find_unlike(problem, rule) or UNLIKE_DEVICES * (not certain):
        return replace(best, note=note)
    return replace(best, bound_us=best.load_us, optimal=True)


class AtPace:
    """Partitions over machines that fit with the samples that are in flight at a given pace."""

    def __init__(self, task: Task, stopped: Stopped) -> None:
        self._task, self._stopped = task, stopped
        self._machines = _build_machines(task)
        self._orders = _machine_orders(self._machines)[:MOST_ORDERS]

    def choices(self, n: int) -> list[IntArray]:
        """List accelerators for a number of stages, machine after machine, in all ways that differ.

        The accelerators of a machine are alike.
        """
        each = [gpus.tolist() for gpus, *_ in self._machines.devices]
        rows = {
            tuple(chain.from_iterable(each[m][: row.count(m)] for m in order))
            for order in self._orders
            for row in combinations_with_replacement(order, n)
            if all(row.count(m) <= len(each[m]) for m in order)
        }
        return [np.array(row) for row in sorted(rows)]

    def solve(
        self, lattice: Lattice, costs: NodeCosts, limit_us: FloatArray, start_us: float
    ) -> Solution | None:
        """Find the partition for which samples stay the shortest time; None if none fits.

        Parameters
        ----------
        costs : NodeCosts
            Its pace, and what is taken first.
        limit_us : float array, shape (1,)
            Upper limit of the loads.
        start_us : float
            The time before the first machine.
        """
        pace_us, first, rule = costs.period_us, costs.taken_first, self._task.rule
        at_pace = {
            id(each): each._replace(period_us=pace_us, taken_first=first, is_plain=False)
            for each in self._machines.costs
        }
        best: Solution | None = None
        for order in self._orders:
            machines = _in_order(self._machines, order)
            machines = replace(machines, costs=[at_pace[id(each)] for each in machines.costs])
            outer = _fill_outer(machines, lattice, limit_us, rule, self._stopped, start_us)
            least_us = float(outer.best_us[:, -1].min())
            if outer.finished and least_us < (best.last_us if best else np.inf):
                best = _read_outer(self._task, machines, lattice, limit_us, outer)
        return best


def has_machines(problem: Problem) -> bool:
    """Whether the accelerators are on more than one machine."""
    return bool(machine_of(problem.cluster).any())


def _begin_flat(
    task: Task, machines: _Machines, n_orders: int, seed: int, stopped: Stopped
) -> Partition:
    """Find a partition as if there were one machine; its load includes the networks."""
    flat = best_in_orders(task, n_orders, seed, stopped)
    if np.isinf(flat.load_us):
        return flat
    inside = tuple(group for group in flat.replicas if _is_inside(machines, group))
    load_us = max_load_us(task.problem, flat.device, task.rule, inside)
    return replace(flat, load_us=load_us, replicas=inside)


def _is_inside(machines: _Machines, group: Sequence[int]) -> bool:
    """Whether all replicas are on one machine."""
    each = [set(np.concatenate(devices).tolist()) for devices in machines.devices]
    return any(set(group) <= machine for machine in each)


def _lattices(task: Task, lattice: Lattice | None, n: int, seed: int) -> Iterator[Lattice]:
    if lattice is not None:
        yield lattice
    else:
        yield from chains(task, n, seed)


def _build_machines(task: Task) -> _Machines:
    problem, nodes = task.problem, task.nodes
    machine = machine_of(problem.cluster)
    devices = [
        [each[machine[each] == m] for each in task.devices] for m in range(int(machine.max()) + 1)
    ]
    sizes = np.array([(len(gpus), len(cpus)) for gpus, cpus in devices])
    most = sizes.max(axis=0)
    used = np.indices(most + 1).reshape(2, -1).T
    each_us = sample_network_us(problem)
    slowest_us = each_us.max(axis=1, keepdims=True)
    hyperedges = build_hyperedges(problem, nodes.node, slowest_us, task.rule)
    return _Machines(
        devices,
        [np.flatnonzero((used <= size).all(axis=1)) for size in sizes],
        _costs_of_machines(task, [gpus for gpus, *_ in devices], most),
        build_transfer_costs(hyperedges, nodes.n_nodes),
        bool((each_us == slowest_us).all()),
    )


def _costs_of_machines(task: Task, gpus: list[IntArray], most: IntArray) -> list[NodeCosts]:
    problem, nodes, rule = task.problem, task.nodes, replace(task.rule, recompute=False)
    samples = np.ones(int(np.prod(most + 1)), dtype=np.int64)
    plain = build_node_costs(problem, nodes, rule, most, samples)
    send = sample_us(problem)
    found: dict[bytes, NodeCosts] = {}
    costs = []
    for here in gpus:
        price_us = send[:, here].max(axis=1, initial=0.0)[:, None]
        key = price_us.tobytes()
        if key not in found:
            hyperedges = build_hyperedges(problem, nodes.node, price_us, rule)
            transfers = build_transfer_costs(hyperedges, nodes.n_nodes)
            found[key] = plain._replace(transfers=transfers)
        costs.append(found[key])
    return costs


def _machine_orders(machines: _Machines) -> list[tuple[int, ...]]:
    """List the orders of machines that differ in devices or links, within reason."""
    sizes = [
        (len(gpus), len(cpus), id(costs))
        for (gpus, cpus), costs in zip(machines.devices, machines.costs, strict=True)
    ]
    found: dict[tuple[tuple[int, int, int], ...], tuple[int, ...]] = {}
    for order in permutations(range(len(sizes))):
        found.setdefault(tuple(sizes[m] for m in order), order)
        if len(found) > MOST_ORDERS or len(set(sizes)) == 1:
            break
    return list(found.values())


def _in_order(machines: _Machines, order: Sequence[int]) -> _Machines:
    devices = [machines.devices[m] for m in order]
    cells, costs = [machines.cells[m] for m in order], [machines.costs[m] for m in order]
    return replace(machines, devices=devices, cells=cells, costs=costs)


def _solve_over(task: Task, machines: _Machines, lattice: Lattice, stopped: Stopped) -> Solve:
    """Return a search over a lattice."""

    def solve(limit_us: FloatArray) -> tuple[Solution | None, bool]:
        outer = _fill_outer(machines, lattice, limit_us, task.rule, stopped)
        if not outer.best_us[:, -1].min() < limit_us[-1]:
            return None, outer.finished
        return _read_outer(task, machines, lattice, limit_us, outer), outer.finished

    return solve


def _fill_outer(
    machines: _Machines,
    lattice: Lattice,
    limit_us: FloatArray,
    rule: LoadRule,
    stopped: Stopped,
    start_us: float = 0.0,
) -> _Outer:
    """Find the best partition of each ideal over the first machines, with loads below a limit."""
    n_machines, n_ideals = len(machines.devices), lattice.n_ideals
    best = np.full((n_machines + 1, n_ideals), np.inf)
    came = np.full((n_machines + 1, n_ideals), -1, dtype=np.int64)
    best[0, 0] = start_us
    at_pace = machines.costs[0].period_us > 0
    for base in range(n_ideals):
        reached = np.isfinite(best[:-1, base])
        if not reached.any():
            continue
        if stopped():
            return _Outer(best, came, False)
        network = _network_loads_us(machines, lattice, base, rule)
        network_load_us = np.where((network >= limit_us).any(axis=1), np.inf, network[:, -1])
        inner_us: dict[tuple[int, float], FloatArray] = {}
        for m in np.flatnonzero(reached).tolist():
            # At a pace, how long samples stay in a machine depends on how long they have stayed.
            costs, start = machines.costs[m], float(best[m, base]) if at_pace else 0.0
            key = id(costs), start
            if key not in inner_us:
                inner_us[key] = _fill_inner(costs, lattice, limit_us, base, start).best_us
            inside_us = inner_us[key][:, machines.cells[m]].min(axis=1)
            if at_pace:
                new = np.where(np.isfinite(network_load_us), inside_us, np.inf)
            else:
                new = np.maximum(best[m, base], np.maximum(inside_us, network_load_us))
            better = new < best[m + 1]
            best[m + 1, better], came[m + 1, better] = new[better], base
    return _Outer(best, came, True)


def _read_outer(
    task: Task, machines: _Machines, lattice: Lattice, limit_us: FloatArray, outer: _Outer
) -> Solution:
    """Trace the best partition back from machine to machine, and within each machine."""
    m, top = int(np.argmin(outer.best_us[:, -1])), lattice.n_ideals - 1
    last_us, parts = float(outer.best_us[m, top]), []
    while m:
        base = int(outer.came_from[m, top])
        costs = machines.costs[m - 1]
        start = float(outer.best_us[m - 1, base]) if costs.period_us > 0 else 0.0
        table = _fill_inner(costs, lattice, limit_us, base, start)
        cells = machines.cells[m - 1]
        cell = int(cells[np.argmin(table.best_us[top, cells])])
        stages = walk_back(table, lattice, costs.devices, cell, top, base)
        parts.append((stages, machines.devices[m - 1]))
        m, top = m - 1, base
    return Solution(*assign(task.nodes.node, parts), last_us)


def _fill_inner(
    costs: NodeCosts, lattice: Lattice, limit_us: FloatArray, base: int, start_us: float
) -> Table:
    """Fill the table that partitions the nodes above an ideal over the devices of one machine."""
    table = empty_table(lattice, costs.devices, base)
    table.best_us[base, 0] = start_us
    capable = np.ones(table.best_us.shape, dtype=bool)
    at = base
    while at < lattice.n_ideals:
        at = fill(lattice, costs, limit_us, capable, table, at, VISITS_AT_ONCE)
    return table


def _network_loads_us(
    machines: _Machines, lattice: Lattice, base: int, rule: LoadRule
) -> FloatArray:
    """Find the network load of a machine with the nodes between an ideal and each other ideal.

    Shape (n_ideals, rule.n_passes); inf for ideals that are not above the first.
    """
    channel_us = _network_channels_us(lattice, machines.network, base)
    loads: FloatArray = channel_us.reshape(-1, rule.n_passes, rule.n_resources).max(axis=2)
    return loads


@kernel
def _network_channels_us(
    lattice: Lattice, network: TransferCosts, base: int
) -> FloatArray:  # pragma: no cover - compiled
    """Do the same for each channel; shape (n_ideals, n_channels)."""
    n_nodes, n_channels = network.own_us.shape
    found = np.full((len(lattice.ptr) - 1, n_channels), np.inf)
    found[base] = 0.0
    walk = new_walk(lattice, n_nodes)
    pins, channel_us = np.zeros(len(network.size), dtype=np.int64), np.zeros(n_channels)
    begin(walk, lattice, base)
    depth = 0
    while True:
        before = depth
        depth = advance(walk, lattice, before)
        if depth < 0:
            return found
        node = node_between(walk, lattice, before, depth)
        if depth > before:
            add_transfers(network, node, pins, channel_us)
            found[walk.ideal[depth]] = channel_us
        else:
            remove_transfers(network, node, pins, channel_us)
