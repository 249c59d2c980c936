"""The window solves, compares, and shows what a search finds."""

from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import pytest
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QMessageBox, QWidget
from tests.app.shell.windows import (
    BUTTON,
    import_plan,
    open_path,
    press,
    project_with_a_plan,
    solving,
)

from enplace.frameworks.torch.device_map import PARAMETERS
from enplace.machine import simulate
from enplace.machine.pipelines.pipeline import planned_rule
from enplace.readers.clusters import presets
from enplace.readers.samples import samples
from enplace.text import ms
from enplace.values.measurement import Measurement
from enplace.values.result import Result
from enplace.writers import write_plan
from enplace_studio.files.saving import do_nothing
from enplace_studio.jobs.solver import Job, Method, Report
from enplace_studio.model.constraints import describe, list_constraints
from enplace_studio.model.open_project import start_project
from enplace_studio.model.plan_facts import standing, why_stale
from enplace_studio.solve import solving as solving_module
from enplace_studio.solve.compare_dialog import CompareDialog
from enplace_studio.solve.method_dialog import MethodDialog
from problems import cluster_of, plan_of, profile_of


def test_a_sample_opens_with_the_experts_plan_as_reference(make_window, qtbot):
    window = make_window()
    card = next(card for card in window.start_page.cards if card.sample.name == "vgg-19")
    QTest.mouseClick(card, Qt.MouseButton.LeftButton)
    qtbot.waitUntil(lambda: window.document.current is not None)
    assert window.document.current is window.document.project.expert
    assert not window.document.modified
    qtbot.waitUntil(lambda: window.status_line.step.text().startswith("Predicted step "))


def open_two_layers(window, qtbot, n_gpus):
    """Open a model of two layers, and wait for the expert's plan."""
    profile = profile_of({"l_1/a": 10, "l_2/b": 10}, [("l_1/a", "l_2/b", 8)])
    with solving(window, qtbot):
        window.document.open(start_project(profile, cluster_of(n_gpus)))
    return window.document


def test_another_cluster_gets_an_experts_plan_of_its_own_as_reference(make_window, qtbot):
    window = make_window()
    document = open_two_layers(window, qtbot, 1)
    first = document.project.expert
    assert first.plan.device.tolist() == [0, 0]
    with solving(window, qtbot):
        document.set_cluster(cluster_of(2))
    second = document.project.expert
    assert document.current is second
    assert second.plan.device.tolist() == [0, 1]
    assert document.undo_stack.count() == 1
    marks = {entry.name: standing(document.project, entry)[0] for entry in document.plans}
    assert marks == {first.name: "another cluster", second.name: "reference"}
    document.undo_stack.undo()
    assert document.plans == [first]
    assert document.current is first
    document.undo_stack.redo()
    assert document.current is second
    assert not window.solver.busy


def test_the_expert_of_another_cluster_keeps_no_pins_as_commands_compare(make_window, qtbot):
    window = make_window()
    document = open_two_layers(window, qtbot, 2)
    document.place([1], 0)
    with solving(window, qtbot):
        document.set_cluster(cluster_of(3))
    assert dict(document.problem.pins) == {1: 0}
    assert document.project.expert.plan.device.tolist() == [0, 1]


def test_a_sample_named_by_its_path_opens_on_its_own_cluster(make_window):
    window = make_window()
    sample = next(sample for sample in samples() if sample.name == "bert-3-training")
    open_path(window, sample.path)
    assert window.document.project.cluster.name not in presets()
    assert window.studio.recent.paths() == []


def test_solve_and_compare_add_rows_and_solve_shows_its_plan(make_window, qtbot, monkeypatch):
    window = make_window()
    monkeypatch.setattr(CompareDialog, "exec", lambda dialog: dialog._every.click() or True)
    window.document.open(start_project(profile_of({"a": 10, "b": 10}), cluster_of(2)))
    with solving(window, qtbot):
        pass
    with solving(window, qtbot):
        window.header.solve_button.click()
        assert window.header.solve_button.text() == "Stop, keep the best"
    solved = window.document.current
    assert solved.plan.method == window.solver.default_method
    with solving(window, qtbot):
        window.header.compare_button.click()
    assert window.document.current is solved
    methods = [entry.plan.method for entry in window.document.plans]
    assert set(methods) == set(window.studio.solving.compared_methods())
    assert len(set(methods)) == len(methods)


