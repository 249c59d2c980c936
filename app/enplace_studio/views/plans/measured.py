"""The measured run of the current plan, compared with its prediction."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QFrame, QGridLayout, QVBoxLayout, QWidget

from enplace.frameworks.measured import MeasuredRun
from enplace.text import change_text, count, ms, percent
from enplace.values.schedule import Schedule
from enplace_studio.explain.prediction import step_error
from enplace_studio.model.document import Document
from enplace_studio.widgets.labels import label, paragraph, plain_tip, set_role
from enplace_studio.widgets.layouts import STRETCH, hbox, vbox
from enplace_studio.widgets.messages import button

CLOSE = 0.05
"""Largest error of a predicted step that the papers call accurate."""


@dataclass(frozen=True)
class Fact:
    """One line of the card; ``role`` is the role of its value's label."""

    name: str
    value: str
    role: str = "plain"
    tip: str = ""


class ResultCard(QFrame):
    """A card that is hidden if the current plan has not been run."""

    def __init__(self, document: Document) -> None:
        super().__init__()
        self.setProperty("card", True)
        self._document = document
        self.title = label("", "title")
        self.step, self.off = label("", "number"), label("", "dim")
        self.caveat = paragraph("")
        run_action = document.requests.run_action
        self.take_button = button(
            "Take measured costs",
            partial(run_action.emit, "take-costs"),
            tip="Use the op times measured here as costs from now on. All plans are simulated "
            "again; Undo takes it back.",
        )
        self.again_button = button("Run again", partial(run_action.emit, "run"), kind="link")
        self.facts = QWidget()
        self._column = self._lay_out()
        document.current_changed.connect(self.refresh)
        document.opened.connect(self.refresh)
        self.refresh()

    def _lay_out(self) -> QVBoxLayout:
        head = hbox(self.title, STRETCH, self.step)
        buttons = hbox((self.take_button, 1), self.again_button)
        parts = head, self.off, self.caveat, self.facts, 2, buttons
        return vbox(*parts, on=self, spacing=6, margins=(12, 8, 12, 12))

    def refresh(self) -> None:
        """Show the run of the current plan, if it has one."""
        current = self._document.current
        self.setVisible(current is not None and current.run is not None)
        if current is None or current.run is None:
            return
        on_labels = current.run.on_labels
        self.step.setText("" if on_labels else ms(current.run.step_time_us))
        self.title.setText("Run on labels" if on_labels else "Measured here")
        self.take_button.setVisible(not on_labels)
        error = step_error(current.schedule, current.run)
        set_role(self.off, "good" if error is not None and abs(error) <= CLOSE else "dim")
        self.off.setText(describe_prediction(current.schedule, error))
        caveat = " ".join(filter(None, (current.run.about_batches, current.run.caveat)))
        self.caveat.setText(caveat)
        self.caveat.setVisible(bool(caveat))
        self._show(facts_of(current.run))

    def _show(self, facts: list[Fact]) -> None:
        """Replace the old table with a new one."""
        old, self.facts = self.facts, _table(facts)
        self._column.replaceWidget(old, self.facts)
        old.hide()
        old.deleteLater()


def _table(facts: list[Fact]) -> QWidget:
    """Make a table with names on the left and values on the right."""
    made = QWidget()
    grid = QGridLayout(made)
    grid.setContentsMargins(0, 0, 0, 0)
    grid.setHorizontalSpacing(10)
    grid.setVerticalSpacing(4)
    grid.setColumnStretch(0, 1)
    for line, fact in enumerate(facts):
        name, value = label(fact.name, "dim"), label(fact.value, fact.role)
        value.setAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
        for column, shown in enumerate((name, value)):
            shown.setToolTip(plain_tip(fact.tip))
            grid.addWidget(shown, line, column)
    return made


def describe_prediction(schedule: Schedule, error: float | None) -> str:
    """Describe a prediction: ``predicted 148.9 ms, 1.5 % too short``."""
    shown = f"predicted {ms(schedule.makespan_us)}"
    if error is None:
        return shown
    if abs(error) < 5e-4:
        return f"{shown}, exactly right"
    return f"{shown}, {percent(abs(error))} too {'short' if error < 0 else 'long'}"


def facts_of(run: MeasuredRun) -> list[Fact]:
    """List facts about a run, one line each."""
    in_place, checked = run.in_place
    lines = [
        Fact(
            f"{run.checked}s on their device",
            f"{in_place:,} of {checked:,}",
            "good" if run.is_in_place else "bad",
            "\n".join(
                [
                    f"{run.checked.capitalize()}s on their planned device, out of all that ran",
                    *_reasons(run, "elsewhere", "elsewhere"),
                    *_reasons(run, "not_run", "did not run as ops"),
                ]
            ),
        ),
        Fact(
            "out of order",
            count(run.order_violations or 0, "op"),
            "bad" if run.order_violations else "good",
            "Ops that started before an op that precedes them in the plan",
        ),
        *_result_facts(run),
        Fact("steps", f"{len(run.step_times_us):,}"),
    ]
    if run.order_violations is None or run.facts.get("ordered") is False:
        tip = "The run kept the plan's devices, but not its order"
        lines[1] = Fact("order", f"{run.framework.name}’s own", "plain", tip)
    tip = f"A step as {run.framework.name} runs it, with its graph optimiser and without a plan"
    tip = f"{tip}. {run.about_stock}" if run.about_stock else tip
    lines += _rival(f"{run.framework.name} by itself", run, run.stock_step_time_us, tip)
    tip = "A step of the same batch with a copy of the model on each device"
    lines += _rival("data parallel", run, run.replicas_us, tip)
    if run.about_replicas:
        predicted_us = run.predicted_replicas_us
        known = f"{ms(predicted_us)}, predicted" if predicted_us > 0 else "not timed"
        lines.append(Fact("data parallel", known, "plain", run.about_replicas))
    return lines


def _rival(name: str, run: MeasuredRun, step_us: float, tip: str) -> list[Fact]:
    """Compare the plan with a way to run that needs none; empty if that was not timed."""
    if not step_us > 0:
        return []
    slower = run.step_time_us / step_us - 1
    text = f"{ms(step_us)}; plan {change_text(slower)}"
    return [Fact(name, text, "bad" if slower > CLOSE else "plain", tip)]


def _result_facts(run: MeasuredRun) -> list[Fact]:
    """Compare the result with that of a run without a plan."""
    role = "bad" if run.changes_result else "good"
    if not (run.differs and run.rounds):
        tip = "Compared with the same steps without a plan, on the same batches"
        return [Fact("loss difference", difference(run.loss_difference), role, tip)]
    tip = (
        "Loss and weights of the first step, compared with the same step without a plan; up to "
        f"{difference(run.tolerance)} is taken for rounding"
    )
    return [
        Fact("first step difference", difference(run.first_step_difference), role, tip),
        Fact("loss drift", difference(run.loss_difference), "plain", run.drift),
    ]


def _reasons(run: MeasuredRun, key: str, what: str) -> list[str]:
    """List numbers of ops by reason, if the run gives reasons."""
    found = run.facts.get(key)
    reasons = found.get("reasons") if isinstance(found, Mapping) else None
    if not isinstance(reasons, Mapping) or not reasons:
        return []
    texts = "; ".join(f"{number:,} {reason}" for reason, number in reasons.items())
    return [f"{what}: {texts}"]


def difference(value: float) -> str:
    """Format a difference of losses: ``0``, ``2e−07``."""
    if not math.isfinite(value):
        return "not known"
    return "0" if value == 0 else f"{value:.1e}".replace("-", "−")
