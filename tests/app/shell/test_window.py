import errno
import gc
import json
import os
import sys
import weakref
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PySide6.QtCore import QEvent, QMimeData, QPointF, QRect, QSettings, Qt, QUrl
from PySide6.QtGui import QDragEnterEvent, QDropEvent, QImage
from PySide6.QtTest import QTest
from PySide6.QtWidgets import (
    QApplication,
    QFileDialog,
    QMenu,
    QMessageBox,
    QPushButton,
    QWidget,
)

from documents import add_plan, chain_document, document_of, let_go, wide_document
from enplace.errors import FileError
from enplace.files.writing import write_atomically
from enplace.machine import simulate
from enplace.machine.pipelines.pipeline import planned_rule
from enplace.readers import read_plan
from enplace.readers.clusters import presets
from enplace.readers.samples import samples
from enplace.text import ms
from enplace.values.result import Result
from enplace.writers import write_plan, write_profile, write_project
from enplace.writers.clusters import cluster_text
from enplace_studio.files import session
from enplace_studio.files.recovery import Backups
from enplace_studio.files.session import to_project
from enplace_studio.jobs.solver import Job, Method, Report
from enplace_studio.model.document import PlanEntry
from enplace_studio.model.edits import with_plan
from enplace_studio.model.open_project import start_project
from enplace_studio.model.plan_facts import standing, why_stale
from enplace_studio.shell.actions import EXPORTS, all_actions
from enplace_studio.shell.key_sheet import KeySheet
from enplace_studio.shell.window import MainWindow, usual_geometry
from enplace_studio.solve.compare_dialog import CompareDialog
from enplace_studio.views.graph.canvas import Canvas
from enplace_studio.views.timeline.canvas import TimelineCanvas
from enplace_studio.views.whatif.whatif_view import value_at
from enplace_studio.widgets.theme import theme
from problems import cluster_of, plan_of, profile_of
from stops import nameless_stops
from turns import take_turns

BUTTON = QMessageBox.StandardButton


@pytest.fixture
def settings(tmp_path):
    return QSettings(str(tmp_path / "studio.ini"), QSettings.Format.IniFormat)


@pytest.fixture
def make_window(qtbot, settings, tmp_path, monkeypatch):
    kept = []
    theme.set_mode("light")

    def make():
        window = MainWindow(settings, tmp_path / "recovery")
        kept.append(window)
        window.show()
        return window

    yield make
    monkeypatch.setattr(QMessageBox, "question", lambda *_: BUTTON.Discard)
    for window in kept:
        window.close()
        window.deleteLater()


@pytest.fixture
def window(make_window):
    """A window with a plan; its solver is never started."""
    made = make_window()
    made.document.open(project_with_a_plan())
    return made


def project_with_a_plan():
    profile = profile_of({"a": 10, "b": 10, "c": 10}, [("a", "b", 8), ("b", "c", 20)])
    project = start_project(profile, cluster_of(2))
    plan = plan_of(project.problem, {"a": 0, "b": 0, "c": 1})
    entry = PlanEntry("first", plan, simulate(project.problem, plan))
    return with_plan(project, entry, choose=True)


def press(window, key, modifier=Qt.KeyboardModifier.NoModifier):
    window.activateWindow()
    assert QTest.qWaitForWindowActive(window)
    QTest.keyClick(window, key, modifier)


def trigger(window, name):
    window.menus.by_id[name].trigger()
    window.studio.files.wait()


@contextmanager
def solving(window, qtbot):
    """Wait until the solver is idle and its plans are in the list; no job may fail."""
    reasons = []
    window.solver.failed.connect(lambda job, why: reasons.append(f"{job.method}: {why}"))
    with qtbot.waitSignal(window.solver.idle):
        yield
    window.studio.solving.wait()
    assert not reasons


def open_path(window, path):
    window.studio.files.open_path(path)
    window.studio.files.wait()


def import_plan(window, path):
    window.studio.files.import_plan(path)
    window.studio.files.wait()


def answer(monkeypatch, button):
    """Answer every question with this button; return the questions that were asked."""
    asked = []
    monkeypatch.setattr(QMessageBox, "question", lambda *args: asked.append(args[2]) or button)
    return asked


def name_file(monkeypatch, path):
    for method in ("getSaveFileName", "getOpenFileName"):
        monkeypatch.setattr(QFileDialog, method, lambda *_: (str(path), ""))


def test_the_start_page_explains_and_shows_no_panes(make_window):
    window = make_window()
    assert window.start_page.isVisible()
    assert not window.bar.isVisible()
    assert len(window.start_page.cards) >= 3


def test_a_sample_opens_with_the_experts_plan_as_reference(make_window, qtbot):
    window = make_window()
    card = next(card for card in window.start_page.cards if card.sample.name == "vgg-19")
    QTest.mouseClick(card, Qt.MouseButton.LeftButton)
    qtbot.waitUntil(lambda: window.document.current is not None)
    assert window.document.current is window.document.project.expert
    assert not window.document.modified
    qtbot.waitUntil(lambda: window.status_line.step.text().startswith("Predicted step "))


def test_another_cluster_gets_an_experts_plan_of_its_own_as_reference(make_window, qtbot):
    window = make_window()
    document = window.document
    profile = profile_of({"l_1/a": 10, "l_2/b": 10}, [("l_1/a", "l_2/b", 8)])
    with solving(window, qtbot):
        document.open(start_project(profile, cluster_of(1)))
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
    assert window.toast.text == "2 methods compared; HEFT is best: 0.010 ms."
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
    old, shown = window.document.problem, window.document.current
    window.document.pin_here([0])
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


def test_number_keys_pin_the_selection(window, qtbot):
    window.document.select([2])
    press(window, Qt.Key.Key_1)
    assert window.document.problem.pins == {2: 0}
    qtbot.waitUntil(lambda: window.toast.text == "Pinned c to GPU 0: −0.021 ms.")
    press(window, Qt.Key.Key_Z, Qt.KeyboardModifier.ControlModifier)
    assert window.document.problem.pins == {}


@pytest.mark.qt_log_ignore("does not support (raise|grabbing)", extend=True)
def test_an_open_menu_closes_when_another_graph_opens(window):
    menu = QMenu(window)
    menu.addAction("Pin here")
    menu.popup(window.mapToGlobal(window.rect().center()))
    assert menu.isVisible()
    window.document.open(project_with_a_plan())
    assert not menu.isVisible()


def test_the_toast_takes_back_its_own_edit_or_is_gone(window, qtbot):
    for op, key in ((2, Qt.Key.Key_1), (1, Qt.Key.Key_2)):
        window.document.select([op])
        press(window, key)
    qtbot.waitUntil(lambda: window.toast.isVisibleTo(window))
    press(window, Qt.Key.Key_Z, Qt.KeyboardModifier.ControlModifier)
    assert window.document.problem.pins == {2: 0}
    assert not window.toast.isVisibleTo(window)


