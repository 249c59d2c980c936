"""The best contiguous split, exactly, and along orders (sections 5.1.1 and 5.1.2)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from enplace.machine.loads import busiest_us, syncs_alike
from enplace.placers.max_load.contract import Nodes, contract
from enplace.placers.max_load.ideals import Lattice, fewest_ideals, find_ideals
from enplace.placers.max_load.nets import prices_us
from enplace.placers.max_load.orders import (
    before_all_others,
    beside,
    by_wish,
    topological_depth_first,
)
from enplace.placers.max_load.table import (
    BYTES_PER_CELL,
    VISITS_AT_ONCE,
    Costs,
    Table,
    below_us,
    costs_of,
    empty_table,
    fill,
    n_cells,
)
from enplace.values.load_rule import USUAL, LoadRule
from enplace.values.problem import BoolArray, Problem
from enplace.values.profile import FloatArray, IntArray

MOST_IDEALS, MOST_BYTES = 3_000_000, 1 << 28
"""Beyond so many ideals, or so much memory for them, only splits along orders are tried."""

N_ORDERS = 60
"""Depth-first orders whose best split bounds the search."""

ORDERS_WORK = 3_000_000_000
"""Fewer orders where the squares of the number of nodes would add up to more."""

GUESS = 1.3
"""Factor from one limit that is tried to the next."""

FIRST_WORK = 10_000_000
"""Of long orders, the first split comes from fewer cuts: so many that cuts times nodes is this."""

UNLIKE = (
    "devices of a kind differ, and each was taken for the slowest of them: a split that gives the "
    "faster ones more may be better; max-load-ip knows them apart"
)
"""What a person should know of a split of unlike devices."""

UNLIKE_TURNS = (
    "links between GPUs differ, and weights of GPUs that take turns were taken to be reduced over "
    "the slowest of all: groups of near GPUs may do better (two levels keep them in one machine)"
)
"""What a person should know of a split with replicas on unlike links."""

ONE_CHIP = (
    "logical GPUs of one chip compute one after another, and were taken for GPUs of their own"
)
"""What a person should know of a search for such machines; the plan's time per sample counts it."""

Replicas = tuple[tuple[int, ...], ...]
"""Devices that take turns with samples; the ops of each group are on the first of it."""


@dataclass(frozen=True, eq=False)
class Split:
    """A split and what is known about it.

    Attributes
    ----------
    device : int array, shape (n_ops,)
    load_us : float
        Time per sample; inf where no split fits.
    bound_us : float
        No contiguous split has a lower load.
    n_ideals : int
        Ideals that were searched; 0 for splits along orders.
    optimal : bool
        Whether no contiguous split is better.
    note : str
        What was done, where that is less than a person would expect.
    replicas : tuple of tuples of int
        Devices that take turns.
    """

    device: IntArray
    load_us: float
    bound_us: float
    n_ideals: int = 0
    optimal: bool = False
    note: str = ""
    replicas: Replicas = ()


@dataclass(frozen=True, eq=False)
class Task:
    """What to split between which devices.

    Attributes
    ----------
    floor_us : float array, shape (rule.n_passes,)
        No split has less in each pass.
    """

    problem: Problem
    rule: LoadRule
    nodes: Nodes
    costs: Costs
    floor_us: FloatArray

    @property
    def gpus(self) -> IntArray:
        return np.array(self.problem.cluster.gpus)

    @property
    def cpus(self) -> IntArray:
        return np.array(self.problem.cluster.cpus, dtype=np.int64)


@dataclass(frozen=True)
class Stage:
    """Nodes that go to one device, or to several that take turns."""

    nodes: list[int]
    gpus: int
    cpus: int


@dataclass(frozen=True, eq=False)
class Placed:
    """A split, and its largest load in the last pass that counts apart."""

    device: IntArray
    replicas: Replicas
    last_us: float


Stopped = Callable[[], bool]

Solve = Callable[[FloatArray], tuple[Placed | None, bool]]
"""From limits on the loads of each pass to the split with the least in the last one, if there is
one below the limits, and whether all were searched."""


