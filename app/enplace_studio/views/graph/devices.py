"""The legend on top: a chip for every device, on which groups can be dropped."""

from __future__ import annotations

from dataclasses import dataclass

from PySide6.QtCore import QEvent, QPoint, QPointF, QRect, QRectF, QSize, Qt, Signal
from PySide6.QtGui import (
    QColor,
    QContextMenuEvent,
    QFont,
    QFontMetricsF,
    QLinearGradient,
    QMouseEvent,
    QPainter,
    QPaintEvent,
    QPen,
    QResizeEvent,
)
from PySide6.QtWidgets import QSizePolicy, QWidget

from enplace.pictures.palette import colour_numbers
from enplace.text import size
from enplace.values.cluster import Device
from enplace_studio.model.document import Document
from enplace_studio.views.graph.colours import Legend
from enplace_studio.views.graph.paint import fitted
from enplace_studio.views.view import DEVICE_KEYS
from enplace_studio.widgets.device_menu import device_menu
from enplace_studio.widgets.hatch import paint_hatching, paint_notches
from enplace_studio.widgets.labels import TipWidget
from enplace_studio.widgets.theme import theme

MOST_CHIPS = 24
_H, _GAP, _PAD, _SWATCH, _SCALE = 26, 6, 8, 11, 60
_LINE_GAP, _RUN_GAP, _HATCH = 2, 7, 5.5
_MOST_LINES = 5
_WIDEST = 180


@dataclass(frozen=True)
class _Run:
    """A few words, after a swatch, a scale or a dashed line if they have a colour."""

    text: str
    color: QColor | None = None
    hatched: bool = False
    dashed: bool = False
    to: QColor | None = None

    @property
    def mark_width(self) -> int:
        if self.color is None:
            return 0
        return _SCALE + 6 if self.to is not None else 30 if self.dashed else _SWATCH + 6


@dataclass(frozen=True)
class _Item:
    """A device's chip, a colour with its meaning, or plain text."""

    runs: tuple[_Run, ...]
    device: int | None = None
    is_hint: bool = False

    @property
    def font(self) -> QFont:
        weight = QFont.Weight.Normal if self.device is None else QFont.Weight.Medium
        return theme.font(12, weight)

    def widths(self) -> list[int]:
        """Width of each run; very long device names are elided."""
        metrics = QFontMetricsF(self.font)
        texts = [int(metrics.horizontalAdvance(run.text)) + 2 for run in self.runs]
        most = _WIDEST if self.device is not None else max(texts)
        return [
            run.mark_width + min(text, most) for run, text in zip(self.runs, texts, strict=True)
        ]

    @property
    def width(self) -> int:
        """Width of the item with its padding."""
        widths = self.widths()
        return sum(widths) + _RUN_GAP * (len(widths) - 1) + 2 * _PAD


PlacedItems = list[tuple[QRect, _Item]]


