"""What a card holds of a model that is served, as a bar against its memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from PySide6.QtCore import QLineF, QPointF, QRectF, QSize, Qt
from PySide6.QtGui import QColor, QFont, QFontMetricsF, QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QWidget

from enplace.text import count, percent, size
from enplace_studio.widgets.drawing import RIGHT, draw_text
from enplace_studio.widgets.hatch import paint_hatching
from enplace_studio.widgets.labels import TipWidget
from enplace_studio.widgets.theme import blend, theme

TEXT_PX, BAR_PX, GAP_PX = 17, 18, 3
HATCH_PX = 7
PALE = 0.45
"""Strength of the device's colour for activations."""


class CardBar(TipWidget):
    """A device: its layers in words, and a bar of weights, cache and activations.

    Parameters
    ----------
    held : mapping
        One of the devices of :class:`~enplace.serving.answer.Serving`.
    colour : int
        The number of its colour.
    most_bytes : int
        What a bar of full width would hold: the largest memory of all devices.
    """

    def __init__(
        self,
        held: Mapping[str, Any],
        colour: int,
        most_bytes: int,
        parent: QWidget | None = None,
    ) -> None:
        super().__init__(parent)
        self._held, self._colour, self._most_bytes = held, colour, most_bytes
        self.setAccessibleName(f"{self.title}: {self.verdict}")
        theme.changed.connect(self.update)

    @property
    def title(self) -> str:
        return f"{self._held['label']} {self._held['title']}".strip()

    @property
    def layers(self) -> str:
        """Its layers and ends, in words."""
        ends = [word for word in ("embedding", "head") if self._held[f"has_{word}"]]
        return ", ".join([count(self._held["layers"], "layer"), *ends])

    @property
    def verdict(self) -> str:
        """What is left of its memory, in words."""
        spare, capacity = self._held["spare_bytes"], self._held["capacity_bytes"]
        return f"{size(spare)} of {size(capacity)} to spare"

    def sizeHint(self) -> QSize:
        return QSize(round(240 * theme.scale), round((TEXT_PX + GAP_PX + BAR_PX + 2) * theme.scale))

    def minimumSizeHint(self) -> QSize:
        return QSize(round(120 * theme.scale), self.sizeHint().height())

    def tip_at(self, at: QPointF) -> str:
        held = self._held
        return "\n".join(
            [
                f"{self.title}, {self.layers}",
                f"weights   {size(held['weights_bytes'])}",
                f"cache   {size(held['cache_bytes'])}",
                f"activations   {size(held['activation_bytes'])}",
                self.verdict,
                f"busy for {percent(held['busy'])} of the time",
            ]
        )

    def paintEvent(self, event: QPaintEvent) -> None:
        with QPainter(self) as painter:
            self._paint_text(painter)
            self._paint_bar(painter)

    def _paint_text(self, painter: QPainter) -> None:
        tokens, line = theme.tokens, QRectF(0, 0, self.width(), TEXT_PX * theme.scale)
        bold, quiet = theme.font(12, QFont.Weight.Medium), theme.font(11)
        draw_text(painter, line, self.title, bold, tokens.text)
        line.setLeft(QFontMetricsF(bold).horizontalAdvance(self.title) + 8)
        draw_text(painter, line, self.verdict, quiet, tokens.dim, RIGHT)
        room = line.width() - QFontMetricsF(quiet).horizontalAdvance(self.verdict) - 8
        if room > 0:
            draw_text(
                painter, QRectF(line.left(), 0, room, line.height()), self.layers, quiet, tokens.dim
            )

    def _paint_bar(self, painter: QPainter) -> None:
        tokens, held = theme.tokens, self._held
        own = theme.device_color(self._colour)
        top, high = (TEXT_PX + GAP_PX) * theme.scale, BAR_PX * theme.scale
        across = self.width() / max(self._most_bytes, 1)
        whole = held["capacity_bytes"] * across
        painter.fillRect(QRectF(0, top, whole, high), tokens.lane)
        left = 0.0
        for key in ("weights_bytes", "cache_bytes", "activation_bytes"):
            width = min(held[key] * across, whole - left)
            area = QRectF(left, top, max(width - 1, 0), high)
            is_pale = key == "activation_bytes"
            painter.fillRect(area, blend(own, tokens.panel, PALE) if is_pale else own)
            if key == "cache_bytes" and width > 1:
                paint_hatching(painter, area, _hatch(own), HATCH_PX * theme.scale)
            left += width
        painter.setPen(QPen(tokens.dim, 1, Qt.PenStyle.DashLine))
        x = min(round(whole), self.width() - 1) + 0.5
        painter.drawLine(QLineF(x, top - 2, x, top + high + 2))


def _hatch(own: QColor) -> QColor:
    return blend(own, theme.tokens.panel, 0.4)
