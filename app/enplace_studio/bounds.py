"""Lower bounds on the step time of what is open, calculated in the background."""

from __future__ import annotations

from PySide6.QtCore import QObject, Signal

from enplace.bounds import Proof, Proofs, lower_bound_us
from enplace.values.plan import find_gap
from enplace.values.problem import Problem
from enplace.values.schedule import Schedule
from enplace_studio.background import Background


class Bounds(QObject):
    """What is proven of the open problems.

    A bound takes a linear program, so an edit never waits for one. Pins and other constraints only
    remove plans: what is proven of a problem holds once more are added, and only a problem without
    such a proof needs a calculation.
    """

    changed = Signal()

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._proofs = Proofs()
        self._next: Problem | None = None
        self._background = Background(self)

    def add(self, problem: Problem, proof: Proof) -> None:
        """Keep what a solver proved."""
        self._proofs.add(problem, proof)
        self.changed.emit()

    def find_us(self, problem: Problem) -> float | None:
        """The best bound that is known; if there is none, ``changed`` follows once there is."""
        proof = self._proofs.known(problem)
        if proof is None:
            self._next = problem  # of several that are asked for meanwhile, the last one counts
            self._start()
        return None if proof is None else proof.bound_us

    def gap(self, schedule: Schedule) -> float | None:
        """How far a step may be above the best possible, as a fraction; None if not known yet."""
        bound_us = self.find_us(schedule.problem)
        return None if bound_us is None else find_gap(schedule.makespan_us, bound_us)

    def _start(self) -> None:
        """Calculate the bound of the problem that was asked for last, one at a time."""
        problem = self._next
        if problem is None or self._background.is_busy:
            return
        self._next = None
        self._background.start(
            lambda: Proof(lower_bound_us(problem)), lambda proof: self._finish(problem, proof)
        )

    def _finish(self, problem: Problem, proof: Proof) -> None:
        self.add(problem, proof)
        self._start()