def test_a_plan_that_does_not_fit_is_red_in_the_status_line(window, qtbot):
    profile = profile_of({"a": 10, "b": 10}, persistent={"a": 60, "b": 60})
    document = document_of(profile, cluster_of(2, capacity_bytes=100), {"a": 0, "b": 0})
    window.document.open(document.project)
    step = window.status_line.step
    text = "Predicted step 0.020 ms, does not fit: GPU 0 needs 20 B more"
    qtbot.waitUntil(lambda: step.text() == text)
    assert step.property("role") == "bad"


def test_news_of_an_edit_says_that_the_plan_no_longer_fits(window, qtbot):
    profile = profile_of({"a": 10, "b": 10}, persistent={"a": 60, "b": 60})
    document = document_of(profile, cluster_of(2, capacity_bytes=100), {"a": 0, "b": 1})
    window.document.open(document.project)
    window.document.select([1])
    press(window, Qt.Key.Key_1)
    qtbot.waitUntil(
        lambda: window.toast.text.endswith(", but it does not fit: GPU 0 needs 20 B more.")
    )


def test_every_stop_of_the_tab_key_has_a_name_for_screen_readers(window, qtbot):
    window.document.select([0])
    qtbot.waitUntil(lambda: not nameless_stops(window))


def test_the_stops_of_the_start_page_and_of_the_sheet_of_keys_have_names(make_window, qtbot):
    window = make_window()
    sheet = KeySheet(window.menus.specs, window)
    qtbot.addWidget(sheet)
    sheet.show()
    assert not nameless_stops(window)


def test_a_number_without_a_device_does_nothing(window):
    window.document.select([2])
    press(window, Qt.Key.Key_8)
    assert window.document.problem.pins == {}


def test_keys_pin_unpin_colocate_and_separate(window):
    window.document.select([0, 1])
    press(window, Qt.Key.Key_P)
    assert window.document.problem.pins == {0: 0, 1: 0}
    press(window, Qt.Key.Key_U)
    assert window.document.problem.pins == {}
    press(window, Qt.Key.Key_G)
    assert window.document.problem.together == ((0, 1),)
    press(window, Qt.Key.Key_G, Qt.KeyboardModifier.ShiftModifier)
    assert window.document.problem.together == ()


def test_a_refused_request_is_explained_in_the_banner_until_the_next_edit(window):
    window.document.pin_here([0])
    window.document.forbid([0], 0)
    assert window.banner.isVisible()
    assert "pinned" in window.banner.text
    window.document.place([2], 0)
    assert not window.banner.isVisible()


def test_the_status_line_names_the_unsaved_change(window, qtbot):
    window.document.place([2], 0)
    qtbot.waitUntil(lambda: "pin “c” to GPU 0" in window.status_line.unsaved.whole)


@pytest.mark.parametrize(("choice", "closes"), [(BUTTON.Cancel, False), (BUTTON.Discard, True)])
def test_closing_with_unsaved_work_asks(window, monkeypatch, choice, closes):
    window.document.place([2], 0)
    answer(monkeypatch, choice)
    assert window.close() is closes


def test_closing_can_save(window, monkeypatch, tmp_path):
    window.document.place([2], 0)
    answer(monkeypatch, BUTTON.Save)
    name_file(monkeypatch, tmp_path / "mine")
    assert not window.close()
    window.studio.files.wait()
    assert not window.isVisible()
    assert (tmp_path / "mine.enplace").exists()


def test_a_saved_project_opens_again_from_the_recent_files(
    window, make_window, monkeypatch, tmp_path
):
    window.document.place([2], 0)
    name_file(monkeypatch, tmp_path / "mine.enplace")
    trigger(window, "save")
    window.close()
    again = make_window()
    assert again.studio.recent.paths() == [tmp_path / "mine.enplace"]
    menu = next(m for m in again.menuBar().findChildren(QMenu) if m.title() == "Open recent")
    again.menus.fill_recent()
    assert [action.text() for action in menu.actions()] == ["mine.enplace"]
    menu.actions()[0].trigger()
    again.studio.files.wait()
    assert again.document.path == tmp_path / "mine.enplace"
    assert again.document.problem.pins == {2: 0}


def test_an_unreadable_file_is_explained_and_the_window_stays(window, tmp_path):
    bad = tmp_path / "bad.json"
    bad.write_text("{")
    open_path(window, bad)
    assert "bad.json" in window.banner.text
    assert window.document.current.name == "first"


@pytest.mark.parametrize("form", ["plan", *EXPORTS])
def test_every_export_writes_a_file(window, monkeypatch, tmp_path, form):
    name_file(monkeypatch, tmp_path / "out")
    trigger(window, f"export-{form}")
    (written,) = tmp_path.glob("out.*")
    assert written.stat().st_size > 0


def test_an_exported_plan_can_be_imported(window, monkeypatch, tmp_path):
    name_file(monkeypatch, tmp_path / "plan.json")
    trigger(window, "export-plan")
    import_plan(window, tmp_path / "plan.json")
    first, second = window.document.plans
    assert first.schedule.makespan_us == second.schedule.makespan_us


def test_a_plan_of_another_graph_offers_to_place_what_is_missing(window, monkeypatch, tmp_path):
    other = start_project(profile_of({"a": 1, "b": 1, "gone": 1}), cluster_of(2)).problem
    plan = plan_of(other, {"a": 1, "b": 1, "gone": 0})
    write_plan(tmp_path / "plan.json", Result(simulate(other, plan)))
    asked = []

    def accept(box):
        asked.append(box.text() + box.detailedText())
        box.buttons()[0].click()
        return 0

    def place_button(box):
        return next(button for button in box.buttons() if "Place" in button.text())

    monkeypatch.setattr(QMessageBox, "exec", accept)
    monkeypatch.setattr(
        QMessageBox,
        "clickedButton",
        lambda box: next(b for b in box.buttons() if "Place" in b.text()),
    )
    import_plan(window, tmp_path / "plan.json")
    assert "not placed: c" in asked[0]
    assert "not in the model: gone" in asked[0]
    assert window.document.current.plan.device.tolist() == [1, 1, 1]
    assert read_plan(tmp_path / "plan.json", window.document.problem).missing == ["c"]


@pytest.mark.parametrize("agreed", [True, False])
def test_a_plan_for_another_cluster_offers_to_switch_to_it(window, monkeypatch, tmp_path, agreed):
    monkeypatch.setattr(window.solver, "solve", lambda *_, **__: None)
    document, larger = window.document, replace(cluster_of(3), description="Three GPUs")
    other = start_project(document.problem.profile, larger).problem
    plan = plan_of(other, {"a": 0, "b": 1, "c": 2})
    write_plan(tmp_path / "three.json", Result(simulate(other, plan)))
    asked = []
    monkeypatch.setattr(QMessageBox, "exec", lambda box: asked.append(box.text()))
    monkeypatch.setattr(
        QMessageBox,
        "clickedButton",
        lambda box: next(b for b in box.buttons() if ("Switch" in b.text()) == agreed),
    )
    import_plan(window, tmp_path / "three.json")
    assert asked == ["three.json uses devices of Three GPUs, which the open cluster does not have."]
    assert [entry.name for entry in document.plans] == ["first", "three"][: 1 + agreed]
    assert document.project.cluster.n_devices == 2 + agreed
    if agreed:
        assert document.current.plan.device.tolist() == [0, 1, 2]


