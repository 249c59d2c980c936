"""Moving along a time axis by keys and wheel, for every surface that shows one."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QEvent, QPointF, QSize, Qt, Signal
from PySide6.QtGui import QContextMenuEvent, QKeyEvent, QMouseEvent, QResizeEvent, QWheelEvent
from PySide6.QtWidgets import QMenu, QScrollBar, QWidget

from enplace_studio.timelines.scale import TimeScale
from enplace_studio.widgets.labels import KeyCanvas
from enplace_studio.widgets.theme import theme

ZOOM_STEP = 1.25
PAN_SHARE = 0.12
"""Share of the window that one press of A or D moves it by."""
SCROLL_PX = 40


class Surface:
    """What a canvas shows: rows that scroll up and down, over a part of the time axis.

    Attributes
    ----------
    scale : TimeScale
        The part of the time axis on screen.
    scroll_px : float
        Distance that the rows have scrolled up.
    content_px, visible_px : float
        Height of all rows, and height available for them.
    end_us : float
        The last moment to show.
    """

    def __init__(self) -> None:
        self.scale = TimeScale.fit(1.0, 1.0)
        self.scroll_px = self.content_px = self.visible_px = 0.0
        self.end_us = 1.0

    @property
    def left(self) -> float:
        """Left edge of the time axis."""
        raise NotImplementedError

    @property
    def axis_px(self) -> int:
        """Height of the axis above the rows."""
        return round(22 * theme.scale)

    def scroll(self, pixels: float) -> None:
        """Move the rows up, as far as there are more."""
        last = max(self.content_px - self.visible_px, 0)
        self.scroll_px = min(max(self.scroll_px + pixels, 0), last)


class TimeCanvas(KeyCanvas):
    """A widget over a time axis; the middle button drags it along time and rows.

    Parameters
    ----------
    least_px, usual_px : pair of int
        The least and the usual width, and height of the rows.
    """

    extent_changed = Signal()
    """What is shown scrolled up or down, or its height changed."""
    scale_changed = Signal()
    """Another part of the time axis is on screen."""

    def __init__(
        self,
        name: str,
        surface: Surface,
        least_px: tuple[int, int],
        usual_px: tuple[int, int],
        parent: QWidget | None = None,
    ) -> None:
        super().__init__(parent)
        self._surface, self._least_px, self._usual_px = surface, least_px, usual_px
        self._pointer: QPointF | None = None
        self._panned: QPointF | None = None
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.setMouseTracking(True)
        self.setAccessibleName(name)
        theme.changed.connect(self.update)

    # What a view provides

    def lay_out(self) -> None:
        """Place the rows on the canvas; subclasses do so first."""
        self.extent_changed.emit()
        self.update()

    def menu_at(self, at: QPointF) -> QMenu | None:
        """Make the menu of what is at a point."""

    def focus_selection(self) -> None:
        """Show the time in which the selected ops run."""
        self.fit()

    def escape(self) -> None:
        """End what is going on, or else clear the selection."""
        self.fit()

    # Moving

    def pan(self, notches: float) -> None:
        """Move along the time axis."""
        self.set_scale(self.scale.panned(notches * PAN_SHARE * self.scale.width_px))

    def zoom(self, notches: float, at_px: float | None = None) -> None:
        """Zoom in around a place; by default the pointer, or the middle if it is elsewhere."""
        if at_px is None:
            at_px = self.scale.width_px / 2
            if self._pointer is not None and self._pointer.x() > self.left:
                at_px = self._pointer.x() - self.left
        self.set_scale(self.scale.zoomed(ZOOM_STEP**notches, at_px))

    def wheel(self, event: QWheelEvent, zooms: bool, pans: bool) -> None:
        """Zoom at the pointer, or move along the time axis, or else up and down."""
        delta = event.angleDelta()
        notches = (delta.y() or delta.x()) / 120
        if zooms:
            self.zoom(notches, max(event.position().x() - self.left, 0.0))
        elif pans:
            self.pan(-notches)
        else:
            self.scroll_by(-notches * SCROLL_PX)
        event.accept()

    def keys(self) -> dict[Qt.Key, Callable[[], None]]:
        """Return what each key does."""
        return {
            Qt.Key.Key_W: lambda: self.zoom(1),
            Qt.Key.Key_S: lambda: self.zoom(-1),
            Qt.Key.Key_Plus: lambda: self.zoom(1),
            Qt.Key.Key_Equal: lambda: self.zoom(1),
            Qt.Key.Key_Minus: lambda: self.zoom(-1),
            Qt.Key.Key_A: lambda: self.pan(-1),
            Qt.Key.Key_D: lambda: self.pan(1),
            Qt.Key.Key_Left: lambda: self.pan(-1),
            Qt.Key.Key_Right: lambda: self.pan(1),
            Qt.Key.Key_Up: lambda: self.scroll_by(-SCROLL_PX),
            Qt.Key.Key_Down: lambda: self.scroll_by(SCROLL_PX),
            Qt.Key.Key_0: self.fit,
            Qt.Key.Key_F: self.focus_selection,
            Qt.Key.Key_Escape: self.escape,
        }

    def keyPressEvent(self, event: QKeyEvent) -> None:
        plain = Qt.KeyboardModifier.NoModifier | Qt.KeyboardModifier.KeypadModifier
        if event.key() == Qt.Key.Key_Plus:
            plain |= Qt.KeyboardModifier.ShiftModifier
        action = self.keys().get(Qt.Key(event.key())) if not event.modifiers() & ~plain else None
        if action is None:
            super().keyPressEvent(event)
        else:
            action()

    @property
    def scale(self) -> TimeScale:
        """The part of the time axis on screen."""
        return self._surface.scale

    @property
    def left(self) -> float:
        """Left edge of the time axis."""
        return self._surface.left

    def set_scale(self, scale: TimeScale) -> None:
        """Show another part of the time axis."""
        if scale != self.scale:
            self._surface.scale = scale
            self.update()
            self.scale_changed.emit()

    def fit(self) -> None:
        """Show the whole time axis."""
        self.set_scale(TimeScale.fit(self._surface.end_us, self.scale.width_px))

    def scroll_by(self, pixels: float) -> None:
        """Move the rows up."""
        self._surface.scroll(pixels)
        self.extent_changed.emit()
        self.update()

    def mousePressEvent(self, event: QMouseEvent) -> None:
        if event.button() == Qt.MouseButton.MiddleButton:
            self._panned = event.position()

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        at = self._pointer = event.position()
        if self._panned is not None:
            self.set_scale(self.scale.panned(self._panned.x() - at.x()))
            self.scroll_by(self._panned.y() - at.y())
            self._panned = at

    def mouseReleaseEvent(self, event: QMouseEvent) -> None:
        self._panned = None

    def leaveEvent(self, event: QEvent) -> None:
        self._pointer = None

    def contextMenuEvent(self, event: QContextMenuEvent) -> None:
        menu = self.menu_at(QPointF(event.pos()))
        if menu is None:
            event.ignore()  # the pane has a menu of its own
        else:
            menu.popup(event.globalPos())

    def resizeEvent(self, event: QResizeEvent) -> None:
        self.lay_out()

    def sizeHint(self) -> QSize:
        width, height = self._usual_px
        return QSize(width, self._surface.axis_px + height)

    def minimumSizeHint(self) -> QSize:
        width, height = self._least_px
        return QSize(width, self._surface.axis_px + height)

    def make_scroll_bar(self) -> QScrollBar:
        """Make a bar that scrolls the rows; it is hidden while all have room."""
        bar, surface = QScrollBar(Qt.Orientation.Vertical), self._surface
        bar.hide()

        def follow() -> None:
            extra = round(surface.content_px - surface.visible_px)
            bar.setVisible(extra > 0)
            bar.setRange(0, max(extra, 0))
            bar.setPageStep(max(round(surface.visible_px), 1))
            bar.setValue(round(surface.scroll_px))

        def scroll(value: int) -> None:
            if value != round(surface.scroll_px):
                self.scroll_by(value - surface.scroll_px)

        self.extent_changed.connect(follow)
        bar.valueChanged.connect(scroll)
        return bar
