"""The constraints pane: rows, check marks, what they cost, and requests."""

import re

import numpy as np
import pytest
from PySide6.QtCore import QPoint, Qt
from PySide6.QtGui import QFontMetricsF, QGuiApplication
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QStyle, QStyleOptionViewItem

from documents import chain_document, document_of
from enplace.names.groups import Grouping
from enplace_studio.jobs import call_later
from enplace_studio.model.constraints import ways_to_say
from enplace_studio.model.ordering import Slot
from enplace_studio.views.constraints import constraints_view as module
from enplace_studio.views.constraints.constraints_view import ConstraintsView
from enplace_studio.views.constraints.rows import (
    cost_text,
    first_fitting,
    fitted_cost,
    height_of,
    lines_of,
    make_row,
    shortened,
    show_cost,
    texts_of,
)
from enplace_studio.widgets.theme import theme
from problems import cluster_of, profile_of


@pytest.fixture
def document():
    """Ops a -> b -> c on GPU 0, 0 and 1; c is pinned, which costs 21 of 51 µs; a and b are tied."""
    made = chain_document()
    made.place([2], 1)
    made.colocate([0, 1])
    return made


@pytest.fixture
def pane(document, opener, qtbot):
    made = opener(ConstraintsView, document, 262, 300)
    settle(made, qtbot)
    return made


def settle(pane, qtbot):
    """Wait for the list that an edit asked for, and what its rows cost."""
    qtbot.waitUntil(lambda: not pane._later.isActive() and not pane._in_pause.isActive())
    pane._costs.wait()


def rows(pane):
    role = Qt.ItemDataRole.AccessibleTextRole
    return [pane.list.item(row).data(role) for row in range(pane.list.count())]


def click(pane, row, at=None):
    area = pane.list.visualItemRect(pane.list.item(row))
    QTest.mouseClick(
        pane.list.viewport(),
        Qt.MouseButton.LeftButton,
        Qt.KeyboardModifier.NoModifier,
        at or area.center(),
    )


def tick(pane, row):
    option = QStyleOptionViewItem()
    pane.list.itemDelegate().initStyleOption(option, pane.list.model().index(row, 0))
    option.widget, option.rect = pane.list, pane.list.visualItemRect(pane.list.item(row))
    mark = QStyle.SubElement.SE_ItemViewItemCheckIndicator
    click(pane, row, pane.list.style().subElementRect(mark, option, pane.list).center())


def test_each_row_says_what_it_asks_and_what_it_costs(pane):
    assert rows(pane) == [
        "c on GPU 1, 1 op, −0.021 ms from moving it alone",
        "a and b together, 2 ops, −0.012 ms from moving one op",
    ]
    assert pane.list.isVisible()
    assert not pane.empty.isVisible()


def test_without_constraints_the_pane_says_how_they_come_about(opener):
    pane = opener(ConstraintsView, chain_document(), 262, 300)
    assert pane.empty.isVisible()
    assert "Drag a group onto a device" in pane.empty.text()
    assert not pane.list.isVisible()
    assert not pane.export_button.isEnabled()


def test_without_a_plan_rows_have_no_cost(document, opener, qtbot):
    document.remove_plan(document.current)
    pane = opener(ConstraintsView, document, 262, 300)
    settle(pane, qtbot)
    assert rows(pane)[0] == "c on GPU 1, 1 op"
    assert "press Solve" in pane.list.item(0).toolTip()


def test_a_click_selects_the_ops_and_another_selection_deselects_the_row(pane, document):
    click(pane, 0)
    assert document.selection == {2}
    QTest.keyClick(pane.list, Qt.Key.Key_Down)
    assert document.selection == {0, 1}
    document.select([2])
    assert pane.chosen is None


