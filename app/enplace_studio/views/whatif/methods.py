"""Curves of methods: each makes a new plan for every value of an axis, in a worker of its own."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

from PySide6.QtCore import QObject, Signal

from enplace.machine import simulate
from enplace.values.plan import Plan
from enplace.values.problem import Problem
from enplace.values.schedule import Schedule
from enplace_studio.jobs.background import Background
from enplace_studio.jobs.solver import Job, Solver
from enplace_studio.model.open_project import OpenProject
from enplace_studio.views.whatif.speed_curves import (
    LIMIT_S,
    METHODS,
    QUICK,
    SEARCH,
    Axis,
    Curve,
    swept_problems,
)


class MethodSweep(QObject):
    """Finds the curves point by point; ``changed`` follows each."""

    changed = Signal()

    def __init__(self, parent: QObject) -> None:
        super().__init__(parent)
        self.curves: list[Curve] = []
        self.left = 0
        """How many points are still to come."""
        self._solver: Solver | None = None
        self._at: dict[int, int] = {}
        self._background = Background(QObject(self))

    def start(self, project: OpenProject, over: Axis) -> None:
        """Find the curves over an axis; an earlier sweep stops."""
        self.stop()
        self.curves = [Curve(name, (math.nan,) * len(over.values)) for name in METHODS]
        self.left = len(METHODS) * len(over.values)
        self._background.start(partial(swept_problems, project, over), self._solve)
        self.changed.emit()

    def stop(self) -> None:
        """End the sweep and its worker."""
        self._background.forget()
        if self._solver is not None:
            self._solver.close()
            self._solver.deleteLater()
            self._solver = None
        self._at, self.curves, self.left = {}, [], 0

    def _solve(self, problems: list[Problem | None]) -> None:
        solver = self._solver = Solver(self)
        solver.solved.connect(self._take)
        solver.failed.connect(self._leave_out)
        self.left = 0
        for at, problem in enumerate(problems):
            if problem is not None:
                self._at[id(problem)] = at
                self.left += len(METHODS)
                solver.solve(problem, QUICK, LIMIT_S, choose=False, asked=False)
        self.changed.emit()

    def _search(self, after: Job, start: Plan | None) -> None:
        """Let the search begin with the last quick method's plan, which it can only improve."""
        if after.method == QUICK[-1] and self._solver is not None:
            self._solver.solve(
                after.problem, [SEARCH], LIMIT_S, choose=False, asked=False, start=start
            )

    def _leave_out(self, job: Job, why: str) -> None:
        self._search(job, None)
        self._count_down()

    def _take(self, job: Job, plan: Plan) -> None:
        self._search(job, plan)

        def show(schedule: Schedule) -> None:
            number, at = METHODS.index(job.method), self._at[id(job.problem)]
            curve = self.curves[number]
            step_us = schedule.makespan_us if schedule.fits else math.nan
            steps_us = (*curve.steps_us[:at], step_us, *curve.steps_us[at + 1 :])
            self.curves[number] = replace(curve, steps_us=steps_us)
            self._count_down()

        self._background.start(lambda: simulate(job.problem, plan), show)

    def _count_down(self) -> None:
        self.left -= 1
        self.changed.emit()
        if not self.left and self._solver is not None:
            self._solver.close()
