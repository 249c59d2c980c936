"""The running search: its best plan, and how the step time falls."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from PySide6.QtCore import QPointF, QRectF, QSize, Qt
from PySide6.QtGui import QColor, QPainter, QPen
from PySide6.QtWidgets import QFrame, QProgressBar, QWidget

from enplace.placing.incumbents import PROVEN_GAP
from enplace.text import ms, seconds
from enplace.values.measurement import ESTIMATED
from enplace.values.plan import Plan, find_gap
from enplace.values.problem import STEP_TIME
from enplace_studio.explain.titles import short_title
from enplace_studio.jobs.solver import Job, Report, SearchRecord, Solver
from enplace_studio.model.document import Document
from enplace_studio.model.plan_facts import other_machine, role_of, vs_expert
from enplace_studio.model.prices import PER
from enplace_studio.views.plans.waiting import WaitingJobs
from enplace_studio.widgets.labels import ElidedLabel, label, paragraph, plain_tip, set_role
from enplace_studio.widgets.layouts import STRETCH, hbox, vbox
from enplace_studio.widgets.plot import Axis, Mark, Plot, PlotCurve
from enplace_studio.widgets.theme import theme

SHOW_AFTER_S = 0.3
"""A method that ends sooner gets no card."""
HEADROOM = 0.12
"""Free space of the curve above the highest and below the lowest line."""
MARKS = "○●◆■"
"""Marks of a search's engines, in the order in which they first contribute."""
MARK_PX = 6.0


