"""Choosing a method: all of them by purpose, what each does, and its options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from PySide6.QtCore import QTimer
from PySide6.QtWidgets import QComboBox, QDialog, QFrame, QVBoxLayout, QWidget

from enplace.errors import EnplaceError
from enplace.frameworks.framework import OPS
from enplace.frameworks.registry import framework_of, usual_grain
from enplace.text import capital, seconds
from enplace.values.problem import Problem
from enplace_studio.explain.titles import short_title
from enplace_studio.jobs.solver import Method, Solver
from enplace_studio.model.method_facts import (
    OBJECTIVES,
    best_plan,
    by_purpose,
    strengths,
    time_text,
    warnings_for,
    whole_seconds,
    why_not_for,
)
from enplace_studio.model.open_project import PlanEntry
from enplace_studio.model.prices import headline
from enplace_studio.solve.chosen_method import TIME_LIMITS_S, Choice
from enplace_studio.solve.option_form import OptionForm
from enplace_studio.widgets.column import Column
from enplace_studio.widgets.form import Form
from enplace_studio.widgets.labels import label, paragraph, set_role
from enplace_studio.widgets.layouts import hbox, vbox
from enplace_studio.widgets.messages import DialogButtons, button
from enplace_studio.widgets.search_list import Row, SearchList, closeness, matches
from enplace_studio.widgets.sizes import give_size
from enplace_studio.widgets.theme import theme

SIZE = (880, 600)
LIST_WIDTH = 340
SHORTEST_S = 0.05
"""Shorter times are not worth telling."""


class MethodDialog(QDialog):
    """A list of methods, and beside it what the current one does and takes.

    Attributes
    ----------
    choice : Choice
        What the user has chosen so far.
    options : OptionForm
        The fields of the current method.
    """

    def __init__(
        self,
        solver: Solver,
        choice: Choice,
        problem: Problem,
        plans: Sequence[PlanEntry],
        parent: QWidget | None = None,
    ) -> None:
        super().__init__(parent)
        self.setWindowTitle("Choose a method")
        give_size(self, SIZE)
        self._solver, self._problem, self._plans = solver, problem, plans
        self.choice = choice
        self.search = SearchList(self._find, "Search methods")
        self.search.setFixedWidth(round(LIST_WIDTH * theme.scale))
        self.search.moved.connect(self._choose_current)
        self.search.chosen.connect(self.accept)
        self.defaults = button("Back to defaults", self.restore_defaults)
        self.buttons = DialogButtons(self, "Use this method", self.defaults)
        self.buttons.accept.setDefault(True)
        self._fault = label("", "bad", wraps=True)
        self._details = Column("About the method")
        self._lay_out()
        self.search.fill(choice.method)
        self.search.setFocus()

    def _lay_out(self) -> None:
        card = QFrame()
        card.setProperty("card", True)
        vbox((self._details, 1), self._fault, on=card, margins=(16, 14, 10, 12))
        middle = hbox(self.search, (card, 1), spacing=10)
        vbox((middle, 1), self.buttons, on=self, spacing=12, margins=(14, 14, 14, 14))

    # The list

    def _find(self, typed: str) -> list[Row]:
        found = []
        for purpose, methods in by_purpose(self._solver.methods.values()).items():
            fitting = [m for m in methods if matches(typed, f"{m.title} {m.name} {m.source}")]
            if fitting:
                ranked = sorted(fitting, key=lambda method: closeness(typed, method.title))
                found.append((closeness(typed, ranked[0].title), purpose, ranked))
        found.sort(key=lambda each: each[0])
        return [
            row for _, purpose, ranked in found for row in (Row(purpose), *map(self._row, ranked))
        ]

    def _row(self, method: Method) -> Row:
        why_not = why_not_for(method, self._problem)
        spent = "" if why_not else time_text(method, self.choice.time_limit_s)
        return Row(method.title, method.name, (spent,), why_not or method.source, bool(why_not))

    def _choose_current(self) -> None:
        name = self.search.current
        if not isinstance(name, str):
            self._details.fill()
            self.buttons.accept.setEnabled(False)
            return
        objective = self._solver.aim(name, self.choice.objective)
        self.choice = replace(self.choice, method=name, objective=objective)
        self._show()

    # The current method

    @property
    def _method(self) -> Method:
        return self._solver.methods[self.choice.method]

    def _show(self) -> None:
        method, column = self._method, self._details.fill(10)
        column.addWidget(label(short_title(method.title), "heading", wraps=True))
        if method.source:
            column.addWidget(paragraph(method.source))
        for warning in self._warnings():
            column.addWidget(warning)
        self._add_text(column, "What it does", method.summary)
        self._add_text(column, "When it is good", method.good)
        self._add_text(column, "What it can do", _strengths_text(method))
        if not why_not_for(method, self._problem):
            self._add_text(column, "Expected time", self._time())
        self.options = OptionForm(method.options_for(self.choice.objective), self.choice.values)
        self.options.changed.connect(self._read)
        self._add_common_fields(self.options.form)
        if self.options.form.rowCount():
            column.addWidget(label("Options", "title"))
            column.addWidget(self.options)
        self._read()

    def _warnings(self) -> list[QWidget]:
        why_not = why_not_for(self._method, self._problem)
        lines = [why_not] if why_not else warnings_for(self._method, self._problem)
        made = [paragraph(capital(line)) for line in lines]
        for each in made:
            set_role(each, "bad")
        return list(made)

    def _add_text(self, column: QVBoxLayout, title: str, text: str) -> None:
        if text:
            column.addLayout(vbox(label(title, "title"), label(text, wraps=True), spacing=2))

    def _time(self) -> str:
        """Say how long it takes, and what it found on this graph if it ran already."""
        method, objective = self._method, self.choice.objective
        text = time_text(method, self.choice.time_limit_s).capitalize()
        made = best_plan(method.name, objective, self._plans)
        if made is None:
            return f"{text} on this graph."
        spent = made.plan.solve_seconds or 0.0
        after = f" in {seconds(spent)}" if spent >= SHORTEST_S else ""
        return f"{text}. It has found {headline(made.plan, made.schedule)} on this graph{after}."

    def _add_common_fields(self, form: Form) -> None:
        """Begin the form with what not only one method has: the objective and the time limit."""
        if self._solver.searches(self._method.name):
            form.add_first("Time limit", self._limit_field())
        if grains := framework_of(self._problem.measured_profile).grains:
            form.add_first("Keep whole", self._grain_field([*grains]))
        if len(self._method.objectives) > 1:
            form.add_first("Find", self._objective_field())

    def _objective_field(self) -> QComboBox:
        field = self.objective_field = QComboBox()
        for objective in self._method.objectives:
            field.addItem(OBJECTIVES[objective], objective)
        field.setCurrentIndex(field.findData(self.choice.objective))
        field.activated.connect(lambda: self._change(objective=field.currentData()))
        return field

    def _grain_field(self, grains: Sequence[str]) -> QComboBox:
        field = self.grain_field = QComboBox()
        titles = {grain: f"{grain}s".capitalize() for grain in grains} | {OPS: "Nothing"}
        usual = usual_grain(self._problem.measured_profile, self.choice.objective)
        field.addItem(f"{titles[usual]} (usual)", "")
        for grain in titles:
            if grain != usual:
                field.addItem(titles[grain], grain)
        field.setCurrentIndex(max(field.findData(self.choice.grain), 0))
        field.activated.connect(lambda: self._change_grain(field.currentData()))
        return field

    def _change_grain(self, grain: str) -> None:
        self.choice = replace(self.choice, grain=grain)

    def _limit_field(self) -> QComboBox:
        field = self.limit_field = QComboBox()
        for limit in dict.fromkeys(sorted({*TIME_LIMITS_S, self.choice.time_limit_s})):
            field.addItem(whole_seconds(limit), limit)
        field.setCurrentIndex(field.findData(self.choice.time_limit_s))
        field.activated.connect(lambda: self._change(time_limit_s=field.currentData()))
        return field

    def _change(self, **changes: object) -> None:
        """Change the objective or the limit, which other fields and rows show."""
        self.choice = replace(self.choice, **changes)  # type: ignore[arg-type]

        def show() -> None:
            self.search.fill(self.choice.method)
            field = self.limit_field if "time_limit_s" in changes else self.objective_field
            field.setFocus()

        QTimer.singleShot(0, self, show)  # once the field that sent this is done with it

    def restore_defaults(self) -> None:
        """Give every option of the current method its default; the time limit stays."""
        names = set(self.options.fields)
        values = {n: value for n, value in self.choice.values.items() if n not in names}
        self.choice = replace(self.choice, values=values)
        self._show()

    def _read(self) -> None:
        """Take over the options; show what is wrong with them."""
        fault, why_not = "", why_not_for(self._method, self._problem)
        names = set(self.options.fields)
        others = {n: value for n, value in self.choice.values.items() if n not in names}
        try:
            own = self.options.values()
        except EnplaceError as error:
            fault, own = str(error), {}
        self.choice = replace(self.choice, values={**others, **own})
        self._fault.setText(capital(fault))
        self._fault.setVisible(bool(fault))
        self.defaults.setVisible(bool(names))
        self.defaults.setEnabled(bool(own or fault))
        self.buttons.accept.setEnabled(not fault and not why_not)

    def accept(self) -> None:
        if self.buttons.accept.isEnabled():
            super().accept()


def _strengths_text(method: Method) -> str:
    """Say what a method promises, a line each."""
    lines = strengths(method) or ["makes a simple plan that others are measured by"]
    return "\n".join(f"·  {line}" for line in lines)
