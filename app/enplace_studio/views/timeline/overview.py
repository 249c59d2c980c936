"""A strip with the whole step, above the lanes that show a part of it."""

from __future__ import annotations

import numpy as np
from PySide6.QtCore import QRectF, QSize, Qt
from PySide6.QtGui import QMouseEvent, QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QSizePolicy

from enplace.values.arrays import BoolArray, FloatArray
from enplace_studio.timelines.rows import Row
from enplace_studio.views.timeline.canvas import TimelineCanvas
from enplace_studio.widgets.labels import TipWidget
from enplace_studio.widgets.theme import theme

ROW_PX, MARGIN_PX = 3, 3
"""Height of a device's row, and the space around all rows."""


class Overview(TipWidget):
    """Each device's busy times over the whole step, and a frame around what is on screen.

    A click or a drag moves the frame. It is there as long as there is a plan: no lane may move
    under the pointer as one zooms in.
    """

    def __init__(self, canvas: TimelineCanvas) -> None:
        super().__init__()
        self._canvas = canvas
        self.setAccessibleName("Overview of the step")
        self.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Fixed)
        self.setToolTip("The whole step. Click or drag to move the part below; 0 shows all")
        canvas.scale_changed.connect(self.refresh)
        canvas.extent_changed.connect(self.refresh)
        self.refresh()

    def refresh(self) -> None:
        """Follow the canvas."""
        self.setVisible(self._canvas.picture is not None)
        self.updateGeometry()
        self.update()

    def sizeHint(self) -> QSize:
        return QSize(200, ROW_PX * max(len(self._devices), 1) + 2 * MARGIN_PX)

    @property
    def _devices(self) -> list[list[Row]]:
        """The lanes of each device that is used."""
        rows = [row for row in self._canvas.lanes.rows if row.is_planned and len(row.start_us)]
        devices = dict.fromkeys(row.device for row in rows)
        return [[row for row in rows if row.device == device] for device in devices]

    @property
    def frame(self) -> QRectF:
        """Where the part on screen is in the strip."""
        scale, left = self._canvas.scale, self._canvas.left
        px_per_us = scale.width_px / scale.end_us
        first, last = scale.start_us * px_per_us, scale.stop_us * px_per_us
        return QRectF(left + first, 0.5, max(last - first, 2.0), self.height() - 1.0)

    def paintEvent(self, event: QPaintEvent) -> None:
        scale, left = self._canvas.scale, self._canvas.left
        tokens, px_per_us = theme.tokens, scale.width_px / scale.end_us
        with QPainter(self) as painter:
            painter.fillRect(QRectF(left, 0, scale.width_px, self.height()), tokens.hover)
            for at, lanes in enumerate(self._devices):
                start_us = np.concatenate([row.start_us for row in lanes])
                finish_us = np.concatenate([row.finish_us for row in lanes])
                busy = _busy(start_us * px_per_us, finish_us * px_per_us, scale.width_px)
                y = MARGIN_PX + at * ROW_PX
                for x in np.flatnonzero(busy).tolist():
                    painter.fillRect(QRectF(left + x, y, 1, ROW_PX - 1), tokens.dim)
            if not scale.is_fit:
                painter.setPen(QPen(tokens.accent, 1.5))
                painter.drawRect(self.frame)

    def mousePressEvent(self, event: QMouseEvent) -> None:
        self._go(event)

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        if event.buttons() & Qt.MouseButton.LeftButton:
            self._go(event)

    def _go(self, event: QMouseEvent) -> None:
        """Put the middle of the part on screen where the pointer is."""
        scale = self._canvas.scale
        at_us = (event.position().x() - self._canvas.left) * scale.end_us / scale.width_px
        middle_us = (scale.start_us + scale.stop_us) / 2
        self._canvas.set_scale(scale.panned((at_us - middle_us) / scale.us_per_px))


def _busy(first: FloatArray, last: FloatArray, width_px: float) -> BoolArray:
    """Return for each pixel whether a bar covers some of it."""
    n = int(width_px) + 1
    edges = np.zeros(n + 1, dtype=np.int64)
    np.add.at(edges, np.clip(first.astype(np.int64), 0, n), 1)
    np.add.at(edges, np.clip(np.ceil(last).astype(np.int64), 0, n), -1)
    covered: BoolArray = np.cumsum(edges)[:n] > 0
    return covered
