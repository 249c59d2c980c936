"""The views of the window: made when a model first opens, shown in the middle or in docks."""

from __future__ import annotations

import zlib

from PySide6.QtCore import QByteArray, QObject, QSettings, Qt, QTimer, Signal
from PySide6.QtGui import QAction
from PySide6.QtWidgets import QApplication, QMainWindow, QStackedWidget, QWidget

from enplace_studio.docks import Dock
from enplace_studio.document import Document
from enplace_studio.jobs import Solver
from enplace_studio.pictures import Drawing
from enplace_studio.sharing import Sharing
from enplace_studio.view import Pictured, Zoomable
from enplace_studio.views import all_views

PRELOAD_MS = 200
_LAYOUT_KEY = "window/state"


class Panes(QObject):
    """Makes the views, and remembers how the user arranges them.

    Attributes
    ----------
    views : dict of str to QWidget
        The widgets by the id of their view; empty until a model is open.
    docks : dict of str to Dock
        The panes around the middle.
    """

    built = Signal()
    """The views and their docks have been made."""

    def __init__(
        self,
        window: QMainWindow,
        middle: QStackedWidget,
        settings: QSettings,
        document: Document,
        solver: Solver,
    ) -> None:
        super().__init__(window)
        self._window, self._middle, self._settings = window, middle, settings
        self._document, self._solver = document, solver
        self._table = all_views()
        self._not_loaded = list(self._table)
        self._docked = [view for view in self._table if view.area is not None]
        self._open_docks = {view.id for view in self._docked}
        self.views: dict[str, QWidget] = {}
        self.docks: dict[str, Dock] = {}
        self._sharing: Sharing | None = None
        QTimer.singleShot(PRELOAD_MS, self, self._preload)

    # Create the panes

    def _preload(self) -> None:
        """Import one view each time the window is idle, so that the first model opens sooner."""
        if self._not_loaded:
            self._not_loaded.pop(0).load()
            QTimer.singleShot(0, self, self._preload)

    def build(self) -> None:
        """Make all views, unless they exist."""
        if self.views:
            return
        self._not_loaded = []
        for view in self._table:
            widget = self.views[view.id] = view.make(self._document, self._solver)
            if view.area is None:
                self._middle.addWidget(widget)
            else:
                dock = self.docks[view.id] = Dock(view.id, view.title, widget)
                self._window.addDockWidget(view.area, dock)
        self._sharing = Sharing(self._window, self._docked, self.docks, self._settings)
        self.built.emit()
        # Sizes take effect only after the panes have been laid out.
        QTimer.singleShot(0, self, self.restore)

    @property
    def toggles(self) -> list[QAction]:
        """Return the actions that show or hide each dock."""
        return [dock.toggleViewAction() for dock in self.docks.values()]

    # Show and hide

    @property
    def middle_view(self) -> QWidget | None:
        """The view that is in the middle when a model opens, once made."""
        ids = [view.id for view in self._table if view.area is None]
        return self.views.get(ids[0]) if ids else None

    def show_views(self) -> None:
        """Show the middle view, and the docks that the user has not closed."""
        self.build()
        middle = self.middle_view
        if middle is not None:
            self._middle.setCurrentWidget(middle)
            middle.setFocus()
        for name in self._open_docks:
            self.docks[name].show()

    def is_in_middle(self, name: str) -> bool:
        """Return whether a view is the one shown in the middle."""
        return name in self.views and self._middle.currentWidget() is self.views[name]

    def toggle_in_middle(self, name: str) -> None:
        """Show a view in the middle, with the docks on the left only; or go back to the usual one.

        The docks come back as they were.
        """
        if self.is_in_middle(name):
            self.show_views()
            self.restore()
            return
        self.remember()
        for view in self._docked:
            dock = self.docks[view.id]
            if self._window.dockWidgetArea(dock) != Qt.DockWidgetArea.LeftDockWidgetArea:
                dock.hide()
        self._middle.setCurrentWidget(self.views[name])
        self.views[name].setFocus()

    def hide_docks(self) -> None:
        """Hide all docks, which show nothing without a model."""
        for dock in self.docks.values():
            dock.hide()

    @property
    def zoomable_view(self) -> Zoomable | None:
        """The focused view if it can zoom, or else the one shown in the middle if it can."""
        widget: QWidget | None = QApplication.focusWidget()
        while widget is not None and not isinstance(widget, Zoomable):
            widget = widget.parentWidget()
        view = widget or self._middle.currentWidget()
        return view if isinstance(view, Zoomable) else None

    def drawing(self) -> Drawing | None:
        """Return the picture of the focused view, or else of the one shown in the middle."""
        widget: QWidget | None = QApplication.focusWidget()
        while widget is not None and widget not in self.views.values():
            widget = widget.parentWidget()
        view = widget or self._middle.currentWidget()
        return view.drawing() if isinstance(view, Pictured) else None

    def fit(self) -> None:
        """Show everything in the zoomable view."""
        if view := self.zoomable_view:
            view.fit()

    def focus_selection(self) -> None:
        """Show the selection in the zoomable view."""
        if view := self.zoomable_view:
            view.focus_selection()

    # Arrange

    @property
    def _version(self) -> int:
        """The version of saved layouts; one saved with other views does not apply."""
        known = repr([(view.id, str(view.area)) for view in self._docked])
        return zlib.crc32(known.encode()) & 0x7FFFFFFF

    def remember(self) -> None:
        """Save the arrangement; call it while a model is open."""
        if self._middle.currentWidget() is self.middle_view and self.docks:
            shown = {name for name, dock in self.docks.items() if not dock.isHidden()}
            self._open_docks = shown
            self._settings.setValue(_LAYOUT_KEY, self._window.saveState(self._version))

    def restore(self) -> None:
        """Restore the user's arrangement of the docks, or else the default one."""
        state = self._settings.value(_LAYOUT_KEY)
        if isinstance(state, QByteArray):
            self._window.restoreState(state, self._version)
        self.share()

    def share(self) -> None:
        """Fit the panes to the window, and give each its share."""
        if self._sharing is not None:
            self._sharing.share()

    def reset(self) -> None:
        """Restore the default arrangement of the docks."""
        for view in self._docked:
            if view.area is not None and (dock := self.docks.get(view.id)):
                dock.setFloating(False)
                self._window.addDockWidget(view.area, dock)
                dock.setVisible(self._document.problem is not None)
        if self._sharing is not None:
            self._sharing.reset()
