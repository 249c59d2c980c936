"""Selecting and dragging with the mouse, shared by the graph and the timeline."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from PySide6.QtCore import QPointF, QRectF, Qt
from PySide6.QtGui import QColor, QFontMetricsF, QPainter, QPen
from PySide6.QtWidgets import QApplication

from enplace.errors import EnplaceError
from enplace.text import ms
from enplace_studio.explain.reasons import why_not
from enplace_studio.model.document import Document
from enplace_studio.model.edits import unit_ops
from enplace_studio.model.ordering import Slot, reordered_schedule
from enplace_studio.model.previews import peak_text
from enplace_studio.model.prices import change_text, price_text
from enplace_studio.widgets.theme import theme

EXTEND = Qt.KeyboardModifier.ShiftModifier | Qt.KeyboardModifier.ControlModifier
"""The keys that extend a selection."""

_BAND_ALPHA = 0.13


def is_drag(way: QPointF) -> bool:
    """Return whether the mouse has moved far enough since it was pressed to start a drag."""
    return way.manhattanLength() >= QApplication.startDragDistance()


class RubberBand:
    """A rectangle from where the mouse was pressed to where it is now."""

    def __init__(self, start: QPointF) -> None:
        self._start = start
        self.area = QRectF(start, start)

    def stretch(self, at: QPointF) -> None:
        """Follow the pointer."""
        self.area = QRectF(self._start, at).normalized()

    def paint(self, painter: QPainter, takes: str) -> None:
        """Paint the rectangle, and in its corner what it would select."""
        fill = QColor(theme.tokens.accent)
        fill.setAlphaF(_BAND_ALPHA)
        painter.setPen(QPen(theme.tokens.accent, 1))
        painter.setBrush(fill)
        painter.drawRect(self.area)
        font = theme.font(11)
        text = QFontMetricsF(font).boundingRect(takes).adjusted(-6, -2, 6, 2)
        text.moveTopLeft(self.area.topLeft())
        text.moveRight(min(text.right(), painter.window().right()))
        painter.fillRect(text, theme.tokens.accent)
        painter.setFont(font)
        painter.setPen(theme.tokens.on_accent)
        painter.drawText(text, Qt.AlignmentFlag.AlignCenter, takes)


@dataclass(frozen=True)
class Drop:
    """The effect of a drop, in words; good if the ops may run there and the plan fits.

    ``changes`` is false if nothing would run at another time.
    """

    text: str
    is_good: bool
    changes: bool = True


def describe_drop(document: Document, ops: Collection[int], device: int) -> Drop:
    """Describe the step time and peak memory if the ops were dropped on a device."""
    project, preview = document.project, document.previews.get(ops, device)
    if project is None:
        return Drop("", False)
    name = project.device_label(device)
    if preview is None:
        return Drop(f"{name}: there is no plan yet, press Solve first", False)
    if not math.isfinite(preview.value_us):
        why = why_not(project.problem, unit_ops(project.problem, ops), device)
        reason = "" if why is None else f":\n{why.figure}"
        return Drop(f"may not run on {name}{reason}", False)
    step = f"on {name}: {preview.change}, {preview.price}"
    return Drop(f"{step}\n{peak_text(project, preview.peak_bytes, device)}", preview.fits)


def describe_order(document: Document, ops: Collection[int], slot: Slot) -> Drop:
    """Describe the step time and peak memory if the ops ran in another place of the order."""
    project = document.project
    if project is None or project.current is None:
        return Drop("there is no plan yet, press Solve first", False)
    _, other = project.describe_two(ops, slot.anchor)
    try:
        after = reordered_schedule(project.problem, project.current.schedule, ops, slot)
    except EnplaceError as error:
        return Drop(str(error), False)
    before = project.current.schedule
    if np.array_equal(after.op_start_us, before.op_start_us):
        return Drop(f"Nothing changes: the step stays at {ms(before.makespan_us)}", True, False)
    where = f"{'before' if slot.earlier else 'after'} {other}"
    text = f"{where}: {change_text(before, after)}, {price_text(after)}"
    return Drop(text + ("" if after.fits else ", does not fit"), after.fits)