class LiveCard(QFrame):
    """The best plan of the running search; once that ends, the list has its plan."""

    def __init__(self, document: Document, solver: Solver, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._document, self._solver = document, solver
        self._shown: Job | None = None
        self.setObjectName("live")
        self.setProperty("card", True)
        self.name, self.step = ElidedLabel("title"), label("", "number")
        self.state, self.standing = ElidedLabel("dim"), label("", "good")
        self.curve = FallingCurve()
        self.bar = QProgressBar(textVisible=False)
        self.bar.setAccessibleName("Progress of the search")
        self.bound = paragraph("")  # no text may widen the pane
        self.waiting = WaitingJobs(solver)
        self._lay_out()
        for changed in (
            solver.changed,
            document.opened,
            document.problem_changed,
        ):
            changed.connect(self.refresh)
        self.refresh()

    def _lay_out(self) -> None:
        above = (
            hbox((self.name, 1000), STRETCH, self.step),
            hbox((self.state, 1000), STRETCH, self.standing),
        )
        vbox(
            *above,
            self.curve,
            self.bar,
            self.bound,
            self.waiting,
            on=self,
            spacing=6,
            margins=(12, 8, 12, 8),
        )

    def refresh(self) -> None:
        """Show the running job, unless it has just begun."""
        job = self._solver.job
        if job is not None and (job is self._shown or self._solver.seconds > SHOW_AFTER_S):
            self._shown = job
            self._show(SearchRecord(job, self._solver.report, self._solver.seconds))
            self._show_share(job, self._solver.report)
        else:
            self._shown = None
            self.hide()

    def found_by(self, plan: Plan) -> str:
        """Say which engines of the last search found a plan; empty for other plans."""
        last = self._solver.last_search
        best = last.report.incumbent if last is not None else None
        if last is None or best is None or not np.array_equal(best.device, plan.device):
            return ""
        return engines_line(last.report, last.job.start)

    def _show(self, search: SearchRecord) -> None:
        job, report = search.job, search.report
        best_us = report.objective_us
        self.name.set_text(short_title(self._solver.title(job.method)))
        self.step.setText("" if best_us is None else ms(best_us))
        self.state.set_text(self._elapsed(search))
        expert_us = self._expert_us(job)
        per = PER.get(self._solver.aim(job.method, job.objective), "")
        self._show_standing(report, expert_us, per)
        doing = report.message if report.fits else "looking for a plan that fits"
        self.bound.setText(bound_line(report) or doing)
        self.setToolTip(plain_tip(engines_line(report, job.start)))
        self.curve.setVisible(bool(report.history))
        limit_s = job.time_limit_s or 0.0
        self.curve.show_report(report, max(search.seconds, limit_s), search.seconds, expert_us)
        self.show()

    def _expert_us(self, job: Job) -> float | None:
        """Return the step time of the expert's plan, if the search's can be compared with it."""
        project = self._document.project
        expert = project.expert if project is not None else None
        if expert is None or self._solver.aim(job.method, job.objective) != STEP_TIME:
            return None
        same = job.problem.cluster == expert.schedule.problem.cluster
        return expert.schedule.makespan_us if same and expert.schedule.fits else None

    def _elapsed(self, search: SearchRecord) -> str:
        job, spent = search.job, seconds(search.seconds)
        limit_s = job.time_limit_s if self._solver.searches(job.method) else None
        estimated = f"{ESTIMATED}, " if job.problem.profile.measured.estimated else ""
        other = other_machine(self._document.project, job)
        if limit_s is not None and search.seconds <= limit_s:  # it does not count compiling
            spent += f" of {limit_s:.0f} s"
        return estimated + (f"{other}, {spent}" if other else spent)

    def _show_standing(self, report: Report, expert_us: float | None, per: str) -> None:
        best_us = report.objective_us
        if not report.fits:
            set_role(self.standing, "bad")
            self.standing.setText("does not fit yet")
            return
        if best_us is None or expert_us is None:
            set_role(self.standing, "dim")
            self.standing.setText("" if best_us is None else per.replace("/", "per "))
            return
        change = best_us / expert_us - 1
        set_role(self.standing, role_of(change))
        self.standing.setText(vs_expert(change))

    def _show_share(self, job: Job, report: Report) -> None:
        """Show the share of time spent; without a known limit the bar just moves."""
        self.bar.show()
        share = report.fraction
        if self._solver.searches(job.method) and job.time_limit_s:
            share = self._solver.seconds / job.time_limit_s
        self.bar.setRange(0, 0 if share is None else 1000)
        if share is not None:
            self.bar.setValue(round(1000 * min(share, 1.0)))


def marks(report: Report) -> dict[str, str]:
    """Choose a mark for each engine that found a plan or proved a bound."""
    known = [engine for engine in dict.fromkeys((*report.engines, *report.provers)) if engine]
    return {engine: MARKS[at % len(MARKS)] for at, engine in enumerate(known)}


def is_optimal(report: Report) -> bool:
    """Whether the best plan is proven to be so."""
    best_us, bound_us = report.objective_us, report.bound_us
    if best_us is None or bound_us is None:
        return False
    return find_gap(best_us, bound_us) <= PROVEN_GAP


def bound_line(report: Report) -> str:
    """Describe the proven bound and its prover: ``proven not below 8 ms by ◆ CP-SAT``."""
    if report.bound_us is None:
        return ""
    prover = report.provers[-1]
    by = f" by {marks(report)[prover]} {prover}" if prover else ""
    best = "optimal: " if is_optimal(report) else ""
    return f"{best}proven not below {ms(report.bound_us)}{by}"


def engines_line(report: Report, start: Plan | None = None) -> str:
    """Describe each engine's best plan: ``found by ○ list schedules 9 ms → ● blocks 8 ms``.

    A search that starts from a given plan did not find it: ``from ○ the plan given 9 ms → ...``.
    """
    best: dict[str, float] = {}
    of = marks(report)
    for engine, (_, us) in zip(report.engines, report.history, strict=True):
        if engine:
            best[f"{of[engine]} {engine}"] = us
    steps = " → ".join(f"{engine} {ms(step_us)}" for engine, step_us in best.items())
    return steps and f"{'found by' if start is None else 'from'} {steps}"


class FallingCurve(Plot):
    """Best step time and proven bound during a search, with the expert's step time for scale."""

    tip = (
        "Step time of the best plan so far, marked by the engine that found it. Below, in green: "
        "the proven lower bound, marked by the engine that proved it. Dashed: the expert's plan"
    )

    def __init__(self) -> None:
        super().__init__()
        self.setMinimumHeight(0)
        self._report = Report("")
        self._now_s = 0.0
        self._expert_us: float | None = None

    def sizeHint(self) -> QSize:
        return QSize(180, round(52 * theme.scale))

    def minimumSizeHint(self) -> QSize:
        return QSize(60, self.sizeHint().height())

    def show_report(
        self, report: Report, span_s: float, now_s: float, expert_us: float | None
    ) -> None:
        """Draw plans and bounds as a step curve up to now, with a mark at each step."""
        self._report, self._now_s, self._expert_us = report, now_s, expert_us
        self.across = Axis(0.0, max(span_s, 1e-3))
        of = marks(report)
        # The first engine's best plan is the first on screen; its earlier ones are often far worse.
        first = max(sum(of.get(engine) == MARKS[0] for engine in report.engines) - 1, 0)
        known = [us for _, us in (*report.history[first:], *report.bounds)]
        known += [] if expert_us is None else [expert_us]
        low, high = min(known, default=0.0), max(known, default=1.0)
        margin = max(high - low, 1e-3 * high, 1e-9) * (0.5 + HEADROOM)
        self.up = Axis((low + high) / 2 - margin, (low + high) / 2 + margin)
        self.update()

    def curves_now(self) -> list[PlotCurve]:
        report, tokens = self._report, theme.tokens
        if not report.history:
            return []
        bounds = self._steps(report.bounds, report.provers, tokens.good) if report.bounds else []
        return [*bounds, *self._steps(report.history, report.engines, tokens.accent)]

    def _steps(
        self, history: Sequence[tuple[float, float]], by: Sequence[str], color: QColor
    ) -> list[PlotCurve]:
        """Make a step curve, and marks at its steps unless they would overlap."""
        at_s, us = ([min(each[0], self.across.high) for each in history], [y for _, y in history])
        until_s = [*at_s[1:], max(min(self._now_s, self.across.high), at_s[-1])]
        xs = [x for pair in zip(at_s, until_s, strict=True) for x in pair]
        found = [PlotCurve(xs, np.repeat(us, 2).tolist(), color, 1.5)]
        of, shown = marks(self._report), dict[str, float]()
        apart_s = 2 * MARK_PX * self.across.high / max(self.width() - 8, 1)
        for x, y, engine in zip(at_s, us, by, strict=True):
            if engine in of and x - shown.get(engine, -np.inf) > apart_s and y <= self.up.high:
                shown[engine] = x
                found.append(PlotCurve([x], [y], color, mark=_mark(of[engine], color)))
        return found

    def paint_more(self, painter: QPainter, area: QRectF) -> None:
        """Paint a line at the expert's step time."""
        if self._expert_us is None:
            return
        y = self.at(0.0, self._expert_us, area).y()
        painter.setFont(theme.font(10))
        box = painter.fontMetrics().boundingRect("expert")
        painter.setPen(theme.tokens.dim)
        top = y + 1 if y < self.height() / 2 else y - 15
        at = QRectF(self.width() - box.width() - 4, top, box.width() + 4, 14)
        painter.drawText(at, Qt.AlignmentFlag.AlignCenter, "expert")
        painter.setPen(QPen(theme.tokens.dim, 1, Qt.PenStyle.DashLine))
        painter.drawLine(QPointF(0, y), QPointF(self.width(), y))


def _mark(sign: str, color: QColor) -> Mark:
    """Return the mark that a sign in a text stands for."""
    fill, half = theme.tokens.panel if sign == MARKS[0] else color, MARK_PX / 2
    if sign == "■":
        return Mark(4, half * math.sqrt(2), turn=0.125, fill=fill)
    return Mark(4 if sign == "◆" else 0, half, fill=fill)
