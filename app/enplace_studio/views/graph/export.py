"""Export of the graph as a picture with its legend."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtCore import QRectF, QSize
from PySide6.QtGui import QImage, QPainter
from PySide6.QtSvg import QSvgGenerator

from enplace.errors import FileError
from enplace_studio.theme import theme
from enplace_studio.views.graph.devices import PlacedItems, paint_items
from enplace_studio.views.graph.paint import Marks, paint_scene
from enplace_studio.views.graph.scene import Scene

_MARGIN = 16
_SHARPNESS = 2


def write_picture(path: Path, scene: Scene, legend: PlacedItems) -> None:
    """Write a scene below its legend, as SVG or PNG depending on the file name.

    It reads no widget, so any thread may call it.

    Raises
    ------
    FileError
        If the file cannot be written.
    """
    wide = max(int(scene.bounds.width()), *(rect.right() + 1 for rect, _ in legend))
    high = int(scene.bounds.height()) + _height(legend)
    size = QSize(wide + 2 * _MARGIN, high + 3 * _MARGIN)
    if path.suffix.lower() == ".svg":
        drawing = QSvgGenerator()
        drawing.setFileName(str(path))
        drawing.setSize(size)
        drawing.setViewBox(QRectF(0, 0, size.width(), size.height()))
        done = _paint(QPainter(drawing), scene, legend, size)
    else:
        image = QImage(size * _SHARPNESS, QImage.Format.Format_ARGB32)
        image.setDevicePixelRatio(_SHARPNESS)
        done = _paint(QPainter(image), scene, legend, size) and image.save(str(path))
    if not done:
        raise FileError(f"{path} cannot be written; choose another folder, or .svg or .png")


def _paint(painter: QPainter, scene: Scene, legend: PlacedItems, size: QSize) -> bool:
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    painter.fillRect(QRectF(0, 0, size.width(), size.height()), theme.tokens.panel)
    painter.translate(_MARGIN, _MARGIN)
    paint_items(painter, legend)
    painter.translate(0, _height(legend) + _MARGIN)
    painter.translate(-scene.bounds.topLeft())
    paint_scene(painter, scene, Marks(), scene.bounds)
    return painter.end()


def _height(legend: PlacedItems) -> int:
    return max((rect.bottom() + 1 for rect, _ in legend), default=0)
