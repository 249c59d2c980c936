"""Choosing a method in the dialog: the list, what is said about a method, and its options."""

from dataclasses import replace

import pytest
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QFileDialog, QLabel

from enplace.machine import simulate
from enplace.option import FILE, SWITCH, WHOLE, Option
from enplace.placers import placers
from enplace.values.problem import Problem
from enplace_studio.jobs.solver import Method, Solver
from enplace_studio.model.method_facts import (
    PURPOSES,
    best_plan,
    by_purpose,
    purpose_of,
    time_text,
)
from enplace_studio.model.open_project import PlanEntry
from enplace_studio.solve.chosen_method import Choice
from enplace_studio.solve.method_dialog import MethodDialog
from enplace_studio.solve.option_form import help_and_default
from problems import cluster_of, plan_of, profile_of
from stops import nameless_stops
from turns import take_turns, turn_wheel

OPTIONS = (
    Option("rounds", WHOLE, 0, "How many rounds. [default: until the time limit]"),
    Option("rules", FILE, "", "A file of rules."),
    Option("replicate", SWITCH, False, "Replicas too.", "throughput"),
    Option("order", ("near", "far"), "near", "Where to begin."),
)
METHODS = (
    Method("best", "Best", "A paper", ("step-time", "throughput"), ("memory", "anytime"), "",
           OPTIONS, "Searches for the best plan."),
    Method("quick", "Quick, by layer", "", ("step-time",), ("memory",), ""),
    Method("absent", "Absent", "", ("step-time",), (), "the program absent is missing"),
)  # fmt: skip


@pytest.fixture
def problem():
    return Problem(profile_of({"a": 1000, "b": 1000}), cluster_of(2))


@pytest.fixture
def open_dialog(qtbot, problem):
    def make(choice=None, plans=()):
        solver = Solver()
        solver.methods = {method.name: method for method in METHODS}
        dialog = MethodDialog(solver, choice or Choice("best", "step-time"), problem, plans)
        qtbot.addWidget(dialog)
        dialog.show()
        return dialog

    return make


def said(dialog):
    return [shown.text() for shown in dialog._details.findChildren(QLabel)]


def test_all_stops_have_names(open_dialog):
    assert not nameless_stops(open_dialog())


def test_every_method_has_a_purpose_and_a_summary():
    assert {purpose_of(method) for method in placers().values()} == set(PURPOSES)
    assert all(method.summary.endswith(".") for method in placers().values())
    assert all("\n" not in method.summary for method in placers().values())


def test_methods_are_listed_by_what_they_are_good_for():
    groups = {
        title: [method.name for method in members]
        for title, members in by_purpose(placers().values()).items()
    }
    assert "enplace" in groups["Search as long as you let them"]
    assert "heft" in groups["A good plan at once"]
    assert "pipedream" in groups["Highest pipeline throughput"]
    assert {"expert", "random", "single"} <= set(groups["To compare with"])


def test_typing_filters_and_arrow_keys_choose(open_dialog):
    dialog = open_dialog()
    titles = [row.title for row in dialog.search.rows]
    assert titles == ["Search as long as you let them", "Best", "A good plan at once",
                      "Quick, by layer", "To compare with", "Absent"]  # fmt: skip
    QTest.keyClick(dialog.search.field, Qt.Key.Key_Down)
    assert dialog.choice.method == "quick"
    QTest.keyClicks(dialog.search.field, "a")
    titles = [row.title for row in dialog.search.rows]
    assert titles[:3] == ["To compare with", "Absent", "Search as long as you let them"]
    dialog.search.field.clear()
    QTest.keyClicks(dialog.search.field, "paper")
    assert [row.title for row in dialog.search.rows] == ["Search as long as you let them", "Best"]
    QTest.keyClick(dialog.search.field, Qt.Key.Key_Return)
    assert dialog.result() == MethodDialog.DialogCode.Accepted
    assert dialog.choice.method == "best"


def test_nothing_can_be_used_when_nothing_is_found(open_dialog):
    dialog = open_dialog()
    QTest.keyClicks(dialog.search.field, "nonesuch")
    assert [row.title for row in dialog.search.rows] == ["Nothing found"]
    assert not dialog.buttons.accept.isEnabled()
    dialog.search.field.clear()
    assert dialog.buttons.accept.isEnabled()


def test_the_dialog_says_what_a_method_does_and_how_long_it_takes(open_dialog):
    shown = said(open_dialog())
    assert "Searches for the best plan." in shown
    assert "Up to 10 s on this graph." in shown
    assert any("counts memory" in text for text in shown)


def test_what_a_method_has_found_on_this_graph_is_told(open_dialog, problem):
    def entry(device):
        plan = plan_of(problem, {"a": 0, "b": device}, solve_seconds=0.25)
        plan = replace(plan, method="quick")
        return PlanEntry("row", plan, simulate(problem, plan))

    slow, fast = entry(0), entry(1)
    assert best_plan("quick", "step-time", [slow, fast]) is fast
    assert best_plan("best", "step-time", [slow, fast]) is None
    shown = said(open_dialog(Choice("quick", "step-time"), [slow, fast]))
    assert "About 1 s. It has found 1.0 ms on this graph in 0.2 s." in shown


