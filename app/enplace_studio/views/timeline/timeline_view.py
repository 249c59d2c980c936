"""The timeline pane."""

from __future__ import annotations

from functools import partial

import numpy as np
from PySide6.QtWidgets import (
    QButtonGroup,
    QPushButton,
    QStackedWidget,
    QWidget,
)

from enplace.frameworks.measured import MeasuredRun
from enplace.text import ms, percent
from enplace.values.measurement import ESTIMATED
from enplace.values.problem import THROUGHPUT
from enplace_studio.explain.intervals import describe_interval
from enplace_studio.explain.prediction import step_error
from enplace_studio.explain.queues import describe_wait
from enplace_studio.jobs.solver import Solver
from enplace_studio.model.document import Document, PlanEntry
from enplace_studio.model.prices import what_if_text
from enplace_studio.model.requests import Wanted
from enplace_studio.views.timeline.canvas import TimelineCanvas
from enplace_studio.views.timeline.overview import Overview
from enplace_studio.views.timeline.pipeline import PipelineView
from enplace_studio.widgets.labels import BETWEEN_FACTS, ElidedLabel
from enplace_studio.widgets.layouts import STRETCH, hbox, vbox
from enplace_studio.widgets.messages import button
from enplace_studio.widgets.panel import Need, Panel
from enplace_studio.widgets.switch import make_switch


def make_view(document: Document, solver: Solver) -> TimelineView:
    """Make the pane; it needs no solver."""
    return TimelineView(document)


