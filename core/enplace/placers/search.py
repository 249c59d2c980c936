"""What the searches share: groups of ops that move together, their score, and the best so far.

Groups come from Celeritas's fusion and are placed on GPUs; what may not run there goes elsewhere by
itself. Each candidate is ordered by the upward ranks under its own placement and played on the true
machine model.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from enplace.coarsen import fuse
from enplace.placers.registry import PlaceOptions, Progress
from enplace.placers.settle import by_placed_rank, is_better, report, settle
from enplace.plan import Plan
from enplace.problem import Problem
from enplace.profile import IntArray
from enplace.schedule import Schedule
from enplace.simulate import simulate

REACH = 50
"""Most nodes in a group: fewer than Celeritas takes, for a search can place more than it."""

ROUNDS = 300
"""Candidates simulated when no time limit is given."""

TELL_S = 0.2
"""Time between two words on how far the search is."""

MEMORY_PENALTY = 10.0
"""Weight of the memory that is lacking, as a share of all there is, beside the step time."""


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
        self._method, self._tried, self._told = method, 0, options.seconds

    @property
    def n_groups(self) -> int:
        return int(self.group.max()) + 1

    @property
    def share_spent(self) -> float:
        """How much of the time or of the rounds is used up, 0 to 1."""
        if self.options.time_limit_s is None:
            return self._tried / ROUNDS
        return self.options.seconds / max(self.options.time_limit_s, 1e-9)

    def is_over(self) -> bool:
        """Whether to stop; never before there is a plan."""
        if self.best is None:
            self.options.check_cancelled()
            return False
        settled = len(self.gpus) == 1 or (self.best.fits and self.best.gap <= 0)
        return settled or self.share_spent >= 1 or self.options.stopped

    def score(self, device: IntArray) -> float:
        """Step time in µs, more if memory lacks, of groups on devices; shape (n_groups,)."""
        op_device = settle(self.problem, device[self.group])
        order = by_placed_rank(self.problem, op_device)
        schedule = simulate(self.problem, Plan(op_device, order, self._method, links="priority"))
        self._tried += 1
        if self.best is None or is_better(schedule, self.best):
            self.best = schedule
            report(schedule, self.options)
        elif self.options.seconds - self._told > TELL_S:
            self._tell()
        return penalised_us(schedule)

    def plan(self) -> Plan:
        """The best plan found."""
        assert self.best is not None, "a search scores at least one placement"
        return self.best.plan

    def random(self, draw: np.random.Generator) -> IntArray:
        """Devices of all groups by chance; shape (n_groups,)."""
        return draw.choice(self.gpus, self.n_groups)

    def _tell(self) -> None:
        self._told = self.options.seconds
        message = f"{self._tried:,} plans tried"
        self.options.progress(Progress(self._told, message, min(self.share_spent, 1.0)))


def penalised_us(schedule: Schedule) -> float:
    """Step time, longer by the share of the memory that is lacking."""
    capacity = schedule.problem.cluster.capacity_bytes
    lacking = np.maximum(schedule.peak_bytes - capacity, 0).sum() / capacity.sum()
    return float(schedule.makespan_us * (1 + MEMORY_PENALTY * lacking))


def quietly(options: PlaceOptions) -> PlaceOptions:
    """Options for a placer whose plan is only where another begins."""
    return replace(options, progress=lambda progress: None)
