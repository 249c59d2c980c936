"""The minimap: the whole scene in a corner, with a frame around the visible part."""

from __future__ import annotations

from PySide6.QtCore import QPointF, QRectF, QSize, Qt, Signal
from PySide6.QtGui import QMouseEvent, QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QWidget

from enplace_studio.views.graph.scene import Scene
from enplace_studio.widgets.hatch import paint_hatching
from enplace_studio.widgets.theme import theme

LARGEST = QSize(150, 96)
_PAD = 8
_HATCH_PX = 4


class Minimap(QWidget):
    """A small picture of the scene; click or drag in it to move the view."""

    looked_at = Signal(QPointF)

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        self.setAccessibleName("Overview of the graph")
        self.setToolTip("The whole graph; click to go there")
        self._scene: Scene | None = None
        self._view = QRectF()

    def show_scene(self, scene: Scene, view: QRectF) -> None:
        """Draw a scene, with a frame around the visible part."""
        self._scene, self._view = scene, view
        bounds = scene.bounds
        scale = min(
            (LARGEST.width() - 2 * _PAD) / bounds.width(),
            (LARGEST.height() - 2 * _PAD) / bounds.height(),
        )
        self._scale = scale
        self.resize(int(bounds.width() * scale) + 2 * _PAD, int(bounds.height() * scale) + 2 * _PAD)
        self.update()

    def paintEvent(self, event: QPaintEvent) -> None:
        if self._scene is not None:
            with QPainter(self) as painter:
                self._paint(painter, self._scene)

    def _paint(self, painter: QPainter, scene: Scene) -> None:
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(QPen(theme.tokens.line, 1))
        painter.setBrush(theme.tokens.lane)
        painter.drawRoundedRect(QRectF(self.rect()).adjusted(0.5, 0.5, -0.5, -0.5), 6, 6)
        painter.translate(_PAD, _PAD)
        painter.scale(self._scale, self._scale)
        painter.translate(-scene.bounds.topLeft())
        for port in scene.rects[scene.n :]:
            painter.fillRect(port, theme.tokens.faint)
        for rect, look in zip(scene.rects[: scene.n], scene.looks, strict=True):
            part = QRectF(rect)
            for color, share in look.stripes:
                part.setWidth(share * rect.width())
                painter.fillRect(part, color)
                part.moveLeft(part.right())
            if look.hatched:
                paint_hatching(painter, rect, theme.tokens.lane, _HATCH_PX / self._scale)
        pen = QPen(theme.tokens.accent, 1.5)
        pen.setCosmetic(True)
        painter.setPen(pen)
        painter.setBrush(Qt.BrushStyle.NoBrush)
        painter.drawRect(self._view.intersected(scene.bounds.adjusted(-40, -40, 40, 40)))

    def mousePressEvent(self, event: QMouseEvent) -> None:
        self._look(event.position())

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        self._look(event.position())

    def _look(self, pos: QPointF) -> None:
        if self._scene is not None:
            inside = (pos - QPointF(_PAD, _PAD)) / self._scale
            self.looked_at.emit(inside + self._scene.bounds.topLeft())