class TimelineView(Panel):
    """The times of all ops and transfers, and the critical path with its parts."""

    def __init__(self, document: Document, parent: QWidget | None = None) -> None:
        super().__init__("Timeline", parent=parent)
        self._document = document
        self.offer_picture(document.requests.save_picture.emit)
        self._followed: PlanEntry | None = None
        self._path = ""
        self.canvas = TimelineCanvas(document)
        self.overview = Overview(self.canvas)
        self.summary = ElidedLabel("dim")
        self.span_links = self._make_links()
        self.wait_link = button("Select what it waits for", self._select_senders, kind="link")
        self.wait_link.hide()
        self.pipeline = PipelineView(document)
        self.pages = QStackedWidget()
        self.pages.addWidget(self._step_page())
        self.pages.addWidget(self.pipeline)
        self.body.addWidget(self.pages, 1)
        self.switch = self._make_switch()
        self.canvas.summary_changed.connect(self._keep_summary)
        document.span_changed.connect(self._show_summary)
        self.canvas.wait_changed.connect(self._show_summary)
        self.pipeline.facts_changed.connect(self._show_legend)
        self.pipeline.shown.connect(self._share_pipeline)
        self.pipeline.shown.connect(self.need_changed)
        document.opened.connect(self._show_legend)
        document.current_changed.connect(self._show_legend)
        document.opened.connect(self._follow_objective)
        document.current_changed.connect(self._follow_objective)
        self._follow_objective()  # the view is made after its first file was opened
        self._show_legend()
        self._show_summary()

    def _step_page(self) -> QWidget:
        page = QWidget()
        lanes = hbox((self.canvas, 1), self.canvas.make_scroll_bar(), spacing=4)
        foot = hbox((self.summary, 1000), STRETCH, self.wait_link, *self.span_links, spacing=8)
        vbox(self.overview, (lanes, 1), foot, on=page, spacing=8, margins=(0, 0, 0, 0))
        return page

    def _make_links(self) -> list[QPushButton]:
        """Make what is offered for a selected span: its sums, and an end to it."""
        want = self._document.requests.list_rows.emit
        links = [
            button("By type", partial(want, Wanted("ops", "type")), kind="link"),
            button("By layer", partial(want, Wanted("ops", "layer")), kind="link"),
            button("Transfers", partial(want, Wanted("transfers")), kind="link"),
            button("×", partial(self._document.select_span, None), kind="link"),
        ]
        links[-1].setToolTip("Select no span")
        links[-1].setAccessibleName("Select no span")
        return links

    def _make_switch(self) -> QButtonGroup:
        """Make two buttons next to the title: one step, or many samples at once."""
        step = "One step", "When each op of one step runs"
        switch = make_switch(
            self, [step, ("Pipeline", "Many samples at once, one after the other")]
        )
        for at, made in enumerate(switch.buttons()):
            self.header.insertWidget(2 + at, made)
        switch.idClicked.connect(self.show_page)
        return switch

    def show_page(self, page: int) -> None:
        """Show one step (0), or the pipeline (1)."""
        self.switch.button(page).setChecked(True)
        self.pages.setCurrentIndex(page)
        self._share_pipeline()
        self._show_legend()
        self.hold_room(page == 1)

    def _share_pipeline(self) -> None:
        """Tell the other views which pipeline is on screen, if any."""
        shown = self.pages.currentWidget() is self.pipeline
        self._document.show_pipeline(self.pipeline.canvas.pipeline if shown else None)

    def _follow_objective(self) -> None:
        """Show a plan made for a pipeline as one, all others as a step."""
        entry = self._document.current
        if entry is None or entry is self._followed:
            return
        # An edit leaves the page that the user has chosen.
        is_edit = self._followed is not None and entry.is_edit_of(self._followed)
        self._followed = entry
        if not is_edit:
            self.show_page(int(entry.plan.objective == THROUGHPUT))

    def _show_legend(self) -> None:
        project = self._document.project
        what_if = "" if project is None else what_if_text(*project.scale)
        if self.pages.currentWidget() is self.pipeline:
            self.set_legend(BETWEEN_FACTS.join(filter(None, [what_if, self.pipeline.facts])))
            return
        if project is None or project.current is None:
            self.set_legend("")
            return
        schedule, baseline = project.current.schedule, project.baseline
        step, run = ms(schedule.makespan_us), project.current.run
        if run is None and schedule.problem.measured_profile.measured.estimated:
            step += f" {ESTIMATED}"
        if run is not None and not run.on_labels:
            off = step_error(schedule, run)
            shown = "" if off is None else f" ({percent(off, signed=True)})"
            step += f" predicted{shown}, {ms(run.step_time_us)} measured{_traced(run)}"
        if baseline is not None:
            delta_us = schedule.makespan_us - baseline.makespan_us
            step += f"   {ms(delta_us, signed=True)} since your edits"
        facts = [what_if, step, "" if baseline is None else "thin lines: before"]
        self.set_legend(BETWEEN_FACTS.join(filter(None, facts)))

    def _select_senders(self) -> None:
        """Select the ops whose tensors are sent while a transfer waits."""
        picture = self.canvas.picture
        if picture is not None and picture.wait is not None:
            sent = picture.schedule.transfer_tensor[picture.wait.behind]
            self._document.select(picture.schedule.problem.profile.tensor_op[sent].tolist())

    def _keep_summary(self, text: str) -> None:
        self._path = text
        self._show_summary()

    def _show_summary(self) -> None:
        """Show why a transfer waits, what the span adds up to, or else the critical path."""
        project, text = self._document.project, self._path
        span, schedule = self._document.span, self._document.schedule
        wait = self.canvas.picture.wait if self.canvas.picture is not None else None
        if wait is not None and schedule is not None and project is not None:
            facts = describe_wait(schedule, project.grouping, wait)
            text, span = BETWEEN_FACTS.join(facts), None
        elif span is not None and schedule is not None:
            text = BETWEEN_FACTS.join(describe_interval(schedule, span))
        self.wait_link.setVisible(wait is not None and len(wait.behind) > 0)
        for link in self.span_links:
            link.setVisible(span is not None and schedule is not None)
        self.summary.set_text(text)

    def need(self) -> Need:
        if self.pages.currentWidget() is self.pipeline:
            wanted = self.around_height + self.pipeline.wanted_px
            return Need(self.title_height, 0, wanted, wanted)
        summary = self.summary.sizeHint().height() + 8
        above = self.overview.sizeHint().height() + 8
        wanted = self.around_height + above + self.canvas.lanes.wanted_px + summary
        return Need(self.title_height, 0, wanted, wanted)


def _traced(run: MeasuredRun) -> str:
    """Compare the traced step with the steps that ran without tracing."""
    if not np.isfinite(run.op_finish_us).any():
        return ""
    slower = np.nanmax(run.op_finish_us) > run.step_time_us
    return f" (lanes: traced, {'slower' if slower else 'faster'})"
