"""How the panes share the window: nothing is wider or higher than its share."""

from itertools import pairwise

import pytest
from PySide6.QtCore import QSettings, QSize, Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QLabel

from documents import add_plan
from enplace_studio.model.open_project import start_project
from enplace_studio.shell.pane_sizes import share
from enplace_studio.shell.window import MainWindow
from enplace_studio.views.moves.moves_view import IN_SIGHT
from enplace_studio.views.whatif.speed_curves import COMPUTE
from enplace_studio.widgets.labels import ElidedLabel
from enplace_studio.widgets.panel import Need
from enplace_studio.widgets.style import make_sheet
from enplace_studio.widgets.theme import theme
from problems import cluster_of, profile_of
from turns import take_turns

SIZES = [(1024, 700), (1366, 768)]
LAYERS = [
    f"{side}/layer_{n}/{op}" for side in ("encoder", "decoder") for n in range(6) for op in "ab"
]


@pytest.fixture
def window(qtbot, tmp_path):
    theme.set_mode("light")
    settings = QSettings(str(tmp_path / "studio.ini"), QSettings.Format.IniFormat)
    made = MainWindow(settings, tmp_path / "recovery")
    made.setStyleSheet(make_sheet(theme))
    made.show()
    edges = [(one, other, 1 << 20) for one, other in pairwise(LAYERS)]
    profile = profile_of(dict.fromkeys(LAYERS, 1000.0), edges)
    made.document.open(start_project(profile, cluster_of(2)))
    half = len(LAYERS) // 2
    split = {name: int(at >= half) for at, name in enumerate(LAYERS)}
    add_plan(made.document, "Expert with a name that is long", split, choose=True)
    add_plan(
        made.document, "my pins + Enplace, 30 s, edited", dict.fromkeys(LAYERS, 0), choose=True
    )
    for name in ("constraints", "history", "memory", "whatif"):  # as if all had been used
        made.panes.docks[name].toggleViewAction().trigger()
    yield made
    made.solver.close()
    made.document.open(None)
    made.close()


def plan_of(window, number):
    return window.document.plans[number]


def ask_why(window):
    window.document.select([0, 1])
    window.panes.views["memory"].curves_button.click()


STATES = {
    "solved": lambda window: None,
    "compared": lambda window: window.panes.views["plans"].compare_with(plan_of(window, 0)),
    "selected": lambda window: window.document.select(range(5)),
    "pinned": lambda window: window.document.place(range(5), 1),
    "history": lambda window: window.panes.docks["history"].toggleViewAction().trigger(),
    "error": lambda window: window.banner.show_error("It cannot run later: " + "because " * 40),
    "curve": lambda window: window.panes.views["whatif"].toggle_curve(COMPUTE),
    "memory": lambda window: ask_why(window),
    "side by side": lambda window: window.menus.by_id["side-by-side"].trigger(),
    "and back": lambda window: window.menus.by_id["side-by-side"].trigger(),
    "nothing selected": lambda window: window.document.select([]),
}


def settle(window):
    """Let everything that was put off until later happen."""
    window.panes.views["compare"].wait()
    take_turns()


@pytest.mark.parametrize("size", SIZES)
def test_no_state_makes_the_window_larger_than_its_screen(window, size):
    wanted = QSize(*size)
    window.resize(wanted)
    for state, reach in STATES.items():
        reach(window)
        settle(window)
        assert window.size() == wanted, state
        hint = window.minimumSizeHint()
        assert hint.expandedTo(wanted) == wanted, state
        for name, dock in window.panes.docks.items():
            if dock.isVisible():
                assert window.rect().contains(dock.geometry()), (state, name)
                check_width(dock.view, (state, name))


def check_width(pane, where):
    """Check that every widget of a scrolled pane is inside it, and that no text is cut."""
    column = getattr(pane, "column", None)
    if column is None or pane.is_folded or column.widget() is None:
        return
    assert column.widget().width() <= column.viewport().width(), where
    for text in column.widget().findChildren(QLabel):
        cut = text.sizeHint().width() > text.width() + 1
        elides = text.wordWrap() or isinstance(text, ElidedLabel)
        assert not (text.isVisible() and cut) or elides, (where, text.text())