def drop(window, *paths, says):
    """Drop files on the window, as a file manager does that would rather move it."""
    data = QMimeData()
    data.setUrls([QUrl.fromLocalFile(str(path)) for path in paths])
    actions = Qt.DropAction.CopyAction | Qt.DropAction.MoveAction
    no_key = Qt.KeyboardModifier.NoModifier
    where = QPointF(200, 200)
    enter = QDragEnterEvent(where.toPoint(), actions, data, Qt.MouseButton.LeftButton, no_key)
    QApplication.sendEvent(window, enter)
    assert enter.isAccepted()
    assert window.toast.text == f"Drop to {says}."
    event = QDropEvent(where, actions, data, Qt.MouseButton.LeftButton, no_key)
    event.setDropAction(Qt.DropAction.MoveAction)
    QApplication.sendEvent(window, event)
    assert event.dropAction() == Qt.DropAction.CopyAction  # else the file would be deleted
    take_turns()
    window.studio.files.wait()


def test_a_plan_that_is_dropped_on_the_window_is_added(window, tmp_path):
    problem, n_plans = window.document.problem, len(window.document.plans)
    write_plan(tmp_path / "mine.json", Result(simulate(problem, window.document.current.plan)))
    drop(window, tmp_path / "mine.json", says="import mine.json")
    assert len(window.document.plans) == n_plans + 1
    assert window.document.current.name == "mine"


def test_several_plans_are_all_added_with_their_constraints(window, tmp_path):
    problem = window.document.problem
    pinned = replace(problem, pins={0: 1}, forbidden=frozenset({(2, 1)}))
    plan = plan_of(pinned, {"a": 1, "b": 0, "c": 0})
    write_plan(tmp_path / "one.json", Result(simulate(pinned, plan)))
    locked = replace(problem, pins={1: 0, 2: 0}, locked=frozenset({0}))
    write_plan(tmp_path / "two.json", Result(simulate(locked, plan)))
    drop(window, tmp_path / "one.json", tmp_path / "two.json", says="import 2 files")
    assert [entry.name for entry in window.document.plans][-2:] == ["one", "two"]
    now = window.document.problem
    assert (now.pins, now.forbidden, now.locked) == ({0: 1, 1: 0, 2: 0}, {(2, 1)}, {0})
    window.document.undo_stack.undo()
    assert (window.document.problem.pins, window.document.problem.locked) == ({0: 1}, frozenset())


def test_a_plan_whose_constraints_contradict_mine_is_added_without_them(window, tmp_path):
    problem = window.document.problem
    free = replace(problem, forbidden=frozenset({(0, 0)}))
    write_plan(
        tmp_path / "other.json", Result(simulate(free, plan_of(free, dict.fromkeys("abc", 1))))
    )
    window.document.place([0], 0)
    mine = window.document.problem
    import_plan(window, tmp_path / "other.json")
    assert window.document.current.name == "other"
    assert window.document.problem.pins == mine.pins
    assert "contradict yours" in window.banner.text


def test_a_plan_whose_pins_change_a_locked_device_is_added_without_them(window, tmp_path):
    pinned = replace(window.document.problem, pins={2: 0})
    plan = plan_of(pinned, dict.fromkeys("abc", 0))
    write_plan(tmp_path / "other.json", Result(simulate(pinned, plan)))
    window.document.lock(0)
    mine = window.document.problem
    import_plan(window, tmp_path / "other.json")
    assert window.document.current.name == "other"
    assert window.document.problem.pins == mine.pins
    assert "GPU 0 is locked as it is" in window.banner.text


def test_constraints_that_change_a_locked_device_are_refused_and_nothing_else_is_said(
    window, tmp_path
):
    window.document.lock(0)
    import_constraints(window, tmp_path / "team.json", pin=[["c", "GPU:0"]])
    assert "GPU 0 is locked as it is" in window.banner.text
    assert "adds nothing" not in window.toast.text


def test_a_model_is_opened_with_its_plans_and_what_is_left_out_is_named(window, tmp_path):
    model = profile_of({"x": 1, "y": 1})
    write_profile(tmp_path / "new.enplace", model)
    write_profile(tmp_path / "other.enplace", model)
    problem = session.open_profile(model).project.problem
    write_plan(tmp_path / "p.json", Result(simulate(problem, plan_of(problem, {"x": 0, "y": 1}))))
    paths = [tmp_path / name for name in ("p.json", "new.enplace", "other.enplace")]
    drop(window, *paths, says="open new.enplace and import 1 file")
    assert window.document.problem.profile.op_names == ("x", "y")
    assert window.document.current.name == "p"
    assert "Left out other.enplace" in window.banner.text
    assert window.banner.isVisibleTo(window)


def test_constraints_and_clusters_can_be_dropped_too(window, tmp_path):
    (tmp_path / "team.json").write_text(
        json.dumps({"format": "enplace-constraints/1", "pin": [["a", "GPU:1"]]})
    )
    drop(window, tmp_path / "team.json", says="import team.json")
    assert window.document.problem.pins == {0: 1}
    write_atomically(tmp_path / "four.json", cluster_text(cluster_of(4)))
    drop(window, tmp_path / "four.json", says="import four.json")
    assert len(window.document.project.cluster.gpus) == 4


def test_a_plan_without_its_model_says_to_open_that_first(make_window, window, tmp_path):
    problem = window.document.problem
    write_plan(tmp_path / "mine.json", Result(simulate(problem, window.document.current.plan)))
    empty = make_window()
    drop(empty, tmp_path / "mine.json", says="import mine.json")
    assert empty.banner.text == "Mine.json belongs to a model; open that first."
    assert empty.document.problem is None


def test_exported_constraints_can_be_imported_and_undone(window, monkeypatch, tmp_path):
    document = window.document
    assert not window.menus.by_id["export-constraints"].isEnabled()
    document.place([0], 1)
    document.colocate([1, 2])
    name_file(monkeypatch, tmp_path / "team.json")
    trigger(window, "export-constraints")
    asked = document.problem.pins, document.problem.together
    document.undo_stack.undo()
    document.undo_stack.undo()
    trigger(window, "import-constraints")
    assert (document.problem.pins, document.problem.together) == asked
    assert window.toast.text == "Imported team.json."
    document.undo_stack.undo()
    assert (document.problem.pins, document.problem.together) == ({}, ())


def import_constraints(window, path, **rows):
    path.write_text(json.dumps({"format": "enplace-constraints/1", **rows}))
    window.studio.files.import_constraints(path)
    window.studio.files.wait()


def test_names_that_the_model_does_not_have_are_reported(window, tmp_path):
    names = [f"gone_{i}" for i in range(12)]
    pins = [["a", "GPU:1"], *([name, "GPU:1"] for name in names)]
    import_constraints(window, tmp_path / "team.json", pin=pins)
    assert window.document.problem.pins == {0: 1}
    assert window.banner.text == (
        "In team.json, 12 names are not in this model or cluster: gone_0, gone_1, gone_2, …; "
        "constraints with "
        "them were left out."
    )


