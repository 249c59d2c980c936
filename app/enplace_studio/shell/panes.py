"""The views of the window: made while it is idle, shown in the middle or in docks."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import partial

from PySide6.QtCore import QByteArray, QObject, QSettings, Qt, QTimer, Signal
from PySide6.QtGui import QAction, QCursor
from PySide6.QtWidgets import QApplication, QMainWindow, QStackedWidget, QWidget

from enplace_studio.jobs.call_later import call_later
from enplace_studio.jobs.solver import Solver
from enplace_studio.model.document import Document
from enplace_studio.shell.docks import Dock
from enplace_studio.shell.pane_sizes import PaneSizes, saved_names
from enplace_studio.views import all_views
from enplace_studio.views.view import Pictured, View, Zoomable
from enplace_studio.widgets.pictures import Drawing

PREPARE_MS = 200
_LAYOUT_KEY, _UNUSED_KEY = "window/state", "window/unused"


class Panes(QObject):
    """Makes the views, and remembers how the user arranges them.

    Attributes
    ----------
    views : dict of str to QWidget
        The widgets by the id of their view; all of them once a model is open.
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
        self._docked = [view for view in self._table if view.area is not None]
        self._unused = self._not_yet_used()
        self._open_docks = {view.id for view in self._docked} - {*self._unused}
        self.views: dict[str, QWidget] = {}
        self.docks: dict[str, Dock] = {}
        self._sharing: PaneSizes | None = None
        self._steps: list[Callable[[], object]] = [
            *(view.load for view in self._table),
            *(partial(self._make, view) for view in self._table),
        ]
        QTimer.singleShot(PREPARE_MS, self, self._prepare)

    def _not_yet_used(self) -> list[str]:
        """List the views that open at their first use, which is still to come."""
        if self._settings.contains(_UNUSED_KEY):
            return saved_names(self._settings.value(_UNUSED_KEY))
        return [] if self._settings.contains(_LAYOUT_KEY) else self._first_unused()

    def _first_unused(self) -> list[str]:
        return [view.id for view in self._docked if view.is_used is not None]

    # Create the panes

    def _prepare(self) -> None:
        """Import or make one view each time the window is idle, so that a model opens at once."""
        if self._steps:
            self._steps.pop(0)()
            QTimer.singleShot(0, self, self._prepare)

    def _make(self, view: View) -> None:
        widget = self.views[view.id] = view.make(self._document, self._solver)
        if view.area is None:
            self._middle.addWidget(widget)
        else:
            dock = self.docks[view.id] = Dock(view.id, view.title, widget)
            dock.hide()
            self._window.addDockWidget(view.area, dock)
            dock.toggleViewAction().triggered.connect(partial(self._note_use, view.id))

    def _complete(self) -> None:
        """Make the views that are still missing, and arrange them, once."""
        if self._sharing is not None:
            return
        while self._steps:
            self._steps.pop(0)()
        self._sharing = PaneSizes(self._window, self._docked, self.docks, self._settings)
        call_later(
            self,
            self._open_used,
            self._document.opened,
            self._document.problem_changed,
            self._document.current_changed,
            self._document.file_changed,
        )
        self.built.emit()
        # Sizes take effect only after the panes have been laid out; until then, none is painted.
        self._window.setUpdatesEnabled(False)
        QTimer.singleShot(0, self, self._restore_first)

    def _restore_first(self) -> None:
        self.restore()
        self._window.setUpdatesEnabled(True)

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
        self._complete()
        middle = self.middle_view
        if middle is not None:
            self._middle.setCurrentWidget(middle)
            middle.setFocus()
        for name in self._open_docks:
            self.docks[name].show()

    def _open_used(self) -> None:
        """Open the panes that have something to show for the first time."""
        if not self._document.problem or not self._has_docks:
            return
        for view in self._docked:
            if view.id in self._unused and view.is_used and view.is_used(self._document):
                self._note_use(view.id)
                self.docks[view.id].show()

    def _note_use(self, name: str) -> None:
        """From now on, a pane is as the user leaves it."""
        if name in self._unused:
            self._unused.remove(name)

    @property
    def _has_docks(self) -> bool:
        """Whether the docks around the middle are those that the user has opened."""
        shown = self._middle.currentWidget()
        around = [self.views.get(view.id) for view in self._table if view.keeps_docks]
        return shown is not None and (shown is self.middle_view or shown in around)

    def open(self, name: str) -> None:
        """Open a pane, and give it the room it needs."""
        self._note_use(name)
        self.docks[name].show()
        self.docks[name].raise_()
        if self._sharing is not None:
            self._sharing.give_room(name)

    def is_in_middle(self, name: str) -> bool:
        """Return whether a view is the one shown in the middle."""
        return name in self.views and self._middle.currentWidget() is self.views[name]

    def toggle_in_middle(self, name: str) -> None:
        """Show a view in the middle, or go back to the usual one; the docks come back as they were.

        A view that does not keep the docks leaves only those on the left.
        """
        was_there = self.is_in_middle(name)
        if was_there or not self._has_docks:
            self._go_back()
        if was_there:
            return
        self.remember()
        keeps_docks = any(view.id == name and view.keeps_docks for view in self._table)
        for view in self._docked if not keeps_docks else ():
            dock = self.docks[view.id]
            if self._window.dockWidgetArea(dock) != Qt.DockWidgetArea.LeftDockWidgetArea:
                dock.hide()
        self._middle.setCurrentWidget(self.views[name])
        self.views[name].setFocus()

    def bring(self, name: str) -> QWidget:
        """Return a view; if it is the usual one in the middle, show it there."""
        view = self.views[name]
        if view is self.middle_view and not self.is_in_middle(name):
            self._go_back()
        return view

    def _go_back(self) -> None:
        self.remember()
        self.show_views()
        self.restore()

    def hide_docks(self) -> None:
        """Hide all docks, which show nothing without a model."""
        for dock in self.docks.values():
            dock.hide()

    def _at_hand(self, is_wanted: Callable[[QWidget], bool]) -> QWidget | None:
        """Return the widget around the focus that is wanted, or else the view in the middle."""
        widget: QWidget | None = QApplication.focusWidget()
        while widget is not None and not is_wanted(widget):
            widget = widget.parentWidget()
        return widget or self._middle.currentWidget()

    @property
    def zoomable_view(self) -> Zoomable | None:
        """The view under the pointer if it can zoom, or the focused one, or that in the middle."""
        pointed = QApplication.widgetAt(QCursor.pos())
        while pointed is not None and not isinstance(pointed, Zoomable):
            pointed = pointed.parentWidget()
        if isinstance(pointed, Zoomable) and self._window.isAncestorOf(pointed):
            return pointed
        view = self._at_hand(lambda widget: isinstance(widget, Zoomable))
        return view if isinstance(view, Zoomable) else None

    def drawing(self) -> Drawing | None:
        """Return the picture of the focused view, or else of the one shown in the middle."""
        view = self._at_hand(lambda widget: widget in self.views.values())
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
        if self._has_docks and self.docks:
            shown = {name for name, dock in self.docks.items() if not dock.isHidden()}
            self._open_docks = shown
            self._settings.setValue(_LAYOUT_KEY, self._window.saveState(self._version))
            self._settings.setValue(_UNUSED_KEY, self._unused)

    def restore(self) -> None:
        """Restore the user's arrangement of the docks, or else the default one."""
        state = self._settings.value(_LAYOUT_KEY)
        if isinstance(state, QByteArray):
            self._window.restoreState(state, self._version)
        self._open_used()
        self.share()

    def share(self) -> None:
        """Fit the panes to the window, and give each its share."""
        if self._sharing is not None:
            self._sharing.share()

    def reset(self) -> None:
        """Restore the default arrangement of the docks."""
        self._unused = self._first_unused()
        for view in self._docked:
            if view.area is not None and (dock := self.docks.get(view.id)):
                dock.setFloating(False)
                self._window.addDockWidget(view.area, dock)
                is_open = self._document.problem is not None
                dock.setVisible(is_open and view.id not in self._unused)
        self._open_used()
        if self._sharing is not None:
            self._sharing.reset()
