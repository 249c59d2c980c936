"""Find the best contiguous partition, exactly or along orders (sections 5.1.1 and 5.1.2)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from enplace.coarsen.grouped import op_memory_bytes
from enplace.machine.op_passes import links_passes
from enplace.machine.pipelines.loads import busiest_us
from enplace.machine.pipelines.memory import forward_bytes
from enplace.placers.max_load.table.caveats import UNLIKE_DEVICES, find_unlike
from enplace.placers.max_load.table.contract import Nodes, contract, merge_light_ends
from enplace.placers.max_load.table.dp_table import (
    BYTES_PER_CELL,
    VISITS_AT_ONCE,
    NodeCosts,
    Table,
    build_node_costs,
    count_cells,
    empty_table,
    fill,
)
from enplace.placers.max_load.table.ideals import Lattice, bound_ideals, find_ideals
from enplace.placers.max_load.table.orders import (
    find_leading,
    order_by_preference,
    order_depth_first,
    order_tied,
)
from enplace.placers.max_load.table.pruning import (
    find_capable,
    floor_us,
    shared_work_us,
    used_devices,
)
from enplace.placers.max_load.table.stages import Replicas, assign, walk_back
from enplace.placers.max_load.table.walk import build_transfer_costs
from enplace.placing.stop import never
from enplace.system import host_bytes
from enplace.values.arrays import BoolArray
from enplace.values.load_rule import PAPER, LoadRule
from enplace.values.problem import Problem
from enplace.values.profile import FloatArray, IntArray

MOST_IDEALS, MEMORY_SHARE, LEAST_BYTES = 3_000_000, 0.25, 1 << 28
"""With more ideals, or if they need more than this share of the machine's memory, only partitions
along orders are tried."""

FEW_IDEALS = 50_000
"""So many ideals are searched at once; if there are more, some nodes are merged first."""

LIGHT, MOST_MERGED = 0.05, 300_000
"""Inputs and outputs of a smaller share of the load are merged with their neighbours, and up to so
many of the ideals that remain are searched."""

NEAR = 1e-3
"""A partition so near its bound is not improved by a search of all ideals."""

N_ORDERS, FEW_ORDERS = 60, 5
"""Depth-first orders whose best partition bounds the search, and how many if ideals are few."""

ORDERS_WORK = 3_000_000_000
"""Limit on the sum of the squares of the numbers of nodes; above it, fewer orders are tried."""

TIED, MOST_TIED, TIED_ORDERS = 1e-9, 6_000, 20
"""Loads that differ by a smaller share are equal. With more ideals, only partitions of equal load
along some orders are compared."""

ROOM = (0.5, 0.75, 0.9, 1.0)
"""Shares of the accelerators' memory: a partition that fits into a smaller one is better."""

CHUNKS = 2
"""Stages of each accelerator if they are interleaved."""

IN_CHUNKS = (
    "each GPU has two stages, so that the pipeline fills sooner; the busiest stage has the least "
    "load, not the busiest GPU"
)

GUESS = 1.3
"""Factor between successive limits."""

FEW_CELLS = 32
"""With more cells than this, a search of an order takes longer in proportion."""

FIRST_WORK = 10_000_000
"""On long orders, the first partition has fewer places to cut: their number times the number of
nodes is about this."""


@dataclass(frozen=True, eq=False)
class Partition:
    """The ops of a graph divided between devices, and what is proven about the division.

    Attributes
    ----------
    device : int array, shape (n_ops,)
    load_us : float
        Time per sample; inf if no partition fits.
    bound_us : float
        No contiguous partition has a lower load.
    n_ideals : int
        Number of ideals searched; 0 for partitions along orders.
    optimal : bool
        Whether no contiguous partition is better.
    note : str
        How it was found, if that is less than one would expect.
    replicas : tuple of tuples of int
    recompute : tuple of int
        Devices that run their forward ops again.
    pace_us : float
        The time per sample if it is longer than the largest load, so that the pipeline fits; or 0.
    """

    device: IntArray
    load_us: float
    bound_us: float
    n_ideals: int = 0
    optimal: bool = False
    note: str = ""
    replicas: Replicas = ()
    recompute: tuple[int, ...] = ()
    pace_us: float = 0.0