class DeviceBar(TipWidget):
    """Chips with names in the devices' colours, then the rest of the legend."""

    clicked = Signal(int)

    def __init__(self, document: Document, parent: QWidget) -> None:
        super().__init__(parent)
        self.document = document
        self._meanings: Legend = []
        self._shows_devices = True
        self._target: int | None = None
        self._dragging = False
        self._placed: PlacedItems = []
        self.setMouseTracking(True)
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)
        for signal in (document.opened, document.problem_changed, theme.changed):
            signal.connect(self._lay_out)
        self._lay_out()

    def set_meanings(self, meanings: Legend, shows_devices: bool) -> None:
        """Set the legend of the other colours, and whether devices have theirs."""
        self._meanings, self._shows_devices = meanings, shows_devices
        self._lay_out()

    def legend(self) -> PlacedItems:
        """Return what explains colours, as it is shown, for :func:`paint_items`."""
        placed = [(rect, item) for rect, item in self._placed if not item.is_hint]
        return placed if self._shows_devices else [each for each in placed if not _is_chip(each[1])]

    def device_at(self, global_pos: QPoint) -> int | None:
        """Return the device whose chip is at a point of the screen."""
        return self._device_at(self.mapFromGlobal(global_pos))

    def show_drag(self, dragging: bool, target: int | None = None) -> None:
        """Show that groups can be dropped here, and mark the chip that would take the drop."""
        self._dragging, self._target = dragging, target
        self.update()

    def _device_at(self, pos: QPoint) -> int | None:
        return next((item.device for rect, item in self._placed if rect.contains(pos)), None)

    # Contents

    def _items(self, whole: bool) -> list[_Item]:
        """List the chips, with all meanings if ``whole``; then the rest of the legend."""
        project = self.document.project
        if project is None:
            return []
        devices = range(project.problem.cluster.n_devices)
        names = [project.device_label(device) for device in devices[:MOST_CHIPS]]
        for device in project.problem.locked & {*range(len(names))}:
            names[device] += ", locked"
        chips = [self._chip(device, name, whole) for device, name in enumerate(names)]
        if len(devices) > MOST_CHIPS:
            more = f"and {len(devices) - MOST_CHIPS} more in the menu"
            chips.append(_Item((_Run(more),), is_hint=not self._shows_devices))
        items = [
            _Item((_Run(one.text, one.color, one.hatched, to=one.to),))
            for one in self._meanings
            if one.device is None
        ]
        if len(devices) > 1:
            items.append(_Item((_Run("crosses devices", theme.tokens.bad, dashed=True),)))
        # Chips that stand for no colour are only places to drop on, after the legend.
        return [*chips, *items] if self._shows_devices else [*items, *_targets(chips)]

    def _chip(self, device: int, name: str, whole: bool) -> _Item:
        meanings = [one for one in self._meanings if one.device == device]
        if not self._shows_devices:
            return _Item((_Run(name),), device)
        if meanings and whole:
            runs = [_Run(one.text, one.color, one.hatched) for one in meanings]
            return _Item((_Run(name), *runs), device)
        return _Item((_Run(name, self._color(device)),), device)

    def _color(self, device: int) -> QColor | None:
        problem = self.document.problem
        if problem is None:
            return None
        return theme.device_color(colour_numbers(problem.cluster)[device])

    def _hint(self) -> str:
        """Say how to change a placement until one is; only keys that work now are named."""
        project = self.document.project
        if project is None or any(entry.origin is not None for entry in project.plans):
            return ""
        keys = min(project.problem.cluster.n_devices, DEVICE_KEYS)
        return f"drag a group onto a device, or press 1 … {keys}" if keys > 1 else ""

    def _lay_out(self) -> None:
        """Flow the items over a few lines; show only names if full chips need too many lines."""
        self._placed = self._flow(self._items(whole=True))
        if self._height > _MOST_LINES * (_H + _LINE_GAP):
            self._placed = self._flow(self._items(whole=False))
        self.setFixedHeight(self._height)
        self.update()

    @property
    def _height(self) -> int:
        return self._placed[-1][0].bottom() + 1 if self._placed else _H

    def _flow(self, items: list[_Item]) -> PlacedItems:
        """Place items from left to right; the hint comes last, if it still fits on the line."""
        left = top = 0
        placed = []
        hint = _Item((_Run(self._hint()),), is_hint=True)
        says_hint = bool(items and self._hint() and self._shows_devices)
        for at, item in enumerate([*items, hint] if says_hint else items):
            width = item.width
            # The chips to drop on stay on one line, if they can.
            chips = items[at + 1 :] if item.is_hint else []
            row = width + sum(_GAP + chip.width for chip in chips)
            if left and left + row > self.width():
                if item is hint:
                    break
                left, top = 0, top + _H + _LINE_GAP
            placed.append((QRect(left, top, width, _H), item))
            left += width + _GAP
        return placed

    def resizeEvent(self, event: QResizeEvent) -> None:
        self._lay_out()

    def sizeHint(self) -> QSize:
        return QSize(300, self.height())

    # Painting

    def paintEvent(self, event: QPaintEvent) -> None:
        with QPainter(self) as painter:
            painter.setRenderHint(QPainter.RenderHint.Antialiasing)
            for rect, item in self._placed:
                self._paint_frame(painter, QRectF(rect).adjusted(0.5, 0.5, -0.5, -0.5), item)
            paint_items(painter, self._placed)

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
            painter.setPen(Qt.PenStyle.NoPen if self._shows_devices else QPen(tokens.line, 1))
        painter.drawRoundedRect(rect, 6, 6)

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

    def contextMenuEvent(self, event: QContextMenuEvent) -> None:
        device = self._device_at(event.pos())
        if device is not None:
            device_menu(self.document, device, self).popup(event.globalPos())

    def tip_at(self, at: QPointF) -> str:
        """Return the tooltip of the chip at a point."""
        device, problem = self._device_at(at.toPoint()), self.document.problem
        if device is None or problem is None:
            return ""
        one = problem.cluster.devices[device]
        locking = (
            "unlock the device; until then it runs what it runs now"
            if device in problem.locked
            else "lock the device: what runs there stays, and nothing is added"
        )
        key = f"; press {device + 1}" if device < DEVICE_KEYS else ""
        lines = [
            f"{one.name}, {one.kind.upper()} with {size(one.memory_bytes)}{_reserve_of(one)}",
            *(meaning.tip for meaning in self._meanings if meaning.device == device),
            f"Click, or drop a group here, to run it on this device{key}",
            f"Right-click to {locking}",
        ]
        return "\n".join(lines)


