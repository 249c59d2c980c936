"""The best schedule that the search has found so far."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from enplace.machine import simulate
from enplace.placing.incumbents import gap_of, keep_better
from enplace.placing.moves.steps import BALANCE, BLOCKS, LevelPlan
from enplace.placing.options import PlaceOptions
from enplace.placing.settle import by_placed_rank
from enplace.values.arrays import inverse
from enplace.values.plan import Plan
from enplace.values.problem import Problem
from enplace.values.schedule import Schedule

POLICIES = (("strict", "fifo"), ("priority", "fifo"), ("priority", "priority"))
"""Policies of devices and channels; each plan is simulated under all of these."""


class BestSchedule:
    """The best schedule of all ops so far; each improvement is reported.

    Attributes
    ----------
    problem : Problem
    schedule : Schedule
    """

    def __init__(self, problem: Problem, schedule: Schedule, options: PlaceOptions) -> None:
        self.problem, self.schedule = problem, schedule
        self._options = options

    @property
    def is_optimal(self) -> bool:
        return self.schedule.fits and gap_of(self.schedule, self._options) <= 0

    def try_plans(self, plans: Iterable[Plan], engine: str) -> None:
        """Simulate plans of all ops, and keep one that is better."""
        for plan in plans:
            found = simulate(self.problem, plan)
            self.schedule = keep_better(found, self.schedule, self._options, engine)

    def try_state(self, state: LevelPlan) -> None:
        """Simulate a state of the search as a plan of all ops, under every policy."""
        if not np.isfinite(state.makespan_us):
            return
        orders = [state.order]
        if state.engine in (BALANCE, BLOCKS) and state.ranked:
            orders.append(inverse(by_placed_rank(state.level.problem, state.device)))
        plans = (
            state.level.plan(order, state.device, policy, links)
            for order in orders
            for policy, links in POLICIES
        )
        self.try_plans(plans, state.engine)
