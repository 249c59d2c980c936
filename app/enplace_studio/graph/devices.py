"""The legend on top: a chip for every device, on which groups can be dropped."""

from __future__ import annotations

from dataclasses import dataclass

from PySide6.QtCore import QEvent, QPoint, QPointF, QRect, QRectF, QSize, Qt, Signal
from PySide6.QtGui import (
    QColor,
    QFont,
    QFontMetricsF,
    QHelpEvent,
    QMouseEvent,
    QPainter,
    QPaintEvent,
    QPen,
    QResizeEvent,
)
from PySide6.QtWidgets import QSizePolicy, QToolTip, QWidget

from enplace.text import size
from enplace_studio.document import Document
from enplace_studio.graph.colours import Legend
from enplace_studio.graph.paint import fitted
from enplace_studio.theme import theme

MOST_CHIPS = 24
_H, _GAP, _PAD, _SWATCH = 26, 6, 8, 11
_WIDEST = 180
_MOST_KEYS = 8
"""Number keys that pin; see the actions."""


@dataclass(frozen=True)
class _Item:
    """A chip with a device, a colour with its meaning, or a few words."""

    text: str
    color: QColor | None = None
    device: int | None = None
    dashed: bool = False


class DeviceBar(QWidget):
    """Chips with names in the devices' colours, then what else the picture means."""

    clicked = Signal(int)

    def __init__(self, document: Document, parent: QWidget) -> None:
        super().__init__(parent)
        self.document = document
        self._meanings: Legend = []
        self._target: int | None = None
        self._dragging = False
        self._placed: list[tuple[QRect, _Item]] = []
        self.setMouseTracking(True)
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)
        for signal in (document.opened, document.problem_changed, theme.changed):
            signal.connect(self._lay_out)
        self._lay_out()

    def set_meanings(self, meanings: Legend) -> None:
        """Say what other colours mean."""
        self._meanings = meanings
        self._lay_out()

    def chip_rect(self, device: int) -> QRect:
        """Where a device's chip is; empty if it has none."""
        return next((rect for rect, item in self._placed if item.device == device), QRect())

    def device_at(self, global_pos: QPoint) -> int | None:
        """The device whose chip is at a point of the screen."""
        return self._device_at(self.mapFromGlobal(global_pos))

    def show_drag(self, dragging: bool, target: int | None = None) -> None:
        """Look like something to drop on, and mark the chip that would take the drop."""
        self._dragging, self._target = dragging, target
        self.update()

    def _device_at(self, pos: QPoint) -> int | None:
        return next((item.device for rect, item in self._placed if rect.contains(pos)), None)

    # What it shows

    def _items(self) -> list[_Item]:
        problem = self.document.problem
        if problem is None:
            return []
        devices = range(problem.cluster.n_devices)
        items = [
            _Item(self.document.device_label(d), theme.device_color(d), d)
            for d in devices[:MOST_CHIPS]
        ]
        if len(devices) > MOST_CHIPS:
            items.append(_Item(f"and {len(devices) - MOST_CHIPS} more in the menu"))
        items += [_Item(text, color) for color, text in self._meanings]
        if len(devices) > 1:
            items.append(_Item("crosses devices", theme.tokens.bad, dashed=True))
        return items

    def _hint(self) -> str:
        """How to overrule a placement; only keys that do something are named."""
        assert self.document.problem is not None
        keys = min(self.document.problem.cluster.n_devices, _MOST_KEYS)
        return f"drag a group onto a device, or press 1 … {keys}" if keys > 1 else ""

    def _lay_out(self) -> None:
        """Flow the items over as many lines as they need."""
        metrics = QFontMetricsF(theme.font(12, QFont.Weight.Medium))
        left = top = 0
        self._placed = []
        items = self._items()
        hint = _Item(self._hint()) if items else None
        for item in [*items, hint] if hint else []:
            mark = 0 if item.color is None else 30 if item.dashed else _SWATCH + 6
            wide = int(metrics.horizontalAdvance(item.text)) + 2
            wide = wide if item.device is None else min(wide, _WIDEST)
            width = wide + mark + 2 * _PAD
            if left and left + width > self.width():
                if item is hint:
                    break
                left, top = 0, top + _H + 2
            self._placed.append((QRect(left, top, width, _H), item))
            left += width + _GAP
        self.setFixedHeight(top + _H)
        self.update()

    def resizeEvent(self, event: QResizeEvent) -> None:
        self._lay_out()

    def sizeHint(self) -> QSize:
        return QSize(300, self.height())

    # Painting

    def paintEvent(self, event: QPaintEvent) -> None:
        with QPainter(self) as painter:
            self._paint(painter)

    def _paint(self, painter: QPainter) -> None:
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        for rect, item in self._placed:
            self._paint_frame(painter, QRectF(rect).adjusted(0.5, 0.5, -0.5, -0.5), item)
            self._paint_item(painter, rect, item)

    def _paint_frame(self, painter: QPainter, rect: QRectF, item: _Item) -> None:
        tokens = theme.tokens
        if item.device is None:
            return
        painter.setBrush(tokens.hover if item.device == self._target else Qt.BrushStyle.NoBrush)
        if self._dragging:
            target = item.device == self._target
            painter.setPen(
                QPen(tokens.accent, 2) if target else QPen(tokens.dim, 1, Qt.PenStyle.DashLine)
            )
        else:
            painter.setPen(Qt.PenStyle.NoPen)
        painter.drawRoundedRect(rect, 6, 6)

    def _paint_item(self, painter: QPainter, rect: QRect, item: _Item) -> None:
        left, middle = rect.left() + _PAD, rect.center().y() + 0.5
        if item.dashed and item.color:
            pen = QPen(item.color, 1.6)
            pen.setDashPattern([4, 2.5])
            painter.setPen(pen)
            painter.drawLine(QPointF(left, middle), QPointF(left + 24, middle))
            left += 30
        elif item.color:
            painter.setPen(Qt.PenStyle.NoPen)
            painter.setBrush(item.color)
            painter.drawRoundedRect(QRectF(left, middle - _SWATCH / 2, _SWATCH, _SWATCH), 3, 3)
            left += _SWATCH + 6
        weight = QFont.Weight.Normal if item.device is None else QFont.Weight.Medium
        font = theme.font(12, weight)
        painter.setFont(font)
        painter.setPen(theme.tokens.dim if item.device is None else theme.tokens.text)
        area = QRectF(left, rect.top(), rect.right() - left, rect.height())
        text = fitted(item.text, font, rect.right() - _PAD + 2 - left)
        painter.drawText(area, Qt.AlignmentFlag.AlignVCenter, text)

    # Mouse

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        self._target = self._device_at(event.position().toPoint())
        self.update()

    def leaveEvent(self, event: QEvent) -> None:
        self._target = None
        self.update()

    def mouseReleaseEvent(self, event: QMouseEvent) -> None:
        device = self._device_at(event.position().toPoint())
        if device is not None and event.button() == Qt.MouseButton.LeftButton:
            self.clicked.emit(device)

    def event(self, event: QEvent) -> bool:
        if isinstance(event, QHelpEvent):
            device = self._device_at(event.pos())
            QToolTip.showText(event.globalPos(), "" if device is None else self._tip(device), self)
            return True
        return super().event(event)

    def _tip(self, device: int) -> str:
        assert self.document.problem is not None
        one = self.document.problem.cluster.devices[device]
        key = f"; press {device + 1}" if device < 8 else ""
        return (
            f"{one.name}, {one.kind.upper()} with {size(one.capacity_bytes)}\n"
            f"Click, or drop a group here, to run it on this device{key}"
        )