def test_pins_of_a_file_that_contradict_ones_own_are_reported(window, tmp_path):
    window.document.pin_here([0])
    import_constraints(window, tmp_path / "team.json", pin=[["a", "GPU:1"], ["b", "GPU:1"]])
    assert window.document.problem.pins == {0: 0, 1: 1}
    assert window.banner.text == (
        "In team.json, 1 op is pinned to another device already: a; your pins stay."
    )


def test_constraints_that_hold_already_are_not_imported_and_this_is_told(window, tmp_path):
    window.document.pin_here([0])
    import_constraints(window, tmp_path / "team.json", pin=[["a", "GPU:0"]])
    assert window.toast.text == "team.json adds nothing to your constraints."


def test_constraints_that_cannot_be_are_refused_and_change_nothing(window, tmp_path):
    import_constraints(window, tmp_path / "team.json", before=[["c", "a"]])
    assert "ops would wait for each other" in window.banner.text
    assert not window.document.modified


def test_an_edit_made_while_constraints_are_read_is_kept(window, tmp_path):
    path = tmp_path / "team.json"
    path.write_text('{"format": "enplace-constraints/1", "pin": [["a", "GPU:1"]]}')
    window.studio.files.import_constraints(path)
    window.document.place([1], 1)
    window.studio.files.wait()
    assert window.document.problem.pins == {0: 1, 1: 1}


def test_constraints_of_a_model_that_is_closed_meanwhile_are_dropped(window, tmp_path):
    path = tmp_path / "team.json"
    path.write_text('{"format": "enplace-constraints/1", "pin": [["a", "GPU:1"]]}')
    window.studio.files.import_constraints(path)
    other = start_project(profile_of({"a": 1}), cluster_of(2))
    window.document.open(other)
    window.studio.files.wait()
    assert window.document.project is other


def test_a_change_of_cluster_is_one_undo_step(window, monkeypatch):
    monkeypatch.setattr(window.solver, "solve", lambda *_, **__: None)
    window.document.set_cluster(presets()["cpu-2"])
    assert "runs only on a gpu" in window.banner.text
    window.document.set_cluster(presets()["pesto"])
    assert "V100" in window.header.cluster_button.text()
    window.document.undo_stack.undo()
    assert window.document.project.cluster.name == "hand"


def test_two_drags_of_a_what_if_slider_are_two_undo_steps(window, qtbot):
    slider = window.panes.views["whatif"]._compute
    for positions in ((3, 6, 8), (12, 16)):
        slider.setSliderDown(True)
        for position in positions:
            slider.setValue(position)
            qtbot.waitUntil(lambda at=position: window.document.project.scale[0] == value_at(at))
        slider.setSliderDown(False)
    assert window.document.undo_stack.count() == 2
    window.document.undo_stack.undo()
    assert window.document.project.scale == (2.0, 1.0)
    window.document.undo_stack.undo()
    assert window.document.project.scale == (1.0, 1.0)


def test_what_if_sliders_scale_the_cluster(window, qtbot):
    slider = window.panes.views["whatif"]._compute
    slider.setValue(8)
    qtbot.waitUntil(lambda: window.document.project.scale == (2.0, 1.0))
    assert window.document.schedule.op_finish_us[0] == 5
    window.panes.views["whatif"].reset()
    assert slider.value() == 0


def test_closed_panes_can_be_reopened_and_the_next_start_remembers_them(
    window, make_window, monkeypatch
):
    window.panes.docks["memory"].toggleViewAction().trigger()
    assert not window.panes.docks["memory"].isVisible()
    state = window.document.project
    answer(monkeypatch, BUTTON.Discard)
    window.close()
    again = make_window()
    again.document.open(state)
    again.panes.restore()
    assert not again.panes.docks["memory"].isVisible()
    assert again.panes.docks["plans"].isVisible()
    trigger(again, "reset-layout")
    assert again.panes.docks["memory"].isVisible()


def test_the_theme_is_remembered(window, make_window):
    trigger(window, "theme-dark")
    assert theme.dark
    theme.set_mode("light")
    make_window()
    assert theme.dark


def test_every_action_has_its_own_id_and_keys():
    ids = [spec.id for spec in all_actions()]
    keys = [key for spec in all_actions() for key in spec.keys]
    assert len(set(ids)) == len(ids)
    assert len(set(keys)) == len(keys)


def test_the_palette_runs_what_is_typed(window, qtbot):
    from enplace_studio.shell.palette import Palette

    def run(typed):
        palette = Palette(window.menus, window.studio, window)
        qtbot.addWidget(palette)
        QTest.keyClicks(palette.search.field, typed)
        QTest.keyClick(palette.search.field, Qt.Key.Key_Return)

    window.document.select([0])
    run("pin where")
    assert window.document.problem.pins == {0: 0}
    run("colour time")
    assert window.panes.views["graph"].model.mode.title == "compute time"
    run("select op c")
    assert window.document.selection == {2}
    window.document.place([1], 1)
    run("select the critical path")
    assert window.document.selection == {0, 1, 2}, "a, b and c run one after the other"


@pytest.mark.parametrize(
    ("typed", "first"), [("dark", "Dark"), ("light", "Light"), ("select all", "Select all")]
)
def test_the_exact_words_come_first_in_the_palette(window, qtbot, typed, first):
    from enplace_studio.shell.palette import Palette

    palette = Palette(window.menus, window.studio, window)
    qtbot.addWidget(palette)
    palette.search.field.setText(typed)
    assert palette.search.current.title == first


def test_the_palette_shows_plans_and_groups_and_solves_with_any_method(window, qtbot, monkeypatch):
    from enplace_studio.shell.commands import all_commands

    asked = []
    monkeypatch.setattr(
        window.solver, "solve", lambda *args, **details: asked.append((args, details))
    )
    solver, document = window.solver, window.document
    solver.methods = {"m": Method("m", "M", "", ("step-time", "latency"), (), "")}
    first = document.current
    document.place([0], 1)
    kinds = all_commands(window.menus, window.studio)
    assert [c.title for c in kinds["Methods"]] == ["Solve with M", "Solve with M: shortest query"]
    kinds["Methods"][1].run()
    assert asked[0][0][1:3] == (["m"], window.studio.chosen.time_limit_s)
    assert asked[0][1]["objective"] == "latency"
    next(c for c in kinds["Plans"] if c.title == "Show plan first").run()
    assert document.current is first
    kinds["Groups"][0].run()
    assert document.selection


def test_the_palette_locks_devices_and_keeps_the_selection_off_them(window):
    from enplace_studio.shell.commands import all_commands

    def run(title):
        found = all_commands(window.menus, window.studio)["Devices"]
        next(command for command in found if command.title == title).run()

    document = window.document
    document.select([2])
    run("Lock GPU 0 as it is")
    assert document.problem.locked == {0}
    run("Unlock GPU 0")
    assert document.problem.locked == frozenset()
    run("Keep the selection off GPU 0")
    assert document.problem.forbidden == {(2, 0)}
    run("Allow the selection on GPU 0 again")
    assert document.problem.forbidden == frozenset()
    run("Select what runs on GPU 0")
    assert document.selection == set(np.flatnonzero(document.current.plan.device == 0).tolist())


