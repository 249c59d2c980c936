"""The main window: header, views, messages and status line."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from PySide6.QtCore import QByteArray, QRect, QSettings, QSize, Qt, QTimer
from PySide6.QtGui import (
    QCloseEvent,
    QDragEnterEvent,
    QDragLeaveEvent,
    QDragMoveEvent,
    QDropEvent,
    QKeyEvent,
    QResizeEvent,
)
from PySide6.QtWidgets import QApplication, QMainWindow, QStackedWidget, QWidget

from enplace_studio.model.window_words import in_window_words
from enplace_studio.shell.docks import GAP_HALF, GRIP_HEIGHT
from enplace_studio.shell.key_sheet import KeySheet
from enplace_studio.shell.menus import Menus
from enplace_studio.shell.palette import Palette
from enplace_studio.shell.parts import Studio
from enplace_studio.shell.start_page import StartPage
from enplace_studio.shell.status import StatusLine
from enplace_studio.shell.tour import Tour
from enplace_studio.widgets.labels import named
from enplace_studio.widgets.layouts import vbox
from enplace_studio.widgets.messages import Banner, Offer, Toast

USUAL_SIZE = (1440, 900)
USUAL_SHARE = 0.8
"""Share of a large screen."""

FRAME_HEIGHT = 28
"""Room for the frame that the system draws above a window."""
MARGIN = 9
LEAST_PAGE = (240, 120)
TOAST_GAP_PX = 12
TOUR_KEY = "tour-seen"

_AREA = Qt.DockWidgetArea


def usual_geometry(screen: QRect) -> QRect:
    """Return a window's place on a screen that has shown none yet: large, but inside."""
    wanted = QSize(*USUAL_SIZE).expandedTo(screen.size() * USUAL_SHARE)
    size = wanted.boundedTo(screen.size() - QSize(0, FRAME_HEIGHT))
    found = QRect(screen.topLeft(), size)
    found.moveCenter(screen.center())
    found.moveTop(max(found.top(), screen.top() + FRAME_HEIGHT))
    return found


