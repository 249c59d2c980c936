"""The surface with the cards: navigating, selecting, dragging."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from PySide6.QtCore import QEvent, QPoint, QPointF, QRectF, QSizeF, Qt, Signal
from PySide6.QtGui import (
    QFocusEvent,
    QKeyEvent,
    QMouseEvent,
    QPainter,
    QPaintEvent,
    QResizeEvent,
    QWheelEvent,
)
from PySide6.QtWidgets import QWidget

from enplace.text import count
from enplace_studio.views.graph.camera import MARGIN, READABLE, READABLE_OPS, SCALES, Camera
from enplace_studio.views.graph.card_texts import describe_card, describe_port
from enplace_studio.views.graph.model import GraphModel
from enplace_studio.views.graph.paint import paint_extent, paint_scene
from enplace_studio.views.graph.press import Press
from enplace_studio.views.graph.scene import Scene
from enplace_studio.widgets.dragging import EXTEND, RubberBand
from enplace_studio.widgets.labels import KeyCanvas
from enplace_studio.widgets.theme import theme

ZOOM_STEP = 1.2
PAN_STEP = 60.0
_PAN_KEYS = {
    Qt.Key.Key_W: QPointF(0, -PAN_STEP),
    Qt.Key.Key_A: QPointF(-PAN_STEP, 0),
    Qt.Key.Key_S: QPointF(0, PAN_STEP),
    Qt.Key.Key_D: QPointF(PAN_STEP, 0),
}
_ARROWS = {
    Qt.Key.Key_Up: QPointF(0, -1),
    Qt.Key.Key_Left: QPointF(-1, 0),
    Qt.Key.Key_Down: QPointF(0, 1),
    Qt.Key.Key_Right: QPointF(1, 0),
}


class Canvas(KeyCanvas):
    """Paints the model's scene and translates mouse and keys into requests."""

    resized = Signal()
    looked = Signal()
    """Another part of the scene is in view."""
    drag_began = Signal(list, QPoint)
    drag_moved = Signal(QPoint)
    drag_ended = Signal(QPoint, bool)
    """Emitted at a drop; true with the Shift key, which moves without a pin."""
    drag_cancelled = Signal()
    escaped = Signal()
    search_wanted = Signal()

    def __init__(self, model: GraphModel, parent: QWidget) -> None:
        super().__init__(parent)
        self.model, self.document = model, model.document
        self.camera = Camera()
        self.current: int | None = None
        self.fitted: float | None = None
        """The least scale for fitting the cards to another size; None once the user has moved."""
        self.shows_extent = False
        """Whether the edges show which part of the graph is in view."""
        self._press: Press | None = None
        self._panning: QPoint | None = None
        self.setMouseTracking(True)
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.setMinimumSize(160, 120)
        self.setAccessibleName("Graph")
        self.setAccessibleDescription("Groups or ops; arrow keys move, Enter opens, 1 to 8 place")
        model.level_changed.connect(self._restart)
        model.arranged.connect(self._follow)
        self.document.selection_changed.connect(self.update)
        self.document.notes_changed.connect(self.update)
        self.document.hover_changed.connect(self.update)

    # Navigation

    @property
    def scene(self) -> Scene | None:
        return self.model.scene

    def _restart(self) -> None:
        """Forget what belongs to other cards: those that were pressed are gone."""
        self.cancel_gesture()
        self._press = self.current = None
        self.fitted = 0.0

    def _follow(self) -> None:
        """Fit the cards, which have moved, and keep in view the one that the user has gone to."""
        if self.fitted is not None or self.current is None:
            self.fit_first()
        if self.current is not None:
            self.reveal(self.current)

    def fit_first(self) -> None:
        """Show the cards as one enters: as many as can be read."""
        level = self.model.level
        self.fit(READABLE_OPS if level is not None and level.of_ops else READABLE)

    def fit(self, least: float = 0.0) -> None:
        """Show all cards, or only the first if their scale would be below ``least``."""
        if self.scene is not None:
            centred = not self.scene.arrangement.titles
            self.camera.fit(self.scene.bounds, QSizeF(self.size()), max(least, SCALES[0]), centred)
            if centred:
                # The left corner of a graph that is too wide may be empty.
                self.camera.show_most(self.scene.rects, self.scene.bounds, QSizeF(self.size()))
        self._look()
        self.fitted = least

    def focus_selection(self) -> None:
        """Show the selected cards, or all if none is selected."""
        rects = [self.scene.rects[group] for group in self._chosen()] if self.scene else []
        if not rects:
            self.fit()
            return
        area = rects[0]
        for rect in rects[1:]:
            area = area.united(rect)
        around = area.adjusted(-MARGIN, -MARGIN, MARGIN, MARGIN)
        self.camera.fit(around, QSizeF(self.size()))
        self.camera.centre_on(area.center(), QSizeF(self.size()))
        self._look()

    def reveal(self, node: int) -> None:
        """Make a card or port the current one and scroll it into view."""
        self.current = node
        if self.scene is not None:
            if self.camera.reveal(self.scene.rects[node], QSizeF(self.size())):
                self._look()
            self.update()

    def reveal_selection(self) -> None:
        """Scroll to the first of the selected cards."""
        if chosen := self._chosen():
            self.reveal(chosen[0])

    def centre_on(self, point: QPointF) -> None:
        self.camera.centre_on(point, QSizeF(self.size()))
        self._look()

    def visible(self) -> QRectF:
        """Return the visible part of the scene."""
        return self.camera.visible(QRectF(self.rect()))

    def _look(self) -> None:
        self.fitted = None
        self.update()
        self.looked.emit()

    def _pan(self, by: QPointF) -> None:
        """Move by a number of widget pixels, but not away from the cards."""
        was_near = self._is_near()
        self.camera.pan(by)
        if was_near and not self._is_near():
            self.camera.pan(-by)
        self._look()

    def _is_near(self) -> bool:
        """Return whether the middle of the widget shows a part of the cards' area."""
        seen = self.visible()
        across, down = seen.width() / 4, seen.height() / 4
        middle = seen.adjusted(across, down, -across, -down)
        return self.scene is None or middle.intersects(self.scene.bounds)

    # Painting

    def paintEvent(self, event: QPaintEvent) -> None:
        with QPainter(self) as painter:
            parts: Any = event.region()  # what a ghost has left, and where it is now
            for part in parts:
                painter.setClipRect(part)
                self._paint(painter, QRectF(part))
                painter.resetTransform()

    def _paint(self, painter: QPainter, part: QRectF) -> None:
        scene = self.model.painted
        if scene is None:
            if self.document.project is None:
                self._paint_empty(painter)
            return
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setTransform(self.camera.transform())
        marks = self.model.marks(self.current if self.hasFocus() else None)
        marks = replace(marks, taken=frozenset(self._taken()))
        paint_scene(painter, scene, marks, self.camera.visible(part))
        painter.resetTransform()
        if self.shows_extent:
            paint_extent(painter, QRectF(self.rect()), self.visible(), scene.bounds)
        if self._press is not None and self._press.band is not None:
            noun = "op" if scene.level.of_ops else "group"
            self._press.band.paint(painter, count(len(marks.taken), noun))

    def _paint_empty(self, painter: QPainter) -> None:
        painter.setFont(theme.font(12))
        painter.setPen(theme.tokens.dim)
        text = "Open a model, or start from a sample"
        painter.drawText(self.rect(), Qt.AlignmentFlag.AlignCenter, text)

    # Selecting

    def _chosen(self) -> list[int]:
        marks = self.model.marks(None)
        return sorted(marks.selected | marks.partly)

    def select(self, nodes: Iterable[int], extend: bool = False) -> None:
        """Select the ops of some cards, or those behind some ports."""
        if self.scene is not None:
            self.document.select(self.scene.ops(nodes), extend)

    def _go_to(self, node: int, extend: bool = False) -> None:
        self.reveal(node)
        self.select([node], extend)
        if self.scene is not None:
            self.setAccessibleDescription(self.scene.level.describe(node))

    def open(self, node: int) -> None:
        """Open a group, or go where a port leads and show the neighbour there."""
        is_port = self.scene is not None and node >= self.scene.n
        self.model.open(node)
        if is_port:
            self.reveal_selection()

    def _neighbour(self, direction: QPointF) -> int | None:
        """Find the card to go to in a direction; without a current one, a selected or the first."""
        scene = self.scene
        if scene is None or scene.n == 0:
            return None
        if self.current is None or self.current >= len(scene.rects):
            chosen = self._chosen()
            return chosen[0] if chosen else 0
        return scene.neighbour(self.current, direction)

    # Mouse

    def mousePressEvent(self, event: QMouseEvent) -> None:
        pos = event.position().toPoint()
        if event.button() == Qt.MouseButton.MiddleButton:
            self._panning = pos
        elif event.button() == Qt.MouseButton.LeftButton and self.scene is not None:
            self._press = Press(event.position(), self.node_at(event.position()))
            if self._press.card is not None:
                self._press_card(self._press.card, bool(event.modifiers() & EXTEND))

    def _press_card(self, card: int, extend: bool) -> None:
        self.current = card
        if extend or card not in self.model.marks(None).selected:
            self.select([card], extend)

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        pos = event.position().toPoint()
        if self._panning is not None:
            self._pan(QPointF(self._panning - pos))
            self._panning = pos
        elif self._press is not None:
            self._move_press(self._press, event)
        else:
            card = self.node_at(event.position())
            self.document.hover(self.scene.ops([card]) if card is not None and self.scene else [])

    def _move_press(self, press: Press, event: QMouseEvent) -> None:
        pos = event.globalPosition().toPoint()
        if press.is_dragging:
            self.drag_moved.emit(pos)
        elif press.move(event.position(), event.modifiers()):
            self.drag_began.emit(sorted(self.document.selection), pos)
        elif press.band is not None:
            self.update()

    def mouseReleaseEvent(self, event: QMouseEvent) -> None:
        if event.button() == Qt.MouseButton.MiddleButton:
            self._panning = None
        elif event.button() == Qt.MouseButton.LeftButton and self._press is not None:
            self._finish_press(self._press, event)

    def _cards_in(self, band: RubberBand) -> list[int]:
        """Find the cards that a rubber band touches."""
        area = self.camera.transform().inverted()[0].mapRect(band.area)
        return self.scene.cards_in(area) if self.scene is not None else []

    def _taken(self) -> list[int]:
        """Find the cards that the rubber band would select if it were released now."""
        return self._cards_in(self._press.band) if self._press and self._press.band else []

    def _finish_press(self, press: Press, event: QMouseEvent) -> None:
        extend = bool(event.modifiers() & EXTEND)
        self._end_press()
        if press.is_dragging:
            only_move = bool(event.modifiers() & Qt.KeyboardModifier.ShiftModifier)
            self.drag_ended.emit(event.globalPosition().toPoint(), only_move)
        elif press.band is not None and self.scene is not None:
            self.select(self._cards_in(press.band), extend)
        elif not extend:
            self.select([] if press.card is None else [press.card])

    def _end_press(self) -> None:
        if self._press is not None and self._press.band is not None:
            self.update()
        self._press = None

    def cancel_gesture(self) -> bool:
        """Cancel a drag or a rubber band; return whether there was one."""
        press = self._press
        if press is None or not (press.is_dragging or press.band):
            return False
        if press.is_dragging:
            self.drag_cancelled.emit()
        self._end_press()
        return True

    def mouseDoubleClickEvent(self, event: QMouseEvent) -> None:
        card = self.node_at(event.position())
        if card is not None and event.button() == Qt.MouseButton.LeftButton:
            self._end_press()
            self.open(card)

    def leaveEvent(self, event: QEvent) -> None:
        self.document.hover([])

    def wheelEvent(self, event: QWheelEvent) -> None:
        turned = QPointF(event.pixelDelta() if event.hasPixelDelta() else event.angleDelta() / 2)
        if event.modifiers() & Qt.KeyboardModifier.ControlModifier:
            self.camera.zoom(ZOOM_STEP ** (event.angleDelta().y() / 120), event.position())
            self._look()
        elif event.modifiers() & Qt.KeyboardModifier.ShiftModifier and not turned.x():
            self._pan(QPointF(-turned.y(), 0))
        else:
            self._pan(-turned)

    def node_at(self, pos: QPointF | QPoint) -> int | None:
        """Return the card or port at a point of the widget."""
        pos = QPointF(pos)
        return self.scene.node_at(self.camera.to_scene(pos)) if self.scene else None

    # Keys

    def keyPressEvent(self, event: QKeyEvent) -> None:
        key, extend = Qt.Key(event.key()), bool(event.modifiers() & EXTEND)
        if key in _ARROWS:
            group = self._neighbour(_ARROWS[key])
            if group is not None:
                self._go_to(group, extend)
        elif key in _PAN_KEYS and not event.modifiers():
            self._pan(_PAN_KEYS[key])
        elif not self._act(key, event.modifiers()):
            super().keyPressEvent(event)

    def _act(self, key: Qt.Key, modifiers: Qt.KeyboardModifier) -> bool:
        """Handle a key; return whether it has a meaning here."""
        middle = QPointF(self.rect().center())
        if Qt.Key.Key_1 <= key <= Qt.Key.Key_8:
            self._place(key - Qt.Key.Key_1)
        elif key in (Qt.Key.Key_Return, Qt.Key.Key_Enter) and self.current is not None:
            self.open(self.current)
        elif key == Qt.Key.Key_Backspace:
            self.model.back()
        elif key == Qt.Key.Key_Escape:
            if not self.cancel_gesture():
                self.escaped.emit()
        elif key == Qt.Key.Key_0:
            self.fit()
        elif key == Qt.Key.Key_F and modifiers & Qt.KeyboardModifier.ControlModifier:
            self.search_wanted.emit()
        elif key == Qt.Key.Key_F:
            self.focus_selection()
        elif key in (Qt.Key.Key_Plus, Qt.Key.Key_Equal, Qt.Key.Key_Minus):
            self.camera.zoom(1 / ZOOM_STEP if key == Qt.Key.Key_Minus else ZOOM_STEP, middle)
            self._look()
        else:
            return False
        return True

    def _place(self, device: int) -> None:
        problem = self.document.problem
        if problem is not None and device < problem.cluster.n_devices:
            self.document.place(self.document.selection, device)

    def focusNextPrevChild(self, forward: bool) -> bool:
        """Move through the cards with Tab before leaving the canvas."""
        n = len(self.scene.rects) if self.scene is not None else 0
        group = (-1 if forward else n) if self.current is None else self.current
        group += 1 if forward else -1
        if not 0 <= group < n or not self.hasFocus():
            return super().focusNextPrevChild(forward)
        self._go_to(group)
        return True

    def resizeEvent(self, event: QResizeEvent) -> None:
        self.resized.emit()

    def focusInEvent(self, event: QFocusEvent) -> None:
        self.update()

    def focusOutEvent(self, event: QFocusEvent) -> None:
        self.update()

    # Tool tips and the menu

    def tip_at(self, at: QPointF) -> str:
        card = self.node_at(at)
        return "" if card is None else self.tip(card)

    def tip(self, node: int) -> str:
        """Return the full name of a card, and its numbers, or what a port stands for."""
        scene, project = self.scene, self.document.project
        if scene is None or project is None:
            return ""
        if node >= scene.n:
            return "\n".join(describe_port(scene.level, node))
        n_found = (self.model.matches or {}).get(node, 0)
        names = [project.device_label(device) for device in range(scene.facts.share.shape[1])]
        return "\n".join(describe_card(scene, node, names, n_found))
