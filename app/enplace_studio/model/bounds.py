"""Lower bounds on the step time of the open problems, computed in the background."""

from __future__ import annotations

from PySide6.QtCore import QObject, Signal

from enplace.bounds import Proof, Proofs, rivals_of
from enplace.values.plan import find_gap
from enplace.values.problem import Problem
from enplace.values.schedule import Schedule
from enplace_studio.jobs.background import Background
from enplace_studio.jobs.call_later import InPause


class Bounds(QObject):
    """The proven lower bounds of the open problems.

    A bound takes a linear program, so an edit never waits for one, and none is begun before the
    user pauses. Constraints only remove plans, so a bound stays valid when constraints are added,
    until their own is computed, which may be higher and is what commands and files show.

    Attributes
    ----------
    proofs : Proofs
        For a thread that writes a file, which waits for the bound that commands show.
    """

    changed = Signal()

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.proofs = Proofs()
        self._next: Problem | None = None
        self._background = Background(self)
        self._in_pause = InPause(self, self._start)

    def add(self, problem: Problem, proof: Proof) -> None:
        """Keep a bound that a solver proved."""
        self.proofs.add(problem, proof)
        self.changed.emit()

    def find_us(self, schedule: Schedule) -> float | None:
        """Return the best known bound of a plan's rivals.

        ``changed`` is sent once there is one with all of their constraints. Of those that are asked
        for meanwhile the last comes next, so whoever still wants another asks again then.
        """
        problem = rivals_of(schedule)
        proof = self.proofs.known(problem)
        if self.proofs.get(problem) is None:
            self._next = problem
            self._in_pause.ask()
        return None if proof is None else proof.bound_us

    def gap(self, schedule: Schedule) -> float | None:
        """Return how far a step is above the bound, as a fraction; None if not known yet."""
        bound_us = self.find_us(schedule)
        return None if bound_us is None else find_gap(schedule.makespan_us, bound_us)

    def _start(self) -> None:
        """Compute the bound of the last requested problem, one at a time."""
        problem = self._next
        if problem is None or self._background.is_busy:
            return
        self._next = None
        if self.proofs.get(problem) is not None:
            return  # it was asked for again while it was being computed
        proofs = self.proofs
        self._background.start(lambda: proofs.find(problem), lambda _: self._finish())

    def _finish(self) -> None:
        self.changed.emit()
        self._in_pause.ask()
