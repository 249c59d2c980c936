"""The whole graph with its legend as a picture."""

from __future__ import annotations

from functools import partial

from PySide6.QtCore import QSize
from PySide6.QtGui import QPainter

from enplace_studio.views.graph.devices import PlacedItems, paint_items
from enplace_studio.views.graph.paint import Marks, paint_scene
from enplace_studio.views.graph.scene import Scene
from enplace_studio.widgets.pictures import Drawing

_GAP = 16


def draw_scene(scene: Scene, legend: PlacedItems) -> Drawing:
    """Draw a scene below its legend."""
    wide = max(int(scene.bounds.width()), *(rect.right() + 1 for rect, _ in legend))
    high = int(scene.bounds.height()) + _height(legend) + _GAP
    return Drawing("Graph", QSize(wide, high), partial(_paint, scene, legend))


def _paint(scene: Scene, legend: PlacedItems, painter: QPainter) -> None:
    paint_items(painter, legend)
    painter.translate(0, _height(legend) + _GAP)
    painter.translate(-scene.bounds.topLeft())
    paint_scene(painter, scene, Marks(), scene.bounds)


def _height(legend: PlacedItems) -> int:
    return max((rect.bottom() + 1 for rect, _ in legend), default=0)
