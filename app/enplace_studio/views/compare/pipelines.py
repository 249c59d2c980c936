"""Two pipelines on one time axis: two plans, or one plan in two schedules."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from PySide6.QtWidgets import QComboBox, QWidget

from enplace.machine.pipelines.pipeline import PipelineSchedule, planned_rule
from enplace.text import change_text, count, ms, size
from enplace_studio.explain.pipelines import MOST_SAMPLES, SAMPLES, kinds_of, simulate_kind
from enplace_studio.jobs.background import Background
from enplace_studio.model.open_project import PlanEntry
from enplace_studio.timelines.pipeline_canvas import PipelineCanvas
from enplace_studio.views.compare.compare_facts import LETTERS
from enplace_studio.views.compare.panels import badge
from enplace_studio.widgets.column import Column
from enplace_studio.widgets.form import number_field
from enplace_studio.widgets.labels import BETWEEN_FACTS, ElidedCombo, ElidedLabel, label
from enplace_studio.widgets.layouts import STRETCH, hbox, vbox

USUAL = ("1f1b", "zb-h1")
"""The kinds that one plan is compared in, until the user chooses others."""


class PipelineSide:
    """One of the two pipelines: what the user chose, its figures and its drawing."""

    def __init__(self, letter: str) -> None:
        self.letter = letter
        self.plan, self.kind = ElidedCombo(), ElidedCombo()
        self.plan.setAccessibleName(f"Plan of pipeline {letter}")
        self.kind.setAccessibleName(f"Kind of pipeline {letter}")
        for box in (self.plan, self.kind):
            box.setSizeAdjustPolicy(
                QComboBox.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon
            )
            box.setMinimumContentsLength(12)
        self.facts, self.canvas = ElidedLabel(), PipelineCanvas()


class PipelinePair(QWidget):
    """Two pipelines, one below the other; they zoom and pan together."""

    def __init__(self) -> None:
        super().__init__()
        self._entries: list[PlanEntry] = []
        self._background = Background(self)
        self.samples = number_field(1, MOST_SAMPLES, SAMPLES)
        self.samples.setAccessibleName("Samples in both pipelines")
        self.sides = [PipelineSide(letter) for letter in LETTERS[:2]]
        self._lay_out()
        self.samples.valueChanged.connect(self.refresh)
        for side, other in zip(self.sides, reversed(self.sides), strict=True):
            side.plan.activated.connect(self.refresh)
            side.kind.activated.connect(self.refresh)
            side.canvas.scale_changed.connect(partial(_follow, side, other))

    def _lay_out(self) -> None:
        scrolled = Column("Pipelines side by side")
        contents = QWidget()
        scrolled.setWidget(contents)
        contents.setAutoFillBackground(False)  # setWidget has just turned it on
        rows = vbox(on=contents, spacing=6, margins=(0, 0, 0, 0))
        for side in self.sides:
            parts = badge(side.letter), side.plan, side.kind, (side.facts, 1)
            rows.addLayout(hbox(*parts, spacing=8))
            rows.addWidget(side.canvas, 1)
        about = label("samples, forward solid, backward hatched", "dim")
        line = hbox(self.samples, about, STRETCH)
        vbox(line, (scrolled, 1), on=self, spacing=8, margins=(0, 0, 0, 0))

    def show_plans(self, offered: Sequence[PlanEntry], shown: Sequence[PlanEntry]) -> None:
        """Offer plans; those shown are chosen first, unless the user's choice is still there."""
        self._entries = list(offered)
        names = [entry.name for entry in offered]
        for number, side in enumerate(self.sides):
            kept, kind = side.plan.currentText(), side.kind.currentData()
            side.plan.clear()
            side.plan.addItems(names)
            side.kind.clear()
            if not offered:
                continue
            first = shown[min(number, len(shown) - 1)] if shown else offered[0]
            side.plan.setCurrentIndex(names.index(kept if kept in names else first.name))
            kinds = kinds_of(offered[0].schedule.problem)
            for each, title in kinds.items():
                side.kind.addItem(title.removeprefix("Training, "), each)
            usual = USUAL[number] if len(offered) == 1 else planned_rule(first.plan).pipeline
            wanted = kind if kind in kinds else usual
            side.kind.setCurrentIndex(max(side.kind.findData(wanted), 0))
        self.refresh()

    def refresh(self) -> None:
        """Simulate both pipelines in the background, and show them."""
        self._background.forget()
        if not self._entries or not self.isVisible():
            return
        chosen = [
            (self._entries[side.plan.currentIndex()].schedule, str(side.kind.currentData()))
            for side in self.sides
        ]
        n = self.samples.value()
        self._background.start(
            lambda: [simulate_kind(schedule, kind, n) for schedule, kind in chosen],
            self._show_found,
            lambda error: self._say(str(error)),
        )

    def showEvent(self, event: object) -> None:
        self.refresh()

    def wait(self) -> None:
        """Block until both pipelines are shown."""
        self._background.wait()

    def _say(self, text: str) -> None:
        for side in self.sides:
            side.facts.set_text(text)
            side.canvas.show_pipeline(None, None)

    def _show_found(self, found: list[PipelineSchedule | int]) -> None:
        known = [each for each in found if not isinstance(each, int)]
        whole_us = max((each.makespan_us for each in known), default=0.0)
        most_bytes = max((int(each.peak_bytes.max()) for each in known), default=1)
        for side, each in zip(self.sides, found, strict=True):
            schedule = self._entries[side.plan.currentIndex()].schedule
            if isinstance(each, int):
                side.facts.set_text(f"too many stages for a pipeline: {each:,}")
                side.canvas.show_pipeline(None, None)
                continue
            reference = known[0] if each is not known[0] else None
            measured = schedule.problem.measured_profile.measured
            side.facts.set_text(measured.title_of(describe(each, reference)))
            side.canvas.show_pipeline(schedule, each, whole_us, most_bytes)


def describe(found: PipelineSchedule, reference: PipelineSchedule | None) -> str:
    """Sum up a pipeline in a line, with its change from another."""
    change = ""
    if reference is not None and reference.makespan_us:
        change = f" ({change_text(found.makespan_us / reference.makespan_us - 1)})"
    peak = size(int(found.peak_bytes.max()))
    parts = [
        f"{count(found.n_microbatches, 'sample')} in {ms(found.makespan_us)}{change}",
        f"{ms(found.time_per_sample_us)} per sample once full",
        f"at most {max(found.in_flight)} in flight and {peak} a device",
    ]
    return BETWEEN_FACTS.join(parts)


def _follow(leader: PipelineSide, follower: PipelineSide) -> None:
    if leader.canvas.pipeline is not None and follower.canvas.pipeline is not None:
        follower.canvas.set_scale(leader.canvas.scale)