def test_only_the_ticked_methods_are_compared(make_window, qtbot, monkeypatch):
    window = make_window()
    window.document.open(start_project(profile_of({"a": 10, "b": 10}), cluster_of(2)))
    with solving(window, qtbot):
        pass
    estimates = []

    def tick_two(dialog):
        estimates.append(dialog.estimate.text())
        assert 1 < len(dialog.chosen) < len(dialog._methods), "a few are ticked"
        assert all(dialog.list.item(row, 2).text() for row in range(dialog.list.rowCount()))
        dialog._every.click()
        dialog._every.click()
        assert not dialog.buttons.accept.isEnabled()
        names = [method.name for method in dialog._methods]
        for name in ("heft", "single"):
            dialog.list.item(names.index(name), 0).setCheckState(Qt.CheckState.Checked)
        estimates.append(dialog.estimate.text())
        return True

    monkeypatch.setattr(CompareDialog, "exec", tick_two)
    with solving(window, qtbot):
        window.header.compare_button.click()
    window.studio.solving.wait()
    methods = {entry.plan.method for entry in window.document.plans}
    assert methods == {"expert", "heft", "single"}
    assert window.toast.text == "2 methods tried; HEFT is best: 0.010 ms."
    assert estimates[1] == "2 methods, about 2 s"
    assert "methods, about" in estimates[0]


def test_methods_can_be_compared_while_a_job_runs_and_wait_for_it(make_window, qtbot, monkeypatch):
    window = make_window()
    window.document.open(start_project(profile_of({"a": 10, "b": 10}), cluster_of(2)))
    with solving(window, qtbot):
        pass
    with solving(window, qtbot):
        window.studio.solving.solve()
        assert window.header.compare_button.isEnabled()
        window.studio.solving.compare(["heft", "single"])
        assert {job.method for job in window.solver.waiting} == {"heft", "single"}
    methods = {entry.plan.method for entry in window.document.plans}
    assert {"heft", "single", window.solver.default_method} <= methods


def test_a_search_is_not_abandoned_without_asking(make_window, qtbot, monkeypatch):
    window, asked, answers = make_window(), [], [BUTTON.Discard, BUTTON.Cancel]
    may_leave = window.studio.saving.may_leave

    def question(parent, title, *_):
        asked.append(title)
        return answers.pop()

    monkeypatch.setattr(QMessageBox, "question", question)
    window.document.open(start_project(profile_of({"a": 10, "b": 10}), cluster_of(2)))
    assert window.solver.busy
    assert may_leave(do_nothing)  # nobody has asked for the expert's plan
    qtbot.waitUntil(lambda: bool(window.solver.methods))
    with solving(window, qtbot):
        window.studio.solving.solve()
        assert not may_leave(do_nothing)
        assert may_leave(do_nothing)
    assert asked == ["A search is running"] * 2


def test_solve_need_not_wait_for_the_experts_plan(make_window, qtbot):
    window = make_window()
    window.document.open(start_project(profile_of({"a": 10, "b": 10}), cluster_of(2)))
    assert window.solver.busy
    qtbot.waitUntil(lambda: bool(window.solver.methods))
    with solving(window, qtbot):
        window.studio.solving.solve()
        assert window.header.solve_button.text() == "Stop, keep the best"
    assert window.document.plans[0] is window.document.project.expert
    assert window.document.current.plan.method == window.solver.default_method


def test_the_experts_plan_does_not_replace_a_plan_opened_meanwhile(make_window, qtbot, tmp_path):
    window = make_window()
    state = start_project(profile_of({"a": 10, "b": 10}), cluster_of(2))
    plan = plan_of(state.problem, {"a": 1, "b": 0})
    write_plan(tmp_path / "mine.json", Result(simulate(state.problem, plan)))
    with solving(window, qtbot):
        window.document.open(state)
        import_plan(window, tmp_path / "mine.json")
    assert {entry.plan.method for entry in window.document.plans} == {plan.method, "expert"}
    assert window.document.current.plan.method == plan.method


