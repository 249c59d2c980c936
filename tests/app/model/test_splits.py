"""A plan that splits ops has its own graph, which the studio shows with the plan."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from PySide6.QtCore import QSettings
from PySide6.QtWidgets import QLabel

from documents import document_of, split_layer
from enplace.machine import simulate
from enplace.placers import place
from enplace.readers import Project
from enplace.values.problem import Problem, split_problem
from enplace.values.splits import RECOMPUTE, Split
from enplace.writers import write_project
from enplace_studio.files import session
from enplace_studio.model.document import Document, PlanEntry
from enplace_studio.model.method_facts import why_not_for
from enplace_studio.model.open_project import start_project
from enplace_studio.model.plan_facts import why_stale
from enplace_studio.shell.window import MainWindow
from enplace_studio.views.inspector.inspector_facts import count_splits, split_facts
from enplace_studio.views.inspector.inspector_view import InspectorView
from enplace_studio.views.inspector.splits import SplitTable
from enplace_studio.views.plans.plans_view import PlansView
from enplace_studio.widgets.fact_widgets import Line
from problems import cluster_of, plan_of, profile_of
from threads import finish_work


@pytest.fixture
def document(qapp):
    """The layer on one GPU, and a plan that splits it, which is not shown yet."""
    names = ("batch", "w", "conv", "relu")
    opened = document_of(split_layer(), cluster_of(2, b1_us_per_byte=1e-5), dict.fromkeys(names, 0))
    plan = place(opened.problem, "os-dpos").plan
    assert plan.splits
    entry = PlanEntry("OS-DPOS", plan, simulate(opened.problem, plan))
    opened.add_plan(entry, choose=False)
    return opened


def test_a_plan_with_splits_shows_its_graph_and_other_plans_the_model(document):
    whole, split = document.plans
    model = document.problem
    opened = []
    document.opened.connect(lambda: opened.append(document.problem.profile.n_ops))
    assert why_stale(model, split) == ""
    assert document.choose_plan(split)
    assert document.problem is split.schedule.problem
    assert len(document.project.grouping.group) == document.problem.profile.n_ops > 4
    assert document.choose_plan(whole)
    assert document.problem is model
    document.undo_stack.undo()
    assert document.current is split
    assert opened == [split.schedule.problem.profile.n_ops, 4, split.schedule.problem.profile.n_ops]


def test_parts_can_be_moved_by_hand(document):
    _, split = document.plans
    document.choose_plan(split)
    part = document.problem.profile.index["conv/split/part_1"]
    there = 1 - int(split.plan.device[part])
    assert document.place([part], there)
    assert document.current.plan.device[part] == there
    assert document.current.plan.splits == split.plan.splits
    assert document.project.baseline is split.schedule


def test_a_plan_with_splits_survives_a_change_of_cluster(document):
    _, split = document.plans
    document.choose_plan(split)
    assert document.set_cluster(replace(cluster_of(3, b1_us_per_byte=1e-5), name="three"))
    assert [len(entry.plan.splits) > 0 for entry in document.plans] == [False, True]
    assert document.project.model.cluster.n_devices == 3
    assert document.choose_plan(document.plans[0])
    assert document.problem.cluster.n_devices == 3


def test_a_project_keeps_a_plan_with_splits(document, tmp_path):
    _, split = document.plans
    document.choose_plan(split)
    write_project(tmp_path / "p.enplace", session.to_project(document.project, document.view))
    project = session.open_file(tmp_path / "p.enplace").project
    assert project.problem.splits == split.plan.splits
    assert project.current.schedule.makespan_us == split.schedule.makespan_us
    assert project.model.profile.n_ops == 4
    assert project.plans[0].schedule.problem.splits == ()


def test_the_inspector_lists_the_splits(document, opener):
    view = opener(InspectorView, document, 300, 420)
    document.choose_plan(document.plans[1])
    view.rebuild()
    lines = view.findChildren(Line)
    names = [line.left for line in lines]
    value = lines[names.index("conv") + 1]
    assert "→  2 by " in value.right
    assert value.toolTip().count("conv: ")
    assert any("split op" in made.text() for made in view.findChildren(QLabel))


def test_methods_that_cannot_solve_the_problem_give_the_reason(document):
    method = SimpleNamespace(why_not="", capabilities=("splits", "memory"))
    assert why_not_for(method, document.problem) == ""
    document.choose_plan(document.plans[1])
    assert "splits ops already" in why_not_for(method, document.problem)
    free = replace(split_layer(), persistent_bytes=np.array([1024, 1024, 1024, 0]))
    problem = Problem(free, cluster_of(2, capacity_bytes=2048))
    single = SimpleNamespace(why_not="", capabilities=("one-device",))
    assert why_not_for(single, document.problem) == ""
    assert "uses one GPU" in why_not_for(single, problem)
    # A method that spreads the model may fit it even if it ignores memory.
    assert why_not_for(SimpleNamespace(why_not="", capabilities=()), problem) == ""


def test_all_splits_can_be_opened_in_a_table(document, opener):
    view = opener(InspectorView, document, 300, 420)
    document.choose_plan(document.plans[1])
    view.rebuild()
    view.buttons["splits"].click()
    shown = view.findChild(SplitTable)
    table = shown.table
    assert table.rowCount() == len(document.plans[1].plan.splits)
    rows = [[table.item(r, c).text() for c in range(5)] for r in range(table.rowCount())]
    conv = next(row for row in rows if row[0] == "conv")
    assert conv[1] == "Conv2D"
    assert conv[2].endswith("ms")
    assert conv[3] == "4.0 KiB"
    assert conv[4].startswith("2 by ")
    shown.close()


def test_a_part_that_is_split_again_is_counted_by_its_parts(document):
    model = document.project.model
    splits = (Split("conv", "batch", 2), Split("conv/split/part_1", "batch", 2))
    problem = split_problem(model, splits)
    schedule = simulate(problem, place(problem, "heft").plan)
    whole, part = split_facts(model.profile, schedule)
    assert (whole.op, part.op) == ("conv", "conv/split/part_1")
    assert whole.time_us > 1.9 * part.time_us > 0
    assert (part.op_type, part.weights_bytes) == ("Conv2D", 4096)


def test_a_plan_that_splits_ops_counts_in_a_comparison(qtbot, tmp_path):
    settings = QSettings(str(tmp_path / "studio.ini"), QSettings.Format.IniFormat)
    window = MainWindow(settings, tmp_path / "recovery")
    window.show()
    window.document.open(start_project(split_layer(), cluster_of(2, b1_us_per_byte=1e-5)))
    qtbot.waitUntil(lambda: bool(window.document.plans))
    window.studio.solving.compare(["heft", "os-dpos"])
    qtbot.waitUntil(lambda: "methods tried" in window.toast.text)
    split = next(entry for entry in window.document.plans if entry.plan.splits)
    assert window.toast.text.startswith(f"2 methods tried; {split.name} is best: ")
    window.solver.close()
    window.document.open(None)
    window.close()


def test_a_plan_without_the_users_pins_says_so_beside_a_plan_that_splits_ops(document, opener):
    """Each plan is judged by the pins of its own graph, whichever plan is shown."""
    document.choose_plan(document.plans[0])
    document.place([2], 1)
    view = opener(PlansView, document, 260, 500)
    document.choose_plan(next(entry for entry in document.plans if entry.plan.splits))
    view.rebuild()
    assert document.problem.splits
    stale = {card.entry.name: card.stale for card in view.cards}
    assert stale == {"plan 1": "without your pins", "plan 1, edited": "", "OS-DPOS": ""}


def test_the_gap_of_a_plan_that_keeps_ops_whole_says_so_beside_one_that_splits_them(
    document, opener
):
    view = opener(PlansView, document, 260, 500)
    finish_work(document)
    view.rebuild()
    notes = {card.entry.name: card.notes for card in view.cards}
    assert any(note.endswith(", ops whole") for note in notes["plan 1"])
    assert not any("whole" in note or note == "optimal" for note in notes["OS-DPOS"])


def test_a_project_opens_with_a_plan_that_computes_ops_again(tmp_path, opener):
    profile = profile_of(
        {"x": 1, "h": 10, "loss": 10, "gradients/h": 10},
        [("x", "h", 8), ("h", "loss", 8), ("loss", "gradients/h", 8), ("h", "gradients/h", 8)],
    )
    profile = replace(profile, op_types=("Const", "Relu", "Relu", "ReluGrad"))
    splits = (Split("h", RECOMPUTE, 2, ("gradients/h",), "loss"),)
    graph = split_problem(Problem(profile, cluster_of(1)), splits)
    plan = plan_of(graph, dict.fromkeys(graph.profile.op_names, 0))
    write_project(
        tmp_path / "p.enplace",
        Project(profile, cluster_of(1), plans=(("again", replace(plan, splits=splits)),)),
    )
    project = session.open_file(tmp_path / "p.enplace").project
    assert project.problem.profile.op_names[-1] == "h/recomputed"
    assert len(project.grouping.group) == project.problem.profile.n_ops
    (fact,) = split_facts(project.model.profile, project.current.schedule)
    assert (fact.op, fact.how, count_splits([fact])) == ("h", "computed again", "1 recomputed op")
    document = Document()
    document.open(project)
    view = opener(InspectorView, document, 300, 500)
    assert ("h", "again in 0.010 ms") in [
        (each.left, each.right) for each in view.findChildren(Line)
    ]
