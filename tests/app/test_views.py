"""A view takes one folder and one line."""

import re
import sys
from dataclasses import replace
from pathlib import Path
from textwrap import dedent
from types import ModuleType

import pytest
from PySide6.QtCore import QSettings, Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QLabel, QMessageBox, QPushButton

from documents import chain_document
from enplace_studio import views
from enplace_studio.shell.actions import all_actions
from enplace_studio.shell.palette import Palette
from enplace_studio.shell.window import MainWindow
from enplace_studio.views.view import View, ViewAction
from enplace_studio.widgets.theme import theme
from turns import take_turns

CONTRIBUTING = Path(__file__).parents[2] / "CONTRIBUTING.md"
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
def template(monkeypatch, tmp_path):
    """The folder of the view in CONTRIBUTING.md."""
    guide = CONTRIBUTING.read_text()
    page = guide[guide.index("## Add a view") : guide.index("## Write documentation")]
    init, module = (dedent(code) for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL))
    (tmp_path / "busiest").mkdir()
    (tmp_path / "busiest" / "__init__.py").write_text(init)
    (tmp_path / "busiest" / "busiest_view.py").write_text(module)
    monkeypatch.setattr(views, "__path__", [*views.__path__, str(tmp_path)])
    yield "busiest"
    for name in [name for name in sys.modules if name.startswith(f"{views.__name__}.busiest")]:
        del sys.modules[name]


@pytest.fixture
def window(make_window, folder):
    """A window with one more line in the table of views."""
    return make_window(folder)


@pytest.fixture
def make_window(qapp, tmp_path, monkeypatch):
    made = []

    def make(folder):
        made.append(open_window(folder, tmp_path, monkeypatch))
        return made[-1]

    yield make
    monkeypatch.setattr(QMessageBox, "question", lambda *_: QMessageBox.StandardButton.Discard)
    for window in made:
        window.close()
        window.deleteLater()


def open_window(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(views, "FOLDERS", [*views.FOLDERS, folder])
    theme.set_mode("light")
    settings = QSettings(str(tmp_path / "studio.ini"), QSettings.Format.IniFormat)
    made = MainWindow(settings, tmp_path / "recovery")
    monkeypatch.setattr(made.solver, "solve", lambda *_, **__: None)
    made.show()
    made.document.open(chain_document().project)
    return made


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


def test_the_view_in_the_guide_shows_the_plan_and_follows_an_edit(make_window, template):
    window = make_window(template)
    view, document = window.panes.views["busiest"], window.document
    assert window.panes.docks["busiest"].isVisible()
    assert [text.text() for text in view.column.findChildren(QLabel)] == [
        "GPU 0 computes for 0.020 ms"
    ]
    view.column.findChildren(QPushButton)[0].click()
    assert document.selection == {0, 1}
    document.place([0, 1], 1)
    take_turns()
    assert [text.text() for text in view.column.findChildren(QLabel)] == [
        "GPU 1 computes for 0.030 ms"
    ]
    document.open(None)
    take_turns()
    shown = [text.text() for text in view.column.findChildren(QLabel)]
    assert shown == ["The busiest device of a plan appears here."]