def test_the_expert_follows_the_users_rules(make_window, qtbot, tmp_path):
    window = make_window()
    profile = profile_of({"l_1/a": 10, "l_2/b": 10, "l_2/c": 10}, [("l_1/a", "l_2/b", 8)])
    window.document.open(start_project(profile, cluster_of(2)))
    with solving(window, qtbot):
        pass
    rules = tmp_path / "mine.rules"
    rules.write_text("l_1/.* -> GPU:1")
    with solving(window, qtbot):
        window.studio.solving.place_by_rules(rules)
    assert window.document.current.plan.device[0] == 1
    assert window.document.current.note == "by rules"
    assert window.document.plans[0] is window.document.project.expert
    window.studio.chosen.set_method("expert")
    window.studio.chosen.set_values(family="layers")
    assert window.header.method_button.text() == "Expert, layers  ▾"
    with solving(window, qtbot):
        window.header.solve_button.click()
    assert window.document.current.plan.details["family"] == "layers"
    rules.write_text("nonesuch -> GPU:1")
    with qtbot.waitSignal(window.studio.solving.failed) as failed:
        window.studio.solving.place_by_rules(rules)
    assert "mine.rules: line 1" in failed.args[0]


def test_baechis_methods_use_the_chosen_memory_rule(make_window, qtbot):
    window = make_window()
    profile = profile_of(dict.fromkeys("abcd", 10), [("a", "b", 300), ("b", "c", 300)])
    window.document.open(start_project(profile, cluster_of(2, capacity_bytes=700)))
    with solving(window, qtbot):
        pass
    window.studio.chosen.set_method("m-sct")
    window.studio.chosen.set_values(**{"memory-rule": "sums"})
    assert window.studio.chosen.method == "m-sct"
    assert window.header.method_button.text() == "m-sct, sums  ▾"
    with solving(window, qtbot):
        window.header.solve_button.click()
    assert window.document.current.note == "sums"
    window.studio.chosen.set_method("heft")
    assert window.header.method_button.text() == "HEFT  ▾"


def test_pipeline_loads_are_counted_as_chosen(make_window, qtbot):
    window = make_window()
    profile = profile_of(dict.fromkeys("ab", 10), [("a", "b", 4)])
    window.document.open(start_project(profile, cluster_of(2, b0_us=0.0)))
    with solving(window, qtbot):
        pass
    header, chosen = window.header, window.studio.chosen
    chosen.set_method("max-load-dp")
    chosen.set_values(load="overlap")
    assert header.method_button.text() == "Max-load DP, overlap  ▾"
    with solving(window, qtbot):
        header.solve_button.click()
    split = window.document.current
    assert (split.plan.value_us, split.note) == (10.0, "overlap")
    with solving(window, qtbot):
        window.studio.solving.compare()
    for_pipelines = [e for e in window.document.plans if e.plan.objective == "throughput"]
    assert len(for_pipelines) > 5
    assert {planned_rule(entry.plan).transfers for entry in for_pipelines} == {"overlap"}
    chosen.set_values(replicate=True)
    assert header.method_button.text() == "Max-load DP, replicate  ▾"
    with solving(window, qtbot):
        header.solve_button.click()
    assert window.document.current.plan.replicas == ((0, 1),)
    assert window.document.current.plan.value_us == 10.0
    rows = len(window.document.plans)
    with solving(window, qtbot):
        window.studio.solving.compare()
    found = window.document.plans[rows:]
    assert "max-load-dp" not in {entry.plan.method for entry in found}
    by_method = {entry.plan.method: entry.note for entry in found}
    assert by_method["pipedream"] == "replicate"
    assert by_method["local-search"] == ""
    chosen.set_method("heft")
    assert header.method_button.text() == "HEFT  ▾"


