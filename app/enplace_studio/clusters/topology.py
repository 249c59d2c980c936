"""A small drawing of how the devices of a cluster reach each other."""

from __future__ import annotations

from PySide6.QtCore import QPointF, QRectF, QSize, Qt
from PySide6.QtGui import QFont, QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QSizePolicy, QWidget

from enplace.pictures.palette import colour_numbers
from enplace.values.cluster import Cluster
from enplace_studio.explain.cluster_facts import Drawing, Spot, draw_topology
from enplace_studio.widgets.theme import blend, theme

HEIGHT = 220
NODE, MARGIN = 26, 20
THICKEST = 3.5


class TopologyView(QWidget):
    """Draws GPUs as squares in their colours; a thicker line is a faster link."""

    def __init__(self) -> None:
        super().__init__()
        self.drawing, self._colours = Drawing(), list[int]()
        self.setAccessibleName("Topology")
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)

    def show_cluster(self, cluster: Cluster | None) -> None:
        """Draw this cluster."""
        self.drawing = Drawing() if cluster is None else draw_topology(cluster)
        self._colours = [] if cluster is None else colour_numbers(cluster)
        self.update()

    def sizeHint(self) -> QSize:
        return QSize(round(300 * theme.scale), round(HEIGHT * theme.scale))

    def paintEvent(self, event: QPaintEvent) -> None:
        with QPainter(self) as painter:
            painter.setRenderHint(QPainter.RenderHint.Antialiasing)
            self._paint(painter)

    def _paint(self, painter: QPainter) -> None:
        drawing = self.drawing
        for line in drawing.lines:
            width = max(1.0, THICKEST * line.share) * theme.scale
            painter.setPen(QPen(theme.tokens.faint, width))
            painter.drawLine(self._at(drawing.spots[line.start]), self._at(drawing.spots[line.end]))
        for spot in drawing.spots:
            if spot.device is None:
                self._paint_shared(painter, spot)
            else:
                self._paint_device(painter, spot, spot.device)

    def _at(self, spot: Spot) -> QPointF:
        """Return the place of a spot; the drawing is not stretched."""
        margin = MARGIN * theme.scale
        wide, high = self.width() - 2 * margin, self.height() - 2 * margin
        high = min(high, wide / self.drawing.width)
        wide = high * self.drawing.width
        return QPointF(
            self.width() / 2 + (spot.x - 0.5) * wide, self.height() / 2 + (spot.y - 0.5) * high
        )

    def _paint_device(self, painter: QPainter, spot: Spot, device: int) -> None:
        side = NODE * theme.scale
        box = QRectF(0, 0, side, side)
        box.moveCenter(self._at(spot))
        color = theme.device_color(self._colours[device])
        painter.setPen(QPen(color, 1.5 * theme.scale))
        painter.setBrush(blend(color, theme.tokens.panel, 0.25))
        painter.drawRoundedRect(box, 5, 5)
        painter.setPen(theme.tokens.text)
        painter.setFont(theme.font(11, QFont.Weight.DemiBold))
        painter.drawText(box, Qt.AlignmentFlag.AlignCenter, spot.label)

    def _paint_shared(self, painter: QPainter, spot: Spot) -> None:
        painter.setFont(theme.font(11))
        metrics = painter.fontMetrics()
        box = QRectF(0, 0, metrics.horizontalAdvance(spot.label) + 16, metrics.height() + 8)
        box.moveCenter(self._at(spot))
        painter.setPen(QPen(theme.tokens.faint, 1))
        painter.setBrush(theme.tokens.panel)
        painter.drawRoundedRect(box, box.height() / 2, box.height() / 2)
        painter.setPen(theme.tokens.dim)
        painter.drawText(box, Qt.AlignmentFlag.AlignCenter, spot.label)
