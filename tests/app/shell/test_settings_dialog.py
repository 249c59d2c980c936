import pytest
from PySide6.QtCore import QSettings
from PySide6.QtWidgets import QLineEdit

from enplace_studio.shell.parts import text_size_in
from enplace_studio.shell.settings_dialog import SettingsDialog
from enplace_studio.shell.window import MainWindow
from enplace_studio.widgets.style import make_sheet
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
    choose(dialog.text_size, 1.3)
    assert theme.dark
    assert window.studio.chosen.time_limit_s == 60
    window.close()
    theme.set_mode("light")
    again = make_window()
    assert theme.dark
    assert again.studio.chosen.time_limit_s == 60
    assert SettingsDialog(again.studio, again).text_size.currentData() == 1.3
    assert text_size_in(again.studio.settings) == 1.3


def test_settings_say_where_files_are(make_window, tmp_path):
    window = make_window()
    dialog = SettingsDialog(window.studio, window)
    shown = [line.text() for line in dialog.findChildren(QLineEdit)]
    assert str(tmp_path / "recovery" / "backups") in shown
    assert str(tmp_path / "studio.ini") in shown


def test_texts_grow_with_the_chosen_size(qapp):
    usual = theme.font(20).pixelSize()
    try:
        theme.set_text_size(1.3)
        assert theme.font(20).pixelSize() == round(1.3 * usual)
        assert f"font-size: {theme.font(12).pixelSize()}px" in make_sheet(theme)
    finally:
        theme.set_text_size(1.0)
    assert theme.font(20).pixelSize() == usual