def test_blocks_of_pytorch_stay_whole_for_throughput_unless_ops_are_asked_for(
    make_window, qtbot, monkeypatch
):
    window = make_window()
    times = {"h_0/a": 10, "h_0/b": 10, "h_1/a": 20, "h_1/b": 40}
    held = {"h_0/w": "h_0/b", "h_1/w": "h_1/b"}
    edges = [*pairwise(times), *held.items()]
    profile = profile_of(times | dict.fromkeys(held, 0), [(a, b, 4) for a, b in edges])
    kinds = tuple("variable" * (name in held) for name in profile.op_names)
    measured = Measurement(framework="torch", config={PARAMETERS: {name: name for name in held}})
    profile = replace(profile, op_kinds=kinds, measured=measured)
    with solving(window, qtbot):
        window.document.open(start_project(profile, cluster_of(2, b0_us=0.0)))
    header, chosen = window.header, window.studio.chosen
    assert "whole" not in header.method_button.text()
    chosen.set_method("max-load-dp")
    assert header.method_button.text() == "Max-load DP, whole blocks  ▾"
    with solving(window, qtbot):
        header.solve_button.click()
    found = window.document.current
    assert (found.plan.value_us, found.note) == (64.0, "contiguous, whole blocks")
    assert not window.document.problem.together

    def ask_for_ops(dialog):
        field = dialog.grain_field
        assert field.currentText() == "Blocks (usual)"
        field.setCurrentIndex(field.findText("Nothing"))
        field.activated.emit(field.currentIndex())
        return True

    monkeypatch.setattr(MethodDialog, "exec", ask_for_ops)
    window.studio.solving.choose_method()
    assert header.method_button.text() == "Max-load DP  ▾"
    with solving(window, qtbot):
        header.solve_button.click()
    found = window.document.current
    assert (found.plan.value_us, found.note) == (44.0, "contiguous")


def test_a_running_solver_refuses_requests_with_the_reason(window, qtbot):
    window.solver.job = Job(1, window.document.problem, "enplace", 10.0, choose=True)
    with qtbot.waitSignal(window.studio.solving.failed) as failed:
        window.studio.solving.polish(window.document.current.plan)
    window.solver.job = None
    assert "is running" in failed.args[0]


def test_each_objective_has_its_own_comparison(make_window, qtbot):
    window = make_window()
    window.document.open(
        start_project(profile_of({"a": 10, "b": 10}, [("a", "b", 8)]), cluster_of(2))
    )
    with solving(window, qtbot):
        pass
    window.studio.chosen.set_method("max-load-dp")
    assert {"max-load-dpl", "pipedream"} <= set(window.studio.solving.compared_methods())
    assert "enplace" not in window.studio.solving.compared_methods()
    with solving(window, qtbot):
        window.header.solve_button.click()
    found = window.document.current.plan
    assert found.objective == "throughput"
    assert found.value_us > 0
    timeline = window.panes.views["timeline"]
    assert timeline.pages.currentWidget() is timeline.pipeline


def test_a_baseline_solves_for_the_requested_objective(make_window, qtbot):
    window = make_window()
    window.document.open(
        start_project(profile_of({"a": 10, "b": 10}, [("a", "b", 8)]), cluster_of(2))
    )
    with solving(window, qtbot):
        pass
    expert = window.document.project.expert
    window.studio.chosen.set_method("expert", objective="throughput")
    assert window.header.method_button.text() == "Expert, pipeline  ▾"
    assert {"expert", "local-search", "pipedream"} <= set(window.studio.solving.compared_methods())
    with solving(window, qtbot):
        window.header.solve_button.click()
    found = window.document.current
    assert (found.plan.method, found.plan.objective) == ("expert", "throughput")
    assert found.plan.value_us > 0
    assert window.document.project.expert is expert, (
        "steps are compared with the plan made for steps"
    )
    with solving(window, qtbot):
        window.studio.solving.renew(found)
    assert window.document.current is not found
    assert window.document.current.plan.objective == "throughput"


def test_a_plan_made_before_a_constraint_was_changed_is_listed_and_not_shown(window):
    old = window.document.problem
    window.document.pin_here([0])
    shown = window.document.current
    window.solver.solved.emit(
        Job(1, old, "heft", None, True), plan_of(old, dict.fromkeys("abc", 1))
    )
    window.studio.solving.wait()
    *_, listed = window.document.plans
    assert window.document.current is shown
    assert why_stale(window.document.problem, listed) == "without your pins"
    assert "made before you changed the constraints" in window.toast.text


def test_a_plan_that_arrives_leaves_what_went_wrong_on_screen(window):
    window.document.failed.emit("left out other.enplace")
    problem = window.document.problem
    window.solver.solved.emit(
        Job(1, problem, "heft", None, True), plan_of(problem, dict.fromkeys("abc", 1))
    )
    window.studio.solving.wait()
    assert len(window.document.plans) == 2
    assert window.banner.text == "Left out other.enplace."
    assert window.banner.isVisible()


