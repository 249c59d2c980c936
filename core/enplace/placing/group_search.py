"""Searches over groups of ops that move together: the score of a placement and the best plan.

Groups come from Celeritas's fusion and are placed on GPUs; ops that cannot run there are placed
individually. Candidates are scored on a coarse graph whose nodes are the ops of a group that always
share a device (:func:`find_nodes`), ordered by the upward ranks under each candidate's placement. A
candidate with the best score is then simulated on the full graph; only that can make it the plan.
"""

from __future__ import annotations

import numpy as np

from enplace.coarsen import fuse
from enplace.compiling import kernel
from enplace.errors import ProblemError
from enplace.machine import simulate
from enplace.machine.memory import find_excess
from enplace.machine.placement import LINK_FIFO, LINK_PRIORITY, PRIORITY, STRICT
from enplace.machine.timing import new_timing, simulate_order
from enplace.placing.incumbents import BestSchedule
from enplace.placing.moves import make_level
from enplace.placing.options import PlaceOptions, Progress
from enplace.placing.repair import relieve
from enplace.placing.settle import by_placed_rank, deciding_op, device_by_preference
from enplace.values.arrays import inverse
from enplace.values.plan import Plan
from enplace.values.problem import Problem
from enplace.values.profile import IntArray, Profile

REACH = 50
"""Most nodes in a group: fewer than in Celeritas, because a search can handle more groups."""

ROUNDS = 1500
"""Candidates scored when neither a time limit nor a number of rounds is given."""

REPORT_S = 0.2
"""Time between two progress reports."""

SEARCH_SHARE = 0.8
"""Share of the time limit for the search while nothing fits; repairs have the rest."""

MEMORY_PENALTY = 10.0
"""Weight of the excess, as a share of all memory, against the step time."""