def test_the_key_sheet_names_every_shortcut(window, qtbot):
    from PySide6.QtWidgets import QLabel

    from enplace_studio.shell.key_sheet import KeySheet

    sheet = KeySheet(window.menus.specs, window)
    qtbot.addWidget(sheet)
    shown = {label.text() for label in sheet.findChildren(QLabel)}
    assert {"Pin selection where it is", "P", "Ctrl+Shift+P", "Search ops"} <= shown
    assert {"1 … 8", "Pin selection to a device", "W A S D"} <= shown


def test_keys_are_listed_by_topic_in_columns_of_like_height():
    from enplace_studio.shell.key_sheet import in_columns, topics

    found = topics(all_actions())
    assert [title for title, _ in found][:4] == ["File", "Edit", "Select", "Plan"]
    listed = [line for _, lines in found for line in lines]
    assert len(set(listed)) == len(listed)
    columns = in_columns(found, 2)
    assert [topic for column in columns for topic in column] == found
    heights = [sum(len(lines) + 2 for _, lines in column) for column in columns]
    assert max(heights) < 2 * min(heights)


def test_an_unexpected_error_is_reported_and_the_studio_keeps_running(
    window, monkeypatch, tmp_path
):
    from enplace_studio.widgets.messages import install_excepthook

    texts = []
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr(QMessageBox, "exec", lambda box: texts.append(box.text()))
    install_excepthook(tmp_path / "studio.log")
    sys.excepthook(ValueError, ValueError("boom"), None)
    assert texts == ["The studio had an internal error. Your work is safe; you can continue."]
    assert window.isVisible()


def test_a_crashed_session_is_offered_and_opens_as_unsaved(window, make_window, monkeypatch):
    window.document.place([2], 0)
    window.studio.recovery.write()
    window.studio.recovery._pool.waitForDone()
    let_go(window.studio.recovery)
    again = make_window()
    asked = answer(monkeypatch, BUTTON.Open)
    again.studio.files.offer_recovery()
    again.studio.files.wait()
    assert f"“{window.document.problem.profile.name}”, last changed" in asked[0]
    assert again.document.problem.pins == {2: 0}
    assert again.document.modified


@pytest.mark.parametrize("how", ["opened", "saved"])
def test_work_recovered_in_another_folder_is_saved_in_its_own_file(
    window, make_window, monkeypatch, tmp_path, how
):
    monkeypatch.chdir(tmp_path)
    window.studio.files.save_to(Path("mine.enplace"))
    window.studio.files.wait()
    if how == "opened":
        open_path(window, Path("mine.enplace"))
    window.document.place([2], 0)
    window.studio.recovery.write()
    window.studio.recovery._pool.waitForDone()
    let_go(window.studio.recovery)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    again = make_window()
    answer(monkeypatch, BUTTON.Open)
    again.studio.files.offer_recovery()
    again.studio.files.wait()
    again.studio.files.save()
    again.studio.files.wait()
    assert again.document.path == tmp_path / "mine.enplace"
    assert session.open_file(tmp_path / "mine.enplace").project.problem.pins == {2: 0}
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_file_changed_while_it_is_opened_is_not_overwritten_unasked(
    window, monkeypatch, tmp_path
):
    path, texts = tmp_path / "mine.enplace", []
    window.studio.files.save_to(path)
    window.studio.files.wait()
    read = session.open_file

    def read_and_be_overtaken(path):
        opened = read(path)
        path.write_bytes(path.read_bytes() + b" ")
        return opened

    monkeypatch.setattr(session, "open_file", read_and_be_overtaken)
    window.studio.files.open_path(path)
    window.studio.files.wait()
    window.document.place([2], 0)
    monkeypatch.setattr(QMessageBox, "exec", lambda box: texts.append(box.text()))
    window.studio.files.save()
    window.studio.files.wait()
    assert texts == ["Another program or window has changed mine.enplace since you opened it."]


def test_a_question_shows_a_name_that_looks_like_markup_as_it_is(window, monkeypatch, tmp_path):
    path, formats = tmp_path / "<h1>mine.enplace", []
    window.studio.files.save_to(path)
    window.studio.files.wait()
    window.menus.fill_recent()
    tips = [action.toolTip() for action in window.menus.recent_menu.actions()]
    assert any("&lt;h1&gt;mine.enplace" in tip for tip in tips)
    path.unlink()
    window.document.place([2], 0)
    monkeypatch.setattr(QMessageBox, "exec", lambda box: formats.append(box.textFormat()))
    window.studio.files.save()
    window.studio.files.wait()
    assert formats == [Qt.TextFormat.PlainText]


def test_a_file_changed_by_another_program_is_not_overwritten_unasked(
    window, monkeypatch, tmp_path
):
    path, texts = tmp_path / "mine.enplace", []
    window.studio.files.save_to(path)
    window.studio.files.wait()
    other = path.read_bytes() + b" "
    path.write_bytes(other)
    window.document.place([2], 0)
    monkeypatch.setattr(QMessageBox, "exec", lambda box: texts.append(box.text()))
    window.studio.files.save()
    window.studio.files.wait()
    assert texts == ["Another program or window has changed mine.enplace since you opened it."]
    assert path.read_bytes() == other

    monkeypatch.setattr(QMessageBox, "exec", lambda box: click(box, "Overwrite"))
    window.studio.files.save()
    window.studio.files.wait()
    assert not window.document.modified
    backups = window.studio.recovery.backups.folder
    assert other in [backup.read_bytes() for backup in backups.iterdir()]


@pytest.mark.parametrize(
    "screen",
    [(0, 0, 1024, 700), (0, 0, 1366, 768), (1920, 30, 2560, 1410), (0, 0, 683, 384)],
)
def test_a_new_window_is_inside_its_screen(screen):
    area = QRect(*screen)
    found = usual_geometry(area)
    assert area.contains(found)
    assert found.top() > area.top()  # room for the frame
    assert found.width() >= min(area.width(), 1440)


def click(box, text):
    """Answer a question with one of its buttons."""
    next(each for each in box.buttons() if each.text() == text).click()


def test_a_file_that_another_program_deleted_is_made_again_only_after_asking(
    window, tmp_path, monkeypatch
):
    path, texts = tmp_path / "mine.enplace", []
    window.studio.files.save_to(path)
    window.studio.files.wait()
    path.unlink()
    window.document.place([2], 0)
    monkeypatch.setattr(QMessageBox, "exec", lambda box: texts.append(box.text()))
    window.studio.files.save()
    window.studio.files.wait()
    assert texts == [
        "Another program or window has deleted or moved mine.enplace since you opened it."
    ]
    assert not path.exists()
    assert window.document.modified
    monkeypatch.setattr(QMessageBox, "exec", lambda box: click(box, "Save here again"))
    window.studio.files.save()
    window.studio.files.wait()
    assert path.exists()
    assert not window.document.modified


def take_away(folder):
    """Make a folder one that nobody may look into, not even root."""
    folder.rename(folder.with_name("elsewhere"))
    folder.symlink_to("n" * 300)