def found_later(window, plan_at, change):
    """Let a job end after something has changed; return its row."""
    window.solver.solve = lambda *_, **__: None  # another cluster's expert is not asked
    project = window.document.project
    job = Job(1, project.problem, "heft", None, True, cluster=project.cluster)
    plan = plan_of(project.problem, dict.fromkeys("abc", plan_at))
    change(window.document)
    window.solver.solved.emit(job, plan)
    window.studio.solving.wait()
    assert len(window.document.plans) == 2
    return window.document.plans[-1]


def test_a_plan_found_while_the_speeds_changed_is_timed_at_the_new_ones_and_shown(window):
    found = found_later(window, 1, lambda document: document.set_scale(2.0, 1.0))
    assert window.document.current is found
    assert found.schedule.problem is window.document.problem
    assert found.schedule.makespan_us == 15


def test_undo_takes_back_a_pin_made_while_the_solver_ran_and_keeps_its_plan(window, qtbot):
    found = found_later(window, 1, lambda document: document.place([0], 0))
    assert window.document.problem.pins == {0: 0}
    window.document.choose_plan(found)
    press(window, Qt.Key.Key_Z, Qt.KeyboardModifier.ControlModifier)
    press(window, Qt.Key.Key_Z, Qt.KeyboardModifier.ControlModifier)
    assert window.document.problem.pins == {}
    assert found.name in [entry.name for entry in window.document.plans]
    assert not window.menus.by_id["undo"].isEnabled()


def test_the_reference_on_another_cluster_is_named_by_that_alone(window):
    window.solver.solve = lambda *_, **__: None
    document = window.document
    for spent_s, cluster in ((0.1, None), (3.2, cluster_of(3))):
        if cluster is not None:
            document.set_cluster(replace(cluster, description="Three GPUs"))
        now = document.project
        job = Job(1, now.problem, "expert", None, False, asked=False, cluster=now.cluster)
        plan = plan_of(now.problem, dict.fromkeys("abc", 0))
        window.solver.solved.emit(job, replace(plan, method="expert", solve_seconds=spent_s))
        window.studio.solving.wait()
    assert document.project.expert.name == "expert, Three GPUs"


def test_a_plan_found_while_the_cluster_changed_runs_on_the_new_one(window):
    found = found_later(window, 0, lambda document: document.set_cluster(cluster_of(3)))
    assert found.cluster is None
    assert found.schedule.problem.cluster.n_devices == 3


def test_a_plan_found_while_the_cluster_lost_its_device_is_kept_for_its_own(window):
    own = window.document.project.cluster
    found = found_later(window, 1, lambda document: document.set_cluster(cluster_of(1)))
    assert found.cluster == own
    assert window.document.current is not found
    assert "as you changed the cluster" in window.toast.text
    assert window.document.choose_plan(found)
    assert window.document.project.cluster == own


def test_a_plan_of_other_costs_than_those_of_now_is_dropped(window):
    old, rows = window.document.problem, len(window.document.plans)
    profile = profile_of({"a": 11, "b": 10, "c": 10}, [("a", "b", 8), ("b", "c", 20)])
    window.document.take_costs(window.document.current, profile)
    window.solver.solved.emit(
        Job(1, old, "heft", None, True), plan_of(old, dict.fromkeys("abc", 0))
    )
    window.studio.solving.wait()
    assert len(window.document.plans) == rows
    assert "earlier version of the model" in window.toast.text


def test_a_plan_for_what_is_no_longer_open_is_dropped_without_a_word(window, monkeypatch):
    monkeypatch.setattr(window.solver, "start", lambda: SimpleNamespace(send=lambda message: None))
    window.studio.solving._run(["enplace"], choose=True)
    job = window.solver.job
    window.document.open(project_with_a_plan())
    window.solver.solved.emit(job, plan_of(job.problem, dict.fromkeys("abc", 0)))
    window.studio.solving.wait()
    assert len(window.document.plans) == 1
    assert not window.toast.isVisible()
    window.solver.job = None


