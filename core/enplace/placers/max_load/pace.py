"""Partitions whose samples in flight fit in memory at the pace of the pipeline (1F1B).

The pace is the time per sample, and so the largest load. At a given pace it is known how many
samples a stage holds: a sample passes through the later stages and returns, and where it would meet
another one on a device, it waits. The less time this takes from some stage on, the fewer samples
all earlier stages hold. So a dynamic program from the last stage back finds a partition that fits
at a given pace, if stages follow each other in a row; slower paces need no more memory, so that the
best is found by bisection.

In the layer graphs of 2020, samples visit the stages in the same order on their way back. From the
last stage back, the time between the passes then shrinks by the backward part of each stage and
grows by the forward part of the stage after it; from the first stage on, it is the other way round.
Both directions are tried: in one, samples wait on their way forward, in the other on their way
back. How long the whole way takes is known only for a partition, so some are tried in turn.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from enplace.machine.loads import BACKWARD, FORWARD, busiest_us, shared_parts_us
from enplace.machine.passes import links_passes
from enplace.placers.max_load.caveats import find_unlike
from enplace.placers.max_load.dp import (
    Partition,
    Solution,
    Stopped,
    Task,
    build_task,
    chains,
    most_ideals,
    never,
)
from enplace.placers.max_load.ideals import Lattice, bound_ideals, find_ideals
from enplace.placers.max_load.pruning import find_capable
from enplace.placers.max_load.stages import assign, walk_back
from enplace.placers.max_load.table import (
    AHEAD,
    BACK,
    NEITHER,
    VISITS_AT_ONCE,
    NodeCosts,
    empty_table,
    fill,
)
from enplace.placers.max_load.two_level import MOST_IDEALS as MOST_OVER_MACHINES
from enplace.placers.max_load.two_level import AtPace, has_machines
from enplace.values.load_rule import LoadRule
from enplace.values.problem import Problem
from enplace.values.profile import FloatArray

WAYS = {True: (NEITHER,), False: (BACK, AHEAD)}
"""What is taken first, by whether backward stages read what forward stages make."""

NEAR, SAME = 1e-6, 1e-9
"""Paces that differ by a smaller share are bisected no further, or are equal."""

TURNS = 4
"""Searches at one pace, each with the time of the way back in the partition before."""

SOME_ORDERS = 4
"""Depth-first orders to cut along if there are too many ideals."""

SLOWER, MOST_SLOWER = 1.003, 60
"""Factor and number of the paces tried above the shortest."""


def keeps_pace(problem: Problem, rule: LoadRule) -> bool:
    """Whether a rule is for pipelines as described here."""
    return rule.pipeline == "1f1b" and rule.transfers == "sum"


def partition_at_pace(
    problem: Problem,
    rule: LoadRule,
    free: Partition,
    best: Partition,
    fits: Callable[[Partition], bool],
    *,
    along_order: bool = False,
    seed: int = 0,
    stopped: Stopped = never,
) -> Partition:
    """Find the fastest partition that fits with its samples in flight.

    It is proven if all cuts of the graph are in a row and samples return through them.

    Parameters
    ----------
    free : Partition
        The best for one sample.
    best : Partition
        One that fits; its load is inf if none is known.
    fits : function
        Whether a partition fits when it is simulated.
    """
    task = build_task(problem, rule)
    nodes, lattice = task.nodes, None
    graph = (nodes.n_nodes, nodes.source, nodes.target)
    machines = rule.two_level and has_machines(problem)
    limit = MOST_OVER_MACHINES if machines else most_ideals(task)
    if not along_order and bound_ideals(*graph) <= limit:
        lattice = find_ideals(*graph, limit, stopped)
    n_orders = 1 if along_order else SOME_ORDERS
    lattices = [lattice] if lattice is not None else list(chains(task, n_orders, seed))
    over = AtPace(task, stopped) if machines else None
    search = _Search(task, lattices, WAYS[links_passes(problem)], over, fits, stopped, best)
    slow_us = best.load_us if np.isfinite(best.load_us) else free.load_us * len(task.gpus)
    fast_us = search.bisect(free.load_us * (1 - SAME), slow_us)
    found = replace(search.best, bound_us=free.bound_us, optimal=False)
    in_a_row = lattice is not None and lattice.n_ideals == nodes.n_nodes + 1
    if not in_a_row or not links_passes(problem) or find_unlike(problem, rule) or stopped():
        return found
    if fast_us < found.load_us * (1 - 2 * NEAR):
        return replace(found, bound_us=max(free.bound_us, fast_us))
    return replace(found, bound_us=found.load_us, optimal=True, n_ideals=nodes.n_nodes + 1)


@dataclass(eq=False)
class _Search:
    """A search for one pace after another, and the best partition that fits."""

    task: Task
    lattices: list[Lattice]
    ways: tuple[int, ...]
    over_machines: AtPace | None
    fits: Callable[[Partition], bool]
    stopped: Stopped
    best: Partition

    def bisect(self, fast_us: float, slow_us: float) -> float:
        """Search between two paces, and return one at which nothing fits, close to the best.

        If what was found there does not fit at its own pace, somewhat slower ones are tried.
        """
        just_below = False
        while fast_us < slow_us * (1 - NEAR) and not self.stopped():
            pace_us = slow_us * (1 - SAME) if just_below else (fast_us + slow_us) / 2
            found_us = self.try_pace(pace_us)
            if found_us is None:
                fast_us, just_below = pace_us, not just_below
            else:
                slow_us, just_below = min(found_us, pace_us), False
        for number in range(MOST_SLOWER):
            pace_us = slow_us * SLOWER**number
            if pace_us >= self.best.load_us or self.stopped():
                break
            self.try_pace(pace_us)
        return fast_us

    def try_pace(self, pace_us: float) -> float | None:
        """Search for partitions that fit at a pace, and keep the best; return the best pace.

        None if none was found. A partition whose loads are all smaller than the pace need not fit
        at its own; then the pace is returned.
        """
        best_us = None
        for lattice, way in product(self.lattices, self.ways):
            costs = _costs(self.task, pace_us, way)
            whole_us = _way_us(self.task, way)
            for _ in range(TURNS):
                found = self._find(lattice, costs, whole_us)
                if found is None:
                    break
                fits = self.fits(found)
                if fits and found.load_us < self.best.load_us:
                    self.best = found
                best_us = min(best_us or pace_us, found.load_us if fits else pace_us)
                before_us, whole_us = whole_us, _way_us(self.task, way, found)
                if fits or whole_us <= before_us:
                    break
        return best_us

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
        chosen = found.device, task.rule, found.replicas, found.recompute
        load_us = float(busiest_us(task.problem, *chosen).sum())
        return Partition(
            found.device, load_us, 0.0, replicas=found.replicas, recompute=found.recompute
        )


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
    parts = assign(task.nodes.node, [(stages, task.gpus, task.cpus)])
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
    if way == NEITHER:
        return 0.0
    if found is None:
        ahead_us = task.costs.forward_us.sum()
        return float(ahead_us if way == AHEAD else task.costs.gpu_us[:, -1].sum() - ahead_us)
    parts = shared_parts_us(task.problem, found.device, found.replicas, found.recompute)
    return float(parts[:, FORWARD if way == AHEAD else BACKWARD].sum())
