"""Gestures on the timeline: each follows the pointer, then finishes or is cancelled."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

import numpy as np
from PySide6.QtCore import QPointF, QRectF, Qt
from PySide6.QtGui import QColor, QFontMetricsF, QPainter, QPen

from enplace.pictures.busy import BusyCurve
from enplace.pictures.palette import colour_numbers
from enplace.text import count, ms
from enplace.values.schedule import Schedule
from enplace_studio.explain.intervals import Interval
from enplace_studio.model.document import Document
from enplace_studio.model.ordering import Range, Slot, slot_at
from enplace_studio.timelines.lanes import Lanes
from enplace_studio.timelines.paint import draw_marks
from enplace_studio.widgets.dragging import EXTEND, Drop, RubberBand, describe_drop, describe_order
from enplace_studio.widgets.theme import theme

Keys = Qt.KeyboardModifier

_BEYOND_PX = 24
"""How far bars may be dragged beyond their range and still go to its end."""
_CLEAR_PX = 8
"""Distance between a lane and the text about a drop in it."""


class Gesture(Protocol):
    """One drag, from press to release."""

    def move(self, at: QPointF) -> None: ...

    def finish(self, at: QPointF, keys: Keys) -> None: ...

    def paint(self, painter: QPainter, area: QRectF) -> None: ...


class Band:
    """A rubber band, which selects the ops it touches, and shows which these are and a hint."""

    def __init__(self, document: Document, lanes: Lanes, start: QPointF, hint: str = "") -> None:
        self._document, self._lanes, self._band = document, lanes, RubberBand(start)
        self.hint = hint

    def move(self, at: QPointF) -> None:
        self._band.stretch(at)

    def finish(self, at: QPointF, keys: Keys) -> None:
        self.move(at)
        ops = self._lanes.ops_in(self._band.area)
        self._document.select(ops, extend=bool(keys & EXTEND))

    def paint(self, painter: QPainter, area: QRectF) -> None:
        edges_us, n_ops = self._lanes.edges_us(), 0
        for lane, row, bars in self._lanes.bars_in(self._band.area):
            n_ops += len(row.numbers[bars])
            curve = BusyCurve(row.start_us[bars], row.finish_us[bars])
            strip = QRectF(lane.left(), lane.bottom() - 1, lane.width(), 3)
            draw_marks(painter, curve, strip, edges_us, theme.tokens.accent)
        self._band.paint(painter, " · ".join(filter(None, (count(n_ops, "op"), self.hint))))


class Span:
    """A stretch of the time axis, which is selected."""

    def __init__(self, document: Document, lanes: Lanes, start: QPointF) -> None:
        self._document, self._lanes, self._start_us = document, lanes, lanes.time_at(start)

    def move(self, at: QPointF) -> None:
        ends = sorted((self._start_us, self._lanes.time_at(at)))
        first, last = (min(max(each, 0.0), self._lanes.end_us) for each in ends)
        self._document.select_span(Interval(first, last) if last > first else None)

    def finish(self, at: QPointF, keys: Keys) -> None:
        self.move(at)

    def paint(self, painter: QPainter, area: QRectF) -> None:
        """Paint nothing: the span is drawn as long as it is selected."""


def paint_text(
    painter: QPainter, area: QRectF, at: QPointF, drop: Drop, lane: QRectF | None = None
) -> None:
    """Write the effect of a drop next to the pointer, or else below or above a lane."""
    tokens, font = theme.tokens, theme.font(12)
    text = QFontMetricsF(font).boundingRect(area, 0, drop.text)
    box = QRectF(0, 0, text.width() + 20, text.height() + 10)
    box.moveTopLeft(at + QPointF(14, 14))
    inside = area.adjusted(2, 2, -2, -2)
    box.moveRight(min(box.right(), inside.right()))
    box.moveBottom(min(box.bottom(), inside.bottom()))
    box.moveLeft(max(box.left(), inside.left()))
    if lane is not None:
        below = lane.bottom() + _CLEAR_PX
        fits = below + box.height() <= inside.bottom()
        box.moveTop(below if fits else lane.top() - _CLEAR_PX - box.height())
    painter.setPen(QPen(tokens.accent if drop.is_good else tokens.bad, 1))
    painter.setBrush(tokens.panel)
    painter.drawRoundedRect(box, 6, 6)
    painter.setFont(font)
    painter.setPen(tokens.text if drop.is_good else tokens.bad)
    painter.drawText(box, Qt.AlignmentFlag.AlignCenter, drop.text)


class Reorder:
    """Bars dragged along their lane, which shows where they may go and the effect of a drop.

    The bars, not the pointer, say where they go: they pass another bar as their edge passes its
    middle. A drop beyond the range, or one that changes nothing, does nothing and says so.
    """

    def __init__(
        self, document: Document, lanes: Lanes, schedule: Schedule, where: Range, at: QPointF
    ) -> None:
        self._document, self._lanes, self._schedule = document, lanes, schedule
        self._ops, self._where, self._at = document.selection, where, at
        self._pressed_us, self._shift_us = lanes.time_at(at), 0.0
        self._drops: dict[Slot, Drop] = {}
        self.slot: Slot | None = None

    @property
    def drop(self) -> Drop:
        """The effect of dropping the bars where they are now."""
        if refusal := self._refusal():
            return Drop(f"{refusal}\n{self._range_text()}", False, changes=False)
        if self.slot is None:
            step = f"Nothing changes here: the step stays at {ms(self._schedule.makespan_us)}"
            return Drop(f"{step}\n{self._range_text()}", True, changes=False)
        if self.slot not in self._drops:
            drop = describe_order(self._document, self._ops, self.slot)
            self._drops[self.slot] = replace(drop, text=f"{drop.text}\n{self._range_text()}")
        return self._drops[self.slot]

    def _refusal(self) -> str:
        """Say why the bars may not run where they are; empty if they may."""
        where, slack_us = self._where, _BEYOND_PX * self._lanes.scale.us_per_px
        if where.start_us + self._shift_us < where.earliest_us - slack_us:
            if where.needed is None:
                return "Nothing runs before the step begins"
            return f"Not here: it needs {self._name(where.needed)}, which ends later"
        if where.finish_us + self._shift_us > where.latest_us + slack_us:
            if where.needing is None:
                return "Nothing runs after the step ends"
            return f"Not here: {self._name(where.needing)} needs it earlier"
        return ""

    def _name(self, op: int) -> str:
        project = self._document.project
        return project.describe([op]) if project is not None else ""

    def _range_text(self) -> str:
        if not len(self._where.others):
            return "Nothing here may run before it or after it"
        first, last = ms(self._where.earliest_us), ms(self._where.latest_us)
        return f"Its place in the order may be from {first} to {last}"

    def move(self, at: QPointF) -> None:
        self._at, where = at, self._where
        self._shift_us = self._lanes.time_at(at) - self._pressed_us
        edge_us = where.start_us if self._shift_us < 0 else where.finish_us
        self.slot = slot_at(self._schedule, where, edge_us + self._shift_us)

    def finish(self, at: QPointF, keys: Keys) -> None:
        self.move(at)
        if self.slot is not None and self.drop.changes:
            self._document.reorder(self._ops, self.slot)
        elif self.slot is not None or self._refusal():
            self._document.dropped.emit(self.drop.text.replace("\n", ". "))

    def paint(self, painter: QPainter, area: QRectF) -> None:
        tokens, where, drop = theme.tokens, self._where, self.drop
        color = tokens.accent if drop.is_good else tokens.bad
        lanes = self._lanes.lanes_of(where.device)
        for lane in lanes:
            allowed = self._lanes.part(lane, where.earliest_us, where.latest_us, 1)
            painter.setBrush(Qt.BrushStyle.NoBrush)
            painter.setPen(QPen(tokens.good, 1, Qt.PenStyle.DashLine))
            painter.drawRect(allowed.adjusted(0, -1, 0, 1))
            shift_us = self._shift_us
            start_us, finish_us = where.start_us + shift_us, where.finish_us + shift_us
            moved = self._lanes.part(lane, start_us, finish_us, 1)
            painter.setPen(QPen(color, 1.6))
            painter.drawRect(moved)
            if self.slot is not None and drop.changes:
                self._paint_slot(painter, lane, self.slot, color)
        shown = QRectF(lanes[0]).united(lanes[-1]) if lanes else None
        paint_text(painter, area, self._at, drop, shown)

    def _paint_slot(self, painter: QPainter, lane: QRectF, slot: Slot, color: QColor) -> None:
        """Mark the place in the order with a line."""
        schedule = self._schedule
        times = schedule.op_start_us if slot.earlier else schedule.op_finish_us
        x = self._lanes.left + self._lanes.scale.x(float(times[slot.anchor]))
        painter.setPen(QPen(color, 3))
        painter.drawLine(QPointF(x, lane.top() - 3), QPointF(x, lane.bottom() + 3))


class Move:
    """Bars dragged to another device's lane; the lane shows the effect of a drop."""

    def __init__(self, document: Document, lanes: Lanes, schedule: Schedule, at: QPointF) -> None:
        self._document, self._lanes, self._at = document, lanes, at
        self._ops = document.selection
        self._device: int | None = None
        self.drop = Drop("Drag to another lane", True)
        numbers = np.fromiter(self._ops, dtype=np.int64)
        self._homes = set(schedule.plan.device[numbers].tolist())
        self._curve = BusyCurve(schedule.op_start_us[numbers], schedule.op_finish_us[numbers])
        self._colours = colour_numbers(schedule.problem.cluster)

    def move(self, at: QPointF) -> None:
        self._at = at
        device = self._lanes.device_at(at)
        if device is not None and self._homes == {device}:
            device = None
        if device != self._device:
            self._device = device
            self.drop = Drop("Drag to another lane", True)
            if device is not None:
                self.drop = describe_drop(self._document, self._ops, device)

    def finish(self, at: QPointF, keys: Keys) -> None:
        self.move(at)
        if self._device is not None:
            pin = not keys & Keys.ShiftModifier
            self._document.place(self._ops, self._device, pin=pin)

    def paint(self, painter: QPainter, area: QRectF) -> None:
        color = theme.tokens.accent if self.drop.is_good else theme.tokens.bad
        if self._device is not None:
            own = theme.device_color(self._colours[self._device])
            fill = own if self.drop.is_good else theme.tokens.bad
            for lane in self._lanes.lanes_of(self._device):
                draw_marks(painter, self._curve, lane, self._lanes.edges_us(), fill)
                painter.setPen(QPen(color, 2))
                painter.setBrush(Qt.BrushStyle.NoBrush)
                painter.drawRoundedRect(lane.adjusted(-1, -1, 1, 1), 3, 3)
        paint_text(painter, area, self._at, self.drop)
