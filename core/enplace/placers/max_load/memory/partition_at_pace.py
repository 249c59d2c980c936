"""Partitions whose samples in flight fit in memory at the pace of the pipeline.

The pace is the time per sample: the largest load, or longer if fewer samples must be in flight. At
a given pace it is known how many samples a stage holds with 1F1B: a sample passes through the later
stages and returns, and where it would meet another one on a device, it waits. The less time this
takes from some stage on, the fewer samples all earlier stages hold. So a dynamic program from the
last stage back finds a partition that fits at a given pace, if stages follow each other in a row;
slower paces need no more memory, so that the best is found by bisection.

In the layer graphs of 2020, samples visit the stages in the same order on their way back. From the
last stage back, the time between the passes then shrinks by the backward part of each stage and
grows by the forward part of the stage after it; from the first stage on, it is the other way round.
Both directions are tried: in one, samples wait on their way forward, in the other on their way
back. How long the whole way takes is known only for a partition, so some are tried in turn.

Without the waits, the same program bounds the pace of every schedule: while a sample passes through
the later stages and returns, no more others can enter than there is room for.

Where branches run side by side, or gradients of weights wait, stages may hold fewer samples than
that. What is found is always simulated, and of small graphs every partition.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache
from itertools import islice, product

import numpy as np

from enplace.machine.op_passes import backward_ops, links_passes
from enplace.machine.pipelines.loads import (
    BACKWARD,
    FORWARD,
    max_load_us,
    pass_loads_us,
    shared_parts_us,
)
from enplace.machine.pipelines.memory import counts_whole_nodes
from enplace.placers.max_load.memory.in_flight import SAME, find_pace_us, held_by_stages
from enplace.placers.max_load.memory.listing import FEW_PARTITIONS, list_partitions
from enplace.placers.max_load.table.caveats import find_unlike
from enplace.placers.max_load.table.dp import (
    Partition,
    Solution,
    Stopped,
    Task,
    build_task,
    chains,
    most_ideals,
)
from enplace.placers.max_load.table.dp_table import (
    AHEAD,
    BACK,
    FREELY,
    NEITHER,
    VISITS_AT_ONCE,
    NodeCosts,
    empty_table,
    fill,
)
from enplace.placers.max_load.table.ideals import Lattice, bound_ideals, find_ideals
from enplace.placers.max_load.table.pruning import find_capable
from enplace.placers.max_load.table.stages import assign, walk_back
from enplace.placers.max_load.table.two_level import MOST_IDEALS as MOST_OVER_MACHINES
from enplace.placers.max_load.table.two_level import AtPace, has_machines
from enplace.placing.stop import never
from enplace.values.arrays import inverse
from enplace.values.load_rule import LoadRule
from enplace.values.problem import Problem
from enplace.values.profile import FloatArray, IntArray

WAYS = {True: (NEITHER,), False: (BACK, AHEAD)}
"""What is taken first, by whether backward stages read what forward stages make."""

NEAR = 1e-6
"""Paces that differ by a smaller share are bisected no further."""

TURNS = 4
"""Searches at one pace, each with the time of the way back in the partition before."""

SOME_ORDERS = 4
"""Depth-first orders to cut along if there are too many ideals."""

SLOWER, MOST_SLOWER = 1.003, 60
"""Factor and number of the paces tried above the shortest."""


def keeps_pace(rule: LoadRule) -> bool:
    """Whether a rule is for pipelines as described here."""
    return rule.pipeline != "gpipe" and rule.transfers == "sum"


def slow_down(problem: Problem, found: Partition, rule: LoadRule, below: Partition) -> Partition:
    """Give a partition the pace at which it fits; return ``below`` if that is no faster.

    See :func:`~enplace.placers.max_load.memory.in_flight.find_pace_us`.
    """
    chosen = found.device, rule, found.replicas, found.recompute
    pace_us = find_pace_us(problem, *chosen, most_us=below.load_us)
    load_us = max(max_load_us(problem, *chosen), pace_us)
    return replace(found, load_us=load_us, pace_us=pace_us) if load_us < below.load_us else below


def partition_at_pace(
    problem: Problem,
    roomy: Problem,
    rule: LoadRule,
    free: Partition,
    best: Partition,
    *,
    along_order: bool = False,
    seed: int = 0,
    stopped: Stopped = never,
) -> Partition:
    """Find the fastest partition that fits with its samples in flight.

    It is proven if all cuts of the graph are in a row and samples return through all of them.

    Parameters
    ----------
    roomy : Problem
        The same problem with some memory set aside, in which partitions are searched for.
    free : Partition
        The best for one sample.
    best : Partition
        One that fits; its load is inf if none is known.
    """
    one_each = replace(rule, pipeline="1f1b")  # one stage on each device, whatever the schedule
    task = build_task(roomy, one_each, held_by_stages(roomy, rule))
    nodes, lattice = task.nodes, None
    graph = (nodes.n_nodes, nodes.source, nodes.target)
    machines = rule.two_level and has_machines(problem)
    limit = MOST_OVER_MACHINES if machines else most_ideals(task)
    if not along_order and bound_ideals(*graph) <= limit:
        lattice = find_ideals(*graph, limit, stopped)
    n_orders = 1 if along_order else SOME_ORDERS
    lattices = [lattice] if lattice is not None else list(chains(task, n_orders, seed))
    over = AtPace(task, stopped) if machines else None
    ways = WAYS[links_passes(problem)]
    search = _Search(problem, rule, task, lattices, ways, over, stopped, best)
    loads_us = pass_loads_us(problem, free.device, one_each, free.replicas).sum(axis=1)
    alone_us = float(loads_us.sum())
    slow_us = best.load_us if np.isfinite(best.load_us) else alone_us
    search.bisect(free.load_us * (1 - SAME), slow_us)
    # Other schedules and branches, or tensors one by one, may take less than counted here, and no
    # sample waits until replicas have exchanged gradients.
    is_certain = (
        rule.pipeline == "1f1b"
        and not rule.replicate
        and counts_whole_nodes(problem.profile)
        and lattice is not None
        and lattice.n_ideals == nodes.n_nodes + 1
        and _return_in_a_row(problem, inverse(lattice.added)[nodes.node])
        and not find_unlike(problem, rule)
    )
    if is_certain:
        search.ways = (FREELY,)
        fast_us = search.bisect(free.load_us * (1 - SAME), min(slow_us, search.best.load_us))
        is_certain = not stopped()
    bound_us = max(free.bound_us, fast_us) if is_certain else free.bound_us
    if is_certain and fast_us >= search.best.load_us * (1 - 2 * NEAR):
        n_ideals = nodes.n_nodes + 1
        return replace(search.best, bound_us=bound_us, optimal=True, n_ideals=n_ideals)
    if lattice is not None and not rule.replicate:
        search.try_each(build_task(problem, one_each, held_by_stages(problem, rule)), limit)
    return replace(search.best, bound_us=bound_us, optimal=False)


def _return_in_a_row(problem: Problem, place: IntArray) -> bool:
    """Whether a sample passes through all nodes forward, and then through all of them back.

    Parameters
    ----------
    place : int array, shape (n_ops,)
        Where in the row the node of each op is.
    """
    profile, backward = problem.profile, backward_ops(problem)
    source, reader = profile.edge_source, profile.edge_op
    steps, last = place[reader] - place[source], place.max()
    ahead, back = ~backward[reader], backward[source]
    turns = ~ahead & ~back & (place[source] == last) & (place[reader] == last)
    goes = len(np.unique(place[source[ahead & (steps == 1)]])) == last
    returns = len(np.unique(place[source[back & (steps == -1)]])) == last
    return goes and returns and bool(turns.any()) and not (back & (steps > 0)).any()


@dataclass(eq=False)
class _Search:
    """A search for one pace after another, and the best partition that fits."""

    problem: Problem
    rule: LoadRule
    task: Task
    lattices: list[Lattice]
    ways: tuple[int, ...]
    over_machines: AtPace | None
    stopped: Stopped
    best: Partition
    tried: set[tuple[object, ...]] = field(default_factory=set)

    def bisect(self, fast_us: float, slow_us: float) -> float:
        """Search between two paces, and return one at which nothing fits, close to the best.

        If what was found there does not fit when it is simulated, somewhat slower ones are tried.
        """
        just_below = False
        while fast_us < slow_us * (1 - NEAR) and not self.stopped():
            pace_us = slow_us * (1 - SAME) if just_below else (fast_us + slow_us) / 2
            if self.try_pace(pace_us):
                slow_us, just_below = min(pace_us, self.best.load_us), False
            else:
                fast_us, just_below = pace_us, not just_below
        for number in range(MOST_SLOWER):
            pace_us = slow_us * SLOWER**number
            if pace_us >= self.best.load_us or self.stopped():
                break
            self.try_pace(pace_us)
        return fast_us

    def try_pace(self, pace_us: float) -> bool:
        """Search for partitions that fit at a pace, and keep the best; return whether any does."""
        any_found = False
        for lattice, way in product(self.lattices, self.ways):
            costs = _costs(self.task, pace_us, way)
            whole_us = _way_us(self.task, way)
            for _ in range(TURNS):
                found = self._find(lattice, costs, whole_us)
                if found is None:
                    break
                any_found = True
                self._keep(found)
                before_us, whole_us = whole_us, _way_us(self.task, way, found)
                if whole_us <= before_us:
                    break
        return any_found

    def _keep(self, found: Partition) -> None:
        """Keep a partition if it is the best when it is simulated."""
        key = found.device.tobytes(), found.replicas, found.recompute
        if key not in self.tried:
            self.tried.add(key)
            self.best = slow_down(self.problem, found, self.rule, self.best)

    def try_each(self, task: Task, limit: int) -> None:
        """Try all partitions that are not too slow if they are few; the task sets nothing aside."""
        nodes, over = task.nodes, self.over_machines
        lattice = find_ideals(nodes.n_nodes, nodes.source, nodes.target, limit, self.stopped)
        if lattice is None:
            return
        choices = cache(over.choices if over is not None else lambda _: [task.devices[0]])
        tries = (
            (stages, [first, *task.devices[1:]])
            for stages in list_partitions(lattice, task.costs, self.best.load_us) or ()
            for first in choices(sum(stage.kind == 0 for stage in stages))
        )
        for stages, devices in islice(tries, FEW_PARTITIONS):
            if self.stopped():
                break
            device, _, recompute = assign(task.nodes.node, [(stages, devices)])
            self._keep(Partition(device, np.inf, 0.0, recompute=recompute))

    def _find(self, lattice: Lattice, costs: NodeCosts, whole_us: float) -> Partition | None:
        """Find the partition that fits at a pace for which samples stay the shortest time.

        ``whole_us`` is the time of the whole way in the pass that is taken first.
        """
        task, limit_us = self.task, np.array([costs.period_us * (1 + SAME)])
        if costs.taken_first != AHEAD:
            lattice = lattice.from_the_end()
        if self.over_machines is not None:
            found = self.over_machines.solve(lattice, costs, limit_us, whole_us)
        else:
            found = _solve(task, lattice, costs, limit_us, whole_us, self.stopped)
        if found is None:
            return None
        device, replicas, recompute = found.device, found.replicas, found.recompute
        return Partition(device, np.inf, 0.0, replicas=replicas, recompute=recompute)


def _solve(
    task: Task,
    lattice: Lattice,
    costs: NodeCosts,
    limit_us: FloatArray,
    start_us: float,
    stopped: Stopped,
) -> Solution | None:
    """Do the same over the devices of one machine."""
    table = empty_table(lattice, costs.devices)
    table.best_us[0, 0] = start_us
    capable, at = find_capable(costs, lattice, limit_us), 0
    while at < lattice.n_ideals:
        if stopped():
            return None
        at = fill(lattice, costs, limit_us, capable, table, at, VISITS_AT_ONCE)
    cell = int(np.argmin(table.best_us[-1]))
    if np.isinf(table.best_us[-1, cell]):
        return None
    stages = walk_back(table, lattice, costs.devices, cell)
    if costs.taken_first != AHEAD:
        stages.reverse()
    parts = assign(task.nodes.node, [(stages, task.devices)])
    return Solution(*parts, float(table.best_us[-1, cell]))


def _costs(task: Task, pace_us: float, way: int) -> NodeCosts:
    once = np.ones_like(task.costs.samples)
    return task.costs._replace(
        samples=once,
        period_us=pace_us,
        taken_first=way,
        recompute=task.rule.recompute,
        is_plain=False,
    )


def _way_us(task: Task, way: int, found: Partition | None = None) -> float:
    """Return the time of the pass that is taken first in a partition, or else on accelerators."""
    if way in (NEITHER, FREELY):
        return 0.0
    if found is None:
        # Of accelerators that differ, the slowest: a longer way only leaves more time to wait.
        on_gpu = task.nodes.kinds.is_gpu
        ahead_us = task.costs.forward_us[on_gpu].sum(axis=1)
        back_us = task.costs.work_us[on_gpu, :, -1].sum(axis=1) - ahead_us
        return float((ahead_us if way == AHEAD else back_us).max(initial=0.0))
    parts = shared_parts_us(task.problem, found.device, task.rule, found.replicas, found.recompute)
    return float(parts[:, FORWARD if way == AHEAD else BACKWARD].sum())
