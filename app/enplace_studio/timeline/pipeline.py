"""A plan as a pipeline: many samples on their way through the devices, and each device's load."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from PySide6.QtCore import QEvent, QPointF, QRectF, QSize, Qt, Signal
from PySide6.QtGui import QColor, QFont, QFontMetricsF, QHelpEvent, QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QComboBox, QHBoxLayout, QPushButton, QToolTip, QVBoxLayout, QWidget

from enplace.errors import EnplaceError
from enplace.machine.all_reduce import all_reduce_us
from enplace.machine.loads import (
    COMPUTE,
    IN,
    OUT,
    busiest_us,
    device_loads_us,
    max_load_us,
    shared_parts_us,
)
from enplace.machine.passes import backward_ops
from enplace.machine.pipeline import PipelineSchedule, Slot, planned_rule, simulate_pipeline
from enplace.machine.stages import stages_of
from enplace.text import count, device_label, ms
from enplace.values.plan import Plan
from enplace.values.problem import Problem
from enplace.values.profile import FloatArray
from enplace.values.schedule import Schedule
from enplace_studio.aside import aside
from enplace_studio.document import Document
from enplace_studio.hatch import paint_hatching
from enplace_studio.panel import Column, label, number_field, paragraph, plain_tip
from enplace_studio.theme import blend, theme
from enplace_studio.timeline.paint import ink_on

TRAINING = {"1f1b": "Training, 1F1B (PipeDream)", "gpipe": "Training, GPipe"}
INFERENCE = {"inference": "Inference"}

SLOWER = 1.02
"""A full pipeline that takes so much longer than its busiest device needs a word on why."""

MOST_STAGES = 250
"""A plan with more stages hops to and fro too often to be looked at, or used, as a pipeline."""

SAMPLES, MOST_SAMPLES = 8, 64

PART_NAMES = {COMPUTE: "computes", IN: "brings in", OUT: "sends out"}
PART_STRENGTHS = {COMPUTE: 1.0, IN: 0.62, OUT: 0.34}

NAME_PX, LOAD_PX, GAP_PX = 56, 150, 16
ROW_PX, TALLEST_ROW_PX, ROWS_SEEN = 20, 52, 9
"""Lower than the first no row gets; of more rows than the last, some may have to be scrolled to."""
TRANSFER_PX, HATCH_PX = 5, 5
NUMBER_PX, HATCHED_NUMBER_PX = 13, 20
"""Stages at least so wide have their sample's number on them; hatching must show beside it."""

LEGEND = "left: a sample's compute, in, out · right: samples, backward hatched, transfers thin"
LEGEND_TIP = (
    "Bars on the left: what each device computes, brings in and sends out for one sample.\n"
    "On the right: what it does when. Numbers are samples; forward is solid, backward hatched, "
    "transfers are thin; what is outlined is a further piece of its device."
)