def test_work_whose_folder_is_out_of_reach_is_saved_elsewhere_and_stays_until_then(
    window, tmp_path, monkeypatch
):
    files, folder, texts = window.studio.files, tmp_path / "shared", []
    folder.mkdir()
    files.save_to(folder / "mine.enplace")
    files.wait()
    take_away(folder)
    window.document.place([2], 0)

    def save_here(box):
        texts.append(box.text())
        click(box, "Save here again")

    monkeypatch.setattr(QMessageBox, "exec", save_here)
    files.save()
    files.wait()
    assert texts == [
        "Another program or window has deleted or moved mine.enplace since you opened it."
    ]
    assert "shared/mine.enplace: cannot write: " in window.banner.text
    assert window.document.modified
    monkeypatch.setattr(
        QFileDialog, "getSaveFileName", lambda *_: (str(tmp_path / "new.enplace"), "")
    )
    monkeypatch.setattr(QMessageBox, "exec", lambda box: click(box, "Save as…"))
    files.save()
    files.wait()
    assert window.document.path == tmp_path / "new.enplace"
    assert not window.document.modified


def test_a_file_out_of_reach_is_explained_when_it_is_opened(window, tmp_path):
    folder = tmp_path / "shared"
    folder.mkdir()
    window.studio.files.save_to(folder / "mine.enplace")
    window.studio.files.wait()
    take_away(folder)
    open_path(window, folder / "mine.enplace")
    assert "shared/mine.enplace: cannot read: " in window.banner.text
    assert window.studio.recent.paths() == []


@pytest.mark.parametrize("name", ["pipe.json", "pipe.enplace"])
def test_a_named_pipe_is_refused_and_does_not_stop_the_window(window, tmp_path, name):
    os.mkfifo(tmp_path / name)
    open_path(window, tmp_path / name)
    assert "named pipe" in window.banner.text


def test_nothing_is_written_to_a_named_pipe_that_nobody_reads(window, tmp_path, monkeypatch):
    files, path = window.studio.files, tmp_path / "pipe.json"
    os.mkfifo(path)
    window.document.place([2], 0)
    files.save_to(path)
    files.wait()
    assert "named pipe" in window.banner.text
    assert window.document.modified
    window.banner.hide()
    monkeypatch.setattr(QFileDialog, "getSaveFileName", lambda *_: (str(path), ""))
    files.ask_export_plan()
    files.wait()
    assert "named pipe" in window.banner.text
    assert window.banner.isVisible()


def test_a_name_that_is_too_long_is_refused_in_one_line(window, tmp_path):
    files, path = window.studio.files, tmp_path / f"{'n' * 300}.enplace"
    window.document.place([2], 0)
    files.save_to(path)
    files.wait()
    assert window.banner.text.endswith("cannot write: File name too long; choose a shorter name.")
    assert window.document.modified
    files.save_to(tmp_path / "mine.enplace")
    files.wait()
    open_path(window, path)
    assert window.banner.text.endswith("cannot read: File name too long; check the path.")


def test_a_refusal_of_the_system_while_a_file_is_read_is_one_line(window, tmp_path, monkeypatch):
    def refuse(path):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(session, "open_file", refuse)
    window.studio.files.save_to(tmp_path / "mine.enplace")
    window.studio.files.wait()
    open_path(window, tmp_path / "theirs.json")
    assert window.banner.text.endswith(
        "theirs.json: Permission denied; change its permissions, or choose another file or folder."
    )


@pytest.mark.parametrize("later_s", [60, -60], ids=["newer", "of an older date"])
def test_a_file_replaced_after_a_crash_is_not_overwritten_without_asking(
    window, tmp_path, monkeypatch, later_s
):
    path, texts = tmp_path / "mine.enplace", []
    window.studio.files.save_to(path)
    window.studio.files.wait()
    window.document.place([2], 0)
    copy = tmp_path / "copy.enplace"
    opened = window.document.project
    document = window.document
    write_project(copy, to_project(opened, document.view, path, document.seen))
    path.write_bytes(path.read_bytes() + b" ")  # by a second window
    os.utime(path, (copy.stat().st_atime, copy.stat().st_mtime + later_s))
    kept = path.read_bytes()
    document.mark_saved(path, document.seen, document.work)
    monkeypatch.setattr(QMessageBox, "question", lambda *_: QMessageBox.StandardButton.Open)
    window.studio.files._ask_to_recover([(copy, "its work", copy.stat().st_mtime)])
    window.studio.files.wait()
    assert window.document.modified
    assert window.document.path == path
    monkeypatch.setattr(QMessageBox, "exec", lambda box: texts.append(box.text()))
    window.studio.files.save()
    window.studio.files.wait()
    assert texts == ["Another program or window has changed mine.enplace since you opened it."]
    assert path.read_bytes() == kept


def test_a_recovered_project_is_saved_in_its_file_without_a_question(window, tmp_path, monkeypatch):
    path, document = tmp_path / "mine.enplace", window.document
    window.studio.files.save_to(path)
    window.studio.files.wait()
    document.place([2], 0)
    copy = tmp_path / "copy.enplace"
    write_project(copy, to_project(document.project, document.view, path, document.seen))
    document.mark_saved(path, document.seen, document.work)
    monkeypatch.setattr(QMessageBox, "question", lambda *_: QMessageBox.StandardButton.Open)
    window.studio.files._ask_to_recover([(copy, "its work", copy.stat().st_mtime)])
    window.studio.files.wait()
    monkeypatch.setattr(QMessageBox, "exec", lambda box: pytest.fail(box.text()))
    window.studio.files.save()
    window.studio.files.wait()
    assert not document.modified


def test_work_is_saved_even_if_what_it_replaces_cannot_be_kept(window, tmp_path, monkeypatch):
    path = tmp_path / "mine.enplace"
    window.studio.files.save_to(path)
    window.studio.files.wait()

    def fail(self, path):
        raise FileError("cannot write: No space left on device; free some space on the disk")

    monkeypatch.setattr(Backups, "add_copy", fail)
    window.document.place([2], 0)
    window.studio.files.save()
    window.studio.files.wait()
    assert not window.document.modified
    assert "mine.enplace is saved; what it replaced is not kept" in window.banner.text.lower()


def test_work_is_not_overwritten_if_it_cannot_be_kept(window, tmp_path, monkeypatch):
    path = tmp_path / "theirs.enplace"
    path.write_text("somebody's work")

    def fail(self, path):
        raise FileError("cannot write: No space left on device; free some space on the disk")

    monkeypatch.setattr(Backups, "add_copy", fail)
    window.studio.files.save_to(path)
    window.studio.files.wait()
    assert path.read_text() == "somebody's work"
    assert "theirs.enplace is not overwritten" in window.banner.text.lower()


def test_what_is_done_while_a_save_is_written_stays_unsaved(window, tmp_path):
    files, document, path = window.studio.files, window.document, tmp_path / "mine.enplace"
    files.save_to(path)
    document.save_query("precious", "type:MatMul")
    files.wait()
    assert document.modified
    files.save()
    files.wait()
    assert not document.modified
    assert session.open_file(path).view["queries"] == {"precious": "type:MatMul"}