def test_a_change_of_cluster_leaves_a_running_search_alone(window, monkeypatch):
    monkeypatch.setattr(window.solver, "start", lambda: SimpleNamespace(send=lambda message: None))
    window.studio.solving._run(["enplace", "heft"], choose=False)
    asked = window.solver.jobs
    window.document.set_cluster(cluster_of(3))
    running, expert, waiting = window.solver.jobs
    assert (running, waiting) == asked
    assert (expert.method, expert.asked) == ("expert", False)
    window.solver._queue.clear()
    window.solver.job = None


def test_pins_change_the_text_of_the_solve_button(window):
    assert window.header.solve_button.text() == "Solve"
    window.document.pin_here([0])
    assert window.header.solve_button.text() == "Solve around 1 constraint"
    window.document.undo_stack.undo()
    assert window.header.solve_button.text() == "Solve"


def test_solving_around_an_edit_begins_from_the_plan_shown(make_window, qtbot):
    window = make_window()
    window.document.open(project_with_a_plan())
    window.solver.start()
    qtbot.waitUntil(lambda: bool(window.solver.methods))
    window.document.place([1], 1)
    edited = window.document.current
    reported = []
    window.solver.changed.connect(lambda: reported.append(window.solver.report.objective_us))
    with solving(window, qtbot):
        window.header.solve_button.click()
        assert window.solver.jobs[-1].start is edited.plan
    shown = window.document.current.schedule.makespan_us
    assert shown <= edited.schedule.makespan_us
    assert max(us or 0.0 for us in reported) <= edited.schedule.makespan_us


def test_a_plan_worse_than_the_users_own_is_listed_and_not_shown(window):
    window.document.place([0], 1)
    window.document.place([1], 1)
    own, problem = window.document.current, window.document.problem
    found = plan_of(problem, {"a": 1, "b": 1, "c": 0})
    window.solver.solved.emit(Job(1, problem, "heft", None, True), found)
    window.studio.solving.wait()
    assert window.document.plans[-1].plan is found
    assert window.document.current is own
    assert f"“{own.name}” is better and holds too: {ms(30)}" in window.toast.text


@pytest.mark.parametrize(("method", "is_shown"), [("enplace", False), ("heft", True)])
def test_a_search_that_finds_less_than_before_leaves_the_better_plan_shown(
    window, method, is_shown
):
    searching = Method("enplace", "Enplace", "", ("step-time",), ("anytime",), "")
    window.solver.methods = {"enplace": searching}
    problem = window.document.problem
    for devices, name in (((0, 0, 0), "enplace"), ((1, 0, 1), method)):
        found = plan_of(problem, dict(zip("abc", devices, strict=True)))
        job = Job(1, problem, name, None, True)
        window.solver.solved.emit(job, replace(found, method=name))
        window.studio.solving.wait()
    assert (len({*window.document.current.plan.device.tolist()}) == 2) == is_shown


def test_a_plan_that_shows_the_same_time_is_not_called_better(window, monkeypatch):
    window.document.duplicate_plan(window.document.current)
    copy = window.document.current
    monkeypatch.setattr(solving_module, "rank", lambda entry: entry is copy)  # by a nanosecond
    assert solving_module.rival_text(window.document.project, copy) == ""


def test_a_plan_under_constraints_that_beats_those_without_is_said_to_hold_without(window):
    window.document.place([0], 1)
    problem = window.document.problem
    found = plan_of(problem, dict.fromkeys("abc", 1))
    window.solver.solved.emit(Job(1, problem, "heft", None, True), found)
    window.studio.solving.wait()
    assert window.document.current.plan is found
    assert "it also holds without these constraints, and beats “first”" in window.toast.text