@dataclass(frozen=True, eq=False)
class Task:
    """The nodes to divide, and the devices.

    Attributes
    ----------
    floor_us : float array, shape (rule.n_passes,)
        A lower bound on the load of every partition in each pass.
    """

    problem: Problem
    rule: LoadRule
    nodes: Nodes
    costs: NodeCosts
    floor_us: FloatArray

    @property
    def counts_stages(self) -> bool:
        """Whether the samples in flight on a stage depend on how many stages follow it."""
        return bool((self.costs.samples != self.costs.samples[0]).any())

    @property
    def devices(self) -> tuple[IntArray, ...]:
        """The devices of each kind, in the order in which stages take them."""
        kinds, times = self.nodes.kinds, CHUNKS if self.is_interleaved else 1
        pairs = zip(kinds.devices, kinds.is_gpu.tolist(), strict=True)
        return tuple(np.tile(each, times if is_gpu else 1) for each, is_gpu in pairs)

    @property
    def is_interleaved(self) -> bool:
        """Whether stages go to the accelerators in turns, several to each."""
        return self.rule.pipeline == "interleaved"


@dataclass(frozen=True, eq=False)
class Solution:
    """A partition read from a table, and its largest load in the last pass."""

    device: IntArray
    replicas: Replicas
    recompute: tuple[int, ...]
    last_us: float


Stopped = Callable[[], bool]

Solve = Callable[[FloatArray], tuple[Solution | None, bool]]
"""A function from limits on the loads of each pass to the partition below them with the least load
in the last pass, if there is one, and whether the search was complete."""


def build_task(problem: Problem, rule: LoadRule, op_bytes: IntArray | None = None) -> Task:
    """Contract a problem for a rule; logical GPUs of one chip become separate GPUs."""
    separate = tuple(replace(device, chip="") for device in problem.cluster.devices)
    problem = replace(problem, cluster=replace(problem.cluster, devices=separate))
    if rule.pipeline == "interleaved":
        # The stages of an accelerator would have replicas on different others.
        rule = replace(rule, replicate=False)
    return _task_of(problem, rule, contract(problem, rule, op_bytes=op_bytes))


def _task_of(problem: Problem, rule: LoadRule, nodes: Nodes) -> Task:
    """Build the task of dividing some nodes."""
    devices = nodes.kinds.counts
    if rule.pipeline == "interleaved":
        # CPUs would break the turns, so they only take part where some op needs one.
        devices = devices * np.array([CHUNKS, int(np.isinf(nodes.work_us[0]).any())])
    kept_bytes = int(forward_bytes(problem).sum())
    all_bytes = int(op_memory_bytes(problem).sum())
    samples = _samples(problem, rule, devices, kept_bytes > 0)
    costs = build_node_costs(problem, nodes, rule, devices, samples)
    if rule.pipeline == "interleaved":
        costs = costs._replace(capacity_bytes=costs.capacity_bytes / CHUNKS)
    most_bytes = all_bytes + (costs.samples.max() - 1) * kept_bytes
    if not rule.in_flight or most_bytes <= costs.capacity_bytes.min():
        # If everything fits anywhere, the search need not count the stages.
        costs = costs._replace(samples=np.ones_like(costs.samples), recompute=False, is_plain=True)
    return Task(problem, rule, nodes, costs, floor_us(costs))


