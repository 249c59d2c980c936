"""The main window: header, graph, panes around it, status; and what its actions do."""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from PySide6.QtCore import QByteArray, QSettings, Qt, QTimer
from PySide6.QtGui import QAction, QCloseEvent, QDragEnterEvent, QDropEvent, QKeySequence
from PySide6.QtWidgets import (
    QApplication,
    QInputDialog,
    QMainWindow,
    QMenu,
    QMessageBox,
    QStackedWidget,
    QVBoxLayout,
    QWidget,
)

import enplace
from enplace.frameworks.source import ADD_TENSORFLOW
from enplace_studio.actions import ACTIONS, EXPORTS, MENUS, Action
from enplace_studio.docks import GAP_HALF, GRIP_HEIGHT, Dock
from enplace_studio.document import Document
from enplace_studio.filing import Filing
from enplace_studio.header import Header
from enplace_studio.jobs import Solver
from enplace_studio.machine import tensorflow_state, why_no_run
from enplace_studio.messages import Banner, Toast
from enplace_studio.panel import named, plain_tip
from enplace_studio.session import RecentFiles, Recovery
from enplace_studio.solving import Solving
from enplace_studio.start_page import StartPage
from enplace_studio.status import StatusLine
from enplace_studio.theme import MODES, theme

if TYPE_CHECKING:
    from enplace_studio.tensorflow.measuring import Measuring

LAYOUT_VERSION = 1
USUAL_SIZE = (1440, 900)
SIDE_WIDTHS = {"plans": 262, "inspector": 330}
TIMELINE_HEIGHT = 216
PRELOAD_MS = 200
MARGIN = 9

_LEFT = Qt.DockWidgetArea.LeftDockWidgetArea
_RIGHT = Qt.DockWidgetArea.RightDockWidgetArea
_BOTTOM = Qt.DockWidgetArea.BottomDockWidgetArea


@dataclass(frozen=True)
class Pane:
    """A view and where it stands at first."""

    name: str
    title: str
    module: str
    view: str
    area: Qt.DockWidgetArea


PANES = (
    Pane("plans", "Plans", "enplace_studio.plans", "PlansView", _LEFT),
    Pane("timeline", "Timeline", "enplace_studio.timeline", "TimelineView", _BOTTOM),
    Pane("inspector", "Inspector", "enplace_studio.inspector", "InspectorView", _RIGHT),
    Pane("memory", "Memory", "enplace_studio.memory", "MemoryView", _RIGHT),
    Pane("whatif", "What if", "enplace_studio.whatif", "WhatIfView", _RIGHT),
)


