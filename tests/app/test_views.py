"""A view takes one folder and one line."""

import sys
from dataclasses import replace
from types import ModuleType

import pytest
from PySide6.QtCore import QSettings, Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QLabel, QMessageBox

from documents import chain_document
from enplace_studio import views
from enplace_studio.shell.actions import all_actions
from enplace_studio.shell.palette import Palette
from enplace_studio.shell.window import MainWindow
from enplace_studio.widgets.theme import theme
from enplace_studio.widgets.view import View, ViewAction

FOLDER = "view_of_a_test"
NAME = f"enplace_studio.views.{FOLDER}"


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
    package, module = ModuleType(NAME), ModuleType(f"{NAME}.view")
    action = ViewAction("ask-notes", "Ask the notes", "Edit", ("Ctrl+J",), lambda v: v.ask(), 2)
    area = Qt.DockWidgetArea.RightDockWidgetArea
    package.VIEW = View("notes", "Notes", f"{NAME}.view", area, height=150, actions=(action,))
    module.make_view = lambda document, solver: NotesView(document)
    monkeypatch.setitem(sys.modules, NAME, package)
    monkeypatch.setitem(sys.modules, f"{NAME}.view", module)
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


def describe(folder, monkeypatch, **change):
    """Add the folder to the table, its view described with this change."""
    monkeypatch.setattr(views, "FOLDERS", [*views.FOLDERS, folder])
    sys.modules[NAME].VIEW = replace(sys.modules[NAME].VIEW, **change)


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
    palette = Palette(window.menus, window.studio, window)
    qtbot.addWidget(palette)
    QTest.keyClicks(palette.search.field, "ask notes")
    QTest.keyClick(palette.search.field, Qt.Key.Key_Return)
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
    describe(folder, monkeypatch, actions=2 * sys.modules[NAME].VIEW.actions)
    with pytest.raises(ValueError, match="action 'ask-notes': another action has this id"):
        all_actions()


def test_a_menu_that_the_window_lacks_is_refused(folder, monkeypatch):
    lost = replace(sys.modules[NAME].VIEW.actions[0], menu="Veiw")
    describe(folder, monkeypatch, actions=(lost,))
    sentence = (
        "action 'ask-notes': there is no menu 'Veiw'; use File, Edit, Select, Plan, View, Help"
    )
    with pytest.raises(ValueError, match=sentence):
        all_actions()


def test_a_view_id_that_another_view_has_is_refused(folder, monkeypatch):
    describe(folder, monkeypatch, id="graph")
    with pytest.raises(ValueError, match="view 'graph': another view has this id; rename it"):
        views.all_views()


@pytest.mark.parametrize(
    "module", [NAME, "enplace_studio.views.graph.scene", "enplace_studio.views.lost.view", "lost"]
)
def test_a_view_without_a_function_that_makes_it_is_refused(folder, monkeypatch, module):
    describe(folder, monkeypatch, module=module)
    sentence = f"view 'notes': there is no module '{module}' with a function make_view"
    with pytest.raises(ValueError, match=sentence):
        views.all_views()


def test_a_folder_without_a_view_is_refused(folder, monkeypatch):
    monkeypatch.setattr(views, "FOLDERS", [*views.FOLDERS, folder])
    del sys.modules[NAME].VIEW
    with pytest.raises(ValueError, match=f"folder '{FOLDER}': its __init__ must hold a View"):
        views.all_views()


def test_a_layout_saved_without_the_view_does_not_apply(window, monkeypatch):
    with_it = window.panes._version
    monkeypatch.setattr(window.panes, "_docked", window.panes._docked[:-1])
    assert window.panes._version != with_it