def _reserve_of(device: Device) -> str:
    return f", of which {size(device.reserve_bytes)} in reserve" if device.reserve_bytes else ""


def _is_chip(item: _Item) -> bool:
    return item.device is not None


def _targets(chips: list[_Item]) -> list[_Item]:
    """Say before chips that do not explain a colour what they are for."""
    return [_Item((_Run("drop on"),), is_hint=True), *chips] if chips else []


def paint_items(painter: QPainter, placed: PlacedItems) -> None:
    """Paint items of the legend; any thread may call this."""
    for rect, item in placed:
        _paint_item(painter, rect, item)


def _paint_item(painter: QPainter, rect: QRect, item: _Item) -> None:
    left, font = rect.left() + _PAD, item.font
    painter.setFont(font)
    for run, width in zip(item.runs, item.widths(), strict=True):
        _paint_mark(painter, QPointF(left, rect.center().y() + 0.5), run)
        painter.setPen(theme.tokens.dim if item.device is None else theme.tokens.text)
        run_width = width - run.mark_width
        area = QRectF(left + run.mark_width, rect.top(), run_width + 2, rect.height())
        painter.drawText(area, Qt.AlignmentFlag.AlignVCenter, fitted(run.text, font, run_width + 1))
        left += width + _RUN_GAP


def _paint_mark(painter: QPainter, left: QPointF, run: _Run) -> None:
    if run.color is None:
        return
    if run.dashed:
        pen = QPen(run.color, 1.6)
        pen.setDashPattern([4, 2.5])
        painter.setPen(pen)
        painter.drawLine(left, left + QPointF(24, 0))
        return
    width = _SWATCH if run.to is None else _SCALE
    swatch = QRectF(left.x(), left.y() - _SWATCH / 2, width, _SWATCH)
    painter.setPen(Qt.PenStyle.NoPen)
    painter.setBrush(run.color)
    if run.to is not None:
        scale = QLinearGradient(swatch.topLeft(), swatch.topRight())
        scale.setColorAt(0, run.color)
        scale.setColorAt(1, run.to)
        painter.setBrush(scale)
        painter.setPen(QPen(theme.tokens.line, 1))
    painter.drawRoundedRect(swatch, 3, 3)
    if run.to is None:
        paint_notches(painter, swatch, theme.tokens.panel, theme.notches(run.color))
    if run.hatched:
        paint_hatching(painter, swatch, theme.tokens.panel, _HATCH, 3)
