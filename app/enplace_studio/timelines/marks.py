"""Drawing of what a reason points at: bars of ops, and the arrival of an input."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QPointF, QRectF, Qt
from PySide6.QtGui import QFontMetricsF, QPainter, QPen, QPolygonF

from enplace_studio.explain.reasons import Mark
from enplace_studio.timelines.lanes import Lanes
from enplace_studio.widgets.drawing import draw_text
from enplace_studio.widgets.theme import theme

_LEAST_PX = 3
_HEAD_PX = 5
_GAP_PX = 4


def paint_marks(painter: QPainter, lanes: Lanes, marks: Sequence[Mark], area: QRectF) -> None:
    """Draw marks within the part of the step on screen, each with its text beside it."""
    painter.save()
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    taken: list[QRectF] = []
    for mark in marks:
        for lane in lanes.lanes_of(mark.device)[:1]:
            if mark.source is None:
                spot = _paint_bar(painter, lanes, mark, lane)
            else:
                spot = _paint_arrival(painter, lanes, mark, lane)
            if mark.text:
                taken.append(_paint_text(painter, mark.text, spot, area, taken))
    painter.restore()


def _paint_bar(painter: QPainter, lanes: Lanes, mark: Mark, lane: QRectF) -> QRectF:
    """Draw a dashed box around a bar; return the box."""
    box = lanes.part(lane, mark.start_us, mark.finish_us, _LEAST_PX)
    painter.setPen(QPen(theme.tokens.panel, 4))
    painter.setBrush(Qt.BrushStyle.NoBrush)
    painter.drawRect(box)
    painter.setPen(QPen(theme.tokens.accent, 2, Qt.PenStyle.DashLine))
    painter.drawRect(box)
    return box


def _paint_arrival(painter: QPainter, lanes: Lanes, mark: Mark, lane: QRectF) -> QRectF:
    """Draw a line from where a transfer starts to where it arrives; return the place it ends."""
    sources = lanes.lanes_of(mark.source) if mark.source is not None else []
    way = lanes.part(lane, mark.start_us, mark.finish_us)
    begin, end = way.left(), way.right()
    downwards = bool(sources) and sources[0].top() < lane.top()
    edge = lane.top() if downwards else lane.bottom()
    start = (sources[0].bottom() if downwards else sources[0].top()) if sources else edge
    middle = (start + edge) / 2
    route = QPolygonF(
        [QPointF(begin, start), QPointF(begin, middle), QPointF(end, middle), QPointF(end, edge)]
    )
    into = _HEAD_PX if downwards else -_HEAD_PX
    head = QPolygonF(
        [
            QPointF(end, edge + into),
            QPointF(end - _HEAD_PX, edge - into),
            QPointF(end + _HEAD_PX, edge - into),
        ]
    )
    painter.setBrush(Qt.BrushStyle.NoBrush)
    for color, width in ((theme.tokens.panel, 5), (theme.tokens.accent, 2)):
        painter.setPen(QPen(color, width))
        painter.drawPolyline(route)
    painter.setPen(QPen(theme.tokens.panel, 1))
    painter.setBrush(theme.tokens.accent)
    painter.drawPolygon(head)
    return QRectF(end - _HEAD_PX, lane.top(), 2 * _HEAD_PX, lane.height())


def _paint_text(
    painter: QPainter, text: str, spot: QRectF, area: QRectF, taken: Sequence[QRectF]
) -> QRectF:
    """Write a text above a spot, or where that is taken below it; return its box."""
    font = theme.font(11)
    metrics = QFontMetricsF(font)
    box = QRectF(0, 0, metrics.horizontalAdvance(text) + 12, metrics.height() + 4)
    box.moveLeft(min(max(spot.left(), area.left() + 2), area.right() - box.width() - 2))
    box.moveBottom(spot.top() - _GAP_PX)
    if box.top() < area.top() or any(box.intersects(other) for other in taken):
        box.moveTop(spot.bottom() + _GAP_PX)
    while any(box.intersects(other) for other in taken):
        box.translate(0, box.height() + 2)
    painter.setPen(QPen(theme.tokens.accent, 1))
    painter.setBrush(theme.tokens.panel)
    painter.drawRoundedRect(box, 4, 4)
    draw_text(painter, box, text, font, theme.tokens.text, Qt.AlignmentFlag.AlignCenter)
    return box
