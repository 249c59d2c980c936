"""The menu of methods: reasons, warnings, objectives and options."""

from types import SimpleNamespace

import pytest
from PySide6.QtWidgets import QFileDialog, QInputDialog

from enplace.placing.options import FILE, WHOLE, Option
from enplace.readers import read_profile
from enplace.readers.clusters import presets
from enplace.readers.samples import samples
from enplace.values.problem import Problem
from enplace_studio.document import Document
from enplace_studio.header import Header
from enplace_studio.jobs import Method, Solver
from enplace_studio.method_menu import MethodMenu, warnings_for
from enplace_studio.project import start_project
from problems import cluster_of, profile_of


def chain():
    """Two ops with 1,500 bytes of variables and outputs."""
    return profile_of({"a": 5.0, "b": 5.0}, [("a", "b", 300)], persistent={"a": 600, "b": 600})


def problem_on(**cluster):
    return Problem(chain(), cluster_of(2, **cluster))


def warnings(problem, *capabilities):
    return " ".join(warnings_for(SimpleNamespace(capabilities=capabilities), problem))


def test_a_method_that_treats_gpus_as_identical_has_a_warning_if_they_differ():
    unlike, alike = problem_on(speeds=(1.0, 0.5)), problem_on()
    assert "treats all GPUs as identical" in warnings(unlike, "memory")
    assert warnings(unlike, "memory", "heterogeneous") == ""
    assert warnings(unlike, "one-device") == ""  # it goes to the fastest
    assert warnings(alike, "memory") == ""


def test_a_method_that_ignores_memory_has_a_warning_if_one_gpu_is_too_small():
    tight, roomy = problem_on(capacity_bytes=1499), problem_on(capacity_bytes=1500)
    assert "ignores memory" in warnings(tight, "heterogeneous")
    assert warnings(tight, "memory", "heterogeneous") == ""
    assert warnings(roomy, "heterogeneous") == ""


def test_only_outputs_held_at_the_same_time_add_up():
    """At most 300 of the 400 bytes of outputs are held at a time."""
    ops = dict.fromkeys("abcde", 1.0)
    path = profile_of(ops, [("a", "b", 100), ("b", "c", 200), ("c", "d", 100), ("d", "e", 0)])
    tight = Problem(path, cluster_of(2, capacity_bytes=299))
    enough = Problem(path, cluster_of(2, capacity_bytes=300))
    assert "ignores memory" in warnings(tight, "heterogeneous")
    assert warnings(enough, "heterogeneous") == ""


def test_vgg_19_gets_no_false_warning():
    sample = next(sample for sample in samples() if sample.name == "vgg-19")
    problem = Problem(read_profile(sample.path), presets()["pesto"])
    assert warnings(problem, "heterogeneous") == ""


def test_the_menu_shows_warnings_after_the_source_and_keeps_the_method_enabled(qtbot):
    document, solver = Document(), Solver()
    header = Header(document, solver)
    qtbot.addWidget(header)
    solver.methods = {"m": Method("m", "M", "A paper", ("step-time",), ("memory",), "")}
    solver.methods_changed.emit()
    document.open(start_project(chain(), cluster_of(2, speeds=(1.0, 0.5))))
    action = next(a for a in header.method_menu.actions() if a.text() == "M")
    assert action.isEnabled()
    assert "A paper\nIt treats all GPUs as identical, and yours differ." in action.toolTip()
    document.open(start_project(chain(), cluster_of(2)))
    assert "identical" not in action.toolTip()


def test_a_method_is_listed_under_each_objective_and_solves_for_that_one(qtbot):
    solver = Solver()
    header = Header(Document(), solver)
    qtbot.addWidget(header)
    header.method_menu.set_method("both", objective="latency")  # as remembered from the last time
    every, some = ("step-time", "throughput", "latency"), ("throughput", "latency")
    solver.methods = {
        "any": Method("any", "Any, by layer", "", every, (), ""),
        "both": Method("both", "Both", "", some, (), ""),
        "query": Method("query", "Query", "", ("latency",), (), ""),
    }
    solver.methods_changed.emit()
    menus = {action.text(): action.menu() for action in header.method_menu.actions()}
    shown = {
        title: [action.text() for action in menus[title].actions()]
        for title in ("Highest pipeline throughput", "Shortest query, contiguous subgraphs")
    }
    assert "Any, by layer" in menus
    assert [*shown.values()] == [
        ["Both", "", "Baselines", "Any, by layer"],
        ["Query", "", "Baselines", "Any, by layer", "Both"],
    ]
    chosen = [a.text() for menu in menus.values() if menu for a in menu.actions() if a.isChecked()]
    assert "Both" in chosen
    assert (header.method_menu.method, header.method_menu.objective) == ("both", "latency")
    menus["Highest pipeline throughput"].actions()[-1].trigger()
    assert (header.method_menu.method, header.method_menu.objective) == ("any", "throughput")
    next(a for a in header.method_menu.actions() if a.text() == "Any, by layer").trigger()
    assert (header.method_menu.method, header.method_menu.objective) == ("any", "step-time")


@pytest.fixture
def menu(qtbot):
    """The menu of a method with an option for a number and one for a file."""
    solver = Solver()
    made = MethodMenu(solver)
    qtbot.addWidget(made)
    options = (Option("rounds", WHOLE, 10, "How many rounds."), Option("rules", FILE, "", "Rules"))
    solver.methods = {"m": Method("m", "M", "", ("step-time",), (), "", options)}
    solver.methods_changed.emit()
    made.set_method("m")
    return made


def ask(menu, title):
    next(action for action in menu.option_menu.actions() if action.text() == title).trigger()


def answer(monkeypatch, text, accepted=True):
    """Answer the question for a value; return the text that it began with."""
    begun = []

    answered = (text, accepted)
    monkeypatch.setattr(QInputDialog, "getText", lambda *_, text: begun.append(text) or answered)
    return begun


def test_a_number_is_asked_for_and_shown(menu, monkeypatch):
    begun = answer(monkeypatch, "25")
    ask(menu, "Rounds…")
    assert (menu.values, menu.text) == ({"rounds": 25}, "M, rounds 25")
    ask(menu, "Rounds…")
    assert begun == ["10", "25"]


def test_an_empty_answer_restores_the_default(menu, monkeypatch):
    menu.values["rounds"] = 25
    answer(monkeypatch, "")
    ask(menu, "Rounds…")
    assert menu.values == {}


def test_cancelling_keeps_the_value(menu, monkeypatch):
    menu.values["rounds"] = 25
    answer(monkeypatch, "7", accepted=False)
    ask(menu, "Rounds…")
    assert menu.values == {"rounds": 25}


def test_a_value_that_is_not_a_number_is_refused_with_the_reason(menu, monkeypatch, qtbot):
    answer(monkeypatch, "many")
    with qtbot.waitSignal(menu.option_refused) as refused:
        ask(menu, "Rounds…")
    assert "many" in refused.args[0]
    assert menu.values == {}


def test_a_file_is_kept_when_the_dialog_is_cancelled_and_can_be_removed(menu, monkeypatch):
    monkeypatch.setattr(QFileDialog, "getOpenFileName", lambda *_: ("my.rules", ""))
    ask(menu, "Rules…")
    assert (menu.values, menu.text) == ({"rules": "my.rules"}, "M, by rules")
    monkeypatch.setattr(QFileDialog, "getOpenFileName", lambda *_: ("", ""))
    ask(menu, "Rules…")
    assert menu.values == {"rules": "my.rules"}
    ask(menu, "No rules")
    assert (menu.values, menu.text) == ({}, "M")