def test_save_as_belongs_to_the_new_file_even_if_the_work_goes_on(window, tmp_path, monkeypatch):
    files, document = window.studio.files, window.document
    old, new = tmp_path / "old.enplace", tmp_path / "new.enplace"
    files.save_to(old)
    files.wait()
    kept = old.read_bytes()
    files.save_to(new)
    document.place([2], 0)
    files.wait()
    assert (document.path, document.modified) == (new, True)
    monkeypatch.setattr(QMessageBox, "exec", lambda box: pytest.fail(box.text()))
    files.save()
    files.wait()
    assert not document.modified
    assert session.open_file(new).project.problem.pins == {2: 0}
    assert old.read_bytes() == kept


def test_a_save_that_ends_after_another_model_was_opened_is_not_its_file(window, tmp_path):
    files, document = window.studio.files, window.document
    files.save_to(tmp_path / "mine.enplace")
    document.open(document.project)
    files.wait()
    assert (document.path, document.seen) == (None, None)


def test_what_a_killed_writer_left_beside_a_project_is_removed_as_it_is_opened(window, tmp_path):
    path = tmp_path / "mine.enplace"
    window.studio.files.save_to(path)
    window.studio.files.wait()
    left = tmp_path / ".mine.enplace.999999999.0123456789ab.tmp"
    left.touch()
    window.studio.files.open_path(path)
    window.studio.files.wait()
    assert not left.exists()


def test_repainting_loses_no_reference_to_none(qtbot):
    """PySide6 6.12 loses one per call, and Python crashes when none is left."""
    widget = QWidget()
    qtbot.addWidget(widget)
    widget.update()
    before = sys.getrefcount(None)
    for _ in range(500):
        widget.update()
    assert sys.getrefcount(None) > before - 100


def test_plans_are_renamed_and_removed(window, monkeypatch):
    from PySide6.QtWidgets import QInputDialog

    add_plan(window.document, "second", {"a": 0, "b": 0, "c": 0})
    monkeypatch.setattr(QInputDialog, "getText", lambda *_, **__: ("mine", True))
    trigger(window, "rename-plan")
    assert window.document.current.name == "mine"
    trigger(window, "remove-plan")
    assert [entry.name for entry in window.document.plans] == ["second"]


def test_closed_panes_stay_closed_after_the_start_page(window, monkeypatch):
    state = window.document.project
    window.panes.docks["whatif"].toggleViewAction().trigger()
    answer(monkeypatch, BUTTON.Discard)
    trigger(window, "start")
    assert not window.panes.docks["plans"].isVisible()
    window.document.open(state)
    assert window.panes.docks["plans"].isVisible()
    assert not window.panes.docks["whatif"].isVisible()


def test_plans_side_by_side_take_the_place_of_the_graph_and_give_it_back(window):
    add_plan(window.document, "second", {"a": 0, "b": 0, "c": 0})
    window.panes.docks["whatif"].toggleViewAction().trigger()
    press(window, Qt.Key.Key_C)
    view = window.panes.views["compare"]
    view.wait()
    assert [entry.name for entry in view.shown] == ["first", "second"]
    visible = {name for name, dock in window.panes.docks.items() if dock.isVisible()}
    assert visible == {"plans", "constraints", "history"}
    assert window.menus.by_id["side-by-side"].isChecked()
    press(window, Qt.Key.Key_C)
    assert window.panes.views["graph"].isVisible()
    visible = {name for name, dock in window.panes.docks.items() if dock.isVisible()}
    side = {"plans", "constraints", "history", "inspector", "memory"}
    assert visible == {*side, "timeline"}
    assert not window.menus.by_id["side-by-side"].isChecked()


def test_a_search_for_ops_shows_the_graph_again(window):
    add_plan(window.document, "second", {"a": 0, "b": 0, "c": 0})
    trigger(window, "side-by-side")
    trigger(window, "search")
    assert window.panes.views["graph"].search.isVisible()
    assert window.panes.docks["timeline"].isVisible()
    assert not window.menus.by_id["side-by-side"].isChecked()


def test_a_model_that_was_closed_does_not_stay_in_memory(window, monkeypatch, tmp_path):
    answer(monkeypatch, BUTTON.Discard)
    path, profiles = tmp_path / "work.enplace", []
    write_project(path, to_project(window.document.project, window.document.view))
    for _ in range(4):  # the last ones may: panes keep what they show, and caches what was shown
        open_path(window, path)
        add_plan(window.document, "second", {"a": 0, "b": 0, "c": 0})
        press(window, Qt.Key.Key_C)
        window.panes.views["compare"].wait()
        window.document.place([0], 1)
        take_turns()
        profiles.append(weakref.ref(window.document.problem.profile))
    QApplication.sendPostedEvents(None, QEvent.Type.DeferredDelete)
    gc.collect()
    assert profiles[0]() is None


def test_fit_works_on_the_plans_side_by_side(window):
    add_plan(window.document, "second", {"a": 0, "b": 0, "c": 0})
    trigger(window, "side-by-side")
    view = window.panes.views["compare"]
    view.wait()
    whole = view.canvas.stack.scale
    QTest.keyClick(view.canvas, Qt.Key.Key_W)
    trigger(window, "fit")
    assert view.canvas.stack.scale == whole


def test_a_comparison_in_the_list_opens_these_plans_side_by_side(window):
    second = add_plan(window.document, "second", {"a": 0, "b": 0, "c": 0})
    third = add_plan(window.document, "third", {"a": 1, "b": 1, "c": 1}, choose=True)
    plans = window.panes.views["plans"]
    plans.rebuild()
    plans.compare_with(second)
    buttons = plans.comparison.findChildren(QPushButton)
    next(b for b in buttons if b.text() == "Side by side").click()
    view = window.panes.views["compare"]
    view.wait()
    assert view.isVisible()
    assert view.shown == [second, third]


def test_another_model_brings_the_graph_back(window):
    add_plan(window.document, "second", {"a": 0, "b": 0, "c": 0})
    trigger(window, "side-by-side")
    window.document.open(chain_document().project)
    assert window.panes.views["graph"].isVisible()
    assert window.panes.docks["timeline"].isVisible()


def test_the_picture_of_plans_side_by_side_is_exported(window, monkeypatch, tmp_path):
    add_plan(window.document, "second", {"a": 0, "b": 0, "c": 0})
    trigger(window, "side-by-side")
    name_file(monkeypatch, tmp_path / "two.png")
    trigger(window, "save-picture")
    shown = window.panes.views["compare"]
    assert QImage(str(tmp_path / "two.png")).width() >= 2 * shown.width()


def test_the_picture_of_the_focused_view_is_saved(window, monkeypatch, tmp_path, qtbot):
    canvas = window.panes.views["timeline"].canvas
    window.activateWindow()
    assert QTest.qWaitForWindowActive(window)
    canvas.setFocus()
    qtbot.waitUntil(lambda: not canvas._path_timer.isActive())  # the path follows shortly after
    name_file(monkeypatch, tmp_path / "view.svg")
    trigger(window, "save-picture")
    text = (tmp_path / "view.svg").read_text()
    model, current = window.document.problem.profile.name, window.document.current
    assert f"Timeline · {model} · {current.name}, {ms(current.schedule.makespan_us)}" in text
    assert "critical path" in text