def test_a_running_search_shows_its_best_plan_next_to_the_experts(window, qtbot):
    live = window.findChild(QWidget, "live")
    solver = window.solver
    assert not live.isVisible()
    solver.methods = {"enplace": Method("enplace", "Enplace", "", ("step-time",), ("anytime",), "")}
    solver.job = Job(1, window.document.problem, "enplace", 10.0, True)
    solver._started_s -= 5
    progress = {
        "message": "",
        "fraction": None,
        "seconds": 1.0,
        "objective_us": 90e3,
        "bound_us": 80e3,
    }
    progress |= {"engine": "blocks", "bound_by": "", "fits": True}
    first = {**progress, "objective_us": 95e3, "engine": "list schedules"}
    report = Report("").then(first, None).then(progress, None)
    solver.report = report.then({**progress, "objective_us": None, "bound_us": None}, None)
    solver.changed.emit()
    assert live.isVisible()
    assert live.step.text() == "90.0 ms"
    assert live.bound.text() == "proven not below 80.0 ms"
    assert "found by ○ list schedules 95.0 ms → ● blocks 90.0 ms" in live.toolTip()
    proven = {**progress, "objective_us": None, "bound_us": 85e3, "bound_by": "CP-SAT"}
    solver.report = solver.report.then(proven, None)
    solver.changed.emit()
    assert live.bound.text() == "proven not below 85.0 ms by ◆ CP-SAT"
    found = window.document.current.plan
    solver.report = Report("").then({**progress, "bound_us": None, "fits": False}, found)
    solver.changed.emit()
    assert live.standing.text() == "does not fit yet"
    assert live.bound.text() == "looking for a plan that fits"
    solver.job = None
    solver.changed.emit()
    assert not live.isVisible()


def test_a_plan_is_polished_from_its_menu(window, monkeypatch):
    asked = []
    monkeypatch.setattr(window.solver, "solve", lambda *args, **more: asked.append((args, more)))
    card = window.panes.views["plans"].cards[0]
    (polish,) = [
        a for a in window.panes.views["plans"].menu_of(card).actions() if "Continue" in a.text()
    ]
    polish.trigger()
    ((problem, methods, limit_s, _), more) = asked[0]
    assert problem is window.document.problem
    assert methods == [window.solver.default_method]
    assert limit_s == 30
    assert more["start"] is card.entry.plan


def test_polishing_that_finds_nothing_better_is_reported_and_adds_no_row(make_window, qtbot):
    window = make_window()
    window.document.open(start_project(profile_of({"a": 10, "b": 10}), cluster_of(2)))
    with solving(window, qtbot):
        window.header.solve_button.click()
    before, best = window.document.plans, window.document.current
    with solving(window, qtbot):
        window.studio.solving.polish(best.plan)
    assert window.document.plans == before
    assert window.document.current is best
    assert f"Nothing better than “{best.name}” was found in " in window.toast.text


def test_polishing_that_finds_a_better_plan_adds_a_row(window, qtbot):
    first = window.document.current
    better = replace(first.plan, method="enplace", device=0 * first.plan.device)
    job = Job(1, window.document.problem, "enplace", 30.0, True, start=first.plan)
    with qtbot.waitSignal(window.studio.solving.done):
        window.solver.solved.emit(job, better)
    assert [entry.note for entry in window.document.plans] == ["", "polished"]


def test_a_removed_plan_that_polishing_does_not_improve_gets_its_row_back(window, qtbot):
    first = window.document.current
    window.document.remove_plan(first)
    job = Job(1, window.document.problem, "enplace", 30.0, True, start=first.plan)
    with qtbot.waitSignal(window.studio.solving.done):
        window.solver.solved.emit(job, first.plan)
    assert [entry.plan for entry in window.document.plans] == [first.plan]


def test_a_finished_search_has_one_card_that_says_who_found_its_plan_and_continues(
    window, monkeypatch, qtbot
):
    asked, solver, plans = [], window.solver, window.panes.views["plans"]
    live = window.findChild(QWidget, "live")
    solver.methods = {"enplace": Method("enplace", "Enplace", "", ("step-time",), ("anytime",), "")}
    problem = window.document.problem
    found = replace(window.document.current.plan, method="enplace", solve_seconds=10.0)
    progress = {"message": "", "fraction": None, "seconds": 1.0, "objective_us": 90e3}
    progress |= {"bound_us": None, "engine": "blocks", "bound_by": "", "fits": True}
    solver.job = job = Job(1, problem, "enplace", 10.0, True)
    solver._started_s -= 5
    solver.report = Report("").then(progress, found)
    solver._next()
    solver.solved.emit(job, found)
    window.studio.solving.wait()
    assert not live.isVisible()
    monkeypatch.setattr(solver, "solve", lambda *args, **more: asked.append((args, more)))

    def card():
        plans.rebuild()
        return next(each for each in plans.cards if each.isChecked())

    assert "found by ○ blocks 90.0 ms" in card().tip()
    card().go_on.click()
    (((_, _, limit_s, _), more),) = asked
    assert limit_s == 30
    assert more["start"] is window.document.current.plan
    others = [each for each in plans.cards if not each.isChecked()]
    assert not any(each.go_on.isVisible() for each in others)