def test_an_order_selects_the_ops_on_both_sides(opener):
    document = document_of(profile_of({"a": 10, "b": 10}), cluster_of(2), {"a": 0, "b": 0})
    document.reorder([1], Slot(0, earlier=True))
    pane = opener(ConstraintsView, document, 262, 300)
    click(pane, 0)
    assert document.selection == {0, 1}
    pane._costs.wait()


def test_a_click_on_the_check_mark_switches_a_constraint_off_and_on(pane, document, qtbot):
    tick(pane, 0)
    assert document.problem.pins == {}
    settle(pane, qtbot)
    assert rows(pane)[0].startswith("a and b together, 2 ops, ")
    assert rows(pane)[1] == "c on GPU 1, 1 op, off"
    tick(pane, 1)
    assert document.problem.pins == {2: 1}
    settle(pane, qtbot)
    assert rows(pane)[0].startswith("c on GPU 1, 1 op, −0.021 ms")


def test_a_check_mark_that_is_refused_is_cleared_again(pane, document, qtbot):
    tick(pane, 0)
    document.place([2], 0)
    settle(pane, qtbot)
    off = pane.list.count() - 1
    said = []
    document.failed.connect(said.append)
    tick(pane, off)
    assert said == ["c is now pinned to GPU 0; unpin it first"]
    settle(pane, qtbot)
    assert pane.list.item(off).checkState() == Qt.CheckState.Unchecked


def test_space_switches_and_delete_removes_the_chosen_row(pane, document, qtbot):
    pane.activateWindow()
    pane.list.setFocus()
    pane.list.setCurrentRow(1)
    QTest.keyClick(pane.list, Qt.Key.Key_Space)
    assert document.problem.together == ()
    settle(pane, qtbot)
    assert pane.chosen.kind == "colocate"
    QTest.keyClick(pane.list, Qt.Key.Key_Delete)
    assert document.project.off == ()
    settle(pane, qtbot)
    assert len(rows(pane)) == 1
    document.undo_stack.undo()
    settle(pane, qtbot)
    assert len(rows(pane)) == 2


def test_the_menu_switches_removes_and_selects(pane, document, qtbot):
    pin = pane.constraints[0]

    def choose(title):
        menu = pane.menu_of(pin)
        next(action for action in menu.actions() if action.text() == title).trigger()
        menu.deleteLater()
        settle(pane, qtbot)

    choose("Select its ops")
    assert document.selection == {2}
    choose("Switch off")
    assert document.project.off == (pin,)
    choose("Switch on")
    assert document.problem.pins == {2: 1}
    choose("Remove")
    assert pin not in pane.constraints


def test_a_right_click_opens_the_menu_of_the_row_under_it(pane, monkeypatch):
    opened = []
    monkeypatch.setattr(pane, "menu_of", lambda each: opened.append(each) or pane)
    monkeypatch.setattr(pane, "popup", lambda at: None, raising=False)
    pane._open_menu(pane.list.visualItemRect(pane.list.item(1)).center())
    pane._open_menu(QPoint(5, pane.list.viewport().height() - 1))
    assert [each and each.kind for each in opened] == ["colocate", None]


def test_costs_follow_the_current_plan(pane, document, qtbot):
    document.place([0, 1], 1, pin=False)
    settle(pane, qtbot)
    assert rows(pane)[0] == "c on GPU 1, 1 op, no gain from moving it alone"
    document.choose_plan(document.plans[0])
    settle(pane, qtbot)
    assert rows(pane)[0] == "c on GPU 1, 1 op, −0.021 ms from moving it alone"


def test_a_plan_that_goes_before_the_next_cost_is_found_leaves_no_fault(pane, document, qtbot):
    document.place([0, 1], 1)
    qtbot.waitUntil(lambda: pane._costs.is_busy)
    for entry in document.plans:
        document.remove_plan(entry)
    pane._costs.wait()
    settle(pane, qtbot)
    assert all("−" not in row for row in rows(pane))


