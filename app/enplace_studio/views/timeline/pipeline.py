"""A plan as a pipeline: many samples passing through the devices, and each device's load."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from PySide6.QtCore import Signal
from PySide6.QtWidgets import QComboBox, QPushButton, QSizePolicy, QWidget

from enplace.machine.pipelines.loads import busiest_us, max_load_us
from enplace.machine.pipelines.pipeline import PipelineSchedule, planned_rule, step_rule
from enplace.machine.pipelines.words import about_waiting, describe_pace
from enplace.text import count, listed, ms, size
from enplace.values.schedule import Schedule
from enplace_studio.explain.pipelines import (
    MOST_SAMPLES,
    SAMPLES,
    TRAINING,
    further_stages,
    kinds_of,
    simulate_kind,
    visits_as_meant,
)
from enplace_studio.jobs.background import Background
from enplace_studio.jobs.call_later import call_later
from enplace_studio.model.document import Document
from enplace_studio.timelines.pipeline_canvas import PipelineCanvas
from enplace_studio.widgets.column import Column
from enplace_studio.widgets.form import number_field
from enplace_studio.widgets.labels import BETWEEN_FACTS, ElidedCombo, label, paragraph, plain_tip
from enplace_studio.widgets.layouts import STRETCH, hbox, vbox

SLOWER = 1.02
"""A full pipeline slower than its busiest device by this factor gets an explanation."""

SPACING, LEAST_ROWS_PX = 8, 40
"""Between the parts; the least height of the rows, which scroll."""
COMFORT = 1.5
"""How much higher than they must be the rows would like to be."""

LEGEND = (
    "left: a sample's compute, in, out · right: samples by number and colour of the upper edge, "
    "backward hatched, transfers thin, updates and exchanges last"
)
LEGEND_TIP = (
    "Bars on the left: what each device computes, receives and sends for one sample.\n"
    "On the right: its work over time. Numbers and upper edges tell samples; point at one to "
    "follow it. Forward is solid, backward hatched, transfers are thin; an outline marks a "
    "further subgraph of its device. Updates run once per step, when the last sample has left "
    "their device; a grey bar after them is what devices then exchange. The strip below is the "
    "device's memory over time.\n"
    "Ctrl+wheel or W and S zoom, Shift+wheel or A and D move, 0 shows all."
)


class PipelineView(QWidget):
    """The schedule of a pipeline, with its kind and number of samples.

    Attributes
    ----------
    facts : str
        One line of facts; ``facts_changed`` is emitted when it changes.
    """

    facts_changed = Signal()
    shown = Signal()
    """Another pipeline is on screen, or none."""

    def __init__(self, document: Document) -> None:
        super().__init__()
        self.facts = ""
        self._document = document
        self._shown: tuple[object, ...] = ()
        self._background = Background(self)
        self.kind = ElidedCombo()
        self.kind.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)
        # By itself, it keeps the width that it has without any kinds, once it was asked for it.
        self.kind.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToContents)
        self.kind.setAccessibleName("Kind of pipeline")
        self.samples = number_field(1, MOST_SAMPLES, SAMPLES)
        self.samples.setAccessibleName("Samples in the pipeline")
        self.further_button = QPushButton("Select the further subgraphs")
        self.further_button.setToolTip(
            "Select the ops that make a device's part not contiguous: what depends on them leaves "
            "the device and comes back"
        )
        self.canvas, self.rows = PipelineCanvas(), Column("Pipeline")
        self.rows.setWidget(self.canvas)
        self.canvas.setAutoFillBackground(False)  # setWidget has just turned it on
        self.message, self.legend = paragraph(""), paragraph(LEGEND)
        self.legend.setToolTip(plain_tip(LEGEND_TIP))
        self._lay_out()
        self.kind.activated.connect(self.refresh)
        self.samples.valueChanged.connect(self.refresh)
        self.further_button.clicked.connect(self._select_further)
        call_later(self, self._fill_kinds, document.opened)
        document.current_changed.connect(self._follow_plan)
        self._fill_kinds()

    def _lay_out(self) -> None:
        samples = self.samples, label("samples", "dim")
        controls = hbox((self.kind, 1000), *samples, STRETCH, self.further_button, spacing=SPACING)
        parts = controls, self.message, (self.rows, 1), self.legend
        vbox(*parts, on=self, spacing=SPACING, margins=(0, 0, 0, 0))

    def showEvent(self, event: object) -> None:
        self.refresh()

    def _fill_kinds(self) -> None:
        problem = self._document.problem
        self.kind.clear()
        if problem is not None:
            for kind, title in kinds_of(problem).items():
                self.kind.addItem(title, kind)
        self.kind.setMaximumWidth(self.kind.sizeHint().width())
        self._follow_plan()

    def _follow_plan(self) -> None:
        """Simulate a plan as the pipeline that it was made for, until the user chooses another."""
        schedule = self._document.schedule
        if schedule is not None and schedule.plan.load_rule is not None:
            kind = self.kind.findData(planned_rule(schedule.plan).pipeline)
            if kind >= 0 and self.kind.currentData() in TRAINING:
                self.kind.setCurrentIndex(kind)
        self.refresh()

    def refresh(self) -> None:
        """Simulate the current plan as a pipeline, if visible and not already shown."""
        schedule = self._document.schedule
        wanted = (schedule, self.kind.currentData(), self.samples.value())
        if not self.isVisible() or wanted == self._shown:
            return
        self._shown = wanted
        self._background.forget()
        if schedule is None:
            self._show_nothing("A plan's pipeline appears here.")
            return
        kind, n = str(self.kind.currentData()), self.samples.value()
        self._background.start(
            lambda: simulate_kind(schedule, kind, n),
            lambda found: self._show_found(schedule, found),
            lambda error: self._show_nothing(str(error)),
        )

    def _show_found(self, schedule: Schedule, found: PipelineSchedule | int) -> None:
        """Show a pipeline, or just the number of its stages if there are too many."""
        if isinstance(found, int):
            self._show_nothing(
                f"As a pipeline, this plan would have {count(found, 'stage')}: its ops move back "
                f"and forth between devices. Solve with a method for “Highest pipeline throughput”."
            )
        else:
            self._show(schedule, found)

    def _show_nothing(self, why: str) -> None:
        self.message.setText(why)
        self.message.show()
        self._set_facts("")
        self.further_button.hide()
        self._draw(None, None)

    def _show(self, schedule: Schedule, found: PipelineSchedule) -> None:
        further = [] if visits_as_meant(found) else further_stages(found)
        measured = schedule.problem.measured_profile.measured
        parts = [
            measured.title_of(f"{ms(found.time_per_sample_us)} per sample once full"),
            f"{count(found.n_microbatches, 'sample')} in {ms(found.makespan_us)}",
        ]
        if found.kind != "inference":
            parts.append(f"at most {max(found.in_flight)} in flight")
        names = [device.label for device in schedule.problem.cluster.devices]
        broken = {device for stage in further for device in found.stages[stage].devices}
        self._set_facts(BETWEEN_FACTS.join(parts))
        self.further_button.setVisible(bool(broken))
        texts = [gpipe_loads(schedule, found) if found.kind == "gpipe" else ""]
        texts.append(why_not_the_load(schedule, found))
        if broken:
            texts.append(
                f"Not contiguous: {', '.join(names[d] for d in sorted(broken))}. Tensors that "
                f"leave such a device come back to it, so it has several stages."
            )
        texts += [what_exceeds(schedule, found), about_waiting(found.kind)]
        self.message.setText(" ".join(filter(None, texts)))
        self.message.setVisible(bool(self.message.text()))
        self._draw(schedule, found)

    def _draw(self, schedule: Schedule | None, found: PipelineSchedule | None) -> None:
        self.canvas.show_pipeline(schedule, found)
        self._share_height()
        self.shown.emit()

    def resizeEvent(self, event: object) -> None:
        self._share_height()

    def _share_height(self) -> None:
        """Reserve the full height of the texts, which layouts in docks ignore, and fit the rows.

        In little room, the legend goes first, and then the rows scroll.
        """
        for text in (self.message, self.legend):
            text.setMinimumHeight(max(0, text.heightForWidth(self.width())))
        room, rows = self.height() - self._height_of_texts(), self.canvas.minimumHeight()
        legend = self.legend.minimumHeight() + SPACING
        self.legend.setVisible(rows > 0 and room >= rows + legend)
        room -= legend if rows > 0 and room >= rows + legend else 0
        self.rows.setMinimumHeight(min(rows, max(room, LEAST_ROWS_PX)))

    def _height_of_texts(self) -> int:
        """Return the height of all above the rows."""
        message = 0 if self.message.isHidden() else self.message.minimumHeight() + SPACING
        return self.kind.sizeHint().height() + SPACING + message

    @property
    def wanted_px(self) -> int:
        """The height with comfortable rows, and the legend."""
        rows = round(COMFORT * self.canvas.minimumHeight())
        return self._height_of_texts() + rows + SPACING + self.legend.minimumHeight()

    def _set_facts(self, facts: str) -> None:
        self.facts = facts
        self.facts_changed.emit()

    def _select_further(self) -> None:
        found = self.canvas.pipeline
        if found is not None:
            ops = [found.stages[stage].ops for stage in further_stages(found)]
            self._document.select(np.concatenate(ops).tolist())


def what_exceeds(schedule: Schedule, found: PipelineSchedule) -> str:
    """Name the devices whose memory the samples in flight exceed; empty if none."""
    devices = schedule.problem.cluster.devices
    needs = [
        f"{device.label} needs {size(int(peak))} of {size(device.capacity_bytes)}"
        for device, peak in zip(devices, found.peak_bytes, strict=True)
        if peak > device.capacity_bytes
    ]
    return f"Does not fit with its samples in flight: {listed(needs)}." if needs else ""


def gpipe_loads(schedule: Schedule, found: PipelineSchedule) -> str:
    """Describe the largest load of each pass; they add up to GPipe's time per sample."""
    plan = schedule.plan
    rule = replace(step_rule(plan, found.n_microbatches), pipeline="gpipe")
    forward_us, backward_us = busiest_us(
        schedule.problem, plan.device, rule, plan.replicas, plan.recompute
    )
    return f"Busiest device: forward {ms(forward_us)}, backward {ms(backward_us)} per sample."


def why_not_the_load(schedule: Schedule, found: PipelineSchedule) -> str:
    """Explain why a full pipeline is not as fast as its loads; empty if it is."""
    plan = schedule.plan
    pipeline = "gpipe" if found.kind == "gpipe" else "1f1b"
    rule = replace(step_rule(plan, found.n_microbatches), pipeline=pipeline)
    if about := describe_pace(schedule.problem, plan, found):
        return about
    load_us = max_load_us(schedule.problem, plan.device, rule, plan.replicas, plan.recompute)
    if found.time_per_sample_us > SLOWER * load_us:
        return (
            f"The busiest device works {ms(load_us)} per sample; the rest of the time it "
            f"waits, because each device takes its part of the {len(found.stages)} stages in a "
            f"fixed order."
        )
    if SLOWER * found.time_per_sample_us < load_us:
        return (
            f"The busiest forward and backward parts add up to {ms(load_us)}; the pipeline is "
            f"faster, because some devices begin backward while others are still in forward."
        )
    return ""