def test_a_method_that_cannot_run_says_why_and_cannot_be_used(open_dialog):
    dialog = open_dialog(Choice("absent", "step-time"))
    assert "The program absent is missing" in said(dialog)
    assert not dialog.buttons.accept.isEnabled()
    dialog.accept()
    assert dialog.isVisible()


def test_options_are_set_beside_the_method_and_go_back_to_their_defaults(open_dialog):
    dialog = open_dialog(Choice("best", "step-time", {"load": "of another"}))
    assert not dialog.defaults.isEnabled()
    dialog.options.fields["rounds"].setText("25")
    dialog.options.fields["order"].setCurrentIndex(1)
    assert dialog.choice.values == {"load": "of another", "rounds": 25, "order": "far"}
    dialog.defaults.click()
    assert dialog.choice.values == {"load": "of another"}
    assert dialog.options.fields["rounds"].text() == ""


def test_a_value_that_is_no_number_is_refused_with_the_reason(open_dialog):
    dialog = open_dialog()
    dialog.options.fields["rounds"].setText("many")
    assert "many" in dialog._fault.text()
    assert not dialog.buttons.accept.isEnabled()
    dialog.options.fields["rounds"].clear()
    assert dialog._fault.text() == ""
    assert dialog.buttons.accept.isEnabled()


def test_a_file_is_chosen_and_kept_when_the_question_is_cancelled(open_dialog, monkeypatch):
    dialog = open_dialog()
    line = dialog.options.fields["rules"]
    for answer in ("my.rules", ""):
        monkeypatch.setattr(QFileDialog, "getOpenFileName", lambda *_, name=answer: (name, ""))
        dialog.options._ask_file(OPTIONS[1], line)
        assert dialog.choice.values == {"rules": "my.rules"}
    line.clear()
    assert dialog.choice.values == {}


def test_another_objective_brings_its_own_options(open_dialog, qtbot):
    dialog = open_dialog()
    assert "replicate" not in dialog.options.fields
    field = dialog.objective_field
    field.setCurrentIndex(1)
    field.activated.emit(1)
    qtbot.waitUntil(lambda: "replicate" in dialog.options.fields)
    dialog.options.fields["replicate"].click()
    assert dialog.choice == Choice("best", "throughput", {"replicate": True})


def test_a_longer_time_limit_shows_in_the_list(open_dialog, qtbot):
    dialog = open_dialog()
    qtbot.waitUntil(dialog.isActiveWindow)
    field = dialog.limit_field
    field.setCurrentIndex(field.findData(60))
    field.activated.emit(field.currentIndex())
    qtbot.waitUntil(lambda: dialog.search.rows[1].columns == ("up to 1 min 0 s",))
    assert dialog.choice.time_limit_s == 60
    qtbot.waitUntil(lambda: dialog.focusWidget() is dialog.limit_field)


def test_the_dialog_does_not_outgrow_a_small_window(open_dialog):
    dialog = open_dialog()
    QApplication.processEvents()
    assert dialog.minimumSizeHint().width() <= 900
    assert dialog.minimumSizeHint().height() <= 600


def test_a_default_is_told_in_words():
    assert help_and_default(OPTIONS[0]) == ("How many rounds.", "Until the time limit")
    assert help_and_default(OPTIONS[1]) == ("A file of rules.", "None")


def test_times_have_no_needless_decimals():
    assert time_text(METHODS[0], 5) == "up to 5 s"
    assert time_text(METHODS[1], 5) == "about 1 s"


def test_the_wheel_scrolls_past_a_field_that_does_not_have_the_focus(open_dialog):
    dialog = open_dialog()
    field = dialog.options.fields["order"]
    turn_wheel(field)
    assert field.currentData() == "near"
    dialog.activateWindow()
    assert QTest.qWaitForWindowActive(dialog)
    field.setFocus()
    turn_wheel(field)
    assert field.currentData() == "far"


def test_help_below_fields_has_its_whole_height_once_a_scroll_bar_appears(open_dialog, qtbot):
    dialog = open_dialog(Choice("quick", "step-time"))
    told = "What it does, in many words, of which one may fit or not. "
    options = tuple(Option(f"o{n}", SWITCH, False, told * n) for n in range(1, 7))
    long = replace(METHODS[1], name="long", title="Long", options=options)
    dialog._solver.methods["long"] = long
    take_turns()
    dialog.search.fill("long")
    texts = [each for each in dialog.options.findChildren(QLabel) if each.wordWrap()]
    assert len(texts) == 6
    take_turns()
    for each in texts:
        assert each.height() == each.heightForWidth(each.width())