def test_a_plan_made_before_a_pin_is_brought_up_to_date(make_window, qtbot):
    window = make_window()
    window.document.open(start_project(profile_of({"a": 10, "b": 10}), cluster_of(2)))
    with solving(window, qtbot):
        pass
    expert = window.document.current
    window.document.place([0], 1 - int(expert.plan.device[0]))
    plans = window.panes.views["plans"]
    plans.rebuild()
    card = next(card for card in plans.cards if card.entry is expert)
    action = next(a for a in plans.menu_of(card).actions() if a.text() == "Solve again here")
    with solving(window, qtbot):
        action.trigger()
    assert window.document.current.plan.method == "expert"
    assert window.document.current.schedule.problem is window.document.problem


def test_a_plan_close_to_the_one_shown_is_searched_from_it(window, monkeypatch):
    started, asked = [], []
    monkeypatch.setattr(window.solver, "solve", lambda *_, **more: started.append(more))

    def answer(parent, title, text, value, low, high):
        asked.append((value, low, high))
        return 2, True

    monkeypatch.setattr("enplace_studio.shell.actions.QInputDialog.getInt", answer)
    shown = window.document.current
    search = Method("search", "Search", "", ("step-time",), ("warm-start",), "")
    window.solver.methods, window.solver.default_method = {"search": search}, "search"
    window.solver.methods_changed.emit()
    window.document.requests.run_action.emit("stay-close")
    assert asked == [(3, 1, 3)]
    ((placement, most),) = window.document.problem.constraints["stay-close"]
    assert [device for _, device in placement] == shown.plan.device.tolist()
    assert most == 2
    assert started[0]["start"] is window.document.current.plan
    window.document.undo_stack.undo()
    assert not window.document.problem.constraints


def test_a_new_plan_keeps_the_colours_of_devices_that_are_alike(window):
    shown, problem = window.document.current, window.document.problem
    where = shown.plan.device.tolist()
    other = plan_of(problem, {name: 1 - d for name, d in zip("abc", where, strict=True)})
    step_us = simulate(problem, other).makespan_us
    window.solver.solved.emit(Job(1, problem, "heft", None, True), other)
    window.studio.solving.wait()
    *_, listed = window.document.plans
    assert listed.plan.device.tolist() == shown.plan.device.tolist()
    assert listed.schedule.makespan_us == step_us


def test_a_plan_close_to_another_is_below_it_and_says_how_many_ops_moved(window):
    home, said = window.document.current, []
    window.studio.done.connect(said.append)
    window.document.stay_close(1)
    problem = window.document.problem
    where = dict(zip("abc", home.plan.device.tolist(), strict=True))
    plan = plan_of(problem, where | {"c": 1 - where["c"]})
    window.solver.solved.emit(Job(1, problem, "heft", None, True), plan)
    window.studio.solving.wait()
    *_, close = window.document.plans
    assert close.parent == home.name
    plans = window.panes.views["plans"]
    plans.rebuild()
    card = next(each for each in plans.cards if each.entry is close)
    assert "1 op moved" in card.notes
    assert f"1 op moved from “{home.name}”" in said[-1]
    rows = list_constraints(problem, window.document.project.grouping)
    assert describe(window.document.project, rows[0]) == f"within 1 op of {home.name}"


def test_a_plan_of_whole_blocks_is_named_so_and_is_not_measured_against_others(window):
    shown, said = window.document.current, []
    window.studio.done.connect(said.append)
    problem = window.document.problem
    slower = plan_of(problem, {"a": 0, "b": 1, "c": 0})
    assert simulate(problem, slower).makespan_us > shown.schedule.makespan_us
    window.solver.solved.emit(Job(1, problem, "heft", None, True, grain="block"), slower)
    window.studio.solving.wait()
    assert window.document.plans[-1].name == "heft, whole blocks"
    assert "is better" not in said[-1]
