"""A view takes one folder and one line."""

import sys
from dataclasses import replace
from types import ModuleType

import pytest
from PySide6.QtCore import QSettings, Qt
from PySide6.QtWidgets import QLabel, QMessageBox

from documents import chain_document
from enplace_studio import views
from enplace_studio.actions import all_actions
from enplace_studio.palette import Palette
from enplace_studio.theme import theme
from enplace_studio.view import View, ViewAction
from enplace_studio.window import MainWindow

FOLDER = "view_of_a_test"


class NotesView(QLabel):
    """Counts the ops of the document."""

    def __init__(self, document):
        super().__init__()
        self.asked = False
        document.opened.connect(lambda: self.setText(f"{document.problem.profile.n_ops} ops"))
        self.setText(f"{document.problem.profile.n_ops} ops")

    def ask(self):
        self.asked = True


@pytest.fixture
def folder(monkeypatch):
    """The folder of a view, with the contents of its ``__init__`` and its module."""
    name = f"enplace_studio.views.{FOLDER}"
    package, module = ModuleType(name), ModuleType(f"{name}.view")
    action = ViewAction("ask-notes", "Ask the notes", "Edit", ("Ctrl+J",), lambda v: v.ask(), 2)
    area = Qt.DockWidgetArea.RightDockWidgetArea
    package.VIEW = View("notes", "Notes", f"{name}.view", area, height=150, actions=(action,))
    module.make_view = lambda document, solver: NotesView(document)
    monkeypatch.setitem(sys.modules, name, package)
    monkeypatch.setitem(sys.modules, f"{name}.view", module)
    return FOLDER


@pytest.fixture
def window(qapp, tmp_path, monkeypatch, folder):
    """A window with one more line in the table of views."""
    monkeypatch.setattr(views, "FOLDERS", [*views.FOLDERS, folder])
    theme.set_mode("light")
    settings = QSettings(str(tmp_path / "studio.ini"), QSettings.Format.IniFormat)
    made = MainWindow(settings, tmp_path / "recovery")
    monkeypatch.setattr(made.solver, "solve", lambda *_, **__: None)
    made.show()
    made.document.open(chain_document().project)
    yield made
    monkeypatch.setattr(QMessageBox, "question", lambda *_: QMessageBox.StandardButton.Discard)
    made.close()
    made.deleteLater()


def menu_of(window, title):
    return next(a.menu() for a in window.menuBar().actions() if a.text() == title)


def test_the_view_is_shown_in_its_dock(window):
    dock = window.panes.docks["notes"]
    assert dock.isVisible()
    assert window.dockWidgetArea(dock) == Qt.DockWidgetArea.RightDockWidgetArea
    assert window.panes.views["notes"].text() == "3 ops"


def test_the_view_menu_shows_and_hides_the_view(window):
    toggle = next(a for a in menu_of(window, "View").actions() if a.text() == "Notes")
    toggle.trigger()
    assert not window.panes.docks["notes"].isVisible()


def test_the_views_action_is_in_the_menu_and_the_palette(window, qtbot):
    assert "Ask the notes" in [a.text() for a in menu_of(window, "Edit").actions()]
    palette = Palette(window.menus, window)
    qtbot.addWidget(palette)
    palette.field.setText("ask notes")
    assert palette.list.count() == 1
    assert "Ctrl+J" in palette.list.item(0).text()
    palette.list.itemActivated.emit(palette.list.item(0))
    assert window.panes.views["notes"].asked


@pytest.mark.parametrize("key", ["Ctrl+S", "ctrl+s", "S, Ctrl+S"])
def test_a_shortcut_that_another_action_has_is_refused(folder, monkeypatch, key):
    monkeypatch.setattr(views, "FOLDERS", [*views.FOLDERS, folder])
    assert "ask-notes" in {action.id for action in all_actions()}
    package = sys.modules[f"enplace_studio.views.{folder}"]
    taken = replace(package.VIEW.actions[0], keys=tuple(key.split(", ")))
    package.VIEW = replace(package.VIEW, actions=(taken,))
    sentence = r"action 'ask-notes': its shortcut Ctrl\+S belongs to 'save'; choose another one"
    with pytest.raises(ValueError, match=sentence):
        all_actions()


def test_an_action_id_that_another_action_has_is_refused(folder, monkeypatch):
    monkeypatch.setattr(views, "FOLDERS", [*views.FOLDERS, folder, folder])
    with pytest.raises(ValueError, match="action 'ask-notes': another action has this id"):
        all_actions()


def test_a_layout_saved_without_the_view_does_not_apply(window, monkeypatch):
    with_it = window.panes._version
    monkeypatch.setattr(window.panes, "_docked", window.panes._docked[:-1])
    assert window.panes._version != with_it
