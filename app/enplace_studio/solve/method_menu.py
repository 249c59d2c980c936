"""The short menu of methods below the header's button."""

from __future__ import annotations

from collections.abc import Iterable

from PySide6.QtCore import Signal
from PySide6.QtGui import QActionGroup
from PySide6.QtWidgets import QMenu, QWidget

from enplace.values.problem import Problem
from enplace_studio.jobs.solver import Solver
from enplace_studio.model.method_facts import suggested, warnings_for, why_not_for
from enplace_studio.solve.chosen_method import ChosenMethod
from enplace_studio.widgets.labels import plain_tip

STAY_CLOSE = "Stay close to this plan"


class MethodMenu(QMenu):
    """The recent methods, one of each kind to begin with, and the way to all others."""

    all_wanted = Signal()
    """The user wants to see every method with its options."""
    stay_close_wanted = Signal()
    """The user wants a better plan close to the one on the screen."""

    def __init__(self, solver: Solver, chosen: ChosenMethod, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._solver, self._chosen = solver, chosen
        self._problem: Problem | None = None
        self.setToolTipsVisible(True)
        self.aboutToShow.connect(self.fill)

    def set_problem(self, problem: Problem) -> None:
        """Offer only what can solve this problem."""
        self._problem = problem

    def fill(self) -> None:
        """List the methods."""
        self.clear()
        group, chosen = QActionGroup(self), self._chosen
        now = (chosen.method, chosen.objective)
        known = [each for each in chosen.recent if each[0] in self._solver.methods]
        recent = known if now in known else [now, *known]
        self._add(group, recent)
        self.addSeparator()
        self._add(group, suggested(self._solver.methods.values(), recent))
        self.addSeparator()
        stay_close = self.addAction(f"{STAY_CLOSE}…")
        stay_close.setToolTip(plain_tip("Solve again, but move only as many ops as you say"))
        stay_close.triggered.connect(self.stay_close_wanted.emit)
        self.addAction("All methods and options…").triggered.connect(self.all_wanted.emit)

    def _add(self, group: QActionGroup, choices: Iterable[tuple[str, str]]) -> None:
        for name, objective in choices:
            method = self._solver.methods[name]
            action = group.addAction(self._chosen.long_title(name, objective))
            action.setCheckable(True)
            action.setChecked((name, objective) == (self._chosen.method, self._chosen.objective))
            if self._problem is not None:
                why_not = why_not_for(method, self._problem)
                tips = [method.summary, *warnings_for(method, self._problem)]
                action.setEnabled(not why_not)
                action.setToolTip(plain_tip(why_not or "\n".join(filter(None, tips))))
            action.triggered.connect(
                lambda _=False, n=name, o=objective: self._chosen.set_method(n, objective=o)
            )
            self.addAction(action)