def never() -> bool:
    """For those who are not in a hurry."""
    return False


def task_of(problem: Problem, rule: LoadRule) -> Task:
    """Contract a problem for a rule; logical GPUs become GPUs of their own (:data:`ONE_CHIP`)."""
    apart = tuple(replace(device, chip="") for device in problem.cluster.devices)
    problem = replace(problem, cluster=replace(problem.cluster, devices=apart))
    cluster, nodes = problem.cluster, contract(problem, rule)
    costs = costs_of(problem, nodes, rule, np.array([len(cluster.gpus), len(cluster.cpus)]))
    return Task(problem, rule, nodes, costs, _floor_us(costs))


def split_exactly(
    problem: Problem,
    rule: LoadRule = USUAL,
    *,
    seed: int = 0,
    limit: int = MOST_IDEALS,
    stopped: Stopped = never,
) -> Split:
    """Find the contiguous split with the least time per sample (section 5.1.1).

    With more than ``limit`` ideals, it is the best along some depth-first orders; the same if it is
    stopped before the end.
    """
    task = task_of(problem, rule)
    first = best_in_orders(task, N_ORDERS, seed, stopped)
    room = _most_ideals(task, limit)
    graph = (task.nodes.n_nodes, task.nodes.source, task.nodes.target)
    too_many = fewest_ideals(*graph) > room
    lattice = None if too_many else find_ideals(*graph, room, stopped)
    tried = f"the best of {orders_tried(task, N_ORDERS)} linear orders"
    if stopped():
        tried = "the best found along linear orders"
    if lattice is None:
        counted = too_many or not stopped()
        why = f"there are more than {room:,}" if counted else "stopped while it counted"
        return replace(first, note=f"ideals not searched ({why}): this is {tried}")
    best, finished = least_below(task, _over(task, lattice, stopped), first)
    if not finished:
        found = "the best found" if best is not first else tried
        note = f"stopped before all {lattice.n_ideals:,} ideals were searched: this is {found}"
        return replace(best, note=note)
    best = replace(best, n_ideals=lattice.n_ideals, note="")
    if note := unlike(problem, rule):
        return replace(best, note=note)
    return replace(best, bound_us=best.load_us, optimal=True)


def unlike(problem: Problem, rule: LoadRule) -> str:
    """What to say where devices of a kind, or their links, differ in what decides about a split.

    "" if they do not.
    """
    cluster = problem.cluster
    prices, _ = prices_us(problem)
    same = prices.shape[1] < 2 and all(
        np.array_equal(problem.time_us[:, d], problem.time_us[:, devices[0]], equal_nan=True)
        and cluster.capacity_bytes[d] == cluster.capacity_bytes[devices[0]]
        for devices in (cluster.gpus, cluster.cpus)
        for d in devices
    )
    if not same:
        return UNLIKE
    if cluster.shares_chips:
        return ONE_CHIP
    return UNLIKE_TURNS if rule.replicate and not syncs_alike(cluster, rule) else ""


def split_in_order(problem: Problem, rule: LoadRule = USUAL, *, stopped: Stopped = never) -> Split:
    """Find the best split along one depth-first order (DPL, section 5.1.2)."""
    return best_in_orders(task_of(problem, rule), 1, 0, stopped)


