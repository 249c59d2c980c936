"""What dragging does: each gesture is an object that moves, finishes or is cancelled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np
from PySide6.QtCore import QPointF, QRectF, Qt
from PySide6.QtGui import QColor, QFontMetricsF, QPainter, QPen

from enplace.text import ms, size
from enplace_studio.document import Preview
from enplace_studio.theme import theme
from enplace_studio.timeline.busy import BusyCurve
from enplace_studio.timeline.paint import draw_marks

if TYPE_CHECKING:
    from enplace_studio.timeline.canvas import TimelineCanvas


EXTEND = Qt.KeyboardModifier.ShiftModifier | Qt.KeyboardModifier.ControlModifier
"""With one of these keys a selection grows."""


class Gesture(Protocol):
    """One drag, from press to release."""

    def move(self, at: QPointF) -> None: ...

    def finish(self, at: QPointF, keys: Qt.KeyboardModifier) -> None: ...

    def paint(self, painter: QPainter) -> None: ...


class Pan:
    """The middle button drags the window along the step."""

    def __init__(self, canvas: TimelineCanvas, at: QPointF) -> None:
        self._canvas, self._last = canvas, at

    def move(self, at: QPointF) -> None:
        self._canvas.set_scale(self._canvas.scale.panned(self._last.x() - at.x()))
        self._canvas.scroll_rows(self._last.y() - at.y())
        self._last = at

    def finish(self, at: QPointF, keys: Qt.KeyboardModifier) -> None:
        self.move(at)

    def paint(self, painter: QPainter) -> None:
        """The moving picture says it all."""


class Band:
    """A rubber band selects the ops it touches."""

    def __init__(self, canvas: TimelineCanvas, start: QPointF) -> None:
        self._canvas, self._area, self._start = canvas, QRectF(start, start), start

    def move(self, at: QPointF) -> None:
        self._area = QRectF(self._start, at).normalized()

    def finish(self, at: QPointF, keys: Qt.KeyboardModifier) -> None:
        self.move(at)
        self._canvas.document.select(self._canvas.ops_in(self._area), extend=bool(keys & EXTEND))

    def paint(self, painter: QPainter) -> None:
        fill = QColor(theme.tokens.accent)
        fill.setAlpha(36)
        painter.setPen(QPen(theme.tokens.accent, 1))
        painter.setBrush(fill)
        painter.drawRect(self._area)


class Move:
    """Bars dragged to another device's lane; the lane shows what that would come to."""

    def __init__(self, canvas: TimelineCanvas, ops: frozenset[int], at: QPointF) -> None:
        self._canvas, self._ops, self._at = canvas, ops, at
        self._device: int | None = None
        self._preview: Preview | None = None
        numbers = np.fromiter(ops, dtype=np.int64)
        schedule = canvas.document.schedule
        assert schedule is not None
        self._homes = set(schedule.plan.device[numbers].tolist())
        self._curve = BusyCurve(schedule.op_start_us[numbers], schedule.op_finish_us[numbers])

    def move(self, at: QPointF) -> None:
        self._at = at
        device = self._canvas.device_at(at)
        if device is not None and self._homes == {device}:
            device = None
        if device != self._device:
            self._device = device
            document = self._canvas.document
            self._preview = None if device is None else document.preview(self._ops, device)

    def finish(self, at: QPointF, keys: Qt.KeyboardModifier) -> None:
        self.move(at)
        if self._device is not None:
            pin = not keys & Qt.KeyboardModifier.ShiftModifier
            self._canvas.document.place(self._ops, self._device, pin=pin)

    @property
    def is_bad(self) -> bool:
        return self._preview is not None and not self._preview.fits

    def text(self) -> str:
        """What dropping here would come to."""
        if self._preview is None or self._device is None:
            return "Drag to another lane"
        label = self._canvas.document.device_label(self._device)
        if self._preview.why_not:
            return f"{label}: not possible"
        change = ms(self._preview.delta_us, signed=True)
        return f"{label}   {change}   {self._memory()}"

    def _memory(self) -> str:
        assert self._preview is not None
        assert self._device is not None
        problem = self._canvas.document.problem
        assert problem is not None
        over = self._preview.peak_bytes - problem.cluster.capacity_bytes
        if not self._preview.fits:
            worst = int(np.argmax(over))
            where = self._canvas.document.device_label(worst)
            return f"does not fit: {where} {size(int(over[worst]))} over"
        peak = int(self._preview.peak_bytes[self._device])
        return f"{size(peak)} at the peak"

    def paint(self, painter: QPainter) -> None:
        tokens = theme.tokens
        color = tokens.bad if self.is_bad else tokens.accent
        if self._device is not None:
            for area in self._canvas.lanes_of(self._device):
                self._paint_ghost(painter, area, color)
        self._paint_text(painter, color)

    def _paint_ghost(self, painter: QPainter, area: QRectF, color: QColor) -> None:
        tokens = theme.tokens
        assert self._device is not None
        fill = tokens.bad if self.is_bad else theme.device_color(self._device)
        draw_marks(painter, self._curve, area, self._canvas.edges_us(), fill)
        painter.setPen(QPen(color, 2))
        painter.setBrush(Qt.BrushStyle.NoBrush)
        painter.drawRoundedRect(area.adjusted(-1, -1, 1, 1), 3, 3)

    def _paint_text(self, painter: QPainter, color: QColor) -> None:
        tokens, text = theme.tokens, self.text()
        font = theme.font(12)
        metrics = QFontMetricsF(font)
        box = QRectF(0, 0, metrics.horizontalAdvance(text) + 20, metrics.height() + 10)
        box.moveTopLeft(self._at + QPointF(14, 14))
        inside = QRectF(self._canvas.rect()).adjusted(2, 2, -2, -2)
        box.moveRight(min(box.right(), inside.right()))
        box.moveBottom(min(box.bottom(), inside.bottom()))
        box.moveLeft(max(box.left(), inside.left()))
        painter.setPen(QPen(color, 1))
        painter.setBrush(tokens.panel)
        painter.drawRoundedRect(box, 6, 6)
        painter.setFont(font)
        painter.setPen(tokens.bad if self.is_bad else tokens.text)
        painter.drawText(box, Qt.AlignmentFlag.AlignCenter, text)
