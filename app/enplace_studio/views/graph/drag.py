"""Dragging groups onto a device, with a ghost that shows the effect of the drop."""

from __future__ import annotations

from PySide6.QtCore import QObject, QPoint, QRectF, Qt
from PySide6.QtGui import QColor, QFont, QFontMetricsF, QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QWidget

from enplace_studio.model.document import Document
from enplace_studio.views.graph.devices import DeviceBar
from enplace_studio.widgets.dragging import Drop, describe_drop
from enplace_studio.widgets.drawing import draw_text
from enplace_studio.widgets.theme import theme

_PAD, _LINE, _OFFSET = 10, 18, QPoint(14, 12)
_WIDEST = 320


class PlaceDrag(QObject):
    """One gesture: begin, move, then drop or cancel."""

    def __init__(self, document: Document, bar: DeviceBar, parent: QWidget) -> None:
        super().__init__(parent)
        self.document, self.bar = document, bar
        self.ghost = Ghost(parent)
        self._ops: list[int] = []

    def begin(self, ops: list[int], pos: QPoint) -> None:
        """Start dragging ops at a point of the screen."""
        self._ops = ops
        self.ghost.show()
        self.ghost.raise_()
        self.move(pos)

    def move(self, pos: QPoint) -> None:
        """Follow the pointer; over a chip, show the effect of the drop."""
        device = self.bar.device_at(pos)
        self.bar.show_drag(True, device)
        drop = Drop("drop on a device above", True)
        if device is not None:
            drop = describe_drop(self.document, self._ops, device)
        color = theme.tokens.dim if drop.is_good else theme.tokens.bad
        project = self.document.project
        title = (project.describe(self._ops) if project else "", theme.tokens.text)
        self.ghost.follow(pos, [title, *((line, color) for line in drop.text.split("\n"))])

    def drop(self, pos: QPoint, pin: bool) -> None:
        """Place the ops on the device under the pointer, if there is one."""
        ops, device = self._ops, self.bar.device_at(pos)
        self.cancel()
        if device is not None:
            self.document.place(ops, device, pin)

    def cancel(self) -> None:
        """End the drag without a change."""
        self._ops = []
        self.ghost.hide()
        self.bar.show_drag(False)


class Ghost(QWidget):
    """A card that follows the pointer."""

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        self._inside = parent
        self.setAttribute(Qt.WidgetAttribute.WA_TransparentForMouseEvents)
        self.lines: list[tuple[str, QColor]] = []
        self._pos = QPoint()
        self.hide()

    def follow(self, global_pos: QPoint, lines: list[tuple[str, QColor]]) -> None:
        """Move next to a point of the screen and show these lines."""
        self._pos, self.lines = global_pos, lines
        metrics = QFontMetricsF(theme.font(12, QFont.Weight.DemiBold))
        wide = max(metrics.horizontalAdvance(text) for text, _ in self.lines) + 2 * _PAD + 8
        self.resize(int(min(wide, _WIDEST)), len(self.lines) * _LINE + 2 * _PAD - 4)
        self._stay_inside()
        self.update()

    def _stay_inside(self) -> None:
        parent = self._inside
        place = parent.mapFromGlobal(self._pos) + _OFFSET
        x = max(0, min(place.x(), parent.width() - self.width() - 2))
        y = max(0, min(place.y(), parent.height() - self.height() - 2))
        self.move(x, y)

    def paintEvent(self, event: QPaintEvent) -> None:
        with QPainter(self) as painter:
            self._paint(painter)

    def _paint(self, painter: QPainter) -> None:
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(QPen(theme.tokens.accent, 1.5))
        painter.setBrush(theme.tokens.panel)
        painter.drawRoundedRect(QRectF(self.rect()).adjusted(1, 1, -1, -1), 7, 7)
        for number, (text, color) in enumerate(self.lines):
            bold = QFont.Weight.DemiBold if number == 0 else QFont.Weight.Normal
            area = QRectF(_PAD, _PAD - 3 + number * _LINE, self.width() - 2 * _PAD, _LINE)
            draw_text(painter, area, text, theme.font(12, bold), color)
