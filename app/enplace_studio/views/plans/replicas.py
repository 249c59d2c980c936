"""The lines below the plans: what data parallelism and other usual choices would take."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from PySide6.QtCore import QObject
from PySide6.QtWidgets import QGridLayout, QWidget

from enplace.frameworks.alternatives import find_alternatives, measured_alone
from enplace.frameworks.registry import framework_of
from enplace.machine.pipelines.pipeline import planned_rule
from enplace.placers.data_parallel import NO_ROOM, mirrored, why_not_mirrored
from enplace.placing.prices import about_price
from enplace.text import ms
from enplace.values.plan import Plan
from enplace.values.problem import STEP_TIME, Problem
from enplace.values.result import Alternative
from enplace_studio.jobs.background import Background
from enplace_studio.jobs.call_later import InPause, call_later
from enplace_studio.model.document import Document
from enplace_studio.widgets.drawing import RIGHT
from enplace_studio.widgets.labels import ElidedLabel, label, paragraph, plain_tip
from enplace_studio.widgets.layouts import clear
from enplace_studio.widgets.panel import NO_LIMIT

ABOUT = (
    "With data parallelism, every GPU has a copy of the whole model and takes its share of the "
    "batch; before the update, all sum their gradients. For a PyTorch model, the other lines "
    "are the usual rules of thumb. All of these are predictions for comparison, not plans."
)


ABOUT_STOCK = (
    "A step of the model without a plan, as it took when the profile was made on these devices."
)


class _Row(NamedTuple):
    """What one might pick instead of a plan, how long it takes, and more about it."""

    name: str
    time: str
    about: str
    is_measured: bool = False


class Replicas(QWidget):
    """The predicted times of what is usually picked without a planner, one line each."""

    def __init__(self, document: Document) -> None:
        super().__init__()
        self._document = document
        self._background = Background(QObject(self))  # no widget, so no busy cursor
        self._in_pause = InPause(self, self._start)
        self._asked: tuple[object, ...] = ()
        self._grid = QGridLayout(self)
        self._grid.setContentsMargins(0, 0, 0, 0)
        self._grid.setVerticalSpacing(2)
        self._grid.setColumnStretch(0, 1)
        self.setToolTip(plain_tip(ABOUT))
        self.hide()
        call_later(self, self.refresh, document.opened, document.current_changed).start()

    def refresh(self) -> None:
        """Predict for the open model and cluster, once there is a plan to compare with."""
        project = self._document.project
        if project is None or project.current is None:
            self._asked = ()
            self._background.forget()
            self._show([])
            return
        problem, plan = project.model, project.current.plan
        asked = problem.profile, problem.cluster, plan.objective, plan.load_rule
        if asked != self._asked:
            self._asked = asked
            self._background.forget()
            self._show([])
            self._in_pause.ask()

    def _start(self) -> None:
        project = self._document.project
        if project is not None and project.current is not None:
            self._background.forget()
            work = partial(_predict, project.model, project.current.plan)
            self._background.start(work, self._show)

    def _show(self, rows: list[_Row]) -> None:
        clear(self._grid)
        if rows:
            how = "measured and predicted" if any(row.is_measured for row in rows) else "predicted"
            self._grid.addWidget(paragraph(f"For comparison, {how}"), 0, 0, 1, 2)
        for at, row in enumerate(rows, 1):
            if not row.time:
                self._grid.addWidget(paragraph(row.about), at, 0, 1, 2)
                continue
            name = ElidedLabel("dim")
            name.set_text(row.name)
            name.setMaximumWidth(NO_LIMIT)  # else the shortest name limits the column
            time = label(row.time, "dim")
            time.setAlignment(RIGHT)
            for column, cell in enumerate((name, time)):
                cell.setToolTip(plain_tip(row.about))
                self._grid.addWidget(cell, at, column)
        self.setVisible(bool(rows))


def _predict(problem: Problem, plan: Plan) -> list[_Row]:
    """Predict the usual choices, or say why they cannot be predicted."""
    in_steps = plan.objective == STEP_TIME
    found = mirrored(problem) if in_steps else None
    rivals = [found] if found else []
    others = find_alternatives(problem, plan.objective, rivals, planned_rule(plan))
    stock = measured_alone(problem) if in_steps else None
    rows = [_Row(stock.name, stock.time, ABOUT_STOCK, is_measured=True)] if stock else []
    rows += [
        _Row(each.name, ms(each.value_us) if each.fits else "does not fit", _about(each))
        for each in others
    ]
    why = why_not_mirrored(problem) if in_steps else ""
    if why and not (others and why == NO_ROOM):
        rows.append(_Row("", "", framework_of(problem.measured_profile).in_own_words(why)))
    return rows


def _about(each: Alternative) -> str:
    price = about_price(("its sends", each.price_us, each.value_us))
    return " ".join(filter(None, (each.notes, price)))
