"""Plans side by side: which, where the time went, what differs, and their timelines."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from PySide6.QtCore import QCoreApplication, QEvent, QRect
from PySide6.QtGui import QResizeEvent, QShowEvent
from PySide6.QtWidgets import QPushButton, QWidget

from enplace.pictures.palette import colour_numbers
from enplace.text import ms_changes
from enplace_studio.explain.cluster_facts import cluster_title
from enplace_studio.explain.titles import model_title
from enplace_studio.jobs.background import Background
from enplace_studio.jobs.call_later import call_later
from enplace_studio.jobs.solver import Solver
from enplace_studio.model.document import Document
from enplace_studio.model.open_project import PlanEntry
from enplace_studio.views.compare.bars import WaterfallBars
from enplace_studio.views.compare.canvas import CompareCanvas
from enplace_studio.views.compare.compare_facts import (
    FEWEST,
    LETTERS,
    busy_devices,
    choose,
    comparable,
    device_rows,
    differences,
    part_tip,
    path_by_device,
    path_by_place,
    waterfall,
)
from enplace_studio.views.compare.panels import Chooser, DiffersPanel, IntervalPanel
from enplace_studio.views.compare.pipelines import PipelinePair
from enplace_studio.views.compare.stack import Block, make_blocks
from enplace_studio.widgets.labels import paragraph
from enplace_studio.widgets.layouts import hbox, vbox
from enplace_studio.widgets.messages import button
from enplace_studio.widgets.panel import Panel
from enplace_studio.widgets.pictures import Drawing, draw_widget

TOP_SHARE, TOP_PX = 0.3, 340
"""Largest share of the height, and height, of the panels above the timelines."""
SHORT_SHARE = 0.25
"""Largest share of the height of those panels while the table of an interval is shown."""


def make_view(document: Document, solver: Solver) -> CompareView:
    """Make the view; it needs no solver."""
    return CompareView(document)


class CompareView(QWidget):
    """Two to four plans of the open graph and cluster.

    While it is hidden, it only remembers that something changed. What takes longer than a frame is
    computed in the background; until then, the plans from before are on screen.

    Attributes
    ----------
    shown : list of PlanEntry
        The plans side by side, the reference first; fewer than two if there are no more.
    """

    def __init__(self, document: Document) -> None:
        super().__init__()
        self._document = document
        self._wanted: list[PlanEntry] = []
        self._target: int | None = None
        self._is_stale, self._n_opened = True, document.n_opened
        self.shown: list[PlanEntry] = []
        self._background = Background(self)
        self.chooser, self.bars = Chooser(), WaterfallBars()
        self.canvas = CompareCanvas(document)
        self.differs, self.table = DiffersPanel(), IntervalPanel()
        self._fall = Panel("Where the time went")
        self._lanes = Panel("Timelines on one axis")
        self.pair = PipelinePair()
        self.pair.hide()
        self.pipeline_button = QPushButton("Pipelines")
        self.pipeline_button.setCheckable(True)
        self.pipeline_button.setProperty("switch", True)
        self.pipeline_button.setToolTip("Compare two pipelines: two plans, or two schedules of one")
        self._lanes.header.insertWidget(2, self.pipeline_button)
        self._few = paragraph("")
        self._scroll_bar = self.canvas.make_scroll_bar()
        policy = self._scroll_bar.sizePolicy()
        policy.setRetainSizeWhenHidden(True)  # shown during a layout, it would get no room
        self._scroll_bar.setSizePolicy(policy)
        self._arrange()
        self._connect()

    def _arrange(self) -> None:
        policy = self.chooser.sizePolicy()
        policy.setRetainSizeWhenHidden(True)  # the buttons beside it stay where they are
        self.chooser.setSizePolicy(policy)
        run = self._document.requests.run_action.emit
        self._save = button("Save picture…", self._save_picture)
        self._close = button("Close", partial(run, "side-by-side"))
        self._close.setToolTip("Back to the graph")
        self._fall.body.addWidget(self.bars, 1)
        self._upper, self._steps = QWidget(), QWidget()
        hbox((self._fall, 5), (self.differs, 4), on=self._upper, spacing=10, margins=(0, 0, 0, 0))
        lanes = (self.canvas, 1), self._scroll_bar
        hbox(*lanes, on=self._steps, spacing=4, margins=(0, 0, 0, 0))
        self._lanes.body.addWidget(self._few)
        self._lanes.body.addWidget(self._steps, 1)
        self._lanes.body.addWidget(self.pair, 1)
        top = hbox((self.chooser, 1), self._save, self._close, spacing=6)
        parts = top, self._upper, (self._lanes, 1), self.table
        vbox(*parts, on=self, spacing=10, margins=(0, 0, 0, 0))
        self.table.hide()
        self.setFocusProxy(self.canvas)

    def _connect(self) -> None:
        document = self._document
        self._later = call_later(self, self.refresh)
        document.opened.connect(self._forget)
        for changed in (document.opened, document.plans_changed, document.current_changed):
            changed.connect(self._note_change)
        document.selection_changed.connect(self._show_selection)
        document.bounds.changed.connect(self._show_bound)
        self.chooser.chosen.connect(self.compare)
        self.pipeline_button.toggled.connect(self.refresh)
        self.differs.ops_wanted.connect(document.select)
        self.differs.target_wanted.connect(self._set_target)
        self.canvas.interval_changed.connect(self._show_interval)
        self.table.closed.connect(lambda: self.canvas.set_interval(None))
        self.table.plan_wanted.connect(self._go_to)

    # What to show

    def compare(self, wanted: Sequence[PlanEntry]) -> None:
        """Show these plans side by side from now on, the reference first."""
        self._wanted = list(wanted)
        self._note_change()

    def _forget(self) -> None:
        """Forget the choice, since something else is open, and not another graph of the model."""
        if self._n_opened == self._document.n_opened:
            return
        self._n_opened = self._document.n_opened
        self._wanted, self._target, self.shown = [], None, []
        self._background.forget()
        self.canvas.show_blocks([], [])
        self.canvas.set_interval(None)

    def _note_change(self) -> None:
        self._is_stale = True
        if self.isVisible():
            self._later.start()

    def showEvent(self, event: QShowEvent) -> None:
        if self._is_stale:
            self.refresh()
        self._show_selection()
        self._show_bound()

    def refresh(self) -> None:
        """Show the plans that are chosen now."""
        self._is_stale = False
        project = self._document.project
        offered = comparable(project) if project else []
        self.shown = choose(project, self._wanted) if project else []
        enough, pipelined = len(self.shown) >= FEWEST, self._is_pipelined
        self._save.setVisible(enough)
        self._steps.setVisible(enough and not pipelined)
        self.chooser.setVisible(not pipelined)
        others = project is not None and len(offered) < len(project.plans)
        here = " for this cluster" if others else ""
        self._few.setText(f"Two plans{here} are needed to compare: press Solve for another one.")
        self._few.setVisible(not enough and not pipelined)
        self.pair.setVisible(pipelined)
        if pipelined:
            self.pair.show_plans(offered, self.shown)
        self.chooser.show_plans(self.shown, offered)
        self._background.forget()
        known = {block.schedule: block.contents for block in self.canvas.stack.blocks}
        plans = self.shown if enough else []
        self.canvas.await_blocks(enough)
        self._background.start(lambda: make_blocks(plans, known), self._show_blocks)

    def wait(self) -> None:
        """Block until the chosen plans are shown."""
        if self._later.isActive():
            self._later.stop()
            self.refresh()
        self._background.wait()
        self.pair.wait()

    @property
    def _is_pipelined(self) -> bool:
        return self.pipeline_button.isChecked()

    def _show_blocks(self, blocks: list[Block]) -> None:
        steps_us = [block.schedule.makespan_us for block in blocks]
        changes = [ms_changes([steps_us[0], step])[1][0] for step in steps_us[1:]]
        self.canvas.show_blocks(blocks, ["", *changes])
        self._show_target()
        self._show_bound()
        self._show_interval()

    def _set_target(self, place: int) -> None:
        self._target = place
        self._show_target()

    def _show_selection(self) -> None:
        if self.isVisible():
            self.canvas.show_selection()

    def _show_target(self) -> None:
        """Compare A with the plan that the user asked for, or else with the last."""
        blocks, project = self.canvas.stack.blocks, self._document.project
        if not blocks or project is None:
            return
        last = len(blocks) - 1
        place = last if self._target is None else min(self._target, last)
        one, other = blocks[0], blocks[place]
        steps_us = one.schedule.makespan_us, other.schedule.makespan_us
        names = (f"A {one.entry.name}", f"{LETTERS[place]} {other.entry.name}")
        self._fall.set_title(f"Where the time went: A to {LETTERS[place]}")
        measured = other.schedule.problem.measured_profile.measured
        self._fall.set_legend(f"{measured.title_of('times')} along the critical path")
        fall = waterfall(one.contents.path, other.contents.path, steps_us)
        before, after = (path_by_place(b.schedule, b.contents.path) for b in (one, other))
        tips = [part_tip(part, before[part], after[part]) for part in fall.parts]
        left, right = (path_by_device(b.schedule, b.contents.path) for b in (one, other))
        devices = [project.device_label(d) for d in range(project.problem.cluster.n_devices)]
        rows = device_rows(left, right, devices, colour_numbers(project.problem.cluster))
        self.bars.show_fall(fall, names, tips, rows, other.schedule.fits)
        self.canvas.show_target(place)
        self._background.start(
            lambda: differences(one.schedule, other.schedule, project),
            lambda lines: self.differs.show_lines(lines, place, len(blocks)),
        )

    def _show_bound(self) -> None:
        """Show the best bound that holds for all plans, those not shown included."""
        project = self._document.project
        if not self.isVisible() or project is None:
            return
        bounds = self._document.bounds
        known = [bounds.find_us(entry.schedule) for entry in comparable(project)]
        found = [bound_us for bound_us in known if bound_us is not None]
        bound_us = min(found) if found and len(found) == len(known) else None
        self.canvas.show_bound(bound_us)
        self.bars.show_bound(bound_us)

    def _show_interval(self) -> None:
        stack, interval = self.canvas.stack, self.canvas.interval
        shown = interval is not None and bool(stack.blocks) and not self._is_pipelined
        if shown and interval is not None:
            busy = sorted(busy_devices([block.schedule for block in stack.blocks]))
            self.table.show_interval(stack.blocks, busy, interval)
        self.table.setVisible(shown)
        self._share_height()

    def _share_height(self) -> None:
        """Give the timelines room: with a table below them, what is above them gets less."""
        share = SHORT_SHARE if self.table.isVisibleTo(self) else TOP_SHARE
        least = self._upper.minimumSizeHint().height()
        self._upper.setFixedHeight(max(round(min(share * self.height(), TOP_PX)), least))
        self._upper.setVisible(len(self.shown) >= FEWEST and not self._is_pipelined)

    def _go_to(self, entry: PlanEntry) -> None:
        """Show a plan alone, in the other views."""
        self._document.choose_plan(entry)
        self._document.requests.run_action.emit("side-by-side")

    # Zooming, for the actions of the window

    def fit(self) -> None:
        """Show all plans from start to end."""
        self.canvas.fit()

    def focus_selection(self) -> None:
        """Show the time in which the selected ops run."""
        self.canvas.focus_selection()

    # Size

    def resizeEvent(self, event: QResizeEvent) -> None:
        self._share_height()

    # The picture

    def _save_picture(self) -> None:
        self._document.requests.save_picture.emit(self.drawing())

    def drawing(self) -> Drawing | None:
        """Return all that is below the buttons, also what is scrolled out of sight.

        None with fewer than two plans.
        """
        self.wait()
        project = self._document.project
        if len(self.shown) < FEWEST or project is None:
            return None
        QCoreApplication.sendPostedEvents(None, QEvent.Type.LayoutRequest)
        with self._unrolled():
            below = self.chooser.geometry().bottom() + 4
            area = QRect(0, below, self.width(), self.height() - below)
            drawn = draw_widget("Plans side by side", self, area)
        names = ", ".join(entry.name for entry in self.shown)
        where = f"{model_title(project.problem.profile.name)} on {cluster_title(project.cluster)}"
        measured = project.problem.measured_profile.measured
        title = f"{where}: {names}" + (", estimated" if measured.estimated else "")
        return replace(drawn, title=title)

    @contextmanager
    def _unrolled(self) -> Iterator[None]:
        """Be high enough for all contents, for a picture; nothing is painted meanwhile."""
        size, stack = self.size(), self.canvas.stack
        scrolled = stack.scroll_px
        if not self._is_pipelined:
            while (hidden := math.ceil(stack.content_px - stack.visible_px)) > 0:
                self.resize(self.width(), self.height() + hidden)
            lines_px = self.differs.need().wanted
            if (lacking := lines_px - self._upper.height()) > 0:
                self.resize(self.width(), self.height() + lacking)
                self._upper.setFixedHeight(lines_px)
                QCoreApplication.sendPostedEvents(None, QEvent.Type.LayoutRequest)
        try:
            yield
        finally:
            self.resize(size)
            self._share_height()
            self.canvas.scroll_by(scrolled - stack.scroll_px)