def test_a_picture_without_an_ending_gets_that_of_the_chosen_format(window, monkeypatch, tmp_path):
    name = str(tmp_path / "view")
    monkeypatch.setattr(QFileDialog, "getSaveFileName", lambda *_: (name, "PDF (*.pdf)"))
    trigger(window, "save-picture")
    assert (tmp_path / "view.pdf").read_bytes().startswith(b"%PDF")


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
    progress |= {"engine": "blocks", "bound_by": ""}
    first = {**progress, "objective_us": 95e3, "engine": "list schedules"}
    report = Report("").then(first, None).then(progress, None)
    solver.report = report.then({**progress, "objective_us": None, "bound_us": None}, None)
    solver.changed.emit()
    assert live.isVisible()
    assert live.step.text() == "90.0 ms"
    assert live.bound.text() == "proven not below 80.0 ms"
    assert live.found_by.text() == "found by ○ list schedules 95.0 ms → ● blocks 90.0 ms"
    proven = {**progress, "objective_us": None, "bound_us": 85e3, "bound_by": "CP-SAT"}
    solver.report = solver.report.then(proven, None)
    solver.changed.emit()
    assert live.bound.text() == "proven not below 85.0 ms by ◆ CP-SAT"
    solver.job = None
    solver.changed.emit()
    assert not live.isVisible()


def test_a_finished_search_is_shown_until_the_next_one_or_another_model(window, qtbot):
    live, solver = window.findChild(QWidget, "live"), window.solver
    solver.methods = {"enplace": Method("enplace", "Enplace", "", ("step-time",), ("anytime",), "")}
    job = Job(1, window.document.problem, "enplace", 10.0, True)
    progress = {
        "message": "",
        "fraction": None,
        "seconds": 1.0,
        "objective_us": 90e3,
        "bound_us": 80e3,
    }
    solver.job = job
    solver._started_s -= 5
    solver.report = Report("").then({**progress, "engine": "blocks", "bound_by": ""}, None)
    solver._next()
    assert live.isVisible()
    assert not live.bar.isVisible()
    assert live.curve.isVisible()
    live.grab()
    assert (live.name.whole, live.step.text()) == ("Enplace", "90.0 ms")
    window.document.open(wide_document(n_ops=20).project)
    assert not live.isVisible()


def test_a_plan_is_polished_from_its_menu(window, monkeypatch):
    asked = []
    monkeypatch.setattr(window.solver, "solve", lambda *args, **more: asked.append((args, more)))
    card = window.panes.views["plans"].cards[0]
    (polish,) = [
        a for a in window.panes.views["plans"].menu_of(card).actions() if "Polish" in a.text()
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


def test_a_finished_search_continues_from_its_plan_at_the_press_of_a_button(
    window, monkeypatch, qtbot
):
    asked, live, solver = [], window.findChild(QWidget, "live"), window.solver
    solver.methods = {"enplace": Method("enplace", "Enplace", "", ("step-time",), ("anytime",), "")}
    found = window.document.current.plan
    progress = {
        "message": "",
        "fraction": None,
        "seconds": 1.0,
        "objective_us": 90e3,
        "bound_us": None,
    }
    progress |= {"engine": "the plan given", "bound_by": ""}
    solver.job = Job(1, window.document.problem, "enplace", 10.0, True, start=found)
    solver._started_s -= 5
    solver.report = Report("").then(progress, found)
    solver.changed.emit()
    assert live.found_by.text() == "from ○ the plan given 90.0 ms"
    assert not live.go_on.isVisible()
    solver._next()
    monkeypatch.setattr(solver, "solve", lambda *args, **more: asked.append((args, more)))
    window.document.pin_here([0])
    qtbot.waitUntil(lambda: live.go_on.height() > 0)
    QTest.mouseClick(live.go_on, Qt.MouseButton.LeftButton)
    ((problem, _, limit_s, _), more) = asked[0]
    assert problem.pins
    assert limit_s == 30
    assert more["start"] is found
    window.document.set_scale(2.0, 1.0)
    assert not live.go_on.isVisible()


def test_a_plan_of_the_list_is_exported_from_its_menu(window, monkeypatch, tmp_path):
    first = window.document.current
    window.document.place([0], 1)
    assert window.document.current is not first
    name_file(monkeypatch, tmp_path / "first.plan.json")
    window.document.requests.export_plan.emit(first)
    window.studio.files.wait()
    found = read_plan(tmp_path / "first.plan.json", first.schedule.problem)
    assert found.plan.device.tolist() == first.plan.device.tolist()


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("rnnlm-2-2048", "RNNLM 2 × 2048"),
        ("vgg-19", "VGG-19"),
        ("bert-3-training", "BERT 3 training"),
        ("my-own_model-3", "my-own_model-3"),
    ],
)
def test_well_known_models_have_their_usual_names(name, title):
    from enplace_studio.explain.titles import model_title

    assert model_title(name) == title


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


def test_an_error_while_one_view_paints_does_not_affect_the_others(window, monkeypatch):
    """A traceback keeps the failed frame alive; a painter left in it would break the next one."""
    with monkeypatch.context() as patch:
        patch.setattr("enplace_studio.views.graph.canvas.paint_scene", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError) as fault:
            window.findChild(Canvas).repaint()
    assert fault.traceback
    assert _is_painted(window.findChild(Canvas))
    assert _is_painted(window.findChild(TimelineCanvas))


def _is_painted(widget: QWidget) -> bool:
    image = widget.grab().toImage()
    return len({image.pixel(x, y) for x in range(0, image.width(), 3) for y in (5, 30)}) > 1


def test_a_what_if_pane_keeps_its_height_so_that_no_slider_moves_under_the_pointer(window):
    view = window.panes.views["whatif"]
    before = view.minimumSizeHint().height()
    window.document.set_scale(2.0, 1.0)
    assert view.reset_button.isVisibleTo(view)
    view.layout().activate()
    assert view.minimumSizeHint().height() == before


def test_a_choice_for_all_layers_is_offered_and_done_once_accepted(window):
    names = [f"layer_{n}/{op}" for n in range(3) for op in "ab"]
    document = window.document
    document.open(start_project(profile_of(dict.fromkeys(names, 10)), cluster_of(2)))
    add_plan(document, "first", dict.fromkeys(names, 0), choose=True)
    document.place([0], 1)
    document.select([0])
    press(window, Qt.Key.Key_L)
    assert window.offer.isVisible()
    assert "2 more blocks of 1 op" in window.offer.text
    window.offer.cancel.click()
    assert not window.offer.isVisible()
    assert document.selection == {0}
    press(window, Qt.Key.Key_L)
    for pane in (window, *(window.panes.views[v].canvas for v in ("graph", "timeline", "compare"))):
        document.offer_stamp([0])
        QTest.keyClick(pane, Qt.Key.Key_Escape)
        assert not window.offer.isVisible()
        assert document.selection == {0}, pane
    press(window, Qt.Key.Key_L)
    window.offer.accept.click()
    assert not window.offer.isVisible()
    assert document.problem.pins == {0: 1, 2: 1, 4: 1}


def test_escape_clears_the_selection_wherever_the_focus_is(window):
    window.document.select([0, 1])
    window.header.solve_button.setFocus()
    QTest.keyClick(window.header.solve_button, Qt.Key.Key_Escape)
    assert window.document.selection == frozenset()
