"""Sliders for the speed of compute and links, and curves over these, GPUs, memory and the batch.

The sweeps are those of Pesto's Fig. 8.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter

from PySide6.QtCore import QObject, Qt, QTimer
from PySide6.QtWidgets import QLabel, QPushButton, QSlider, QWidget

from enplace.text import count, factor, size
from enplace.values.measurement import ESTIMATED
from enplace_studio.explain.pipelines import INFERENCE, SAMPLES, TRAINING, kinds_of
from enplace_studio.explain.titles import short_title
from enplace_studio.jobs.background import Background
from enplace_studio.jobs.solver import Solver
from enplace_studio.model import edits
from enplace_studio.model.document import Document
from enplace_studio.model.open_project import OpenProject
from enplace_studio.views.whatif.methods import MethodSweep
from enplace_studio.views.whatif.plot import CurvePlot
from enplace_studio.views.whatif.speed_curves import (
    BATCH,
    COMPUTE,
    GPUS,
    LIMIT_S,
    LINKS,
    MEMORY,
    MICROBATCHES,
    SEARCH,
    Axis,
    Curve,
    find_curve,
    find_pipeline_curve,
    now,
    swept_plans,
)
from enplace_studio.widgets.labels import label
from enplace_studio.widgets.layouts import STRETCH, hbox
from enplace_studio.widgets.messages import button
from enplace_studio.widgets.panel import Need, ScrollPanel
from enplace_studio.widgets.tables import copy_on_request
from enplace_studio.widgets.wheel import scroll_past

STEPS = 24
LARGEST = 8.0
SETTLE_MS, AGAIN_MS = 40, 200


def make_view(document: Document, solver: Solver) -> WhatIfView:
    """Make the pane; the solver knows the titles of methods."""
    return WhatIfView(document, solver.title)


class WhatIfView(ScrollPanel):
    """Scales the document's cluster; all numbers follow."""

    def __init__(self, document: Document, title_of: Callable[[str], str] = str) -> None:
        super().__init__("What if")
        self._document, self._title_of = document, title_of
        self._drag = 0
        self.curve_buttons: dict[Axis, QPushButton] = {}
        self._tips: dict[Axis, str] = {}
        self._shows = self.column.fill()
        self._compute, self._compute_text = self._row("Compute speed", COMPUTE)
        self._links, self._links_text = self._row("Link speed", LINKS)
        self._add_other_axes()
        self.plot = CurvePlot(self)
        self.plot.hide()
        self.memory_plot = CurvePlot(self, attrgetter("peak_bytes"), size)
        self.memory_caption = label("Peak memory of the fullest device", "dim")
        self._swept: Axis | None = None
        self._swept_for: tuple[object, ...] = ()
        self._methods = MethodSweep(self)
        self._methods.changed.connect(self._show_methods)
        self._sweep = Background(QObject(self))  # no widget, so no busy cursor
        self._scaling = Background(QObject(self))
        self.reset_button = button("Back to 1 ×", self.reset, kind="link")
        self.reset_button.setProperty("flush", True)
        policy = self.reset_button.sizePolicy()
        policy.setRetainSizeWhenHidden(True)  # no slider may move under the pointer
        self.reset_button.setSizePolicy(policy)
        self.header.addWidget(self.reset_button)
        self._add_caption()
        self._shows.addWidget(self.plot)
        self._shows.addWidget(self.memory_caption)
        self._shows.addWidget(self.memory_plot)
        # A drag is faster than the simulation of a large schedule.
        self._settle = QTimer(self, interval=SETTLE_MS, singleShot=True)
        self._settle.timeout.connect(self._apply)
        document.opened.connect(self.refresh)
        document.problem_changed.connect(self.refresh)
        # Several signals follow one edit; the curves are drawn again once.
        self._again = QTimer(self, interval=AGAIN_MS, singleShot=True)
        self._again.timeout.connect(self._sweep_again)
        for changed in (
            document.opened,
            document.problem_changed,
            document.plans_changed,
            document.current_changed,
        ):
            changed.connect(self._again.start)
        self.offer_picture(document.requests.save_picture.emit)
        copy_on_request(self, self.rows, self)
        self.refresh()
        self.sweep(None)

    def rows(self) -> list[list[str]]:
        """Return the curves as texts: a row for each value of the axis."""
        plots = [plot for plot in (self.plot, self.memory_plot) if plot.curves]
        return [row for plot in plots for row in plot.rows()]

    def need(self) -> Need:
        usual = super().need()
        return replace(usual, least=usual.wanted)

    def _row(self, title: str, over: Axis) -> tuple[QSlider, QLabel]:
        value = label("", "dim")
        tip = f"Draw the step time of each plan over {over.title}; no solving"
        curve = self._curve_button("Curve", over, tip)
        slider = QSlider(Qt.Orientation.Horizontal)
        slider.setRange(-STEPS, STEPS)
        slider.setAccessibleName(title)
        slider.setPageStep(STEPS // 3)
        scroll_past(slider)
        slider.sliderPressed.connect(self._begin_drag)
        slider.valueChanged.connect(lambda: self._on_moved(slider))
        self._shows.addLayout(hbox(label(title), curve, STRETCH, value))
        self._shows.addWidget(slider)
        return slider, value

    def _add_other_axes(self) -> None:
        made = []
        for title, over in (("GPUs", GPUS), ("Memory", MEMORY), ("Batch", BATCH)):
            tip = f"Place anew by three methods over {over.title}, without your constraints, "
            tip += f"each search {LIMIT_S:.0f} s"
            if over is BATCH:
                tip += "; tensors and the time of ops with a row for each sample grow with it"
            made.append(self._curve_button(title, over, tip))
        self._shows.addLayout(hbox(label("New plans:"), *made, STRETCH))
        tip = "Draw the mean time per sample and peak memory of this plan as each kind of pipeline"
        pipeline = self._curve_button("Micro-batches", MICROBATCHES, tip)
        self._shows.addLayout(hbox(label("Pipeline:"), pipeline, STRETCH))

    def _add_caption(self) -> None:
        self.caption = label("", "dim")
        self.hide_button = button("Hide", lambda: self.toggle_curve(None), kind="link")
        self.hide_button.setProperty("flush", True)
        self._heading = QWidget()
        hbox(self.caption, STRETCH, self.hide_button, on=self._heading, margins=(0, 0, 0, 0))
        self._shows.addWidget(self._heading)

    def _curve_button(self, text: str, over: Axis, tip: str) -> QPushButton:
        made = button(text, lambda: self.toggle_curve(over), kind="link")
        made.setProperty("flush", True)
        self._tips[over] = tip
        made.setAccessibleName(f"Curve over {over.title}")
        self.curve_buttons[over] = made
        return made

    # Curves

    def toggle_curve(self, over: Axis | None) -> None:
        """Draw the curves over an axis; with None, or if they are those shown, hide them."""
        self.sweep(None if over is self._swept else over)
        self.hold_room(self._swept is not None)

    def sweep(self, over: Axis | None) -> None:
        """Find the curves over an axis, one after the other in the background; None stops."""
        self._sweep.forget()
        self._methods.stop()
        project = self._document.project
        if project is None or project.current is None:
            over = None
        self._swept = over
        self.plot.show_curves((), over or COMPUTE, 1.0)
        self.memory_plot.show_curves((), over or COMPUTE, 1.0)
        what = "Mean time per sample" if over is MICROBATCHES else "Step time"
        is_estimated = project is not None and project.problem.measured_profile.measured.estimated
        known = f", {ESTIMATED}" * bool(is_estimated)
        self.caption.setText(f"{what} over {over.title}{known}" if over is not None else "")
        for each in (self._heading, self.plot):
            each.setVisible(over is not None)
        for each in (self.memory_caption, self.memory_plot):
            each.setVisible(over is MICROBATCHES)
        self._shows.invalidate()  # a folded pane does not notice by itself
        for axis, each in self.curve_buttons.items():
            why_not = _why_no_sweep(project, axis)
            each.setEnabled(not why_not)
            each.setToolTip(why_not or self._tips[axis])
        self.set_legend("")
        if project is None or over is None:
            return
        if over is MICROBATCHES and project.current is not None:
            schedule = project.current.schedule
            kinds = [kind for kind in kinds_of(schedule.problem) if kind in TRAINING] or INFERENCE
            self._sweep_next(over, [partial(find_pipeline_curve, schedule, kind) for kind in kinds])
        elif over.change is None:
            plans = swept_plans(project)
            self._sweep_next(over, [partial(find_curve, project, entry, over) for entry in plans])
        else:
            self._swept_for = _costs_of(project)
            self._methods.start(project, over)

    def _sweep_next(self, over: Axis, left: Sequence[Callable[[], Curve | None]]) -> None:
        self.set_legend(f"{count(len(left), 'curve')} to simulate" if left else "")
        if not left:
            return
        find, *rest = left

        def show(curve: Curve | None) -> None:
            new = () if curve is None else (curve,)
            for plot in (self.plot, self.memory_plot) if over is MICROBATCHES else (self.plot,):
                plot.show_curves((*plot.curves, *new), over, self._now(over))
            self._sweep_next(over, rest)

        self._sweep.start(find, show)

    def _now(self, over: Axis) -> float:
        """Return where the project is on an axis; pipelines are where the timeline shows one."""
        project, pipeline = self._document.project, self._document.pipeline
        if over is MICROBATCHES:
            return float(pipeline.n_microbatches if pipeline else SAMPLES)
        return now(project, over) if project is not None else 1.0

    def _show_methods(self) -> None:
        project, over, left = self._document.project, self._swept, self._methods.left
        if project is not None and over is not None:
            curves = [replace(each, name=self._name_of(each)) for each in self._methods.curves]
            self.plot.show_curves(curves, over, self._now(over))
            self.set_legend(f"{count(left, 'plan')} to make" if left else "")

    def _name_of(self, curve: Curve) -> str:
        """Name the curve of a method; of one that searches, also for how long."""
        limit = f" in {LIMIT_S:.0f} s" if curve.name == SEARCH else ""
        return short_title(self._title_of(curve.name)) + limit

    def _sweep_again(self) -> None:
        """Draw the curves again after an edit; those of methods depend on few edits."""
        project, over = self._document.project, self._swept
        is_of_methods = project is not None and over is not None and over.change is not None
        if not is_of_methods or self._swept_for != _costs_of(project):
            self.sweep(over)

    def reset(self) -> None:
        """Return to the unscaled cluster."""
        self._document.set_scale(1.0, 1.0)

    def refresh(self) -> None:
        """Show the factors of the document."""
        project = self._document.project
        compute, links = project.scale if project is not None else (1.0, 1.0)
        for slider, value in ((self._compute, compute), (self._links, links)):
            slider.blockSignals(True)
            if not slider.isSliderDown() and not self._settle.isActive():  # the hand has moved on
                slider.setValue(position_of(value))
            slider.setEnabled(project is not None)
            slider.blockSignals(False)
        self._show_texts()
        self.reset_button.setVisible((compute, links) != (1.0, 1.0))

    def _begin_drag(self) -> None:
        self._drag += 1

    def _on_moved(self, slider: QSlider) -> None:
        if not slider.isSliderDown() and not self._settle.isActive():
            self._begin_drag()  # changed by a key or the wheel
        self._show_texts()
        self._settle.start()

    def _show_texts(self) -> None:
        self._compute_text.setText(factor(value_at(self._compute.value())))
        self._links_text.setText(factor(value_at(self._links.value())))

    def _apply(self) -> None:
        """Simulate all plans in a thread, and show them unless something else has changed."""
        project = self._document.project
        compute, links = value_at(self._compute.value()), value_at(self._links.value())
        if project is None or project.scale == (compute, links):
            return
        drag = self._drag

        def show(scaled: OpenProject) -> None:
            if self._document.project is project:
                self._document.show_scaled(scaled, drag)
            else:
                self._settle.start()

        self._scaling.forget()
        self._scaling.start(
            partial(edits.set_scale, project, compute, links),
            show,
            lambda error: self._document.failed.emit(str(error)),
        )


def _why_no_sweep(project: OpenProject | None, over: Axis) -> str:
    """Say why there are no curves over an axis; empty if there may be."""
    if project is None or project.current is None:
        return "There is no plan yet; press Solve"
    if over is BATCH and project.problem.measured_profile.measured.batch_size is None:
        return "The profile does not say how large its batch is"
    if over is GPUS and len(project.cluster.gpus) < 2:
        return "One GPU does not tell how more would be linked; choose a cluster with two first"
    return ""


def _costs_of(project: OpenProject | None) -> tuple[object, ...]:
    """Return all that the curves of methods depend on."""
    if project is None:
        return ()
    problem = project.problem
    return problem.measured_profile, project.cluster, project.scale, problem.splits


def value_at(position: int) -> float:
    """Return the factor of a slider position: 1 in the middle, 1/8 and 8 at the ends."""
    return float(f"{LARGEST ** (position / STEPS):.2g}")


def position_of(value: float) -> int:
    """Return the slider position nearest to a factor."""
    return min(range(-STEPS, STEPS + 1), key=lambda position: abs(value_at(position) - value))
