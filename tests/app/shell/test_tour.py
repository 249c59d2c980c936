import pytest
from PySide6.QtCore import QPoint, QRect, QSettings, Qt
from PySide6.QtTest import QTest

from documents import chain_document
from enplace_studio.shell.actions import all_actions
from enplace_studio.shell.tour import STEPS
from enplace_studio.shell.window import MainWindow


@pytest.fixture
def make_window(qtbot, tmp_path):
    settings = QSettings(str(tmp_path / "studio.ini"), QSettings.Format.IniFormat)

    def make():
        window = MainWindow(settings, tmp_path / "recovery")
        qtbot.addWidget(window)
        window.resize(1200, 800)
        window.show()
        return window

    return make


def open_chain(window):
    window.document.open(chain_document().project)


def test_the_tour_comes_by_itself_once_whether_or_not_it_is_finished(make_window, qtbot):
    window = make_window()
    window.offer_tour()
    assert not window.tour.isVisible()
    open_chain(window)
    qtbot.waitUntil(window.tour.isVisible)
    again = make_window()
    again.offer_tour()
    assert not again._is_new
    for _ in STEPS:
        window.tour.next.click()
    assert not window.tour.isVisible()


def test_enter_goes_through_the_tour(make_window, qtbot):
    window = make_window()
    open_chain(window)
    with qtbot.waitActive(window):
        window.activateWindow()
    window.tour.begin()
    QTest.mouseMove(window.tour.next)  # or a pane that the pointer was left on takes the keys
    qtbot.waitUntil(window.tour.next.hasFocus)
    for number in range(len(STEPS)):
        assert window.tour.at == number
        QTest.keyClick(window.tour.next, Qt.Key.Key_Return)
    assert not window.tour.isVisible()


def test_the_tour_is_in_the_help_menu_and_esc_ends_it(make_window):
    window = make_window()
    open_chain(window)
    assert not window.tour.isVisible()
    window.menus.by_id["tour"].trigger()
    assert window.tour.isVisible()
    QTest.keyClick(window.tour.next, Qt.Key.Key_Escape)
    assert not window.tour.isVisible()


def test_the_card_stays_in_the_selection_pane_while_each_step_frames_its_subject(make_window):
    window = make_window()
    open_chain(window)
    window.tour.begin()
    pane = window.panes.views["inspector"]
    room = QRect(pane.mapTo(window, QPoint()), pane.size())
    corner = window.tour.geometry().bottomRight()
    for number, step in enumerate(STEPS):
        target = window._tour_targets()[step.target]
        window.tour.show_step(number)
        around = QRect(target.mapTo(window, QPoint()), target.size())
        assert window.tour._frame.geometry().contains(around)
        assert room.contains(window.tour.geometry())
        assert window.tour.geometry().bottomRight() == corner


def test_the_tour_ends_with_the_model(make_window):
    window = make_window()
    open_chain(window)
    window.tour.begin()
    window.document.open(None)
    assert not window.tour.isVisible()


def test_keys_that_the_tour_names_exist():
    keys = {key for action in all_actions() for key in action.keys}
    assert {"Ctrl+F", "Ctrl+Z", "Ctrl+Shift+P"} <= keys
    assert len(STEPS) == 5