class PipelineView(QWidget):
    """The schedule of a pipeline, which kind and how many samples.

    Attributes
    ----------
    facts : str
        What there is to say of it, in one line; ``told`` is emitted when that changes.
    """

    told = Signal()

    def __init__(self, document: Document) -> None:
        super().__init__()
        self.facts = ""
        self._document = document
        self._shown: tuple[object, ...] = ()
        self.kind = QComboBox()
        self.kind.setAccessibleName("Kind of pipeline")
        self.samples = number_field(1, MOST_SAMPLES, SAMPLES)
        self.samples.setAccessibleName("Samples in the pipeline")
        self.later_button = QPushButton("Select the further pieces")
        self.later_button.setToolTip(
            "Select the ops that make a device's part not contiguous: what depends on them leaves "
            "the device and comes back"
        )
        self.canvas, self.rows = PipelineCanvas(), Column()
        self.rows.setWidget(self.canvas)
        self.canvas.setAutoFillBackground(False)  # setWidget has just turned it on
        self.message, self.legend = paragraph(""), paragraph(LEGEND)
        self.legend.setToolTip(plain_tip(LEGEND_TIP))
        self._lay_out()
        self.kind.activated.connect(self.refresh)
        self.samples.valueChanged.connect(self.refresh)
        self.later_button.clicked.connect(self._select_later)
        document.opened.connect(self._fill_kinds)
        document.current_changed.connect(self._follow_plan)
        self._fill_kinds()

    def _lay_out(self) -> None:
        controls = QHBoxLayout()
        controls.setSpacing(8)
        controls.addWidget(self.kind)
        controls.addWidget(self.samples)
        controls.addWidget(label("samples", "dim"))
        controls.addStretch(1)
        controls.addWidget(self.later_button)
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(8)
        column.addLayout(controls)
        column.addWidget(self.message)
        column.addWidget(self.rows, 1)
        column.addWidget(self.legend)

    def showEvent(self, event: object) -> None:
        self.refresh()

    def _fill_kinds(self) -> None:
        problem = self._document.problem
        self.kind.clear()
        if problem is not None:
            trains = bool(backward_ops(problem).any())
            for kind, title in (TRAINING | INFERENCE if trains else INFERENCE).items():
                self.kind.addItem(title, kind)
        self.refresh()

    def _follow_plan(self) -> None:
        """A plan made for GPipe is played as GPipe does it, until the person asks otherwise."""
        schedule = self._document.schedule
        if schedule is not None and schedule.plan.load_rule is not None:
            kind = self.kind.findData(planned_rule(schedule.plan).pipeline)
            if kind >= 0 and self.kind.currentData() in TRAINING:
                self.kind.setCurrentIndex(kind)
        self.refresh()

    def refresh(self) -> None:
        """Play the current plan, if anyone is looking and it is not shown already."""
        schedule = self._document.schedule
        wanted = (schedule, self.kind.currentData(), self.samples.value())
        if not self.isVisible() or wanted == self._shown:
            return
        self._shown = wanted
        if schedule is None:
            self._show_nothing("A plan's pipeline appears here.")
            return
        kind, n = str(self.kind.currentData()), self.samples.value()
        try:
            found = aside(lambda: _played(schedule, kind, n))
        except EnplaceError as error:
            self._show_nothing(str(error))
            return
        if isinstance(found, int):
            self._show_nothing(
                f"As a pipeline, this plan would have {count(found, 'stage')}: its ops hop to and "
                f"fro between devices. Solve with a method of “Highest pipeline throughput”."
            )
            return
        self._show(schedule, found)

    def _show_nothing(self, why: str) -> None:
        self.message.setText(why)
        self.message.show()
        self._tell("")
        self.later_button.hide()
        self.legend.hide()
        self._draw(None, None)

    def _show(self, schedule: Schedule, found: PipelineSchedule) -> None:
        later = later_pieces(found)
        parts = [
            f"{ms(found.time_per_sample_us)} a sample once full",
            f"{count(found.n_microbatches, 'sample')} in {ms(found.makespan_us)}",
        ]
        if found.kind != "inference":
            parts.append(f"at most {max(found.in_flight)} in flight")
        names = [device_label(device.name) for device in schedule.problem.cluster.devices]
        broken = {device for stage in later for device in found.stages[stage].devices}
        self._tell("   ·   ".join(parts))
        self.later_button.setVisible(bool(later))
        said = [gpipe_loads(schedule) if found.kind == "gpipe" else ""]
        said.append(why_not_the_load(schedule, found))
        if broken:
            said.append(f"Not contiguous: {', '.join(names[d] for d in sorted(broken))}.")
        self.message.setText(" ".join(filter(None, said)))
        self.message.setVisible(bool(self.message.text()))
        self.legend.show()
        self._draw(schedule, found)

    def _draw(self, schedule: Schedule | None, found: PipelineSchedule | None) -> None:
        self.canvas.show_pipeline(schedule, found)
        self._share_height()

    def resizeEvent(self, event: object) -> None:
        self._share_height()

    def _share_height(self) -> None:
        """Texts keep all their lines, which layouts forget in docks; a message costs rows."""
        for text in (self.message, self.legend):
            text.setMinimumHeight(max(0, text.heightForWidth(self.width())))
        most = round(ROWS_SEEN * ROW_PX * theme.scale)
        if not self.message.isHidden():
            most -= self.message.minimumHeight()
        self.rows.setMinimumHeight(min(self.canvas.minimumHeight(), most))

    def _tell(self, facts: str) -> None:
        self.facts = facts
        self.told.emit()

    def _select_later(self) -> None:
        found = self.canvas.pipeline
        if found is not None:
            ops = [found.stages[stage].ops for stage in later_pieces(found)]
            self._document.select(np.concatenate(ops).tolist())


def _played(schedule: Schedule, kind: str, n: int) -> PipelineSchedule | int:
    """The pipeline of a plan, or how many stages it would have if they are too many."""
    problem, plan = schedule.problem, schedule.plan
    n_stages = len(stages_of(problem, plan))
    if n_stages > MOST_STAGES:
        return n_stages
    return simulate_pipeline(problem, plan, kind, n, planned_rule(plan))


def gpipe_loads(schedule: Schedule) -> str:
    """The largest load of each pass, which add up to the time of a sample in GPipe's pipeline."""
    plan = schedule.plan
    rule = replace(planned_rule(plan), pipeline="gpipe")
    forward_us, backward_us = busiest_us(schedule.problem, plan.device, rule, plan.replicas)
    return f"Busiest device: forward {ms(forward_us)}, backward {ms(backward_us)} a sample."


