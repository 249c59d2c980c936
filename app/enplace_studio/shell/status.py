"""The status line: predicted step, unsaved change, solver."""

from __future__ import annotations

from functools import partial

from PySide6.QtWidgets import QWidget

from enplace.text import ms, seconds
from enplace.values.measurement import ESTIMATED
from enplace.values.schedule import Schedule
from enplace_studio.explain.titles import short_title
from enplace_studio.jobs.call_later import call_later
from enplace_studio.jobs.solver import Solver
from enplace_studio.model.document import Document
from enplace_studio.model.open_project import OpenProject
from enplace_studio.model.plan_facts import other_machine
from enplace_studio.model.previews import unfit_text
from enplace_studio.model.prices import PER, headline, what_if_text
from enplace_studio.widgets.labels import ElidedLabel, label, set_role
from enplace_studio.widgets.layouts import STRETCH, hbox
from enplace_studio.widgets.messages import WHAT_MAKES_FIT, button


class StatusLine(QWidget):
    """Shows the state of the document and the solver."""

    def __init__(self, document: Document, solver: Solver) -> None:
        super().__init__()
        self._document, self._solver = document, solver
        self.step, self.bound = label("", "strong"), label("", "dim")
        self.unsaved, self.solver_text = ElidedLabel("dim"), label("", "good")
        ask = partial(document.requests.run_action.emit, "make-fit")
        self.make_fit = button(WHAT_MAKES_FIT, ask, kind="link")
        parts = self.step, self.make_fit, self.bound, STRETCH, (self.unsaved, 2), self.solver_text
        hbox(*parts, on=self, spacing=16, margins=(5, 2, 5, 6))
        call_later(
            self,
            self._show_document,
            document.opened,
            document.current_changed,
            document.file_changed,
            document.bounds.changed,
        )
        solver.changed.connect(self._show_solver)
        self._show_document()
        self._show_solver()

    @property
    def figures_px(self) -> int:
        """The right edge of the figures, which no message may cover."""
        last = self.bound if self.bound.text() else self.step
        return last.mapTo(self.window(), last.rect().topRight()).x() if last.text() else 0

    def _show_document(self) -> None:
        schedule = self._document.schedule
        text = _priced(schedule) if schedule else ""
        project = self._document.project
        if text and project and (what_if := what_if_text(*project.scale)):
            text = f"{what_if[:1].upper()}{what_if[1:]}: {text[:1].lower()}{text[1:]}"
        unfit = unfit_text(schedule) if schedule else ""
        self.step.setText(f"{text}, {unfit}" if unfit else text)
        set_role(self.step, "bad" if unfit else "strong")
        self.make_fit.setVisible(bool(unfit))
        bound_us = self._bound_us(schedule) if schedule else None
        self.bound.setText("" if bound_us is None else f"proven not below {ms(bound_us)}")
        self.unsaved.set_text(unsaved_text(self._document))

    def _bound_us(self, schedule: Schedule) -> float | None:
        """Return what is proven of the number shown."""
        if schedule.plan.value_us is not None:
            return schedule.plan.bound_us
        return self._document.bounds.find_us(schedule)

    def _show_solver(self) -> None:
        busy = self._solver.busy
        set_role(self.solver_text, "strong" if busy else "good")
        self.solver_text.setText(f"●  {solver_state(self._solver, self._document.project)}")


def _priced(schedule: Schedule) -> str:
    """Say what the plan minimises, and its step time if that is something else."""
    step = f"step {ms(schedule.makespan_us)}"
    if schedule.plan.value_us is None:
        return f"{_title(schedule)} {step}"
    return f"{_title(schedule)} {headline(schedule.plan, schedule)}, one {step}"


def _title(schedule: Schedule) -> str:
    """Say how a step time is known: predicted from op times, or from mere estimates of these."""
    is_estimated = schedule.problem.measured_profile.measured.estimated
    return ESTIMATED.capitalize() if is_estimated else "Predicted"


def unsaved_text(document: Document) -> str:
    """Describe the last unsaved change."""
    if not document.modified:
        return ""
    change = document.undo_stack.last_change
    return f"Unsaved change: {change}" if change else "Not saved yet"


def solver_state(solver: Solver, project: OpenProject | None) -> str:
    """Describe the running method and its elapsed time."""
    job, report = solver.job, solver.report
    if job is None:
        return "solver idle"
    parts = [f"{short_title(solver.title(job.method))}, {seconds(solver.seconds)}"]
    if report.message:
        parts.append(report.message)
    if report.objective_us is not None:
        per = PER.get(solver.aim(job.method, job.objective), "")
        best = f"best {ms(report.objective_us)}{per}"
        unfit = "" if report.fits else ", does not fit yet"
        parts.append(f"{best} {other_machine(project, job)}".rstrip() + unfit)
    if solver.waiting:
        parts.append(f"{len(solver.waiting)} more to come")
    return "  ·  ".join(parts)
