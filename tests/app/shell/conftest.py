"""A window of the studio, with a plan or without."""

import pytest
from PySide6.QtCore import QSettings
from PySide6.QtWidgets import QMessageBox
from tests.app.shell.windows import BUTTON, project_with_a_plan

from enplace_studio.shell.window import MainWindow
from enplace_studio.widgets.theme import theme
from forking import fork_workers


@pytest.fixture(autouse=True)
def forked_workers(monkeypatch, loaded_kernels):
    """Workers of a window need not import or load anew what this process has."""
    fork_workers(monkeypatch)


@pytest.fixture
def settings(tmp_path):
    return QSettings(str(tmp_path / "studio.ini"), QSettings.Format.IniFormat)


@pytest.fixture
def make_window(qtbot, settings, tmp_path, monkeypatch):
    kept = []
    theme.set_mode("light")

    def make():
        window = MainWindow(settings, tmp_path / "recovery")
        kept.append(window)
        window.show()
        return window

    yield make
    monkeypatch.setattr(QMessageBox, "question", lambda *_: BUTTON.Discard)
    for window in kept:
        window.close()
        window.deleteLater()


@pytest.fixture
def window(make_window):
    """A window with a plan; its solver is never started."""
    made = make_window()
    made.document.open(project_with_a_plan())
    return made
