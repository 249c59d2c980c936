"""The best contiguous split, exactly, and along an order (sections 5.1.1 and 5.1.2).

The dynamic program goes from ideal to ideal: what lies between two of them goes to one device.
Where the paper lists all pairs of ideals, this searches upward from each ideal through the
lattice and turns back where a device would have more to do than in the best split along some
order; it stores no pairs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit

from enplace.maxload.contract import Nodes, contract
from enplace.maxload.ideals import Lattice, find_ideals
from enplace.problem import Problem
from enplace.profile import FloatArray, IntArray

MOST_IDEALS, MOST_BYTES = 3_000_000, 1 << 28
"""Beyond so many ideals, or so much memory for them, only splits along orders are tried."""

N_ORDERS = 60
"""Depth-first orders whose best split bounds the search."""


@dataclass(frozen=True, eq=False)
class Split:
    """A split and what is known about it.

    Attributes
    ----------
    device : int array, shape (n_ops,)
    load_us : float
        Load of the busiest device.
    n_ideals : int
        Ideals that were searched; 0 if there were too many.
    bound_us : float
        No contiguous split has a lower load.
    """

    device: IntArray
    load_us: float
    n_ideals: int
    bound_us: float

    @property
    def optimal(self) -> bool:
        """Whether no contiguous split is better."""
        return self.n_ideals > 0


def split_exactly(problem: Problem, seed: int = 0, limit: int = MOST_IDEALS) -> Split:
    """Find the contiguous split with the least maximum load (section 5.1.1).

    With more than ``limit`` ideals, it is the best along :data:`N_ORDERS` orders.
    """
    nodes = contract(problem)
    limit = min(limit, MOST_BYTES // (nodes.n_nodes // 8 + 8))
    first = _best_in_order(problem, nodes, N_ORDERS, seed)
    lattice = find_ideals(nodes.n_nodes, nodes.source, nodes.target, limit)
    if lattice is None:
        return first
    best = _solve(problem, nodes, lattice, first.load_us) or (first.device, first.load_us)
    return Split(*best, lattice.n_ideals, best[1])


def split_in_order(problem: Problem) -> Split:
    """Find the best split along one depth-first order (DPL, section 5.1.2)."""
    return _best_in_order(problem, contract(problem), 1, 0)


def _best_in_order(problem: Problem, nodes: Nodes, n_orders: int, seed: int) -> Split:
    """The best split along any of several orders; the first is the deterministic one."""
    rng = np.random.default_rng(seed)
    best_us, best = np.inf, np.zeros(problem.profile.n_ops, dtype=np.int64)
    for number in range(n_orders):
        rank = rng.permutation(nodes.n_nodes) if number else np.arange(nodes.n_nodes)
        order = depth_first_order(nodes, rank)
        chain = Lattice(
            np.concatenate([np.arange(len(order) + 1), [len(order)]]),
            order,
            np.arange(1, len(order) + 1),
        )
        found = _solve(problem, nodes, chain, best_us)
        if found is not None:
            best, best_us = found
    return Split(best, best_us, 0, _even_share_us(problem, nodes))


def _even_share_us(problem: Problem, nodes: Nodes) -> float:
    """Load if all devices had the same and nothing were sent; or the largest node's, if more."""
    work = np.where(np.isinf(nodes.accelerator_us), 0.0, nodes.accelerator_us)
    n_gpus, n_cpus = len(problem.cluster.gpus), len(problem.cluster.cpus)
    devices = n_gpus + n_cpus * cpu_worth(nodes.accelerator_us, nodes.cpu_us) if n_cpus else n_gpus
    largest = float(np.minimum(nodes.accelerator_us, nodes.cpu_us).max())
    return max(float(work.sum()) / devices if devices else 0.0, largest)


def depth_first_order(nodes: Nodes, rank: IntArray) -> IntArray:
    """Topological order that follows each branch as far as it can; ties by rank."""
    return topological_depth_first(nodes.n_nodes, nodes.source, nodes.target, rank)


def topological_depth_first(n: int, source: IntArray, target: IntArray, rank: IntArray) -> IntArray:
    """Nodes of any graph in such an order; shape (n,)."""
    by_rank = np.lexsort((rank[target], source))
    ptr = np.searchsorted(source[by_rank], np.arange(n + 1))
    return _depth_first(n, ptr, target[by_rank], np.argsort(rank))