def test_costs_are_found_only_while_the_pane_is_visible(document, qtbot, monkeypatch):
    asked = []
    monkeypatch.setattr(module, "step_without", lambda project, each: asked.append(each))
    pane = ConstraintsView(document)
    qtbot.addWidget(pane)
    document.undo_stack.undo()
    settle(pane, qtbot)
    assert asked == []
    pane.show()
    settle(pane, qtbot)
    assert asked == pane.constraints
    pane.hide()
    document.undo_stack.redo()
    settle(pane, qtbot)
    assert len(asked) == 1


def test_only_the_first_rows_are_priced_and_shown(document, opener, qtbot, monkeypatch):
    asked = []
    monkeypatch.setattr(module, "step_without", lambda project, each: asked.append(each))
    monkeypatch.setattr(module, "MOST_COSTS", 1)
    monkeypatch.setattr(module, "MOST_ROWS", 1)
    pane = opener(ConstraintsView, document, 262, 300)
    settle(pane, qtbot)
    assert len(asked) == 1
    assert len(rows(pane)) == 1
    assert pane.legend == "and 1 more"


@pytest.mark.parametrize(
    ("kind", "step_us", "text"),
    [
        ("pin", 690.0, "−0.31 ms from moving it alone"),
        ("pin", 1000.0, "no gain from moving it alone"),
        ("pin", 1000.0 - 1e-12, "no gain from moving it alone"),
        ("before", 1000.0, "no gain from the other order"),
        ("lock", None, "–"),
    ],
)
def test_a_cost_is_a_change_of_the_step_time(kind, step_us, text):
    assert cost_text(kind, 1000.0, step_us) == text


def test_a_row_says_what_to_do_if_nothing_gains_or_nothing_is_known(pane, document, qtbot):
    document.place([2], 0)
    settle(pane, qtbot)
    assert rows(pane)[0] == "c on GPU 0, 1 op, no gain from moving it alone"
    assert "switch it off and solve again" in pane.list.item(0).toolTip()
    document.choose_plan(document.plans[0])
    settle(pane, qtbot)
    assert rows(pane)[0] == "c on GPU 0, 1 op"
    assert "press Solve" in pane.list.item(0).toolTip()


def test_links_ask_for_files(pane, document):
    wanted = []
    document.requests.run_action.connect(wanted.append)
    pane.import_button.click()
    pane.export_button.click()
    assert wanted == ["import-constraints", "export-constraints"]


@pytest.mark.parametrize("width", [150, 262, 600])
def test_a_row_shows_its_cost_on_the_right_at_any_width(pane, width):
    pane.resize(width, 300)
    area = pane.list.visualItemRect(pane.list.item(0))
    area.setLeft(area.right() - 30)
    before = pane.list.viewport().grab(area).toImage()
    show_cost(pane.list.item(0), "−88 ms without all")
    assert pane.list.viewport().grab(area).toImage() != before


def test_constraints_are_copied_as_text(pane, qtbot):
    with qtbot.waitActive(pane):
        pane.activateWindow()
    pane.list.setFocus()
    QTest.keyClick(pane.list, Qt.Key.Key_C, Qt.KeyboardModifier.ControlModifier)
    heads, first, second = QGuiApplication.clipboard().text().split("\n")
    assert heads == "constraint\tops\tstep time"
    assert first == "c on GPU 1\t1 op\t−0.021 ms from moving it alone"
    assert second.startswith("a and b together\t2 ops")
    pane.list.setCurrentRow(0)
    QTest.keyClick(pane.list, Qt.Key.Key_C, Qt.KeyboardModifier.ControlModifier)
    assert QGuiApplication.clipboard().text() == f"{heads}\n{first}"