class MainWindow(QMainWindow):
    """The window of one document.

    Parameters
    ----------
    settings : QSettings
        Storage of window state, theme, method and recent files.
    recovery_folder : Path
        Folder with copies of unsaved work, for recovery after a crash.
    """

    def __init__(self, settings: QSettings, recovery_folder: Path) -> None:
        super().__init__()
        self.setWindowTitle("Enplace")
        self.setContentsMargins(MARGIN, 0, MARGIN, 0)
        self.setAcceptDrops(True)
        self.setCorner(Qt.Corner.BottomLeftCorner, _AREA.LeftDockWidgetArea)
        self.setCorner(Qt.Corner.BottomRightCorner, _AREA.RightDockWidgetArea)
        self.banner, self.start_page, self.pages = Banner(), StartPage(), QStackedWidget()
        self.studio = Studio(self, self.pages, settings, recovery_folder)
        self.document, self.solver = self.studio.document, self.studio.solver
        self.header, self.panes = self.studio.header, self.studio.panes
        self._is_new = False
        self._build()
        self.menus = Menus(self.studio, self)
        self.header.export_button.setMenu(self.menus.export_menu())
        self._connect()
        self._restore_size()
        self._on_opened()

    # Construction

    def _build(self) -> None:
        self.pages.addWidget(self.start_page)
        self.bar = self.addToolBar("Header")
        self.bar.setObjectName("header-bar")
        self.bar.setMovable(False)
        self.bar.toggleViewAction().setVisible(False)
        self.bar.setContextMenuPolicy(Qt.ContextMenuPolicy.PreventContextMenu)
        self.bar.addWidget(self.header)
        centre = named(QWidget(), "page")
        margins = (GAP_HALF, GRIP_HEIGHT, GAP_HALF, 0)
        self._column = vbox(self.banner, (self.pages, 1), on=centre, margins=margins)
        self.pages.setMinimumSize(*LEAST_PAGE)  # no page and no message makes the window larger
        self.setCentralWidget(centre)
        centre.setMinimumSize(*LEAST_PAGE)
        self.status_line = StatusLine(self.document, self.solver)
        self.statusBar().setSizeGripEnabled(False)
        self.statusBar().addWidget(self.status_line, 1)
        undo, status = self.document.undo_stack.undo, self.status_line
        self.toast = Toast(self, undo, lambda: status.figures_px + TOAST_GAP_PX)
        self.offer = Offer(centre, self.document.apply_stamp, self.document.drop_stamp)
        self.tour = Tour(self, self._tour_targets)

    def _connect(self) -> None:
        self._connect_messages()
        studio, header, start = self.studio, self.header, self.start_page
        self.document.opened.connect(self._on_opened)
        self.document.file_changed.connect(self._show_title)
        studio.changed.connect(self._show_run)
        studio.palette_wanted.connect(lambda: Palette(self.menus, studio, self).exec())
        studio.keys_wanted.connect(lambda: KeySheet(self.menus.specs, self).exec())
        studio.tour_wanted.connect(self.tour.begin)
        studio.measuring_made.connect(lambda strip: self._column.insertWidget(0, strip))
        header.solve_pressed.connect(studio.solving.solve_or_cancel)
        header.compare_pressed.connect(studio.solving.ask_compare)
        header.cluster_pressed.connect(studio.solving.choose_cluster)
        header.method_menu.all_wanted.connect(studio.solving.choose_method)
        stay_close = partial(studio.document.requests.run_action.emit, "stay-close")
        header.method_menu.stay_close_wanted.connect(stay_close)
        header.run_pressed.connect(self.menus.by_id["run"].trigger)
        studio.files.opening.connect(start.show_opening)
        studio.files.failed.connect(lambda: start.show_opening(""))
        start.sample_chosen.connect(studio.files.open_sample)
        start.file_chosen.connect(studio.files.open_path)
        start.open_pressed.connect(studio.files.ask_open)
        start.model_pressed.connect(self.menus.by_id["open-model"].trigger)
        start.serve_pressed.connect(self.menus.by_id["serve"].trigger)

    def _connect_messages(self) -> None:
        """Show edits in the toast, and errors in the banner."""
        self.studio.done.connect(self.toast.show_text)
        show_error = self.banner.show_error
        self.studio.failed.connect(lambda text: show_error(in_window_words(text)))
        # A notice follows its own step of undo.
        self.document.undo_stack.indexChanged.connect(self.toast.drop_undo)
        self.document.noticed.connect(lambda text: self.toast.show_text(text, undo=True))
        self.document.dropped.connect(self.toast.show_text)
        self.document.stamp_changed.connect(self._show_offer)
        for signal in (self.document.file_changed, self.document.selection_changed):
            signal.connect(self._hide_banner)
        self.studio.solving.started.connect(self.banner.hide)

    def _hide_banner(self) -> None:
        """Hide what went wrong before the user did something else; a plan may arrive any time."""
        if not self.studio.solving.is_adding:
            self.banner.hide()

    def _show_offer(self) -> None:
        stamp = self.document.stamp
        self.offer.setVisible(stamp is not None)
        if stamp is not None:
            self.toast.hide()
            self.offer.show_offer(stamp.title, stamp.price, f"Apply to all {len(stamp.blocks):,}")

    def _restore_size(self) -> None:
        geometry = self.studio.settings.value("window/geometry")
        if not (isinstance(geometry, QByteArray) and self.restoreGeometry(geometry)):
            screen = self.screen().availableGeometry()
            self.setGeometry(usual_geometry(screen))

    # Contents

    def _on_opened(self) -> None:
        while (popup := QApplication.activePopupWidget()) is not None:
            popup.close()  # what it would do is about the ops of another graph
        is_open = self.document.problem is not None
        self.start_page.show_opening("")
        if is_open:
            self.panes.show_views()
        else:
            self.panes.remember()
            self.start_page.show_recent(self.studio.recent.paths())
            self.pages.setCurrentWidget(self.start_page)
            self.panes.hide_docks()
        if not is_open:
            self.tour.end()
        elif self._is_new:
            self._is_new = False
            self.studio.settings.setValue(TOUR_KEY, True)  # it comes by itself once
            QTimer.singleShot(0, self, self.tour.begin)  # once the panes are in their places
        self.bar.setVisible(is_open)
        self.status_line.setVisible(is_open)
        self.banner.hide()
        self.toast.hide()
        self._show_title()
        self.studio.changed.emit()

    def _show_title(self) -> None:
        problem, path = self.document.problem, self.document.path
        if problem is None:
            self.setWindowTitle("Enplace")
            return
        name = path.name if path else problem.profile.name
        self.setWindowTitle(f"{name}[*] – Enplace")
        self.setWindowModified(self.document.modified)

    def _show_run(self) -> None:
        self.header.show_run(self.studio.why_no_run(), self.studio.is_measuring)

    # The tour

    def offer_tour(self) -> None:
        """Begin the tour with the next model that opens, unless it was seen before."""
        self._is_new = not self.studio.settings.contains(TOUR_KEY)

    def _tour_targets(self) -> dict[str, QWidget]:
        header = self.header
        buttons = {"solve": header.solve_button, "export": header.export_button}
        return {**self.panes.views, **buttons}

    # Keys that no view takes, dropped files, and closing

    def keyPressEvent(self, event: QKeyEvent) -> None:
        """Cancel an offer or clear the selection at Esc, wherever the focus is."""
        if event.key() == Qt.Key.Key_Escape:
            self.document.escape()
        else:
            super().keyPressEvent(event)

    def dragEnterEvent(self, event: QDragEnterEvent) -> None:
        """Say what a drop here would do."""
        if paths := _dropped_paths(event):
            _take_a_copy(event)
            self.toast.show_text(f"Drop to {self.studio.files.use_text(paths)}")

    def dragMoveEvent(self, event: QDragMoveEvent) -> None:
        _take_a_copy(event)

    def dragLeaveEvent(self, event: QDragLeaveEvent) -> None:
        self.toast.hide()

    def dropEvent(self, event: QDropEvent) -> None:
        """Open a dropped model or project, and import dropped plans, constraints and clusters."""
        if paths := _dropped_paths(event):
            _take_a_copy(event)
            self.toast.hide()
            # Only after the other program has been notified of the drop.
            QTimer.singleShot(0, self, lambda: self.studio.files.open_paths(paths))

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self.panes.share()

    def closeEvent(self, event: QCloseEvent) -> None:
        if not self.studio.may_close():
            event.ignore()
            return
        self.studio.settings.setValue("window/geometry", self.saveGeometry())
        self.studio.close()
        event.accept()


def _take_a_copy(event: QDropEvent) -> None:
    """Accept a drop; a program that believes its file moved would delete it."""
    event.setDropAction(Qt.DropAction.CopyAction)
    event.accept()


def _dropped_paths(event: QDropEvent) -> list[Path]:
    """Return the dropped files that are on this machine."""
    return [Path(url.toLocalFile()) for url in event.mimeData().urls() if url.isLocalFile()]
