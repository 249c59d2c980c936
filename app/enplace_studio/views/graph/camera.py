"""The part of a scene that a widget shows, and its scale."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QPointF, QRectF, QSizeF
from PySide6.QtGui import QTransform

SCALES = (0.05, 3.0)
READABLE, READABLE_OPS = 0.65, 0.75
"""Least scales at which one sees what groups and ops are."""
NEARLY = 0.9
"""The share of such a scale that will do if it shows all: a card cut at the edge is worse."""
LARGEST_FIT = 1.5
"""Cards grow with the room up to this scale."""
MARGIN = 14.0


class Camera:
    """A scale, and the scene point at the widget's top left corner."""

    def __init__(self) -> None:
        self.scale = 1.0
        self.corner = QPointF(0, 0)

    def to_scene(self, point: QPointF) -> QPointF:
        return self.corner + point / self.scale

    def transform(self) -> QTransform:
        """Return the transform from scene to widget."""
        moved = QTransform.fromScale(self.scale, self.scale)
        return moved.translate(-self.corner.x(), -self.corner.y())

    def visible(self, part: QRectF) -> QRectF:
        """Return the part of the scene that a part of the widget shows."""
        return QRectF(self.to_scene(part.topLeft()), part.size() / self.scale)

    def zoom(self, factor: float, at: QPointF) -> None:
        """Zoom and keep what is at a point of the widget in place."""
        fixed = self.to_scene(at)
        self.scale = min(max(self.scale * factor, SCALES[0]), SCALES[1])
        self.corner = fixed - at / self.scale

    def pan(self, by: QPointF) -> None:
        """Move by a number of widget pixels."""
        self.corner += by / self.scale

    def centre_on(self, point: QPointF, size: QSizeF) -> None:
        self.corner = point - QPointF(size.width(), size.height()) / (2 * self.scale)

    def fit(
        self, bounds: QRectF, size: QSizeF, least: float = SCALES[0], centred: bool = True
    ) -> None:
        """Show a part of the scene as large as fits, at most at :data:`LARGEST_FIT`.

        With ``least``, a part that does not fit at that scale is shown from its top left corner.
        """
        across = (size.width() - 2 * MARGIN) / max(bounds.width(), 1.0)
        down = (size.height() - 2 * MARGIN) / max(bounds.height(), 1.0)
        whole = min(across, down)
        self.scale = min(whole if whole >= NEARLY * least else least, LARGEST_FIT)
        free = size / self.scale - bounds.size()
        left = MARGIN / self.scale
        if centred and across >= self.scale:
            left = free.width() / 2
        self.corner = bounds.topLeft() - QPointF(left, MARGIN / self.scale)

    def show_most(self, areas: Sequence[QRectF], bounds: QRectF, size: QSizeF) -> None:
        """Move sideways within bounds that are too wide, to show most of the areas at this height.

        Of several such places, the leftmost is chosen.
        """
        seen, margin = self.visible(QRectF(QPointF(), size)), MARGIN / self.scale
        here = [area for area in areas if area.top() < seen.bottom()]
        if seen.width() >= bounds.width() or not here:
            return
        last = bounds.right() + margin - seen.width()
        lefts = sorted(min(area.left() - margin, last) for area in here)

        def n_shown(left: float) -> int:
            right = left + seen.width()
            return sum(left < area.left() and area.right() < right for area in here)

        self.corner.setX(max(lefts, key=n_shown))

    def reveal(self, area: QRectF, size: QSizeF) -> bool:
        """Move just far enough to show an area; return whether it had to."""
        seen = self.visible(QRectF(QPointF(), size)).adjusted(8, 8, -8, -8)
        dx = min(area.left() - seen.left(), 0.0) or max(area.right() - seen.right(), 0.0)
        dy = min(area.top() - seen.top(), 0.0) or max(area.bottom() - seen.bottom(), 0.0)
        self.corner += QPointF(dx, dy)
        return bool(dx or dy)