def test_an_order_has_a_line_for_each_name_and_its_tip_the_ops_names():
    metrics = QFontMetricsF(theme.font(12))
    text = "Mean of encoder / layer 11 before Mean of target embedding"
    row = make_row([text], 2, True, ["encoder/Mean", "target/Mean"])
    assert "encoder/Mean before target/Mean" in row.toolTip()
    lines = lines_of(text)
    assert lines == ["Mean of encoder / layer 11", "before Mean of target embedding"]
    width = 0.8 * metrics.horizontalAdvance(lines[1])
    shown = shortened(lines[1], metrics, width)
    assert shown.startswith("before Mean ")
    assert metrics.horizontalAdvance(shown) <= width + 1
    assert height_of(text) > height_of("Mean of encoder")


def test_an_op_keeps_its_own_name_where_that_of_its_group_does_not_fit():
    metrics = QFontMetricsF(theme.font(12))
    text = "before SelectV2 of gradients of encoder / layer 5"
    width = metrics.horizontalAdvance("before SelectV2 of ∇ … layer 5")
    assert re.fullmatch("before SelectV2 of ∇.*….*layer 5", shortened(text, metrics, width))


def test_costs_wait_until_edits_pause(document, opener, qtbot, monkeypatch):
    asked = []
    monkeypatch.setattr(module, "step_without", lambda project, each: asked.append(each))
    monkeypatch.setattr(call_later, "PAUSE_MS", 10**6)
    pane = opener(ConstraintsView, document, 262, 300)
    document.place([0, 1], 1)
    qtbot.waitUntil(lambda: not pane._later.isActive())
    assert asked == []
    monkeypatch.setattr(call_later, "PAUSE_MS", 0)
    pane._in_pause.start(0)
    settle(pane, qtbot)
    assert asked == pane.constraints


def test_a_constraint_that_names_no_op_has_no_number_of_ops():
    row = make_row(["GPU 0 runs even ops"], 0, True, [])
    assert texts_of(row) == ["GPU 0 runs even ops", "", ""]
    assert row.data(Qt.ItemDataRole.AccessibleTextRole) == "GPU 0 runs even ops"


def test_the_number_of_ops_is_never_elided_for_what_was_tried():
    """``1…s  no gain from moving it alone`` said nothing about 12 ops."""
    metrics = QFontMetricsF(theme.font(11))
    for cost, short in (
        ("no gain from moving it alone", "no gain"),
        ("−0.31 ms from moving it alone", "−0.31 ms"),
    ):
        whole = metrics.horizontalAdvance(cost)
        assert fitted_cost(cost, metrics, whole) == cost
        assert fitted_cost(cost, metrics, whole - 1) == short


def test_a_row_that_is_too_narrow_leaves_out_outer_scopes_before_it_cuts_numbers(qapp):
    names = ("update of model / layers 18–20", "update of model / layers 8–10")
    grouping = Grouping(np.zeros(0, dtype=np.int64), names, names, names)
    ways = ways_to_say(f"{names[0]} on GPU 1", grouping)
    assert ways == [f"{names[0]} on GPU 1", "update of layers 18–20 on GPU 1"]
    metrics = QFontMetricsF(theme.font(12))
    narrow = metrics.horizontalAdvance(ways[1])
    assert first_fitting(ways, metrics, narrow) == ways[1]
    assert first_fitting(ways, metrics, 10 * narrow) == ways[0]


def test_a_narrow_row_never_leaves_out_which_of_two_scopes_of_one_name_is_meant():
    names = (*(f"encoder / block {n}" for n in ("0", "1–2", "3")), "decoder / block 2 / a")
    grouping = Grouping(np.zeros(0, dtype=np.int64), names, names, names)
    assert ways_to_say("decoder / block 2 / a on GPU 1", grouping) == [
        "decoder / block 2 / a on GPU 1",
        "a on GPU 1",
    ]
    assert ways_to_say("encoder / block 1–2 on GPU 1", grouping) == ["encoder / block 1–2 on GPU 1"]
    assert ways_to_say("encoder / block 3 on GPU 1", grouping)[1:] == ["block 3 on GPU 1"]