@njit(cache=True, nogil=True)
def _depth_first(
    n: int, ptr: IntArray, target: IntArray, roots: IntArray
) -> IntArray:  # pragma: no cover - compiled
    waiting = np.zeros(n, dtype=np.int64)
    for node in target:
        waiting[node] += 1
    stack, height = np.empty(n, dtype=np.int64), 0
    for node in roots:
        if waiting[node] == 0:
            stack[height] = node
            height += 1
    order, filled = np.empty(n, dtype=np.int64), 0
    while height:
        height -= 1
        node = stack[height]
        order[filled] = node
        filled += 1
        for edge in range(ptr[node], ptr[node + 1]):
            waiting[target[edge]] -= 1
            if waiting[target[edge]] == 0:
                stack[height] = target[edge]
                height += 1
    return order


def _solve(
    problem: Problem, nodes: Nodes, lattice: Lattice, bound_us: float
) -> tuple[IntArray, float] | None:
    """The best split over a lattice, if it is better than a bound."""
    gpus, cpus = problem.cluster.gpus, problem.cluster.cpus
    by_node = np.argsort(nodes.net_node, kind="stable")
    net_of_pin = np.repeat(np.arange(len(nodes.net_us)), np.diff(nodes.net_ptr))
    node_ptr = np.searchsorted(nodes.net_node[by_node], np.arange(nodes.n_nodes + 1))
    capacity = float(problem.cluster.capacity_bytes[gpus].min()) if gpus else 0.0
    load, from_ideal, from_kind = _search(
        lattice.ptr,
        lattice.added,
        lattice.next_ideal,
        nodes.accelerator_us,
        nodes.cpu_us,
        nodes.memory_bytes.astype(np.float64),
        node_ptr,
        net_of_pin[by_node],
        np.diff(nodes.net_ptr),
        nodes.net_us,
        len(gpus),
        len(cpus),
        capacity,
        bound_us,
    )
    last = load[-1]
    if not last.min() < bound_us:
        return None
    cell = int(np.argmin(last))
    node_device = _walk_back(
        lattice, from_ideal, from_kind, cell, len(cpus), np.array(gpus), np.array(cpus)
    )
    return node_device[nodes.node], float(last[cell])


@njit(cache=True, nogil=True)
def _search(
    ptr: IntArray,
    added: IntArray,
    next_ideal: IntArray,
    accelerator_us: FloatArray,
    cpu_us: FloatArray,
    memory: FloatArray,
    net_ptr: IntArray,
    net: IntArray,
    net_size: IntArray,
    net_us: FloatArray,
    n_accelerators: int,
    n_cpus: int,
    capacity: float,
    bound_us: float,
) -> tuple[FloatArray, IntArray, IntArray]:  # pragma: no cover - compiled
    """Fill dp[ideal][accelerators, CPUs]; inf where nothing better than the bound was found."""
    n_ideals, width = len(ptr) - 1, n_cpus + 1
    cells = (n_accelerators + 1) * width
    best = np.full((n_ideals, cells), np.inf)
    best[0, 0] = 0.0
    from_ideal = np.full((n_ideals, cells), -1, dtype=np.int64)
    from_kind = np.full((n_ideals, cells), -1, dtype=np.int64)
    stamp = np.full(n_ideals, -1, dtype=np.int64)
    pins = np.zeros(len(net_us), dtype=np.int64)
    depth_edge = np.zeros(len(accelerator_us) + 1, dtype=np.int64)
    depth_ideal = np.zeros(len(accelerator_us) + 1, dtype=np.int64)
    left_us = _left_us(ptr, added, next_ideal, accelerator_us)
    worth = cpu_worth(accelerator_us, cpu_us)
    for base in range(n_ideals):
        alive = False
        for cell in range(cells):
            # Where the devices left could not do the work left, an ideal is a dead end.
            devices = n_accelerators - cell // width + 0.0
            if cell % width < n_cpus:
                devices += (n_cpus - cell % width) * worth
            if left_us[base] > devices * bound_us * (1 + 1e-9):
                best[base, cell] = np.inf
            alive |= best[base, cell] < bound_us
        if not alive:
            continue
        depth, compute, on_cpu, held, cut = 0, 0.0, 0.0, 0.0, 0.0
        no_gpu, no_cpu = 0, 0
        depth_ideal[0], depth_edge[0] = base, ptr[base]
        while depth >= 0:
            ideal = depth_ideal[depth]
            edge = depth_edge[depth]
            if edge < ptr[ideal + 1]:
                depth_edge[depth] += 1
                reached, node = next_ideal[edge], added[edge]
                if stamp[reached] == base:
                    continue
                stamp[reached] = base
                if np.isinf(accelerator_us[node]):
                    no_gpu += 1
                else:
                    compute += accelerator_us[node]
                if np.isinf(cpu_us[node]):
                    no_cpu += 1
                else:
                    on_cpu += cpu_us[node]
                held += memory[node]
                for at in range(net_ptr[node], net_ptr[node + 1]):
                    e = net[at]
                    pins[e] += 1
                    if pins[e] == 1:
                        cut += net_us[e]
                    if pins[e] == net_size[e]:
                        cut -= net_us[e]
                gpu_dead = no_gpu > 0 or compute >= bound_us or held > capacity
                cpu_dead = no_cpu > 0 or on_cpu >= bound_us or n_cpus == 0
                depth += 1
                depth_ideal[depth] = reached
                if gpu_dead and cpu_dead:
                    depth_edge[depth] = ptr[reached + 1]
                    continue
                depth_edge[depth] = ptr[reached]
                load = compute + cut
                for cell in range(cells):
                    if not best[base, cell] < bound_us:
                        continue
                    if not gpu_dead and load < bound_us and cell + width < cells:
                        value = max(best[base, cell], load)
                        if value < best[reached, cell + width]:
                            best[reached, cell + width] = value
                            from_ideal[reached, cell + width] = base
                            from_kind[reached, cell + width] = 0
                    if not cpu_dead and cell % width < n_cpus:
                        value = max(best[base, cell], on_cpu)
                        if value < best[reached, cell + 1]:
                            best[reached, cell + 1] = value
                            from_ideal[reached, cell + 1] = base
                            from_kind[reached, cell + 1] = 1
            else:
                if depth > 0:
                    node = added[depth_edge[depth - 1] - 1]
                    if np.isinf(accelerator_us[node]):
                        no_gpu -= 1
                    else:
                        compute -= accelerator_us[node]
                    if np.isinf(cpu_us[node]):
                        no_cpu -= 1
                    else:
                        on_cpu -= cpu_us[node]
                    held -= memory[node]
                    for at in range(net_ptr[node], net_ptr[node + 1]):
                        e = net[at]
                        if pins[e] == net_size[e]:
                            cut += net_us[e]
                        pins[e] -= 1
                        if pins[e] == 0:
                            cut -= net_us[e]
                depth -= 1
    return best, from_ideal, from_kind


