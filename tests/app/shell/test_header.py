"""The button and the short menu of methods, and what a method ignores."""

from types import SimpleNamespace

import pytest

from enplace.option import WHOLE, Option
from enplace.readers import read_profile
from enplace.readers.clusters import presets
from enplace.readers.samples import samples
from enplace.values.problem import Problem
from enplace_studio.jobs.solver import Method, Solver
from enplace_studio.model.document import Document
from enplace_studio.model.method_facts import warnings_for
from enplace_studio.model.open_project import start_project
from enplace_studio.shell.header import Header
from enplace_studio.solve.chosen_method import ChosenMethod
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


def solver_of(*methods):
    """A solver that knows these methods, and is never started."""
    solver = Solver()
    solver.methods = {method.name: method for method in methods}
    solver.default_method = methods[0].name
    return solver


def texts(menu):
    menu.fill()
    return [action.text() for action in menu.actions() if not action.isSeparator()]


@pytest.fixture
def make_header(qtbot):
    def make(solver):
        document, chosen = Document(), ChosenMethod(solver)
        header = Header(document, solver, chosen)
        qtbot.addWidget(header)
        return header, document, chosen

    return make


def test_the_menu_explains_a_method_and_warns_of_what_it_ignores(make_header):
    solver = solver_of(
        Method("m", "M", "A paper", ("step-time",), ("memory",), "", summary="Fills the GPUs.")
    )
    header, document, _ = make_header(solver)
    document.open(start_project(chain(), cluster_of(2, speeds=(1.0, 0.5))))
    header.method_menu.fill()
    action = header.method_menu.actions()[0]
    assert action.isEnabled()
    assert "Fills the GPUs.\nIt treats all GPUs as identical" in action.toolTip()
    document.open(start_project(chain(), cluster_of(2)))
    header.method_menu.fill()
    assert "identical" not in header.method_menu.actions()[0].toolTip()


def test_the_menu_lists_recent_methods_and_one_of_each_purpose(make_header):
    solver = solver_of(
        Method("best", "Best", "", ("step-time",), ("memory", "anytime"), ""),
        Method("other", "Other", "", ("step-time",), ("memory", "anytime"), ""),
        Method("both", "Both", "", ("throughput", "latency"), (), ""),
        Method("query", "Query", "", ("latency",), (), ""),
        Method("absent", "Absent", "", ("step-time",), ("splits",), "it is not installed"),
    )
    header, _, chosen = make_header(solver)
    last = ["Stay close to this plan…", "All methods and options…"]
    assert texts(header.method_menu) == ["Best", "Both", "Query", *last]
    chosen.set_method("other")
    chosen.set_method("both", objective="latency")
    assert texts(header.method_menu)[:3] == ["Both, query", "Other", "Best"]
    checked = [a.text() for a in header.method_menu.actions() if a.isChecked()]
    assert checked == ["Both, query"]
    next(a for a in header.method_menu.actions() if a.text() == "Best").trigger()
    assert (chosen.method, chosen.objective) == ("best", "step-time")


def test_the_last_sessions_choice_is_known_before_the_methods_are(make_header):
    solver = Solver()
    solver.default_method = "both"
    header, _, chosen = make_header(solver)
    chosen.restore(["both latency", "gone step-time", "damaged", 7], "30")
    methods = [Method("both", "Both", "", ("throughput", "latency"), (), "")]
    solver.methods = {method.name: method for method in methods}
    solver.methods_changed.emit()
    assert chosen.time_limit_s == 30
    assert "Both, query" in texts(header.method_menu)
    chosen.set_method("both", objective="latency")
    chosen.forget(None)
    assert (chosen.method, chosen.time_limit_s) == (solver.default_method, 30)


def test_the_button_names_the_options_and_the_time_limit(make_header):
    rounds = Option("rounds", WHOLE, 10, "How many rounds.")
    solver = solver_of(Method("m", "M, long", "", ("step-time",), ("anytime",), "", (rounds,)))
    _, _, chosen = make_header(solver)
    chosen.set_time_limit(30)
    chosen.set_values(rounds=25, rules="of another method")
    assert chosen.text == "M, 30 s, rounds 25"