class GroupSearch:
    """Scores placements of groups and keeps the best plan.

    Attributes
    ----------
    group : int array, shape (n_ops,)
        Group of each op.
    gpus : int array
        Devices that groups are placed on.
    best : BestSchedule
    """

    def __init__(self, problem: Problem, method: str, options: PlaceOptions) -> None:
        self.problem, self.options = problem, options
        self.group = fuse(problem, reach=REACH)
        self.gpus = np.array(problem.cluster.gpus)
        self.best = BestSchedule(options)
        self._stop = options.stop.when(lambda: self.is_settled or self.share_spent >= 1)
        unit_decider, unit_goes = self.group[deciding_op(problem)], device_by_preference(problem)
        together = _number(np.column_stack([unit_decider, unit_goes[:, self.gpus]]))
        try:
            self._level = make_level(
                problem, find_nodes(problem.profile, self.group, together[problem.unit])
            )
        except ProblemError:  # the ops that follow one group's decision fit on no device
            self._level = make_level(problem, np.arange(problem.profile.n_ops))
        first = np.unique(self._level.group, return_index=True)[1]
        unit = problem.unit[first]
        self._timing = new_timing(self._level.machine)
        self._decider, self._goes = unit_decider[unit], unit_goes[unit]
        self._method, self._tried, self._reported = method, 0, options.seconds
        self._least = np.inf

    @property
    def n_groups(self) -> int:
        return int(self.group.max()) + 1

    @property
    def share_spent(self) -> float:
        """The share of the time or of the rounds that is used up, 0 to 1."""
        rounds, limit_s = self.options.rounds, self.options.stop.limit_s
        if limit_s is None or rounds is not None:
            return self._tried / (rounds or ROUNDS)
        return self.options.seconds / max(limit_s, 1e-9)

    @property
    def is_settled(self) -> bool:
        """Whether no other plan can be better."""
        return self.best.kept is not None and (len(self.gpus) == 1 or self.best.is_optimal)

    def is_over(self) -> bool:
        """Whether to stop; never before there is a plan."""
        if self.best.kept is None:
            self.options.stop.check()
            return False
        share = 1.0 if self.best.found.fits else SEARCH_SHARE
        return self._stop.left_s(share) < 0 or self._stop()

    def offer(self, plan: Plan) -> None:
        """Keep a plan of all ops if it is the best so far."""
        self.best.offer(simulate(self.problem, plan.under_name(self._method)))

    def score(self, device: IntArray) -> float:
        """Return the step time of the coarse graph in µs, with a penalty for exceeding memory.

        Parameters
        ----------
        device : int array, shape (n_groups,)
        """
        placed = self._goes[np.arange(len(self._goes)), device[self._decider]]
        found = self._coarse_us(placed)
        self._tried += 1
        if found < self._least:
            self._least = found
            op_device = placed[self._level.group]
            order = by_placed_rank(self.problem, op_device)
            self.offer(Plan(op_device, order, self._method, links="priority"))
        elif self.options.seconds - self._reported > REPORT_S:
            self._report_progress()
        return found

    def _coarse_us(self, device: IntArray) -> float:
        """Score a placement of the coarse graph's nodes."""
        coarse, machine = self._level.problem, self._level.machine
        kept = self._level.kept_order
        position = by_placed_rank(coarse, device) if kept is None else inverse(kept)
        serve = (PRIORITY, LINK_PRIORITY) if kept is None else (STRICT, LINK_FIFO)
        step_us = simulate_order(machine, device, position, *serve, self._timing)
        excess = find_excess(machine, device, self._timing)
        # The host's memory is left out: compared with it, any excess of a GPU would look small.
        capacity = coarse.cluster.capacity_bytes[self.gpus].sum(dtype=np.float64)
        return float(step_us * (1 + MEMORY_PENALTY * excess / capacity))

    def plan(self) -> Plan:
        """Return the best plan found, with units moved if it does not fit."""
        return relieve(self.best.found, self.options).plan

    def random(self, draw: np.random.Generator) -> IntArray:
        """Draw a device for each group at random; shape (n_groups,)."""
        return draw.choice(self.gpus, self.n_groups)

    def _report_progress(self) -> None:
        self._reported = self.options.seconds
        message = f"{self._tried:,} plans tried"
        self.options.progress(Progress(self._reported, message, min(self.share_spent, 1.0)))


def find_nodes(profile: Profile, group: IntArray, together: IntArray) -> IntArray:
    """Find the nodes of the coarse graph: ops of one group that always share a device.

    Ops of a group are one node only if the paths to them within the group switch equally often
    between ops that are together and others. Otherwise, nodes could form a cycle.

    Parameters
    ----------
    group : int array, shape (n_ops,)
        Group of each op; no edge leads to a smaller number.
    together : int array, shape (n_ops,)
        Equal for ops that are always on one device.

    Returns
    -------
    int array, shape (n_ops,)
        Node of each op, numbered from 0 along the graph.
    """
    changes = _changes(
        profile.topological_order,
        profile.tensor_ptr,
        profile.edge_ptr,
        profile.edge_op,
        group,
        together,
    )
    return _number(np.column_stack([group, changes, together]))


def _number(rows: IntArray) -> IntArray:
    """Number each row by its rank among the distinct rows."""
    number: IntArray = np.unique(rows, axis=0, return_inverse=True)[1].reshape(-1)
    return number


@kernel
def _changes(
    order: IntArray,
    tensor_ptr: IntArray,
    edge_ptr: IntArray,
    edge_op: IntArray,
    group: IntArray,
    together: IntArray,
) -> IntArray:  # pragma: no cover - compiled
    """Count the most changes of ``together`` on any path to each op within its group."""
    changes = np.zeros(len(order), np.int64)
    for op in order:
        for edge in range(edge_ptr[tensor_ptr[op]], edge_ptr[tensor_ptr[op + 1]]):
            to = edge_op[edge]
            if group[to] == group[op]:
                changes[to] = max(changes[to], changes[op] + (together[to] != together[op]))
    return changes