@njit(cache=True, nogil=True)
def _left_us(
    ptr: IntArray, added: IntArray, next_ideal: IntArray, accelerator_us: FloatArray
) -> FloatArray:  # pragma: no cover - compiled
    """Accelerator time of all nodes outside each ideal."""
    work = np.where(np.isinf(accelerator_us), 0.0, accelerator_us)
    done = np.zeros(len(ptr) - 1)
    for ideal in range(len(ptr) - 1):
        for edge in range(ptr[ideal], ptr[ideal + 1]):
            done[next_ideal[edge]] = done[ideal] + work[added[edge]]
    left: FloatArray = work.sum() - done
    return left


@njit(cache=True, nogil=True)
def cpu_worth(
    accelerator_us: FloatArray, cpu_us: FloatArray
) -> float:  # pragma: no cover - compiled
    """How many accelerators a CPU replaces at most, by the node that suits it best."""
    worth = 0.0
    for node in range(len(accelerator_us)):
        if 0 < accelerator_us[node] < np.inf and cpu_us[node] < np.inf:
            worth = max(worth, accelerator_us[node] / cpu_us[node]) if cpu_us[node] > 0 else np.inf
    return worth


def _walk_back(
    lattice: Lattice,
    from_ideal: IntArray,
    from_kind: IntArray,
    cell: int,
    n_cpus: int,
    gpus: IntArray,
    cpus: IntArray,
) -> IntArray:
    """Device of each node: the stages from the last to the first, each a difference of ideals."""
    stages, ideal = [], lattice.n_ideals - 1
    while ideal:
        below, kind = int(from_ideal[ideal, cell]), int(from_kind[ideal, cell])
        stages.append((below, ideal, kind))
        cell -= 1 if kind else n_cpus + 1
        ideal = below
    device = np.zeros(int(lattice.added.max()) + 1, dtype=np.int64)
    used = [0, 0]
    for below, above, kind in reversed(stages):
        chosen = (gpus, cpus)[kind][used[kind]]
        used[kind] += 1
        device[_between(lattice, below, above)] = chosen
    return device


def _between(lattice: Lattice, below: int, above: int) -> list[int]:
    """Nodes of one ideal that another lacks: those added on a path between them."""
    came: dict[int, tuple[int, int]] = {}
    layer = [below]
    while above not in came:
        following = []
        for ideal in layer:
            for edge in range(lattice.ptr[ideal], lattice.ptr[ideal + 1]):
                reached = int(lattice.next_ideal[edge])
                if reached not in came:
                    came[reached] = (ideal, int(lattice.added[edge]))
                    following.append(reached)
        layer = following
    nodes = []
    while above != below:
        above, node = came[above]
        nodes.append(node)
    return nodes