class MainWindow(QMainWindow):
    """One document and everything around it.

    Parameters
    ----------
    settings : QSettings
        Where window state, theme, method and recent files are remembered.
    recovery_folder : Path
        Where unsaved work is kept against a crash.
    """

    document: Document
    solver: Solver
    files: Filing
    solving: Solving

    def __init__(self, settings: QSettings, recovery_folder: Path) -> None:
        super().__init__()
        self.setWindowTitle("Enplace")
        self.setContentsMargins(MARGIN, 0, MARGIN, 0)
        self.setAcceptDrops(True)
        self.settings, self.recent = settings, RecentFiles(settings)
        self.document, self.solver = Document(self), Solver(self)
        self._solver_was = (False, False)
        self.recovery = Recovery(self.document, recovery_folder)
        self.views: dict[str, QWidget] = {}
        self.docks: dict[str, Dock] = {}
        self._wanted_docks: set[str] = {pane.name for pane in PANES}
        self._build()
        self.actions_by_id = {spec.id: self._make_action(spec) for spec in ACTIONS}
        self._make_menus()
        self._connect()
        self._restore()
        self._on_opened()
        QTimer.singleShot(PRELOAD_MS, self, self._preload)

    # Construction

    def _build(self) -> None:
        self.header = Header(self.document, self.solver)
        self.banner, self.start_page = Banner(), StartPage()
        self.pages = QStackedWidget()
        self.pages.addWidget(self.start_page)
        self.bar = self.addToolBar("Header")
        self.bar.setObjectName("header-bar")
        self.bar.setMovable(False)
        self.bar.toggleViewAction().setVisible(False)
        self.bar.setContextMenuPolicy(Qt.ContextMenuPolicy.PreventContextMenu)
        self.bar.addWidget(self.header)
        centre = named(QWidget(), "page")
        column = QVBoxLayout(centre)
        column.setContentsMargins(GAP_HALF, GRIP_HEIGHT, GAP_HALF, 0)
        column.addWidget(self.banner)
        column.addWidget(self.pages, 1)
        self._column = column
        self.setCentralWidget(centre)
        self.status_line = StatusLine(self.document, self.solver)
        self.statusBar().setSizeGripEnabled(False)
        self.statusBar().addWidget(self.status_line, 1)
        self.toast = Toast(centre, self.document.undo_stack.undo)
        self.files = Filing(self.document, self.recent, self.recovery, self)
        self.solving = Solving(self.document, self.solver, self.header, self)
        self.setCorner(Qt.Corner.BottomLeftCorner, _LEFT)
        self.setCorner(Qt.Corner.BottomRightCorner, _RIGHT)

    @cached_property
    def measuring(self) -> Measuring:
        """What needs TensorFlow; its code is imported when it is first used."""
        from enplace_studio.tensorflow.measuring import Measuring

        made = Measuring(self.document, self.files, self)
        made.done.connect(self.toast.say)
        made.failed.connect(self.banner.show_error)
        made.changed.connect(self.refresh_actions)
        self._column.insertWidget(0, made.strip)
        return made

    @property
    def is_measuring(self) -> bool:
        """Whether a worker profiles a model or runs a plan."""
        return "measuring" in self.__dict__ and self.measuring.busy

    def why_no_run(self) -> str:
        """Why the current plan cannot run on this machine now; empty if it can."""
        if self.is_measuring:
            return "A measurement is running. Wait until it ends, or cancel it."
        if self.solver.busy:
            return "The solver is at work and would disturb the measurement. Wait, or stop it."
        return why_no_run(self.document)

    def _show_result(self) -> None:
        """Make the card of measured runs once there is one to show; it follows the document."""
        current = self.document.current
        if current is None or current.run is None or "result" in self.views:
            return
        from enplace_studio.tensorflow.result import ResultCard

        card = ResultCard(self.document)
        card.costs_wanted.connect(self.actions_by_id["take-costs"].trigger)
        card.again_wanted.connect(self.actions_by_id["run"].trigger)
        self.views["result"] = card
        self.views["plans"].add_below(card)  # type: ignore[attr-defined]

    def _build_views(self) -> None:
        """Make the panes when the first model is opened; the start page needs none of them."""
        if self.views:
            return
        graph = importlib.import_module("enplace_studio.graph").GraphView(self.document)
        self.views["graph"] = graph
        self.pages.addWidget(graph)
        for pane in PANES:
            view = getattr(importlib.import_module(pane.module), pane.view)(self.document)
            dock = Dock(pane.name, pane.title, view)
            self.views[pane.name], self.docks[pane.name] = view, dock
            self.addDockWidget(pane.area, dock)
            self.view_menu.insertAction(self._before_panes, dock.toggleViewAction())
        plans = self.views["plans"]
        module = importlib.import_module("enplace_studio.plans.live")
        live = module.LiveCard(self.document, self.solver)
        live.going_on_requested.connect(self.solving.polish)
        plans.add_on_top(live)  # type: ignore[attr-defined]
        plans.export_requested.connect(self.files.ask_export_plan)  # type: ignore[attr-defined]
        plans.renewal_requested.connect(self.solving.renew)  # type: ignore[attr-defined]
        plans.polish_requested.connect(self.solving.polish)  # type: ignore[attr-defined]
        # Sizes hold once the panes have been laid out.
        QTimer.singleShot(0, self, self._arrange_docks)

    def _preload(self) -> None:
        """Import the panes' modules one a turn, so that the first model opens sooner."""
        wanted = ("enplace_studio.graph", *(pane.module for pane in PANES))
        missing = next((module for module in wanted if module not in sys.modules), None)
        if missing is not None:
            importlib.import_module(missing)
            QTimer.singleShot(0, self, self._preload)

    def _arrange_docks(self) -> None:
        self._usual_sizes()
        state = self.settings.value("window/state")
        if isinstance(state, QByteArray):
            self.restoreState(state, LAYOUT_VERSION)

    def _usual_sizes(self) -> None:
        docks = [self.docks[name] for name in SIDE_WIDTHS]
        self.resizeDocks(docks, list(SIDE_WIDTHS.values()), Qt.Orientation.Horizontal)
        right = [self.docks[name] for name in ("inspector", "memory", "whatif")]
        self.resizeDocks(right, [380, 290, 140], Qt.Orientation.Vertical)
        self.resizeDocks([self.docks["timeline"]], [TIMELINE_HEIGHT], Qt.Orientation.Vertical)

    def _make_action(self, spec: Action) -> QAction:
        action = QAction(spec.title, self)
        action.setShortcuts([QKeySequence(keys) for keys in spec.keys])
        action.setCheckable(spec.checked is not None)
        action.triggered.connect(lambda: spec.run(self))
        self.addAction(action)
        return action

    def _make_menus(self) -> None:
        for title in MENUS:
            menu = self.menuBar().addMenu(title)
            menu.setToolTipsVisible(True)
            specs = [spec for spec in ACTIONS if spec.menu == title]
            for before, spec in zip([None, *specs], specs, strict=False):
                if before is not None and spec.group != before.group:
                    menu.addSeparator()
                menu.addAction(self.actions_by_id[spec.id])
            if title == "View":
                self.view_menu = menu
            if title == "File":
                recent = QMenu("Open recent", menu)
                menu.insertMenu(self.actions_by_id["start"], recent)
                menu.aboutToShow.connect(lambda r=recent: self._fill_recent(r))
        self._before_panes = self.view_menu.insertSeparator(self.view_menu.actions()[0])
        export = QMenu(self)
        for form in ("plan", *EXPORTS, "graph"):
            export.addAction(self.actions_by_id[f"export-{form}"])
        self.header.export_button.setMenu(export)

    def _fill_recent(self, menu: QMenu) -> None:
        menu.clear()
        paths = self.recent.paths()
        for path in paths:
            action = menu.addAction(path.name)
            action.setToolTip(str(path))
            action.triggered.connect(lambda _=False, path=path: self.files.open_path(path))
        menu.setToolTipsVisible(True)
        menu.setEnabled(bool(paths))

    def _connect(self) -> None:
        document, solver = self.document, self.solver
        document.opened.connect(self._on_opened)
        document.failed.connect(self.banner.show_error)
        document.noticed.connect(lambda text: self.toast.say(text, undo=True))
        for signal in (document.file_changed, document.selection_changed):
            signal.connect(self.banner.hide)
        document.file_changed.connect(self._show_title)
        for part in (self.files, self.solving):
            part.done.connect(self.toast.say)
            part.failed.connect(self.banner.show_error)
        for signal in (
            document.opened, document.current_changed, document.selection_changed,
            document.file_changed, solver.idle, solver.methods_changed,
        ):  # fmt: skip
            signal.connect(self.refresh_actions)
        solver.changed.connect(self._on_solver_changed)
        self.header.solve_pressed.connect(self.solving.solve_or_cancel)
        self.header.compare_pressed.connect(self.solving.compare)
        self.header.cluster_pressed.connect(self.solving.choose_cluster)
        self.start_page.sample_chosen.connect(self.files.open_sample)
        self.start_page.file_chosen.connect(self.files.open_path)
        self.start_page.open_pressed.connect(self.files.ask_open)
        self.start_page.model_pressed.connect(self.actions_by_id["open-model"].trigger)
        self.header.run_pressed.connect(self.actions_by_id["run"].trigger)
        self.files.model_named.connect(lambda path: self.measuring.open_model(path))
        for signal in (document.opened, document.current_changed):
            signal.connect(self._show_result)

    def _restore(self) -> None:
        self.resize(*USUAL_SIZE)
        geometry = self.settings.value("window/geometry")
        if isinstance(geometry, QByteArray):
            self.restoreGeometry(geometry)
        mode = self.settings.value("theme", "system")
        theme.set_mode(mode if mode in MODES else "system")
        method, objective = (str(self.settings.value(key, "")) for key in ("method", "objective"))
        self.header.set_method(method, objective=objective)

    # What the window shows

    def refresh_actions(self) -> None:
        """Enable what can be done now, and say what undo and redo would do."""
        for spec in ACTIONS:
            action = self.actions_by_id[spec.id]
            action.setEnabled(spec.enabled(self))
            if spec.why_not:
                action.setToolTip(plain_tip(spec.why_not(self)))
            if spec.checked:
                action.setChecked(spec.checked(self))
        stack, problem = self.document.undo_stack, self.document.problem
        self.actions_by_id["undo"].setText(f"Undo {stack.undoText()}".strip())
        self.actions_by_id["redo"].setText(f"Redo {stack.redoText()}".strip())
        pinned = problem is not None and bool(problem.pins)
        self.actions_by_id["solve"].setText("Solve around my pins" if pinned else "Solve")
        self.header.show_run(self.why_no_run(), self.is_measuring)

    def _on_solver_changed(self) -> None:
        now = self.solver.busy, self.solver.is_asked
        if now != self._solver_was:
            self._solver_was = now
            self.refresh_actions()

    def _on_opened(self) -> None:
        is_open = self.document.problem is not None
        if is_open:
            self._build_views()
            self.pages.setCurrentWidget(self.views["graph"])
            self.views["graph"].setFocus()
        else:
            self._remember_docks()
            self.start_page.show_recent(self.recent.paths())
            self.pages.setCurrentWidget(self.start_page)
        self._show_docks(is_open)
        self.bar.setVisible(is_open)
        self.status_line.setVisible(is_open)
        self.banner.hide()
        self.toast.hide()
        self._show_title()
        self.refresh_actions()

    def _show_docks(self, is_open: bool) -> None:
        """Panes make no sense on the start page; those that were closed stay closed."""
        for name, dock in self.docks.items():
            if not is_open and not dock.isHidden():
                dock.hide()
            elif is_open and name in self._wanted_docks:
                dock.show()

    def _show_title(self) -> None:
        problem, path = self.document.problem, self.document.path
        if problem is None:
            self.setWindowTitle("Enplace")
            return
        name = path.name if path else problem.profile.name
        self.setWindowTitle(f"{name}[*] – Enplace")
        self.setWindowModified(self.document.modified)

    def call_view(self, method: str) -> None:
        """Ask the view that has the focus, else the graph."""
        widget: QWidget | None = QApplication.focusWidget()
        while widget is not None and not hasattr(widget, method):
            widget = widget.parentWidget()
        target = widget or self.views.get("graph")
        if target is not None and hasattr(target, method):
            getattr(target, method)()

    def search(self) -> None:
        """Put the cursor into the graph's search field."""
        self.views["graph"].start_search()  # type: ignore[attr-defined]

    def export_graph(self) -> None:
        """Write the graph's picture with its legend."""
        write = self.views["graph"].export_picture  # type: ignore[attr-defined]
        self.files.ask_write("Export the graph", ".svg", write)

    def select_all(self) -> None:
        assert self.document.problem is not None
        self.document.select(range(self.document.problem.profile.n_ops))

    @property
    def theme_mode(self) -> str:
        return theme.mode

    def set_mode(self, mode: str) -> None:
        """Light, dark, or as the system; remembered."""
        self.settings.setValue("theme", mode)
        theme.set_mode(mode)
        self.refresh_actions()

    def reset_layout(self) -> None:
        """Put the panes where they were at first."""
        for pane in PANES:
            if dock := self.docks.get(pane.name):
                dock.setFloating(False)
                self.addDockWidget(pane.area, dock)
                dock.setVisible(self.document.problem is not None)
        if self.docks:
            self._usual_sizes()

    # Dialogs

    def ask_rename(self) -> None:
        current = self.document.current
        assert current is not None
        name, done = QInputDialog.getText(self, "Rename plan", "Name", text=current.name)
        if done:
            self.document.rename_plan(current, name)

    def remove_plan(self) -> None:
        if self.document.current is not None:
            self.document.remove_plan(self.document.current)

    def show_palette(self) -> None:
        from enplace_studio.palette import Palette

        Palette(self.actions_by_id, self).exec()

    def show_keys(self) -> None:
        from enplace_studio.palette import KeySheet

        KeySheet(self).exec()

    def show_tensorflow(self) -> None:
        """What TensorFlow is needed for, and how to add it."""
        box = QMessageBox(self)
        box.setWindowTitle("TensorFlow")
        box.setText(tensorflow_state())
        box.setInformativeText(
            "Opening a model, profiling it and running a plan need it, and so does a training "
            "script that uses an exported plan. Looking at profiles, solving and exporting never "
            f"do.\n\nTo add it, run:\n{ADD_TENSORFLOW}"
        )
        box.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        box.exec()

    def show_about(self) -> None:
        QMessageBox.about(
            self,
            "About Enplace",
            f"<b>Enplace {enplace.__version__}</b><p>Everything in its place: decides where every "
            "op of a model runs, and in what order, on the GPUs you have.</p>"
            "<p>Apache License 2.0</p>",
        )

    # The end

    def _remember_docks(self) -> None:
        if self.pages.currentWidget() is not self.start_page:
            self._wanted_docks = {n for n, dock in self.docks.items() if not dock.isHidden()}
            self.settings.setValue("window/state", self.saveState(LAYOUT_VERSION))

    def dragEnterEvent(self, event: QDragEnterEvent) -> None:
        if _dropped_path(event) is not None:
            event.acceptProposedAction()

    def dropEvent(self, event: QDropEvent) -> None:
        """Open what is dropped: a profile, a project or a model."""
        if (path := _dropped_path(event)) is not None:
            event.acceptProposedAction()
            # Once the other program knows that the drop is over.
            QTimer.singleShot(0, self, lambda: self.files.open_path(path))

    def closeEvent(self, event: QCloseEvent) -> None:
        used = "measuring" in self.__dict__
        if not self.files.may_leave() or (used and not self.measuring.may_leave()):
            event.ignore()
            return
        self._remember_docks()
        self.settings.setValue("window/geometry", self.saveGeometry())
        self.settings.setValue("method", self.header.method)
        self.settings.setValue("objective", self.header.objective)
        if used:
            self.measuring.close_job()
        self.solver.close()
        self.recovery.close()
        event.accept()


def _dropped_path(event: QDropEvent) -> Path | None:
    """The file that is dropped, if it is one of this machine."""
    urls = event.mimeData().urls()
    return Path(urls[0].toLocalFile()) if urls and urls[0].isLocalFile() else None
