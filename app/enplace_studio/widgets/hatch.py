"""Marks beside colours: hatching for a backward stage, notches for the number of a device."""

from __future__ import annotations

from functools import lru_cache

from PySide6.QtCore import QPointF, QRectF
from PySide6.QtGui import QColor, QPainter, QPainterPath, QPolygonF

_NOTCH, _NEAREST = 1.2, 2.2
"""Height of a notch, and the least distance of two."""


def paint_hatching(
    painter: QPainter, area: QRectF, ground: QColor, period: float, radius: float = 0.0
) -> None:
    """Paint slanted bands in the background colour over an area.

    Parameters
    ----------
    period : float
        Distance from one band to the next; half of it is background.
    radius : float
        Radius of the area's corners.
    """
    # A path and not a clip, since SVG pictures do not clip.
    bands = _bands(round(area.width(), 1), round(area.height(), 1), period, radius)
    painter.save()
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    painter.fillPath(bands.translated(area.topLeft()), ground)
    painter.restore()


def paint_notches(painter: QPainter, area: QRectF, ground: QColor, n: int) -> None:
    """Cut notches into a bar or swatch; none where they would run together."""
    pitch = area.height() / (n + 1)
    if pitch < _NEAREST:
        return
    for number in range(n):
        middle = area.top() + (number + 1) * pitch
        painter.fillRect(QRectF(area.left(), middle - _NOTCH / 2, area.width(), _NOTCH), ground)


@lru_cache(maxsize=1024)
def _bands(width: float, height: float, period: float, radius: float) -> QPainterPath:
    bands, frame = QPainterPath(), QPainterPath()
    for number in range(1 + int((width + height) / period)):
        left = number * period - height
        right = left + period / 2
        corners = [(left, height), (right, height), (right + height, 0), (left + height, 0)]
        bands.addPolygon(QPolygonF([QPointF(x, y) for x, y in corners]))
        bands.closeSubpath()
    frame.addRoundedRect(0, 0, width, height, radius, radius)
    return frame.intersected(bands)
