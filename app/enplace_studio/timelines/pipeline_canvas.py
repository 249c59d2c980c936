"""The drawing of a pipeline: a row for each device, with its load and its work over time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import numpy as np
from PySide6.QtCore import QEvent, QPointF, QRectF, Qt
from PySide6.QtGui import (
    QColor,
    QFont,
    QFontMetricsF,
    QMouseEvent,
    QPainter,
    QPaintEvent,
    QPen,
    QWheelEvent,
)

from enplace.machine.pipelines.loads import COMPUTE, IN, OUT, pass_loads_us
from enplace.machine.pipelines.pipeline import (
    EXCHANGED,
    Exchange,
    PipelineSchedule,
    Slot,
    Update,
    step_rule,
)
from enplace.pictures.palette import colour_numbers
from enplace.text import count, ms, percent, size
from enplace.values.cluster import Device
from enplace.values.profile import FloatArray
from enplace.values.schedule import Schedule
from enplace_studio.explain.pipelines import find_bubble, further_stages, parts_of
from enplace_studio.timelines.navigation import Surface, TimeCanvas
from enplace_studio.timelines.paint import ink_on
from enplace_studio.timelines.rows import IDLE
from enplace_studio.timelines.scale import tick_texts
from enplace_studio.widgets.drawing import RIGHT, draw_text
from enplace_studio.widgets.hatch import paint_hatching
from enplace_studio.widgets.theme import blend, theme

_Of = TypeVar("_Of", Slot, Exchange, Update)

PART_NAMES = {COMPUTE: "computes", IN: "receives", OUT: "sends"}
PART_STRENGTHS = {COMPUTE: 1.0, IN: 0.62, OUT: 0.34}

NAME_PX, LOAD_PX, GAP_PX = 56, 150, 16
ROW_PX, TALLEST_ROW_PX, AXIS_PX = 25, 64, 15
"""The least and the greatest height of a row, and the height of the time axis."""
MEMORY_SHARE = 0.23
"""Share of a row for the memory below the stages."""
TRANSFER_PX, HATCH_PX, SAMPLE_PX = 5, 5, 3
"""Heights of transfers and of the edge in the colour of a sample, and distance of hatches."""
OTHERS = 0.3
"""Strength of all other samples while the pointer is on one."""
GOLDEN_ANGLE = 137.508
"""In degrees: hues this far apart are clearly different for neighbours, and never repeat."""
UPDATE_NAME = "update"
PLATE_PX = 2
"""How much wider than the number of a sample its plate is."""


class _Rows(Surface):
    axis_px = 0

    @property
    def left(self) -> float:
        return (NAME_PX + LOAD_PX + GAP_PX) * theme.scale


class PipelineCanvas(TimeCanvas):
    """A row for each device in use: its name, the parts of its load, its work and its memory."""

    def __init__(self) -> None:
        super().__init__("Pipeline", _Rows(), (0, 0), (400, 90))
        self._sample: int | None = None
        self._most_bytes = 1
        self.pipeline: PipelineSchedule | None = None
        self.schedule: Schedule | None = None
        self._rows: list[int] = []
        self._names: list[str] = []
        self._parts_us: FloatArray = np.zeros((0, 3))
        self._loads_us: FloatArray = np.zeros(0)
        self._further: set[int] = set()

    def show_pipeline(
        self,
        schedule: Schedule | None,
        pipeline: PipelineSchedule | None,
        whole_us: float = 0.0,
        most_bytes: int = 1,
    ) -> None:
        """Show this pipeline, or nothing if there is none.

        Parameters
        ----------
        whole_us : float
            The least length of the time axis.
        most_bytes : int
            The least height of the memory strips.
        """
        self._sample, self._most_bytes = None, most_bytes
        self.schedule, self.pipeline = schedule, pipeline
        self._rows, self._names, self._further = [], [], set()
        if schedule is not None and pipeline is not None:
            self._surface.end_us = max(pipeline.makespan_us, whole_us, 1e-9)
            self._further = set(further_stages(pipeline))
            problem, plan = schedule.problem, schedule.plan
            rule = step_rule(plan, pipeline.n_microbatches)
            self._parts_us = parts_of(problem, plan, rule)
            self._loads_us = pass_loads_us(
                problem, plan.device, rule, plan.replicas, plan.recompute
            ).sum(axis=1)
            least_us = IDLE * self._loads_us.max()
            used = {device for stage in pipeline.stages for device in stage.devices}
            busy = {d for d in used if d in problem.cluster.gpus or self._loads_us[d] >= least_us}
            self._rows = sorted(busy)
            self._names = [problem.cluster.devices[device].label for device in self._rows]
        height = AXIS_PX + len(self._rows) * ROW_PX if self._rows else 0
        self.setMinimumHeight(round(height * theme.scale))
        self.fit()
        self.setAccessibleName(
            "" if pipeline is None else f"Pipeline of {count(len(pipeline.stages), 'stage')}"
        )
        self.update()

    # Geometry

    def lay_out(self) -> None:
        width_px = self.width() - self.left
        self._surface.scale = self.scale.resized(self._surface.end_us, width_px)
        super().lay_out()

    def wheelEvent(self, event: QWheelEvent) -> None:
        held = event.modifiers()
        zooms = bool(held & Qt.KeyboardModifier.ControlModifier)
        if zooms or held & Qt.KeyboardModifier.ShiftModifier:
            self.wheel(event, zooms, not zooms)
        else:
            event.ignore()

    def row(self, device: int) -> QRectF:
        """Return the area of a device: its stages, and its memory below them."""
        axis = AXIS_PX * theme.scale
        room = (self.height() - axis) / max(len(self._rows), 1)
        height = min(room, TALLEST_ROW_PX * theme.scale)
        top = axis + self._rows.index(device) * height
        return QRectF(self.left, top + 2, self.width() - self.left, height - 4)

    def lane(self, device: int) -> QRectF:
        """Return the area of a device's stages."""
        row = self.row(device)
        return row.adjusted(0, 0, 0, -row.height() * MEMORY_SHARE)

    def box(self, slot: Slot) -> QRectF:
        """Return the area of a slot."""
        lane = self.lane(slot.device)
        left = lane.left() + self.scale.x(slot.start_us)
        width = max((slot.finish_us - slot.start_us) / self.scale.us_per_px, 1.0)
        thin = TRANSFER_PX * theme.scale
        if slot.part == COMPUTE:
            return QRectF(left, lane.top(), width, lane.height() - thin)
        return QRectF(left, lane.bottom() - thin + 1, width, thin - 1)

    def once_box(self, each: Exchange | Update) -> QRectF:
        """Return the area of what a device does once per step: as high as its stages."""
        lane, left = self.lane(each.device), self.scale.x(each.start_us)
        width = max((each.finish_us - each.start_us) / self.scale.us_per_px, 1.0)
        return QRectF(lane.left() + left, lane.top(), width, lane.height())

    def _slots(self) -> list[Slot]:
        if self.pipeline is None:
            return []
        computing = [slot for row in self.pipeline.computing for slot in row]
        return self._shown([*computing, *self.pipeline.transfers])

    def _shown(self, found: Iterable[_Of]) -> list[_Of]:
        """Return what is of a device that has a row."""
        return [each for each in found if each.device in self._rows]

    # Drawing

    def paintEvent(self, event: QPaintEvent) -> None:
        with QPainter(self) as painter:
            for device, name in zip(self._rows, self._names, strict=True):
                self._paint_row(painter, device, name)
            painter.setClipRect(QRectF(self.left, 0, self.width() - self.left, self.height()))
            if self._rows:
                self._paint_axis(painter)
            for device in self._rows:
                self._paint_memory(painter, device)
            for slot in self._slots():
                if self.box(slot).right() >= self.left:
                    self._paint_slot(painter, slot)
            for each in self._shown(self.pipeline.exchange) if self.pipeline else ():
                painter.fillRect(self.once_box(each), theme.tokens.dim)
            for update in self._shown(self.pipeline.updates) if self.pipeline else ():
                self._paint_update(painter, update)

    def _paint_axis(self, painter: QPainter) -> None:
        """Paint moments above the rows, and a line through the rows at each."""
        tokens, ticks = theme.tokens, self.scale.ticks()
        painter.setFont(theme.font(10))
        metrics = QFontMetricsF(painter.font())
        for us, text in zip(ticks.tolist(), tick_texts(ticks), strict=True):
            x = self.left + self.scale.x(us)
            painter.setPen(tokens.dim)
            end = self.width() - metrics.horizontalAdvance(text) - 2
            painter.drawText(QPointF(min(x + 3, end), metrics.ascent()), text)
            painter.setPen(QPen(tokens.line, 1))
            painter.drawLine(QPointF(x, 0), QPointF(x, self.row(self._rows[-1]).bottom()))

    def _shade(self, device: int, strength: float) -> QColor:
        assert self.schedule is not None
        number = colour_numbers(self.schedule.problem.cluster)[device]
        return blend(theme.device_color(number), theme.tokens.panel, strength)

    def _paint_memory(self, painter: QPainter, device: int) -> None:
        """Paint what a device holds over time, relative to the fullest; red above its capacity."""
        assert self.pipeline is not None
        assert self.schedule is not None
        curve, row = self.pipeline.memory[device], self.row(device)
        capacity = int(self.schedule.problem.cluster.capacity_bytes[device])
        most = max(self._most_bytes, int(self.pipeline.peak_bytes[self._rows].max()))
        height = row.height() * MEMORY_SHARE - 1
        ends_us = [*curve.time_us[1:].tolist(), self.pipeline.makespan_us]
        color = self._shade(device, 0.5)
        for begin_us, end_us, held in zip(
            curve.time_us.tolist(), ends_us, curve.bytes.tolist(), strict=True
        ):
            left, right = self.scale.x(begin_us), self.scale.x(end_us)
            high = held / most * height
            area = QRectF(self.left + left, row.bottom() - high, right - left, high)
            painter.fillRect(area, theme.tokens.bad if held > capacity else color)

    def _paint_row(self, painter: QPainter, device: int, name: str) -> None:
        tokens, lane = theme.tokens, self.lane(device)
        painter.fillRect(lane, tokens.lane)
        area = QRectF(0, lane.top(), NAME_PX * theme.scale, lane.height())
        shown = area.adjusted(0, 0, -4, 0)
        draw_text(painter, shown, name, theme.font(11, QFont.Weight.Medium), tokens.text)
        parts_us, font = self._parts_us[device], theme.font(11)
        text = ms(float(self._loads_us[device]))
        text_px = QFontMetricsF(font).horizontalAdvance("1,000.0 ms") + 6
        bars_px = LOAD_PX * theme.scale - text_px
        left, most_us = area.right(), max(float(self._parts_us.sum(axis=1).max()), 1e-9)
        for part in (COMPUTE, IN, OUT):
            width = float(parts_us[part]) / most_us * bars_px
            bar = QRectF(left, lane.center().y() - 5, width, 10)
            painter.fillRect(bar, self._shade(device, PART_STRENGTHS[part]))
            left += width
        where = QRectF(area.right() + bars_px, lane.top(), text_px, lane.height())
        draw_text(painter, where, text, font, tokens.dim, RIGHT)

    def _paint_slot(self, painter: QPainter, slot: Slot) -> None:
        box = self.box(slot)
        if slot.part != COMPUTE:
            painter.fillRect(box, theme.tokens.dim)
            return
        color = self._shade(slot.device, 1.0)
        if self._sample not in (None, slot.microbatch):
            color = blend(color, theme.tokens.lane, OTHERS)
        inside = box.adjusted(0, 0, -1 if box.width() > 3 else 0, 0)
        painter.fillRect(inside, color)
        if slot.backward:
            paint_hatching(painter, inside, theme.tokens.lane, HATCH_PX)
        edge = inside.adjusted(0, 0, 0, SAMPLE_PX * theme.scale - inside.height())
        if self._sample in (None, slot.microbatch):
            painter.fillRect(edge, sample_color(slot.microbatch))
        if slot.stage in self._further and box.width() > 3:
            painter.setPen(QPen(theme.tokens.text, 1))
            painter.drawRect(box.adjusted(0.5, 0.5, -1.5, -0.5))
        self._paint_number(painter, box, str(slot.microbatch + 1), color, hatched=slot.backward)

    def _paint_update(self, painter: QPainter, update: Update) -> None:
        """Paint a device's updates with their name, where it fits."""
        box, color = self.once_box(update), self._shade(update.device, PART_STRENGTHS[IN])
        painter.fillRect(box, color)
        font = theme.font(10)
        if QFontMetricsF(font).horizontalAdvance(UPDATE_NAME) + PLATE_PX <= box.width():
            draw_text(painter, box, UPDATE_NAME, font, ink_on(color), Qt.AlignmentFlag.AlignCenter)

    def _paint_number(
        self, painter: QPainter, box: QRectF, number: str, color: QColor, *, hatched: bool
    ) -> None:
        """Write a number in the middle of a box, on a plate with visible hatching around it."""
        font = theme.font(10)
        metrics = QFontMetricsF(font)
        plate = QRectF(0, 0, metrics.horizontalAdvance(number) + PLATE_PX, metrics.height())
        around = HATCH_PX * theme.scale if hatched else 0.0
        fits_across = box.width() >= plate.width() + around
        fits_below = box.width() >= plate.width() and box.height() >= plate.height() + 2 * around
        if not fits_across and not fits_below:
            return
        plate.moveCenter(box.center())
        plate = plate.intersected(box)
        painter.fillRect(plate, color)
        draw_text(painter, plate, number, font, ink_on(color), Qt.AlignmentFlag.AlignCenter)

    # The pointer

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        super().mouseMoveEvent(event)
        self._follow(event.position())

    def leaveEvent(self, event: QEvent) -> None:
        super().leaveEvent(event)
        self._follow(None)

    def _follow(self, at: QPointF | None) -> None:
        """Let the sample at the pointer stand out on all devices."""
        slots = self._slots() if at is not None else []
        found = next((s.microbatch for s in slots if at and self.box(s).contains(at)), None)
        if found != self._sample:
            self._sample = found
            self.update()

    def tip_at(self, at: QPointF) -> str:
        """Describe the slot at a point, or the parts of a device's load."""
        if self.pipeline is None or self.schedule is None:
            return ""
        devices = self.schedule.problem.cluster.devices
        for slot in self._slots():
            if self.box(slot).contains(at):
                way = "backward" if slot.backward else "forward"
                which = " (a further subgraph)" if slot.stage in self._further else ""
                stage = self.pipeline.stages[slot.stage]
                return (
                    f"sample {slot.microbatch + 1}, stage {slot.stage + 1}{which}, {way}: "
                    f"{devices[slot.device].label} {PART_NAMES[slot.part]} for "
                    f"{ms(slot.finish_us - slot.start_us)}, from {ms(slot.start_us)}\n"
                    f"{count(len(stage.ops), 'op')}"
                )
        for update in self._shown(self.pipeline.updates):
            if self.once_box(update).contains(at):
                return (
                    f"{devices[update.device].label} updates its variables, once per step, for "
                    f"{ms(update.finish_us - update.start_us)}, from {ms(update.start_us)}"
                )
        for each in self._shown(self.pipeline.exchange):
            if self.once_box(each).contains(at):
                return (
                    f"{devices[each.device].label} sends and receives "
                    f"{size(each.n_bytes)} {EXCHANGED}, for {ms(each.finish_us - each.start_us)}"
                )
        for device in self._rows:
            lane = self.lane(device)
            if self.row(device).contains(at):
                when_us = self.scale.time(at.x() - self.left)
                describe = _memory_tip if at.y() > lane.bottom() else _idle_tip
                return describe(self.pipeline, devices[device], device, when_us)
            if lane.top() <= at.y() <= lane.bottom() and at.x() < lane.left():
                parts, load_us = self._parts_us[device], float(self._loads_us[device])
                return (
                    f"{devices[device].label}, for one sample: {ms(load_us)}\n"
                    f"compute   {ms(float(parts[COMPUTE]))}\nin   {ms(float(parts[IN]))}\n"
                    f"out   {ms(float(parts[OUT]))}"
                )
        return ""


def _idle_tip(pipeline: PipelineSchedule, owner: Device, number: int, when_us: float) -> str:
    share, why = find_bubble(pipeline, number, when_us)
    return f"{owner.label} is idle: {why}\nidle {percent(share)} of the time in all"


def _memory_tip(pipeline: PipelineSchedule, owner: Device, number: int, when_us: float) -> str:
    curve = pipeline.memory[number]
    return (
        f"{owner.label} holds {size(int(curve.bytes[curve.index_at(when_us)]))} at "
        f"{ms(when_us)}\nat most {size(curve.peak_bytes)} of {size(owner.capacity_bytes)}, "
        f"for {count(pipeline.in_flight[number], 'sample')} in flight"
    )


def sample_color(number: int) -> QColor:
    """Return the colour of a sample."""
    hue = number * GOLDEN_ANGLE % 360 / 360
    return QColor.fromHslF(hue, 0.85, 0.35 if theme.tokens.panel.lightness() > 127 else 0.72)
