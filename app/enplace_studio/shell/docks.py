"""Panes around the graph: plain docks with their gaps as handles."""

from __future__ import annotations

from PySide6.QtCore import QRectF, QSize, Qt
from PySide6.QtGui import QContextMenuEvent, QPainter, QPaintEvent
from PySide6.QtWidgets import QDockWidget, QMenu, QWidget

from enplace_studio.widgets.labels import named
from enplace_studio.widgets.layouts import vbox
from enplace_studio.widgets.theme import theme

GRIP_HEIGHT, GRIP_WIDTH = 6, 28
GAP_HALF = 3
"""With the separator's 4 pixels, panes are 10 pixels apart in both directions."""
LEAST_WIDTH, LEAST_HEIGHT = 120, 30
"""No view makes the window larger than its screen: each can be as small as this."""


class Dock(QDockWidget):
    """A pane that can be closed, floated, moved, and reopened from the View menu.

    Attributes
    ----------
    view : QWidget
        What it shows.
    """

    def __init__(self, name: str, title: str, view: QWidget) -> None:
        super().__init__(title)
        self.setObjectName(name)
        self.setTitleBarWidget(_Grip(self))
        frame = named(QWidget(), "page")
        vbox(view, on=frame, margins=(GAP_HALF, 0, GAP_HALF, 0))
        frame.setMinimumSize(LEAST_WIDTH, LEAST_HEIGHT)
        self.view = view
        self.setWidget(frame)


class _Grip(QWidget):
    """The gap above a pane: drag it to move the pane, right-click it for more."""

    def __init__(self, dock: QDockWidget) -> None:
        super().__init__(dock)
        self._dock = dock
        self.setCursor(Qt.CursorShape.SizeAllCursor)
        self.setToolTip(f"Drag to move “{dock.windowTitle()}”; double-click to float it")
        self.setAttribute(Qt.WidgetAttribute.WA_Hover)

    def sizeHint(self) -> QSize:
        return QSize(GRIP_WIDTH, GRIP_HEIGHT)

    def minimumSizeHint(self) -> QSize:
        return self.sizeHint()

    def paintEvent(self, event: QPaintEvent) -> None:
        if self.underMouse():
            with QPainter(self) as painter:
                self._paint(painter)

    def _paint(self, painter: QPainter) -> None:
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(theme.tokens.faint)
        x, y = (self.width() - GRIP_WIDTH) / 2, (self.height() - 3) / 2
        painter.drawRoundedRect(QRectF(x, y, GRIP_WIDTH, 3), 1.5, 1.5)

    def contextMenuEvent(self, event: QContextMenuEvent) -> None:
        dock, menu = self._dock, QMenu(self)
        menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        floating = dock.isFloating()
        menu.addAction("Put back" if floating else "Float", lambda: dock.setFloating(not floating))
        menu.addAction("Close", dock.close)
        menu.exec(event.globalPos())
