"""The table of actions in Qt: shortcuts, menus, and which actions are enabled."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtCore import QObject
from PySide6.QtGui import QAction, QKeySequence
from PySide6.QtWidgets import QMainWindow, QMenu

from enplace_studio.model.constraints import solve_text
from enplace_studio.shell.actions import EXPORTS, MENUS, all_actions
from enplace_studio.shell.parts import Studio
from enplace_studio.widgets.labels import plain_tip


class Menus(QObject):
    """One QAction for each action, in the menu bar of the window.

    Attributes
    ----------
    specs : tuple of Action
        The table.
    by_id : dict of str to QAction
    """

    def __init__(self, studio: Studio, window: QMainWindow) -> None:
        super().__init__(window)
        self._studio, self._window = studio, window
        self.specs = all_actions()
        self.by_id = {spec.id: self._make_action(spec.id) for spec in self.specs}
        menus = {title: self._make_menu(title) for title in MENUS}
        self._view_menu = menus["View"]
        self._before_panes = self._view_menu.insertSeparator(self._view_menu.actions()[0])
        self.recent_menu = QMenu("Open recent", menus["File"])
        menus["File"].insertMenu(self.by_id["start"], self.recent_menu)
        menus["File"].aboutToShow.connect(self.fill_recent)
        studio.panes.built.connect(self._add_panes)
        studio.document.requests.run_action.connect(lambda name: self.by_id[name].trigger())
        studio.changed.connect(self.refresh)

    def _make_action(self, name: str) -> QAction:
        spec = next(spec for spec in self.specs if spec.id == name)
        action = QAction(spec.title, self._window)
        action.setShortcuts([QKeySequence(keys) for keys in spec.keys])
        action.setCheckable(spec.checked is not None)
        action.triggered.connect(lambda: spec.run(self._studio))
        self._window.addAction(action)
        return action

    def _make_menu(self, title: str) -> QMenu:
        menu = self._window.menuBar().addMenu(title)
        menu.setToolTipsVisible(True)
        specs = [spec for spec in self.specs if spec.menu == title]
        for before, spec in zip([None, *specs], specs, strict=False):
            if before is not None and spec.group != before.group:
                menu.addSeparator()
            menu.addAction(self.by_id[spec.id])
        return menu

    def export_menu(self) -> QMenu:
        """Make a menu of all export formats."""
        menu = QMenu(self._window)
        menu.setToolTipsVisible(True)
        for form in ("plan", *EXPORTS):
            menu.addAction(self.by_id[f"export-{form}"])
        menu.addSeparator()
        menu.addAction(self.by_id["save-picture"])
        return menu

    def _add_panes(self) -> None:
        for action in self._studio.panes.toggles:
            self._view_menu.insertAction(self._before_panes, action)

    def fill_recent(self) -> None:
        """List the recently opened files."""
        self.recent_menu.clear()
        paths = self._studio.recent.paths()
        for path in paths:
            self._add_recent(path)
        self.recent_menu.setToolTipsVisible(True)
        self.recent_menu.setEnabled(bool(paths))

    def _add_recent(self, path: Path) -> None:
        action = self.recent_menu.addAction(path.name)
        action.setToolTip(plain_tip(str(path)))
        action.triggered.connect(lambda: self._studio.files.open_path(path))

    def refresh(self) -> None:
        """Enable the available actions, and name the edits of Undo and Redo."""
        studio = self._studio
        for spec in self.specs:
            action = self.by_id[spec.id]
            action.setEnabled(spec.enabled(studio))
            if spec.why_not:
                action.setToolTip(plain_tip(spec.why_not(studio)))
            if spec.checked:
                action.setChecked(spec.checked(studio))
        stack, project = studio.document.undo_stack, studio.document.project
        self.by_id["undo"].setText(f"Undo {stack.undoText()}".strip())
        self.by_id["redo"].setText(f"Redo {stack.redoText()}".strip())
        self.by_id["solve"].setText("Solve" if project is None else solve_text(project))
