"""Gestures on the timeline: each follows the pointer, then finishes or is cancelled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
from PySide6.QtCore import QPointF, QRectF, Qt
from PySide6.QtGui import QColor, QFontMetricsF, QPainter, QPen

from enplace.values.schedule import Schedule
from enplace_studio.document import Document
from enplace_studio.dragging import EXTEND, Drop, RubberBand, describe_drop
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
        self._paint_text(painter, area, color)

    def _paint_text(self, painter: QPainter, area: QRectF, color: QColor) -> None:
        """Write the effect of a drop next to the pointer."""
        tokens, font = theme.tokens, theme.font(12)
        text = QFontMetricsF(font).boundingRect(area, 0, self.drop.text)
        box = QRectF(0, 0, text.width() + 20, text.height() + 10)
        box.moveTopLeft(self._at + QPointF(14, 14))
        inside = area.adjusted(2, 2, -2, -2)
        box.moveRight(min(box.right(), inside.right()))
        box.moveBottom(min(box.bottom(), inside.bottom()))
        box.moveLeft(max(box.left(), inside.left()))
        painter.setPen(QPen(color, 1))
        painter.setBrush(tokens.panel)
        painter.drawRoundedRect(box, 6, 6)
        painter.setFont(font)
        painter.setPen(tokens.text if self.drop.is_good else tokens.bad)
        painter.drawText(box, Qt.AlignmentFlag.AlignCenter, self.drop.text)