def test_panes_leave_no_gap_and_never_overlap(window):
    window.resize(1366, 768)
    window.document.select(range(5))
    settle(window)
    right = [window.panes.docks[name] for name in ("inspector", "memory", "whatif")]
    edges = [(dock.geometry().top(), dock.geometry().bottom()) for dock in right]
    for (_, bottom), (top, _) in pairwise(edges):
        assert 0 < top - bottom <= 6


def test_what_the_user_asked_for_last_has_the_room(window):
    window.resize(1366, 620)
    settle(window)
    views = window.panes.views
    views["whatif"].toggle_curve(COMPUTE)
    settle(window)
    assert not views["whatif"].is_folded
    assert views["whatif"].height() >= views["whatif"].need().wanted
    window.document.select(range(5))
    settle(window)
    assert not views["inspector"].is_folded
    inspector = views["inspector"]
    others = views["memory"].height() + views["whatif"].height()
    assert inspector.height() >= inspector.need().wanted or inspector.height() > others


def test_selection_offers_to_find_next_moves_while_their_pane_is_out_of_sight(window):
    window.resize(1440, 900)
    settle(window)
    offered = window.panes.views["inspector"]
    assert "moves" in offered.buttons
    window.menus.by_id["next-moves"].trigger()
    settle(window)
    assert "moves" not in offered.buttons
    window.panes.docks["moves"].hide()
    settle(window)
    assert "moves" in offered.buttons


def test_asking_for_next_moves_unfolds_them_and_a_selection_then_leaves_them_in_sight(window):
    window.resize(1440, 900)
    moves = window.panes.views["moves"]
    window.document.select(range(5))
    settle(window)
    window.menus.by_id["next-moves"].trigger()
    settle(window)
    assert not moves.is_folded
    window.document.select(range(3))
    settle(window)
    assert not moves.is_folded
    assert moves.height() >= moves.around_height + moves.list.height_of(IN_SIGHT)


@pytest.mark.parametrize("size", SIZES)
def test_no_row_of_a_pipeline_is_covered_by_a_text(window, size):
    window.resize(*size)
    settle(window)
    timeline = window.panes.views["timeline"]
    timeline.show_page(1)
    timeline.pipeline._background.wait()
    settle(window)
    page = timeline.pipeline
    shown = [each for each in (page.message, page.rows, page.legend) if each.isVisible()]
    assert page.rows in shown
    for above, below in pairwise(shown):
        assert above.geometry().bottom() < below.geometry().top()


def test_a_pane_that_the_user_folds_stays_folded_and_no_other_session_knows_it(window):
    window.resize(1366, 900)
    settle(window)
    memory = window.panes.views["memory"]
    memory.fold_pressed.emit()
    settle(window)
    assert memory.is_folded
    window.resize(1366, 1000)
    settle(window)
    assert memory.is_folded
    assert not [key for key in window.studio.settings.allKeys() if "fold" in key]
    memory.fold_pressed.emit()
    settle(window)
    assert not memory.is_folded


def test_a_click_on_the_title_folds_a_pane(window):
    window.resize(1366, 900)
    settle(window)
    memory = window.panes.views["memory"]
    QTest.mouseClick(memory._title, Qt.MouseButton.LeftButton)
    settle(window)
    assert memory.is_folded


NEED = Need(title=40, least=100, wanted=200, most=300)


def test_room_for_all_goes_to_the_first():
    assert share(1000, [NEED, NEED], [False, False]) == [700, 300]


def test_in_little_room_the_last_pane_is_folded():
    assert share(250, [NEED, NEED, NEED], [False] * 3) == [110, 100, 40]


def test_a_pane_that_scrolls_leaves_others_what_they_need_where_there_is_room():
    long, short = Need(30, 150, 2000, 2000), Need(30, 150, 300, 300)
    assert share(1000, [long, short, short], [False] * 3, first_asked=True) == [700, 150, 150]
    # where they would need more than half of the room, it has that, and one of them is folded
    assert share(420, [long, short, short], [False] * 3, first_asked=True) == [240, 150, 30]


def test_a_pane_that_was_asked_for_has_all_it_wants_first():
    assert share(250, [NEED, NEED], [False] * 2, first_asked=True) == [210, 40]


def test_a_pane_folded_by_the_user_gets_its_title_only():
    assert share(1000, [NEED, NEED], [True, False]) == [40, 960]
