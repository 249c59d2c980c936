"""What the searches share: groups of ops that move together, their score, and the best so far.

Groups come from Celeritas's fusion and are placed on GPUs; what may not run there goes elsewhere by
itself. Candidates are scored on a coarse graph, whose nodes are what always goes to one device
(:func:`find_nodes`), in the order of the upward ranks under each one's own placement. One that is
the best so far is played on the graph of all ops as well, and only that makes it the plan.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numba import njit

from enplace.coarsen import fuse
from enplace.errors import ProblemError
from enplace.machine import simulate
from enplace.machine.kernel import LINK_PRIORITY
from enplace.placers.celeritas import order_place
from enplace.placing.incumbents import gap_of, is_better, report
from enplace.placing.moves import dispatch, lacking_bytes, make_level
from enplace.placing.options import PlaceOptions, Progress
from enplace.placing.repair import relieve
from enplace.placing.settle import by_placed_rank, deciding_op, device_by_wish
from enplace.values.plan import Plan
from enplace.values.problem import Problem
from enplace.values.profile import IntArray, Profile
from enplace.values.schedule import Schedule

REACH = 50
"""Most nodes in a group: fewer than Celeritas takes, for a search can place more than it."""

ROUNDS = 1500
"""Candidates scored when neither a time limit nor a number of rounds is given."""

TELL_S = 0.2
"""Time between two words on how far the search is."""

MEMORY_PENALTY = 10.0
"""Weight of the memory that is lacking, as a share of all there is, beside the step time."""

FILLED = "Nothing that the search tried fits in memory, so this is the plan of order-place"


class Search:
    """Scores placements of groups and keeps the best plan.

    Attributes
    ----------
    group : int array, shape (n_ops,)
        Group of each op.
    gpus : int array
        Devices that groups are placed on.
    best : Schedule or None
        The best schedule so far.
    """

    def __init__(self, problem: Problem, method: str, options: PlaceOptions) -> None:
        self.problem, self.options = problem, options
        self.group = fuse(problem, reach=REACH)
        self.gpus = np.array(problem.cluster.gpus)
        self.best: Schedule | None = None
        unit_decider, unit_goes = self.group[deciding_op(problem)], device_by_wish(problem)
        together = _number(np.column_stack([unit_decider, unit_goes[:, self.gpus]]))
        try:
            self._level = make_level(
                problem, find_nodes(problem.profile, self.group, together[problem.unit])
            )
        except ProblemError:  # no device has room for all that one group decides for
            self._level = make_level(problem, np.arange(problem.profile.n_ops))
        first = np.unique(self._level.group, return_index=True)[1]
        unit = problem.unit[first]
        self._decider, self._goes = unit_decider[unit], unit_goes[unit]
        self._method, self._tried, self._told = method, 0, options.seconds
        self._least = np.inf

    @property
    def n_groups(self) -> int:
        return int(self.group.max()) + 1

    @property
    def share_spent(self) -> float:
        """How much of the time or of the rounds is used up, 0 to 1."""
        rounds, limit_s = self.options.rounds, self.options.time_limit_s
        if limit_s is None or rounds is not None:
            return self._tried / (rounds or ROUNDS)
        return self.options.seconds / max(limit_s, 1e-9)

    @property
    def is_settled(self) -> bool:
        """Whether no other plan can be better."""
        best = self.best
        if best is None or len(self.gpus) == 1:
            return best is not None
        return best.fits and gap_of(best, self.options) <= 0

    def is_over(self) -> bool:
        """Whether to stop; never before there is a plan."""
        if self.best is None:
            self.options.check_cancelled()
            return False
        return self.is_settled or self.share_spent >= 1 or self.options.stopped

    def offer(self, plan: Plan) -> None:
        """Keep a plan of all ops if it is the best so far."""
        schedule = simulate(self.problem, plan.under_name(self._method))
        if self.best is None or is_better(schedule, self.best):
            self.best = schedule
            report(schedule, self.options)

    def score(self, device: IntArray) -> float:
        """Step time in µs, more if memory lacks, of groups on devices; shape (n_groups,).

        Both are those of the coarse graph.
        """
        placed = self._goes[np.arange(len(self._goes)), device[self._decider]]
        found = self._coarse_us(placed)
        self._tried += 1
        if found < self._least:
            self._least = found
            op_device = placed[self._level.group]
            order = by_placed_rank(self.problem, op_device)
            self.offer(Plan(op_device, order, self._method, links="priority"))
        elif self.options.seconds - self._told > TELL_S:
            self._tell()
        return found

    def _coarse_us(self, device: IntArray) -> float:
        """Score of the coarse graph's nodes on devices."""
        coarse, graph = self._level.problem, self._level.graph
        cluster, profile = coarse.cluster, coarse.profile
        position = by_placed_rank(coarse, device)
        shape = (profile.n_tensors, cluster.n_devices)
        start_us, finish_us = np.zeros(profile.n_ops), np.zeros(profile.n_ops)
        arrival_us, sent_us = np.empty(shape), np.empty(shape)
        step_us = dispatch(
            graph,
            cluster.lanes,
            cluster.lane_owner,
            np.diff(profile.in_ptr),
            device,
            position,
            LINK_PRIORITY,
            finish_us,
            start_us,
            arrival_us,
            sent_us,
        )
        lacking = lacking_bytes(graph, device, finish_us, arrival_us, sent_us)
        # Not of the host's memory, beside which no GPU would seem to lack much.
        room = cluster.capacity_bytes[self.gpus].sum()
        return float(step_us * (1 + MEMORY_PENALTY * lacking / room))

    def plan(self) -> Plan:
        """The best plan found, relieved if it does not fit.

        Where memory is so tight that this does not help, what fills one GPU after the other may:
        it has the fewest copies of tensors.
        """
        assert self.best is not None, "a search scores at least one placement"
        found = relieve(self.best, self.options)
        if found.fits:
            return found.plan
        in_order = order_place(self.problem, replace(self.options.quiet, time_limit_s=None))
        plan = in_order.under_name(self._method).with_notes(FILLED)
        filled = simulate(self.problem, plan)
        if not filled.fits:
            return found.plan
        report(filled, self.options)
        return plan

    def random(self, draw: np.random.Generator) -> IntArray:
        """Devices of all groups by chance; shape (n_groups,)."""
        return draw.choice(self.gpus, self.n_groups)

    def _tell(self) -> None:
        self._told = self.options.seconds
        message = f"{self._tried:,} plans tried"
        self.options.progress(Progress(self._told, message, min(self.share_spent, 1.0)))


def find_nodes(profile: Profile, group: IntArray, together: IntArray) -> IntArray:
    """Nodes of the coarse graph: ops of one group that are on one device wherever groups go.

    Within a group they are told apart by how often a way to them changes between ops that are
    together and others, so that no cycle closes.

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
    """Number of each row among the distinct ones in their order."""
    number: IntArray = np.unique(rows, axis=0, return_inverse=True)[1].reshape(-1)
    return number


@njit(cache=True, nogil=True)
def _changes(
    order: IntArray,
    tensor_ptr: IntArray,
    edge_ptr: IntArray,
    edge_op: IntArray,
    group: IntArray,
    together: IntArray,
) -> IntArray:  # pragma: no cover - compiled
    """Most changes of ``together`` on a way to each op within its group."""
    changes = np.zeros(len(order), np.int64)
    for op in order:
        for edge in range(edge_ptr[tensor_ptr[op]], edge_ptr[tensor_ptr[op + 1]]):
            to = edge_op[edge]
            if group[to] == group[op]:
                changes[to] = max(changes[to], changes[op] + (together[to] != together[op]))
    return changes
