import pytest
from PySide6.QtCore import QSettings
from PySide6.QtWidgets import QLineEdit

from enplace_studio.shell.settings_dialog import SettingsDialog
from enplace_studio.shell.window import MainWindow
from enplace_studio.widgets.theme import theme


@pytest.fixture
def make_window(qtbot, tmp_path):
    theme.set_mode("light")

    def make():
        settings = QSettings(str(tmp_path / "studio.ini"), QSettings.Format.IniFormat)
        window = MainWindow(settings, tmp_path / "recovery")
        qtbot.addWidget(window)
        return window

    yield make
    theme.set_mode("light")


def choose(field, value):
    field.setCurrentIndex(field.findData(value))
    field.activated.emit(field.currentIndex())


def test_settings_apply_at_once_and_are_remembered(make_window, qtbot):
    window = make_window()
    dialog = SettingsDialog(window.studio, window)
    assert (dialog.mode.currentData(), dialog.time_limit.currentData()) == ("system", 10)
    choose(dialog.mode, "dark")
    choose(dialog.time_limit, 60)
    assert theme.dark
    assert window.studio.chosen.time_limit_s == 60
    window.close()
    theme.set_mode("light")
    again = make_window()
    assert theme.dark
    assert again.studio.chosen.time_limit_s == 60


def test_settings_say_where_files_are(make_window, tmp_path):
    window = make_window()
    dialog = SettingsDialog(window.studio, window)
    shown = [line.text() for line in dialog.findChildren(QLineEdit)]
    assert str(tmp_path / "recovery" / "backups") in shown
    assert str(tmp_path / "studio.ini") in shown