def why_not_the_load(schedule: Schedule, found: PipelineSchedule) -> str:
    """Why a full pipeline is not as fast as its loads say; empty where it is."""
    plan = schedule.plan
    pipeline = "gpipe" if found.kind == "gpipe" else "1f1b"
    rule = replace(planned_rule(plan), pipeline=pipeline)
    load_us = max_load_us(schedule.problem, plan.device, rule, plan.replicas)
    if found.time_per_sample_us > SLOWER * load_us:
        return (
            f"The busiest device has {ms(load_us)} to do for a sample; the rest of the time it "
            f"waits, because each device takes its part of the {len(found.stages)} stages in a "
            f"fixed order."
        )
    if SLOWER * found.time_per_sample_us < load_us:
        return (
            f"The busiest forward and backward parts add up to {ms(load_us)}; it takes less, "
            f"because some devices begin backward while others are still in forward."
        )
    return ""


def later_pieces(found: PipelineSchedule) -> list[int]:
    """Stages whose device has another one before them in the same pass."""
    seen: set[tuple[int, bool]] = set()
    later = []
    for number, stage in enumerate(found.stages):
        place = stage.devices[0], stage.backward
        if place in seen:
            later.append(number)
        seen.add(place)
    return later


class PipelineCanvas(QWidget):
    """A row for each device in use: its name, its load in parts, and what it does when."""

    def __init__(self) -> None:
        super().__init__()
        self.setMouseTracking(True)
        self.pipeline: PipelineSchedule | None = None
        self.schedule: Schedule | None = None
        self._rows: list[int] = []
        self._parts_us: FloatArray = np.zeros((0, 3))
        self._loads_us: FloatArray = np.zeros(0)
        self._later: set[int] = set()
        theme.changed.connect(self.update)

    def show_pipeline(self, schedule: Schedule | None, pipeline: PipelineSchedule | None) -> None:
        """Draw this from now on; nothing without a pipeline."""
        self.schedule, self.pipeline = schedule, pipeline
        self._rows, self._later = [], set()
        if schedule is not None and pipeline is not None:
            used = {device for stage in pipeline.stages for device in stage.devices}
            self._rows = sorted(used)
            self._later = set(later_pieces(pipeline))
            problem, plan = schedule.problem, schedule.plan
            self._parts_us = _parts_us(problem, plan)
            self._loads_us = device_loads_us(
                problem, plan.device, planned_rule(plan), plan.replicas
            )
        self.setMinimumHeight(round(len(self._rows) * ROW_PX * theme.scale))
        self.setAccessibleName(
            "" if pipeline is None else f"Pipeline of {count(len(pipeline.stages), 'stage')}"
        )
        self.update()

    def sizeHint(self) -> QSize:
        return QSize(400, 90)

    # Geometry

    @property
    def _left(self) -> float:
        return (NAME_PX + LOAD_PX + GAP_PX) * theme.scale

    def lane(self, device: int) -> QRectF:
        """Where a device's stages are drawn."""
        height = min(self.height() / max(len(self._rows), 1), TALLEST_ROW_PX * theme.scale)
        top = self._rows.index(device) * height
        return QRectF(self._left, top + 2, self.width() - self._left, height - 4)

    def box(self, slot: Slot) -> QRectF:
        """Where a slot is drawn."""
        assert self.pipeline is not None
        lane, whole_us = self.lane(slot.device), max(self.pipeline.makespan_us, 1e-9)
        left = lane.left() + slot.start_us / whole_us * lane.width()
        width = max((slot.finish_us - slot.start_us) / whole_us * lane.width(), 1.0)
        thin = TRANSFER_PX * theme.scale
        if slot.part == COMPUTE:
            return QRectF(left, lane.top(), width, lane.height() - thin)
        return QRectF(left, lane.bottom() - thin + 1, width, thin - 1)

    def _slots(self) -> list[Slot]:
        if self.pipeline is None:
            return []
        computing = [slot for row in self.pipeline.computing for slot in row]
        return [*computing, *self.pipeline.transfers]

    # Drawing

    def paintEvent(self, event: QPaintEvent) -> None:
        with QPainter(self) as painter:
            for device in self._rows:
                self._paint_row(painter, device)
            for slot in self._slots():
                self._paint_slot(painter, slot)

    def _paint_row(self, painter: QPainter, device: int) -> None:
        assert self.schedule is not None
        tokens, lane = theme.tokens, self.lane(device)
        painter.fillRect(lane, tokens.lane)
        painter.setPen(tokens.text)
        painter.setFont(theme.font(11, QFont.Weight.Medium))
        middle = Qt.AlignmentFlag.AlignVCenter
        name = device_label(self.schedule.problem.cluster.devices[device].name)
        area = QRectF(0, lane.top(), NAME_PX * theme.scale, lane.height())
        shown = QFontMetricsF(painter.font()).elidedText(
            name, Qt.TextElideMode.ElideMiddle, area.width() - 4
        )
        painter.drawText(area, middle, shown)
        parts_us = self._parts_us[device]
        painter.setFont(theme.font(11))
        text = ms(float(self._loads_us[device]))
        text_px = QFontMetricsF(painter.font()).horizontalAdvance("1,000.0 ms") + 6
        room = LOAD_PX * theme.scale - text_px
        left, most_us = area.right(), max(float(self._parts_us.sum(axis=1).max()), 1e-9)
        for part in (COMPUTE, IN, OUT):
            width = float(parts_us[part]) / most_us * room
            bar = QRectF(left, lane.center().y() - 5, width, 10)
            painter.fillRect(bar, _shade(device, PART_STRENGTHS[part]))
            left += width
        painter.setPen(tokens.dim)
        where = QRectF(area.right() + room, lane.top(), text_px, lane.height())
        painter.drawText(where, middle | Qt.AlignmentFlag.AlignRight, text)

    def _paint_slot(self, painter: QPainter, slot: Slot) -> None:
        box = self.box(slot)
        if slot.part != COMPUTE:
            painter.fillRect(box, theme.tokens.dim)
            return
        color = theme.device_color(slot.device)
        inside = box.adjusted(0, 0, -1 if box.width() > 3 else 0, 0)
        painter.fillRect(inside, color)
        if slot.backward:
            paint_hatching(painter, inside, theme.tokens.lane, HATCH_PX)
        if slot.stage in self._later and box.width() > 3:
            painter.setPen(QPen(theme.tokens.text, 1))
            painter.drawRect(box.adjusted(0.5, 0.5, -1.5, -0.5))
        if box.width() >= (HATCHED_NUMBER_PX if slot.backward else NUMBER_PX) * theme.scale:
            self._paint_number(painter, box, str(slot.microbatch + 1), color)

    def _paint_number(self, painter: QPainter, box: QRectF, number: str, color: QColor) -> None:
        """In the middle of a box, on a plate that keeps the hatching off it."""
        painter.setFont(theme.font(10))
        metrics = QFontMetricsF(painter.font())
        plate = QRectF(0, 0, metrics.horizontalAdvance(number) + 4, metrics.height())
        plate.moveCenter(box.center())
        plate = plate.intersected(box)
        painter.fillRect(plate, color)
        painter.setPen(ink_on(color))
        painter.drawText(plate, Qt.AlignmentFlag.AlignCenter, number)

    # The pointer

    def event(self, event: QEvent) -> bool:
        if isinstance(event, QHelpEvent) and event.type() == QEvent.Type.ToolTip:
            QToolTip.showText(event.globalPos(), plain_tip(self.tip_at(QPointF(event.pos()))), self)
            return True
        return super().event(event)

    def tip_at(self, at: QPointF) -> str:
        """What is done there, or what a device's load is made of."""
        if self.pipeline is None or self.schedule is None:
            return ""
        devices = self.schedule.problem.cluster.devices
        for slot in self._slots():
            if self.box(slot).contains(at):
                way = "backward" if slot.backward else "forward"
                piece = " (a further piece)" if slot.stage in self._later else ""
                stage = self.pipeline.stages[slot.stage]
                return (
                    f"sample {slot.microbatch + 1}, stage {slot.stage + 1}{piece}, {way}: "
                    f"{device_label(devices[slot.device].name)} {PART_NAMES[slot.part]} for "
                    f"{ms(slot.finish_us - slot.start_us)}, from {ms(slot.start_us)}\n"
                    f"{count(len(stage.ops), 'op')}"
                )
        for device in self._rows:
            lane = self.lane(device)
            if lane.top() <= at.y() <= lane.bottom() and at.x() < lane.left():
                parts, load_us = self._parts_us[device], float(self._loads_us[device])
                return (
                    f"{device_label(devices[device].name)}, for one sample: {ms(load_us)}\n"
                    f"compute   {ms(float(parts[COMPUTE]))}\nin   {ms(float(parts[IN]))}\n"
                    f"out   {ms(float(parts[OUT]))}"
                )
        return ""


def _parts_us(problem: Problem, plan: Plan) -> FloatArray:
    """Compute, in and out of each device for one sample; shape (n_devices, 3).

    What devices that take turns send each other of the gradients is sent out.
    """
    loads: FloatArray = shared_parts_us(problem, plan.device, plan.replicas).sum(axis=1)
    for group in plan.replicas:
        loads[list(group), OUT] += all_reduce_us(problem, plan.device, group)
    return loads


def _shade(device: int, strength: float) -> QColor:
    return blend(theme.device_color(device), theme.tokens.panel, strength)
