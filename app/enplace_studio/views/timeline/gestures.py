"""Gestures on the timeline: each follows the pointer, then finishes or is cancelled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
from PySide6.QtCore import QPointF, QRectF, Qt
from PySide6.QtGui import QFontMetricsF, QPainter, QPen

from enplace.text import ms
from enplace.values.schedule import Schedule
from enplace_studio.document import Document
from enplace_studio.dragging import EXTEND, Drop, RubberBand, describe_drop, describe_order
from enplace_studio.ordering import Range, Slot, slot_at
from enplace_studio.theme import theme
from enplace_studio.timelines.busy import BusyCurve
from enplace_studio.timelines.lanes import Lanes
from enplace_studio.timelines.paint import draw_marks

Keys = Qt.KeyboardModifier


class Gesture(Protocol):
    """One drag, from press to release."""

    def move(self, at: QPointF) -> None: ...

    def finish(self, at: QPointF, keys: Keys) -> None: ...

    def paint(self, painter: QPainter, area: QRectF) -> None: ...


class Pan:
    """A drag with the middle button, which moves the window along the step.

    Parameters
    ----------
    pan : callable
        Moves the window by pixels to the right and down.
    """

    def __init__(self, pan: Callable[[float, float], None], at: QPointF) -> None:
        self._pan, self._last = pan, at

    def move(self, at: QPointF) -> None:
        self._pan(self._last.x() - at.x(), self._last.y() - at.y())
        self._last = at

    def finish(self, at: QPointF, keys: Keys) -> None:
        self.move(at)

    def paint(self, painter: QPainter, area: QRectF) -> None:
        """Paint nothing, since the picture itself moves."""


class Band:
    """A rubber band, which selects the ops it touches."""

    def __init__(self, document: Document, lanes: Lanes, start: QPointF) -> None:
        self._document, self._lanes, self._band = document, lanes, RubberBand(start)

    def move(self, at: QPointF) -> None:
        self._band.stretch(at)

    def finish(self, at: QPointF, keys: Keys) -> None:
        self.move(at)
        ops = self._lanes.ops_in(self._band.area)
        self._document.select(ops, extend=bool(keys & EXTEND))

    def paint(self, painter: QPainter, area: QRectF) -> None:
        self._band.paint(painter)


def paint_text(painter: QPainter, area: QRectF, at: QPointF, drop: Drop) -> None:
    """Write the effect of a drop next to the pointer."""
    tokens, font = theme.tokens, theme.font(12)
    text = QFontMetricsF(font).boundingRect(area, 0, drop.text)
    box = QRectF(0, 0, text.width() + 20, text.height() + 10)
    box.moveTopLeft(at + QPointF(14, 14))
    inside = area.adjusted(2, 2, -2, -2)
    box.moveRight(min(box.right(), inside.right()))
    box.moveBottom(min(box.bottom(), inside.bottom()))
    box.moveLeft(max(box.left(), inside.left()))
    painter.setPen(QPen(tokens.accent if drop.is_good else tokens.bad, 1))
    painter.setBrush(tokens.panel)
    painter.drawRoundedRect(box, 6, 6)
    painter.setFont(font)
    painter.setPen(tokens.text if drop.is_good else tokens.bad)
    painter.drawText(box, Qt.AlignmentFlag.AlignCenter, drop.text)


class Reorder:
    """Bars dragged along their lane, which shows where they may go and the effect of a drop."""

    def __init__(
        self, document: Document, lanes: Lanes, schedule: Schedule, where: Range, at: QPointF
    ) -> None:
        self._document, self._lanes, self._schedule = document, lanes, schedule
        self._ops, self._where, self._at = document.selection, where, at
        self._drops: dict[Slot | None, Drop] = {None: Drop(self._range_text(), True)}
        self.slot: Slot | None = None

    @property
    def drop(self) -> Drop:
        """The effect of dropping the bars where the pointer is."""
        if self.slot not in self._drops and self.slot is not None:
            drop = describe_order(self._document, self._ops, self.slot)
            self._drops[self.slot] = Drop(f"{drop.text}\n{self._range_text()}", drop.is_good)
        return self._drops[self.slot]

    def _range_text(self) -> str:
        if not len(self._where.others):
            return "Nothing here may run before it or after it"
        return f"May run from {ms(self._where.earliest_us)} to {ms(self._where.latest_us)}"

    def move(self, at: QPointF) -> None:
        self._at = at
        self.slot = slot_at(self._schedule, self._where, self._lanes.time_at(at))

    def finish(self, at: QPointF, keys: Keys) -> None:
        self.move(at)
        if self.slot is not None:
            self._document.reorder(self._ops, self.slot)

    def paint(self, painter: QPainter, area: QRectF) -> None:
        tokens = theme.tokens
        color = tokens.accent if self.drop.is_good else tokens.bad
        lanes, scale = self._lanes, self._lanes.scale
        edges = (self._where.earliest_us, self._where.latest_us)
        left, right = (lanes.left + scale.x(each) for each in edges)
        for lane in lanes.lanes_of(self._where.device):
            allowed = QRectF(left, lane.top() - 1, right - left, lane.height() + 2)
            allowed = allowed.intersected(lane.adjusted(0, -1, 0, 1))
            painter.setPen(QPen(color, 1, Qt.PenStyle.DashLine))
            painter.setBrush(Qt.BrushStyle.NoBrush)
            painter.drawRect(allowed)
            if self.slot is not None:
                op = self.slot.anchor
                schedule = self._schedule
                times = schedule.op_start_us if self.slot.earlier else schedule.op_finish_us
                x = lanes.left + scale.x(float(times[op]))
                painter.setPen(QPen(color, 3))
                painter.drawLine(QPointF(x, lane.top() - 3), QPointF(x, lane.bottom() + 3))
        paint_text(painter, area, self._at, self.drop)


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
            fill = theme.device_color(self._device) if self.drop.is_good else theme.tokens.bad
            for lane in self._lanes.lanes_of(self._device):
                draw_marks(painter, self._curve, lane, self._lanes.edges_us(), fill)
                painter.setPen(QPen(color, 2))
                painter.setBrush(Qt.BrushStyle.NoBrush)
                painter.drawRoundedRect(lane.adjusted(-1, -1, 1, 1), 3, 3)
        paint_text(painter, area, self._at, self.drop)