def _most_ideals(task: Task, limit: int) -> int:
    """So many ideals fit in the memory to use, with their cells and lattice."""
    each = 2 * (task.nodes.n_nodes // 8 + 8) + 64
    each += (BYTES_PER_CELL + 1) * n_cells(task.costs.devices)
    return max(1, min(limit, MOST_BYTES // each))


def orders_tried(task: Task, n_orders: int) -> int:
    """How many orders are tried where so many are wanted: fewer of large graphs."""
    return max(1, min(n_orders, ORDERS_WORK // max(task.nodes.n_nodes, 1) ** 2))


def best_in_orders(task: Task, n_orders: int, seed: int, stopped: Stopped) -> Split:
    """The best split along any of several orders; the first is the deterministic one.

    Where the passes count apart, it begins with the best split for their sum along that order: as
    appendix A has it, there is little between the two. The first order is searched even if stopped,
    if need be between few cuts, so that there is an answer.
    """
    floor_us = float(task.floor_us.sum())
    if unlike(task.problem, task.rule) == UNLIKE:
        floor_us = _least_us(task.problem)
    best = Split(np.zeros(task.problem.profile.n_ops, dtype=np.int64), np.inf, floor_us)
    if task.rule.n_passes > 1:
        found = split_in_order(task.problem, replace(task.rule, pipeline="1f1b"))
        if np.isfinite(found.load_us):
            us = busiest_us(task.problem, found.device, task.rule, found.replicas).sum()
            best = replace(found, load_us=float(us), bound_us=floor_us)
    for number, chain in enumerate(chains(task, n_orders, seed)):
        if number == 0 and np.isinf(best.load_us):
            few = chain.n_ideals**2 // FIRST_WORK
            best, _ = least_from_below(task, _over(task, chain, never, max(1, few)), best)
            if few > 1 and np.isinf(best.load_us):
                best, _ = least_from_below(task, _over(task, chain, never), best)
        if stopped():
            break
        best, _ = least_below(task, _over(task, chain, stopped), best)
    return best


def chains(task: Task, n_orders: int, seed: int) -> Iterator[Lattice]:
    """The lattices of some orders, each of which has one ideal of each size.

    Each is tried layer by layer, where names tell of layers; with orphaned backward nodes beside
    the forward nodes whose tensors they read, so that a device can have both, and weights beside
    what needs them; and as it is.

    Inputs that only a CPU can run come first: amid the others, they would part what could share an
    accelerator.
    """
    rng = np.random.default_rng(seed)
    nodes = task.nodes
    first = before_all_others(~task.costs.gpu_runs, nodes.source, nodes.target)
    ptr = np.minimum(np.arange(nodes.n_nodes + 2), nodes.n_nodes)
    for number in range(orders_tried(task, n_orders)):
        rank = rng.permutation(nodes.n_nodes) if number else np.arange(nodes.n_nodes)
        order = topological_depth_first(nodes.n_nodes, nodes.source, nodes.target, rank)
        for form in _forms(nodes, order):
            order = np.concatenate([form[first[form]], form[~first[form]]])
            yield Lattice(ptr, order, np.arange(1, len(order) + 1))


def _forms(nodes: Nodes, order: IntArray) -> Iterator[IntArray]:
    """An order in the forms that are worth a try, the most promising first.

    A good split found early makes the search along the others short.
    """
    together = beside(order, nodes.tied, nodes.source, nodes.target)
    if nodes.layer.any():
        yield by_wish(together, nodes.layer, nodes.source, nodes.target)
    yield together
    yield order


def least_below(task: Task, solve: Solve, best: Split) -> tuple[Split, bool]:
    """The best split if better than one that is known; whether all were searched.

    Where the passes count apart (GPipe), what is sought is the least sum of the largest loads. This
    walks along the splits of which none is better in both: the least backward load at all, then the
    least for a smaller forward load, and so on, while that can lead to a smaller sum.
    """
    floor = task.floor_us
    if np.isinf(floor).any():
        return best, True  # Some node cannot run anywhere.
    limit = best.load_us - (floor.sum() - floor)
    finished = True
    while (limit > 0).all():
        found, finished = solve(limit)
        if found is None:
            return best, finished
        load_us = np.array([found.last_us])
        if len(limit) > 1:
            load_us = busiest_us(task.problem, found.device, task.rule, found.replicas)
        if load_us.sum() < best.load_us:
            total = float(load_us.sum())
            best = replace(best, device=found.device, load_us=total, replicas=found.replicas)
        if len(limit) == 1 or not finished:
            return best, finished
        forward = min(float(load_us[0]), best.load_us - float(load_us[1])) * (1 - 1e-9)
        if forward >= limit[0]:
            return best, finished  # Networks, which this table does not count, have the most.
        limit = np.array([forward, best.load_us - floor[0]])
    return best, finished


def least_from_below(task: Task, solve: Solve, best: Split) -> tuple[Split, bool]:
    """The same where little is known: a low limit makes for a quick search, so they come first."""
    costs = task.costs
    guess = GUESS * float(task.floor_us.sum())
    parts = (costs.gpu_us, costs.cpu_us, costs.touched_us, costs.own_us, costs.sync_us)
    all_us = float(sum(np.abs(part).sum() for part in parts))
    while 0 < guess < min(best.load_us, all_us):
        found, finished = least_below(task, solve, replace(best, load_us=guess))
        if found.load_us < guess:
            return found, finished
        if not finished:
            return best, False
        guess *= GUESS
    return least_below(task, solve, best)


def _over(task: Task, lattice: Lattice, stopped: Stopped, every: int = 1) -> Solve:
    """How to find the best split over a lattice, with stages that end at one of so many ideals."""
    devices = task.costs.devices

    def solve(limit_us: FloatArray) -> tuple[Placed | None, bool]:
        table, finished = filled(task, lattice, limit_us, stopped, every)
        last = table.best_us[-1]
        if not last.min() < limit_us[-1]:
            return None, finished
        stages = walk_back(table, lattice, devices, int(np.argmin(last)))
        device, replicas = assigned(task, [(stages, task.gpus, task.cpus)])
        return Placed(device, replicas, float(last.min())), finished

    return solve


def filled(
    task: Task, lattice: Lattice, limit_us: FloatArray, stopped: Stopped, every: int = 1
) -> tuple[Table, bool]:
    """The table of splits whose loads are below a limit; whether it is complete."""
    table = empty_table(lattice, task.costs.devices)
    capable = _capable(task.costs, lattice, limit_us)
    capable[np.arange(lattice.n_ideals) % every > 0] = False
    at = 0
    while at < lattice.n_ideals:
        if stopped():
            return table, False
        arrays = lattice.ptr, lattice.added, lattice.next_ideal
        at = fill(*arrays, task.costs, limit_us, capable, table, at, VISITS_AT_ONCE)
    return table, True


def _capable(costs: Costs, lattice: Lattice, limit_us: FloatArray) -> BoolArray:
    """Where the devices left could do the work and hold the bytes left; (n_ideals, n_cells)."""
    of_node = np.column_stack([costs.gpu_us, costs.memory_bytes])
    left = of_node.sum(axis=0) - below_us(lattice.ptr, lattice.added, lattice.next_ideal, of_node)
    worth, hold = _cpu_worth(costs), _cpu_bytes(costs, limit_us)
    able = np.ones((lattice.n_ideals, n_cells(costs.devices)), dtype=bool)
    for cell in range(able.shape[1]):
        gpus, cpus = costs.devices - divmod(cell, costs.devices[1] + 1)
        room = gpus * costs.capacity_bytes + (cpus * hold if cpus else 0.0)
        able[:, cell] = left[:, -1] <= room
        for p, most_us in enumerate(limit_us.tolist()):
            devices = gpus + (cpus * worth[p] if cpus else 0.0)
            able[:, cell] &= left[:, p] <= (devices * most_us * (1 + 1e-9) if devices else 1e-9)
    return able


def _cpu_worth(costs: Costs) -> FloatArray:
    """How many accelerators a CPU replaces at most in each pass, by the node that suits it best."""
    both = (costs.gpu_runs & costs.cpu_runs)[:, None] & (costs.gpu_us > 0)
    ratio = _ratio(costs.gpu_us, costs.cpu_us)
    worth: FloatArray = np.where(both, ratio, 0.0).max(axis=0, initial=0.0)
    return worth


def _cpu_bytes(costs: Costs, limit_us: FloatArray) -> float:
    """Bytes of the nodes that a CPU has time for at most."""
    held = costs.cpu_runs & (costs.memory_bytes > 0)
    densest = _ratio(costs.memory_bytes[held], costs.cpu_us[held, -1]).max(initial=0.0)
    return float(densest * limit_us[-1]) if densest else 0.0


def _ratio(one: FloatArray, other: FloatArray) -> FloatArray:
    """One by the other; inf where that is 0."""
    found = np.full(one.shape, np.inf)
    np.divide(one, other, out=found, where=other > 0)
    return found


def _floor_us(costs: Costs) -> FloatArray:
    """No largest load of a pass is less: all devices have the same, or one the largest node."""
    columns = zip(costs.gpu_us.T, costs.cpu_us.T, strict=True)
    share = np.array([_least_share_us(costs, gpu_us, cpu_us) for gpu_us, cpu_us in columns])
    gpu_us = np.where(costs.gpu_runs[:, None], costs.gpu_us, np.inf)
    cpu_us = np.where(costs.cpu_runs[:, None], costs.cpu_us, np.inf)
    gpus, cpus = np.maximum(costs.most_replicas, 1).tolist()
    floor: FloatArray = np.maximum(share, np.minimum(gpu_us / gpus, cpu_us / cpus).max(axis=0))
    return floor


def _least_share_us(costs: Costs, gpu_us: FloatArray, cpu_us: FloatArray) -> float:
    """Load of all devices if nodes could be cut up: CPUs have those that suit accelerators least.

    What accelerators have left to do falls with what CPUs do; this is where both have the same
    load.
    """
    n_gpus, n_cpus = costs.devices.tolist()
    free = costs.gpu_runs & costs.cpu_runs
    only_gpu_us, only_cpu_us = gpu_us[~costs.cpu_runs].sum(), cpu_us[~costs.gpu_runs].sum()
    if not n_cpus:
        return float(gpu_us.sum() / n_gpus)
    if not n_gpus:
        return float(cpu_us.sum() / n_cpus)
    suits = np.argsort(-_ratio(gpu_us[free], cpu_us[free]), kind="stable")
    on_cpu_us = only_cpu_us + np.cumsum([0.0, *cpu_us[free][suits]])
    on_gpu_us = only_gpu_us + gpu_us[free].sum() - np.cumsum([0.0, *gpu_us[free][suits]])
    ahead_us = on_cpu_us / n_cpus - on_gpu_us / n_gpus
    equal_us = float(np.interp(0.0, ahead_us, on_cpu_us / n_cpus))
    return max(equal_us, float(on_gpu_us[-1] / n_gpus))


def _least_us(problem: Problem) -> float:
    """No largest load is less: all devices equally busy, each op where it is fastest."""
    return float(np.nanmin(problem.time_us, axis=1).sum() / problem.cluster.n_devices)


def walk_back(
    table: Table, lattice: Lattice, devices: IntArray, cell: int, top: int = -1, bottom: int = 0
) -> list[Stage]:
    """Stages from the first to the last, each a difference of ideals."""
    stages: list[Stage] = []
    ideal, width = top % lattice.n_ideals, int(devices[1]) + 1
    while ideal != bottom:
        below, before = int(table.from_ideal[ideal, cell]), int(table.from_cell[ideal, cell])
        used = divmod(cell - before, width)
        stages.append(Stage(_between(lattice, below, ideal), *used))
        ideal, cell = below, before
    return stages[::-1]


def assigned(
    task: Task, parts: Sequence[tuple[list[Stage], IntArray, IntArray]]
) -> tuple[IntArray, Replicas]:
    """Device of each op, and which devices take turns.

    Parameters
    ----------
    parts : sequence of (list of Stage, int array, int array)
        Stages, and the accelerators and CPUs that they take in order.
    """
    of_node = np.zeros(task.nodes.n_nodes, dtype=np.int64)
    replicas: list[tuple[int, ...]] = []
    for stages, *devices in parts:
        used = [0, 0]
        for stage in stages:
            kind, n = (0, stage.gpus) if stage.gpus else (1, stage.cpus)
            group = devices[kind][used[kind] : used[kind] + n]
            used[kind] += n
            of_node[stage.nodes] = group[0]
            if n > 1:
                replicas.append(tuple(group.tolist()))
    return of_node[task.nodes.node], tuple(replicas)


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