def _samples(problem: Problem, rule: LoadRule, devices: IntArray, keeps: bool) -> IntArray:
    """Count the samples in flight on a stage, by the cell before it; shape (n_cells,).

    If forward and backward alternate, as many as there are stages from this one on
    (:mod:`enplace.machine.pipelines.patterns` holds no more); with overlapping transfers, each
    stage counts three times. If the gradients of weights wait, it is as many as on the first stage.
    If backward ops read nothing of the forward pass, and so go the same way, each stage holds about
    half. There are never more than a step has.
    """
    stages = devices.sum() - used_devices(devices).sum(axis=1)
    if rule.pipeline == "gpipe":
        stages = np.full_like(stages, rule.microbatches)
    elif not links_passes(problem):
        stages = np.full_like(stages, (devices.sum() + 1) // 2 + 1)
    elif rule.pipeline != "1f1b":
        stages = np.full_like(stages, devices.sum())
    if not keeps:
        stages = np.ones_like(stages)  # nothing is kept for a backward pass
    samples = np.maximum(1, stages) * (3 if rule.n_resources > 1 else 1)
    at_most: IntArray = np.minimum(samples, rule.microbatches)
    return at_most


def partition_exactly(
    problem: Problem,
    rule: LoadRule = PAPER,
    *,
    seed: int = 0,
    limit: int = MOST_IDEALS,
    stopped: Stopped = never,
    op_bytes: IntArray | None = None,
    below: Partition | None = None,
) -> Partition:
    """Find the contiguous partition with the least time per sample (section 5.1.1).

    With more than ``limit`` ideals, or if stopped before the end, it is the best along some
    depth-first orders.

    Parameters
    ----------
    op_bytes : int array, shape (n_ops,), optional
        What each op counts towards memory; its variables and outputs by default.
    below : Partition, optional
        One that is known; it is returned if none is better.
    """
    task = build_task(problem, rule, op_bytes)
    limit = most_ideals(task, limit)
    lattice = find_lattice(task.nodes, min(limit, FEW_IDEALS), stopped)
    n_orders = N_ORDERS if lattice is None else FEW_ORDERS
    first = best_in_orders(task, n_orders, seed, stopped, below)
    tried, is_near = f"the best of {count_orders(task, n_orders)} linear orders", False
    if lattice is None and not stopped():
        merged = _merge_and_search(task, first, stopped)
        if merged.optimal:
            return _settle_ties(task, None, stopped, merged)
        if merged.load_us < first.load_us:
            tried = "the best with light inputs and outputs where they are needed"
        first, is_near = merged, merged.bound_us >= merged.load_us * (1 - NEAR)
        if rule.n_passes == 1:
            task = replace(task, floor_us=np.maximum(task.floor_us, merged.bound_us))
        if not is_near:
            lattice = find_lattice(task.nodes, limit, stopped)
    if stopped():
        tried = "the best found along linear orders"
    if lattice is None:
        why = f"there are more than {limit:,}"
        if is_near:
            why = f"none is {NEAR:.1%} faster"
        elif stopped() and not _are_more(task.nodes, limit):
            why = "stopped while counting them"
        along_orders = _over_devices(task, first) if task.is_interleaved else first
        return replace(along_orders, note=f"not all cuts tried ({why}): this is {tried}")
    best, finished = least_below(task, _solve_over(task, lattice, stopped), first)
    if not finished:
        found = "the best found" if best is not first else tried
        note = f"stopped before all {lattice.n_ideals:,} cuts were tried: this is {found}"
        return replace(_over_devices(task, best) if task.is_interleaved else best, note=note)
    if task.is_interleaved:
        return replace(_over_devices(task, best), n_ideals=lattice.n_ideals, note=IN_CHUNKS)
    best = _settle_ties(task, lattice, stopped, best)
    best = replace(best, n_ideals=lattice.n_ideals, note="")
    if note := find_unlike(problem, rule):
        return replace(best, note=note)
    return replace(best, bound_us=best.load_us, optimal=True)


def find_lattice(nodes: Nodes, limit: int, stopped: Stopped = never) -> Lattice | None:
    """List all ideals; None if there are more than a limit, or if stopped."""
    if _are_more(nodes, limit):
        return None
    return find_ideals(nodes.n_nodes, nodes.source, nodes.target, limit, stopped)


def _are_more(nodes: Nodes, limit: int) -> bool:
    """Whether it is known without counting that there are more ideals than a limit."""
    return bound_ideals(nodes.n_nodes, nodes.source, nodes.target) > limit


def _merge_and_search(task: Task, first: Partition, stopped: Stopped) -> Partition:
    """Search the ideals that remain if light inputs and outputs are merged with their neighbours.

    Without those inputs and outputs that take time, no load is larger: a tensor crosses a border
    less often with fewer of its ends. So the best partition without them is a lower bound.
    """
    problem, rule, costs = task.problem, task.rule, task.costs
    load_us = first.load_us if np.isfinite(first.load_us) else float(task.floor_us.sum())
    nodes, bare, kept = merge_light_ends(problem, rule, task.nodes, LIGHT * load_us)
    merged = _task_of(problem, rule, nodes)
    lattice = find_lattice(nodes, most_ideals(merged, MOST_MERGED), stopped)
    if lattice is None:
        return first
    best, _ = least_below(merged, _solve_over(merged, lattice, stopped), first)
    is_simple = costs.is_plain and rule.n_passes == 1 and rule.transfers == "sum"
    if not is_simple or rule.replicate or task.is_interleaved or find_unlike(problem, rule):
        return best
    alone = _task_of(problem, rule, bare).costs
    less = merged.costs._replace(
        work_us=np.ascontiguousarray(alone.work_us[:, kept]),
        memory_bytes=alone.memory_bytes[kept],
        transfers=build_transfer_costs(bare.hyperedges.among(kept), len(kept)),
    )
    lighter = replace(merged, costs=less, floor_us=floor_us(less))
    found, finished = _solve_over(lighter, lattice, stopped)(np.array([best.load_us]))
    if not finished:
        return best
    bound_us = max(best.bound_us, found.last_us if found else best.load_us)
    return replace(best, bound_us=bound_us, optimal=bound_us >= best.load_us * (1 - TIED))


def _settle_ties(
    task: Task, lattice: Lattice | None, stopped: Stopped, best: Partition
) -> Partition:
    """Choose among the partitions with the least load.

    The first choice is room in memory (:data:`ROOM`), then few ops on CPUs, then a small sum of the
    loads of all stages: the latency of a sample that passes through one stage after another. With
    more than :data:`MOST_TIED` ideals, or unknown ones, only some orders are searched.
    """
    if np.isinf(best.load_us):
        return best
    limit_us = np.array([best.load_us])
    if task.rule.n_passes > 1:
        chosen = best.device, task.rule, best.replicas, best.recompute
        limit_us = busiest_us(task.problem, *chosen)
    if (limit_us <= 0).any():
        return best
    limit_us = limit_us * (1 + TIED)
    cpu_op_us = float(limit_us.sum()) * int(task.costs.devices.sum())
    some = list(chains(task, TIED_ORDERS, 0))
    if lattice is not None and lattice.n_ideals <= MOST_TIED:
        some = [lattice]
    for share in ROOM:
        capacity_bytes = task.costs.capacity_bytes * share
        costs = task.costs._replace(
            capacity_bytes=capacity_bytes, cpu_op_us=cpu_op_us, is_plain=False
        )
        roomy = replace(task, costs=costs)
        found = [_solve_over(roomy, each, stopped)(limit_us)[0] for each in some]
        if stopped():
            return best
        if fitting := [each for each in found if each is not None]:
            least = min(fitting, key=lambda each: each.last_us)
            return replace(
                best, device=least.device, replicas=least.replicas, recompute=least.recompute
            )
    return best


def partition_along_order(
    problem: Problem,
    rule: LoadRule = PAPER,
    *,
    stopped: Stopped = never,
    op_bytes: IntArray | None = None,
) -> Partition:
    """Find the best partition along one depth-first order (DPL, section 5.1.2)."""
    task = build_task(problem, rule, op_bytes)
    found = best_in_orders(task, 1, 0, stopped)
    return _over_devices(task, found) if task.is_interleaved else found


def _over_devices(task: Task, found: Partition) -> Partition:
    """Count the load of each accelerator instead of each of its stages; nothing is proven of it."""
    if np.isinf(found.load_us):
        return found
    chosen = found.device, task.rule, found.replicas, found.recompute
    return replace(found, load_us=float(busiest_us(task.problem, *chosen).sum()), bound_us=0.0)


def most_ideals(task: Task, limit: int = MOST_IDEALS) -> int:
    """Return how many ideals fit in memory with their cells and lattice."""
    each = 2 * (task.nodes.n_nodes // 8 + 8) + 64
    each += (BYTES_PER_CELL + 1) * count_cells(task.costs.devices)
    return max(1, min(limit, max(LEAST_BYTES, int(MEMORY_SHARE * host_bytes())) // each))


def count_orders(task: Task, n_orders: int) -> int:
    """Count the orders to try when ``n_orders`` are requested: fewer for large graphs."""
    work = max(task.nodes.n_nodes, 1) ** 2 * max(1, count_cells(task.costs.devices) // FEW_CELLS)
    return max(1, min(n_orders, ORDERS_WORK // work))


def best_in_orders(
    task: Task, n_orders: int, seed: int, stopped: Stopped, below: Partition | None = None
) -> Partition:
    """Find the best partition along any of several orders; the first is the deterministic one.

    If the passes count separately, it begins with the best partition for their sum along that
    order: as appendix A reports, the two differ little. The first order is searched even if
    stopped, with fewer places to cut if it is long, so there is always an answer.
    """
    least_us = float(task.floor_us.sum())
    if find_unlike(task.problem, task.rule) == UNLIKE_DEVICES:
        least_us = shared_work_us(task.problem, task.rule)
    best = Partition(np.zeros(task.problem.profile.n_ops, dtype=np.int64), np.inf, least_us)
    if below is not None:
        best = replace(below, bound_us=least_us, optimal=False, n_ideals=0, note="")
    elif task.rule.n_passes > 1 and task.costs.samples.max() == 1:
        rule = replace(task.rule, pipeline="1f1b")
        found = partition_along_order(task.problem, rule, op_bytes=task.nodes.op_bytes)
        if np.isfinite(found.load_us):
            us = busiest_us(task.problem, found.device, task.rule, found.replicas, found.recompute)
            us = us.sum()
            best = replace(found, load_us=float(us), bound_us=least_us)
    for number, chain in enumerate(chains(task, n_orders, seed)):
        if number == 0 and np.isinf(best.load_us):
            few = chain.n_ideals**2 // FIRST_WORK
            solve = _solve_over(task, chain, never, max(1, few))
            best, _ = least_from_below(task, solve, best)
            if few > 1 and np.isinf(best.load_us):
                best, _ = least_from_below(task, _solve_over(task, chain, never), best)
        if stopped():
            break
        best, _ = least_below(task, _solve_over(task, chain, stopped), best)
    return best


def chains(task: Task, n_orders: int, seed: int) -> Iterator[Lattice]:
    """Yield the lattices of some orders, each with one ideal of each size.

    Inputs that only a CPU can run come first: in between other nodes, they would separate nodes
    that could share an accelerator.
    """
    rng = np.random.default_rng(seed)
    nodes = task.nodes
    first = find_leading(~_on_gpu(task), nodes.source, nodes.target)
    ptr = np.minimum(np.arange(nodes.n_nodes + 2), nodes.n_nodes)
    for number in range(count_orders(task, n_orders)):
        rank = rng.permutation(nodes.n_nodes) if number else np.arange(nodes.n_nodes)
        order = order_depth_first(nodes.n_nodes, nodes.source, nodes.target, rank)
        for variant in _variants(nodes, order):
            order = np.concatenate([variant[first[variant]], variant[~first[variant]]])
            yield Lattice(ptr, order, np.arange(1, len(order) + 1))


def _on_gpu(task: Task) -> BoolArray:
    """Whether each node may run on some accelerator."""
    on_gpu: BoolArray = task.costs.runs[task.nodes.kinds.is_gpu].sum(axis=0) > 0
    return on_gpu


def _variants(nodes: Nodes, order: IntArray) -> Iterator[IntArray]:
    """Yield variants of an order, the most promising first, as a good start shortens the search.

    The variants are: layer by layer, if the names show layers; with orphaned backward nodes next to
    the forward nodes whose tensors they read, so that one device can have both, and weights next to
    the nodes that need them; and the order itself.
    """
    together = order_tied(order, nodes.tied, nodes.source, nodes.target)
    if nodes.layer.any():
        yield order_by_preference(together, nodes.layer, nodes.source, nodes.target)
    yield together
    yield order


def least_below(task: Task, solve: Solve, best: Partition) -> tuple[Partition, bool]:
    """Find the best partition if better than a known one, and whether the search was complete.

    If the passes count separately (GPipe), the sum of the largest loads is minimised. This walks
    along the Pareto front: first the least backward load of all, then the least for a smaller
    forward load, and so on, as long as the sum can get smaller.
    """
    floor = task.floor_us
    if np.isinf(floor).any():
        return best, True  # Some node cannot run anywhere.
    # Equal partitions are many, so the search is much faster without them.
    limit = best.load_us * (1 - TIED) - (floor.sum() - floor)
    finished = True
    while (limit > 0).all():
        found, finished = solve(limit)
        if found is None:
            return best, finished
        load_us = np.array([found.last_us])
        if len(limit) > 1:
            chosen = found.device, task.rule, found.replicas, found.recompute
            load_us = busiest_us(task.problem, *chosen)
        if load_us.sum() < best.load_us:
            total = float(load_us.sum())
            best = replace(
                best,
                device=found.device,
                load_us=total,
                replicas=found.replicas,
                recompute=found.recompute,
            )
        if len(limit) == 1 or not finished:
            return best, finished
        forward = min(float(load_us[0]), best.load_us - float(load_us[1])) * (1 - 1e-9)
        if forward >= limit[0]:
            return best, finished  # Networks have the largest load; no table here counts them.
        limit = np.array([forward, best.load_us - floor[0]])
    return best, finished


def least_from_below(task: Task, solve: Solve, best: Partition) -> tuple[Partition, bool]:
    """Do the same if no good partition is known: low limits are quick to search, so try them.

    Each limit is :data:`GUESS` times the previous one, until there is a partition below it.
    """
    costs = task.costs
    guess = GUESS * float(task.floor_us.sum())
    transfers = costs.transfers
    parts = (costs.work_us, transfers.touched_us, transfers.own_us, costs.sync_us)
    all_us = float(sum(np.abs(part).sum() for part in parts))
    while 0 < guess < min(best.load_us, all_us):
        found, finished = least_below(task, solve, replace(best, load_us=guess))
        if found.load_us < guess:
            return found, finished
        if not finished:
            return best, False
        guess *= GUESS
    return least_below(task, solve, best)


def _solve_over(task: Task, lattice: Lattice, stopped: Stopped, every: int = 1) -> Solve:
    """Return a search over a lattice in which stages end only at every ``every``-th ideal."""
    devices = task.costs.devices

    def solve(limit_us: FloatArray) -> tuple[Solution | None, bool]:
        table, finished = _fill_all(task, lattice, limit_us, stopped, every)
        last = table.best_us[-1]
        if task.counts_stages:
            last = np.where(np.arange(len(last)) == len(last) - 1, last, np.inf)
        most_us = limit_us[-1] if task.costs.cpu_op_us < 0 else np.inf
        if not last.min() < most_us:
            return None, finished
        stages = walk_back(table, lattice, devices, int(np.argmin(last)))
        parts = assign(task.nodes.node, [(stages, task.devices)])
        return Solution(*parts, float(last.min())), finished

    return solve


def _few_cuts(task: Task, chain: Lattice, every: int) -> BoolArray:
    """Choose every so many ideals of a chain, and where ops follow that run on other devices.

    Without the latter, there would be no partition if the model's inputs run on a CPU only.
    """
    few: BoolArray = np.arange(chain.n_ideals) % every == 0
    runs = task.costs.runs[:, chain.added]
    few[1:-1] |= (runs[:, 1:] != runs[:, :-1]).any(axis=0)
    return few


def _fill_all(
    task: Task, lattice: Lattice, limit_us: FloatArray, stopped: Stopped, every: int
) -> tuple[Table, bool]:
    """Fill the table of partitions with loads below a limit; return whether it is complete."""
    table = empty_table(lattice, task.costs.devices, anywhere=task.counts_stages)
    if task.costs.cpu_op_us < 0:
        # Loads below the bound are as good as the bound, so that fewer devices often suffice.
        table.best_us[0] = np.maximum(table.best_us[0], task.floor_us[-1])
    capable = find_capable(task.costs, lattice, limit_us)
    if every > 1:
        capable &= _few_cuts(task, lattice, every)[:, None]
    at = 0
    while at < lattice.n_ideals:
        if stopped():
            return table, False
        at = fill(lattice, task.costs, limit_us, capable, table, at, VISITS_AT_ONCE)
    return table, True
