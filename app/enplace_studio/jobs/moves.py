"""The search for next moves: in threads of the solver's worker, which rest while it solves."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QObject, Qt, Signal

from enplace.placing.next_moves import MOVE, Idle, NextMove
from enplace.processes.wire import Message
from enplace.values.plan import Plan
from enplace.values.problem import Problem
from enplace_studio.jobs.move_worker import moves_from
from enplace_studio.jobs.solver import Solver


class MoveSearch(QObject):
    """The next moves of a plan, the best found so far first; a new question ends the old one.

    Attributes
    ----------
    moves : tuple of NextMove
    is_over : bool
        Whether there is nothing left to try, or no time.
    asked : Plan or None
        The plan that they are moves of.
    """

    changed = Signal()

    def __init__(self, solver: Solver, parent: QObject) -> None:
        super().__init__(parent)
        self._solver, self._number = solver, 0
        self._question: tuple[Problem, Plan, Idle | None, Sequence[str]] | None = None
        self.moves: tuple[NextMove, ...] = ()
        self.is_over = True
        solver.moves_found.connect(self._receive)
        solver.worker_lost.connect(self._ask_again, Qt.ConnectionType.QueuedConnection)

    @property
    def asked(self) -> Plan | None:
        return None if self._question is None else self._question[1]

    def ask(
        self, problem: Problem, plan: Plan, idle: Idle | None = None, opened: Sequence[str] = ()
    ) -> None:
        """Look for the next moves of a plan, or for those that fill an idle time.

        Parameters
        ----------
        opened : sequence of str
            Groups whose parts give their names instead.
        """
        is_like = self.asked is not None and self.asked.splits == plan.splits
        good = [move for move in self.moves if move.kind == MOVE and is_like]
        self.forget()
        self._question, self.is_over = (problem, plan, idle, opened), False
        again = [(move.ops.tolist(), move.devices[0]) for move in good]
        self._number = self._solver.find_moves(
            problem, plan, {"idle": idle, "again": again, "opened": opened}
        )

    def forget(self) -> None:
        """End the search, and forget what it found."""
        if not self.is_over:
            self._solver.drop_moves(self._number)
        self._question, self.moves, self.is_over = None, (), True

    def _ask_again(self) -> None:
        """Put the question to another worker, as the one that had it is gone."""
        if self._question is not None and not self.is_over:
            self.ask(*self._question)

    def _receive(self, message: Message) -> None:
        plan = self.asked
        if message.details["search"] == self._number and plan is not None and not self.is_over:
            self.moves, self.is_over = moves_from(message, plan), message.details["over"]
            self.changed.emit()
