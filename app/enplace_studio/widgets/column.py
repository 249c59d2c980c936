"""A column of widgets that scrolls if they do not fit."""

from __future__ import annotations

from PySide6.QtCore import QCoreApplication, QEvent, QObject, QSize, Qt, QTimer, Signal
from PySide6.QtWidgets import QFrame, QLayout, QScrollArea, QSizePolicy, QVBoxLayout, QWidget

from enplace_studio.widgets.layouts import STRETCH, vbox

ROOM_OF_BAR = 4


class Column(QScrollArea):
    """A column of widgets that scrolls if they do not fit; :meth:`fill` replaces them.

    The widgets are as wide as the column, however narrow it is.

    Parameters
    ----------
    name : str
        What screen readers say when the Tab key comes to it.
    """

    changed = Signal()
    """The widgets need another height."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.setAccessibleName(name)
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setWidgetResizable(True)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.viewport().setAutoFillBackground(False)
        self._rows: QVBoxLayout | None = None

    def fill(self, spacing: int = 8) -> QVBoxLayout:
        """Remove the contents and return the layout for new ones; the scroll position stays."""
        contents, scrolled = QWidget(), self.verticalScrollBar().value()
        self._rows = column = vbox(spacing=spacing)
        # AlignTop would give texts that wrap the height that they need in an endless column.
        vbox(column, STRETCH, on=contents, spacing=0, margins=(0, 0, ROOM_OF_BAR, 0))
        contents.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
        self.setWidget(contents)
        contents.setAutoFillBackground(False)  # setWidget has just turned it on
        contents.installEventFilter(self)
        QTimer.singleShot(0, self, lambda: self.verticalScrollBar().setValue(scrolled))
        return column

    def lay_out_now(self) -> None:
        """Give widgets that were just added their places, which Qt does some turns later."""
        if (contents := self.widget()) is not None:
            _show_new(contents)
            QCoreApplication.sendPostedEvents(None, QEvent.Type.LayoutRequest)

    def height_at(self, width: int) -> int:
        """Return the height of the contents in a column of this width."""
        contents = self.widget()
        layout = contents.layout() if contents is not None else None
        if contents is None or layout is None:
            return 0
        _show_new(contents)
        return height_at(layout, width)

    def end_between_rows(self, width: int, room: int) -> None:
        """Be no higher than this, and so high that no row is cut until the user scrolls."""
        contents = self.widget()
        rows = self._rows
        if contents is None or rows is None:
            return
        _show_new(contents)
        end, most = -rows.spacing(), 0
        for item in filter(None, map(rows.itemAt, range(rows.count()))):
            wide = item.hasHeightForWidth()
            high = item.heightForWidth(width - ROOM_OF_BAR) if wide else item.sizeHint().height()
            end += rows.spacing() + high
            most = end if end <= room else most
        self.setMaximumHeight(most or room)

    def minimumSizeHint(self) -> QSize:
        return QSize(0, 0)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if event.type() == QEvent.Type.LayoutRequest and watched is self.widget():
            self.changed.emit()
        return super().eventFilter(watched, event)


def _show_new(contents: QWidget) -> None:
    """Show the widgets that were just added: until then, layouts give them no room."""
    if contents.isVisible():
        for child in contents.findChildren(QWidget):
            decided = child.testAttribute(Qt.WidgetAttribute.WA_WState_ExplicitShowHide)
            if not decided and not child.isWindow():
                child.show()


def height_at(layout: QLayout, width: int) -> int:
    """Return the height that a layout needs at a width."""
    if layout.hasHeightForWidth():
        return layout.totalHeightForWidth(max(width, 1))
    return layout.sizeHint().height()
