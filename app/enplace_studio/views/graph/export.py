"""Export of the graph as a picture with its legend."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtCore import QPoint, QRectF, QSize
from PySide6.QtGui import QImage, QPainter
from PySide6.QtSvg import QSvgGenerator
from PySide6.QtWidgets import QWidget

from enplace.errors import FileError
from enplace_studio.theme import theme
from enplace_studio.views.graph.paint import Marks, paint_scene
from enplace_studio.views.graph.scene import Scene

_MARGIN = 16
_SHARPNESS = 2


def write_picture(path: Path, scene: Scene, legend: QWidget) -> None:
    """Write a scene below its legend, as SVG or PNG depending on the file name.

    Raises
    ------
    FileError
        If the file cannot be written.
    """
    wide = max(int(scene.bounds.width()), legend.width())
    high = int(scene.bounds.height()) + legend.height()
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


def _paint(painter: QPainter, scene: Scene, legend: QWidget, size: QSize) -> bool:
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    painter.fillRect(QRectF(0, 0, size.width(), size.height()), theme.tokens.panel)
    legend.render(painter, QPoint(_MARGIN, _MARGIN))
    painter.translate(_MARGIN, 2 * _MARGIN + legend.height())
    painter.translate(-scene.bounds.topLeft())
    paint_scene(painter, scene, Marks(), scene.bounds)
    return painter.end()
