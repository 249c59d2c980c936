import json
from dataclasses import replace

import numpy as np
import pytest
from PySide6.QtCore import QMimeData, QPointF, Qt, QUrl
from PySide6.QtGui import QDropEvent
from PySide6.QtWidgets import QLabel, QMessageBox, QPlainTextEdit

from enplace.frameworks.framework import Framework
from enplace.frameworks.registry import usual_framework
from enplace.frameworks.source import source_of
from enplace.frameworks.tensorflow import framework
from enplace.values.splits import Split
from enplace_studio.explain.prediction import total_times
from enplace_studio.files.kept_runs import run_from_json, run_to_json
from enplace_studio.files.session import entry_for, open_file
from enplace_studio.frameworks.dialogs import FailureReport, RunQuestion, TrustQuestion
from enplace_studio.frameworks.open_model import OpenModel
from enplace_studio.model.plan_facts import tooltip
from enplace_studio.views.inspector.inspector_facts import measured_facts
from enplace_studio.views.plans.measured import ResultCard, facts_of
from problems import plan_of

BUTTON = QMessageBox.StandardButton
PREDICTED_US, MEASURED_US = 3000, 3750
"""The fake worker runs each op a quarter slower than predicted."""


def kinds(dialogs):
    return [type(dialog) for dialog in dialogs]


def add_plan(window, name="mine", devices=("a", "b", "c")):
    problem = window.document.problem
    plan = plan_of(problem, dict.fromkeys(devices, 0))
    window.document.add_plan(entry_for(problem, name, plan))
    return window.document.current


@pytest.fixture
def opened(window, fake, model, asked):
    """A window with the profile that the worker returned."""
    source = source_of(str(model("mine.py"))).to_json()
    profile = fake.profile()
    measured = replace(profile.measured, source=source, devices="cpu:2")
    window.studio.files.open_profile(replace(profile, measured=measured))
    window.studio.files.wait()
    return window


@pytest.fixture
def ran(opened, fake):
    """The same window with a plan that has been run."""
    entry = add_plan(opened)
    opened.document.set_run(entry.plan, fake.run(opened.document.problem, entry.plan, 20))
    return opened


def test_a_script_is_profiled_and_its_profile_opens(window, asked, model, qtbot):
    with qtbot.waitSignal(window.document.opened):
        window.studio.files.open_path(model("mine.py"))
    assert kinds(asked) == [OpenModel, TrustQuestion]
    profile = window.document.problem.profile
    assert profile.name == "mine"
    assert profile.measured.source["path"] == str(model("mine.py"))
    assert profile.measured.devices == "cpu:2"
    assert window.document.project.cluster.name == "2 logical CPUs"
    assert window.document.modified
    assert window.studio.recent.paths() == [model("mine.py")]
    assert not window.studio.measuring.strip.isVisible()


def test_the_trust_question_names_folder_and_code_and_is_asked_once(window, asked, model):
    for name in ("stubborn.py", "crash.py"):
        window.studio.measuring.open_model(model(name))
        window.studio.measuring.close_job()
    (question,) = [dialog for dialog in asked if isinstance(dialog, TrustQuestion)]
    shown = " ".join(found.text() for found in question.findChildren(QLabel))
    assert str(model("stubborn.py").parent)[-20:] in shown
    assert question.findChild(QPlainTextEdit).toPlainText() == "stubborn.py"


def test_nothing_runs_in_a_folder_that_is_not_trusted(window, model, asked, distrusting):
    window.studio.measuring.open_model(model("mine.py"))
    assert not window.studio.is_measuring


def test_a_dropped_script_asks_how_to_profile_it(window, model, asked, qtbot, distrusting):
    data = QMimeData()
    data.setUrls([QUrl.fromLocalFile(str(model("mine.py")))])
    copy, left, none = Qt.DropAction.CopyAction, Qt.MouseButton.LeftButton, Qt.KeyboardModifier
    event = QDropEvent(QPointF(9, 9), copy, data, left, none.NoModifier)
    window.dropEvent(event)
    qtbot.waitUntil(lambda: kinds(asked) == [OpenModel])
    assert asked[0].path.text() == str(model("mine.py"))


def test_unsaved_work_is_not_interrupted_by_a_profile_that_is_ready(opened, model, qtbot):
    before = opened.document.problem
    strip = opened.studio.measuring.strip
    opened.studio.measuring.open_model(model("mine.py"))
    qtbot.waitUntil(strip.open_button.isVisible)
    assert opened.document.problem is before
    assert "ready" in strip.title.text()
    opened.studio.measuring.open_model(model("mine.py"))
    assert "is ready" in opened.banner.text
    strip.cancel_button.click()
    assert not strip.isVisible()
    assert opened.document.problem is before


def test_a_crash_is_reported_and_start_again_works(window, model, asked, qtbot):
    with qtbot.waitSignal(window.document.opened):
        window.studio.measuring.open_model(model("again.py"))
    report = asked[-1]
    assert isinstance(report, FailureReport)
    assert "SIGSEGV" in report.why
    assert window.document.problem is not None


def test_cancelling_ends_the_job_and_restores_the_window(window, model, asked, qtbot):
    window.studio.measuring.open_model(model("stubborn.py"))
    assert window.studio.is_measuring
    strip = window.studio.measuring.strip
    assert strip.isVisible()
    assert not window.header.run_button.isEnabled()
    with qtbot.waitSignal(window.studio.measuring.changed):
        strip.cancel_button.click()
    assert not strip.isVisible()
    assert not window.studio.is_measuring
    assert "cancelled" in window.toast.text


@pytest.mark.parametrize(("choice", "closes"), [(BUTTON.Cancel, False), (BUTTON.Discard, True)])
def test_closing_the_window_asks_and_ends_the_worker(
    window, model, asked, monkeypatch, choice, closes
):
    window.studio.measuring.open_model(model("stubborn.py"))
    job = window.studio.measuring.job
    assert job.pid
    monkeypatch.setattr(QMessageBox, "question", lambda *_: choice)
    assert window.close() is closes
    assert (job.pid == 0) is closes


def test_nothing_is_solved_during_a_measurement(opened, model, asked):
    opened.solver.methods = {"expert": None}
    opened.studio.measuring.open_model(model("stubborn.py"))
    assert not opened.menus.by_id["solve"].isEnabled()
    assert not opened.header.solve_button.isEnabled()
    assert "disturb" in opened.header.solve_button.toolTip()
    opened.studio.measuring.close_job()
    opened.solver.methods = {}


# Whether a plan can run here


def test_a_plan_needs_the_model_it_was_made_for(opened):
    assert "no plan" in opened.header.run_button.toolTip()
    add_plan(opened)
    assert opened.header.run_button.isEnabled()
    assert opened.menus.by_id["run"].isEnabled()


def test_without_tensorflow_the_tooltip_explains_how_to_add_it(opened, monkeypatch):
    monkeypatch.setattr(Framework, "is_installed", False)
    add_plan(opened)
    assert not opened.header.run_button.isEnabled()
    assert usual_framework().install_command in opened.header.run_button.toolTip()
    assert usual_framework().install_command in opened.menus.by_id["run"].toolTip()


def test_the_menu_says_why_a_plan_cannot_be_exported_as_code(opened, monkeypatch):
    add_plan(opened)
    assert opened.menus.by_id["export-python"].isEnabled()
    dark = [
        replace(each, why_not=lambda result: "it is dark") for each in framework.FRAMEWORK.exporters
    ]
    changed = replace(framework.FRAMEWORK, exporters=tuple(dark))
    monkeypatch.setattr(framework, "FRAMEWORK", changed)
    add_plan(opened, "other")
    assert not opened.menus.by_id["export-python"].isEnabled()
    assert "It is dark" in opened.menus.by_id["export-python"].toolTip()


def test_a_profile_without_a_model_cannot_run_and_says_why(window):
    from enplace_studio.model.open_project import start_project
    from problems import cluster_of, profile_of

    window.document.open(start_project(profile_of({"a": 10, "b": 10, "c": 1}), cluster_of(2)))
    add_plan(window)
    assert "does not name the model" in window.header.run_button.toolTip()


def test_a_missing_model_file_is_reported(opened, model):
    model("mine.py").unlink()
    add_plan(opened)
    assert "no longer exists" in opened.header.run_button.toolTip()


def test_a_recorded_trace_cannot_run_and_says_why(opened):
    opened.document.problem.profile.measured.source["kind"] = "trace"
    add_plan(opened)
    assert "recorded trace, which cannot run" in opened.header.run_button.toolTip()


def test_a_damaged_source_is_explained(opened):
    opened.document.problem.profile.measured.source["kind"] = "spell"
    add_plan(opened)
    opened.header.run_button.click()
    assert "spell" in opened.banner.text
    assert not opened.studio.is_measuring


def test_a_command_too_long_to_read_is_not_run(opened, asked):
    opened.document.problem.profile.measured.source["arguments"] = ["a" * 5000]
    add_plan(opened)
    opened.header.run_button.click()
    assert kinds(asked) == [RunQuestion]
    assert "too long to read" in opened.banner.text
    assert not opened.studio.is_measuring


# Running


def test_the_button_runs_the_plan_and_keeps_the_measurement(opened, asked, qtbot):
    add_plan(opened)
    with qtbot.waitSignal(opened.document.current_changed):
        opened.header.run_button.click()
    assert kinds(asked) == [RunQuestion, TrustQuestion]
    run = opened.document.current.run
    assert run.step_time_us == MEASURED_US
    assert len(run.step_times_us) == asked[0].steps.value()
    assert opened.document.schedule.makespan_us == PREDICTED_US
    assert "3.8 ms" in opened.toast.text


def test_undo_takes_back_edits_and_not_a_measurement(ran):
    document = ran.document
    run = document.current.run
    document.undo_stack.undo()
    assert document.plans == []
    document.undo_stack.redo()
    assert document.current.run is run
    assert ran.findChild(ResultCard).isVisible()
    document.rename_plan(document.current, "renamed")
    again = replace(run, step_times_us=run.step_times_us * 2)
    document.set_run(document.current.plan, again)
    document.undo_stack.undo()
    assert document.current.name == "mine"
    assert document.undo_stack.canRedo()
    assert document.current.run is again


def test_the_timeline_shows_the_run_below_the_plan_in_the_same_scale(ran, qtbot):
    canvas = ran.panes.views["timeline"].canvas
    qtbot.waitUntil(lambda: len(canvas.lanes.rows) > 1)
    planned, measured = canvas.lanes.rows[:2]
    assert (planned.title, measured.title) == ("CPU 0", "CPU 0 measured")
    assert measured.note == "prediction −20.0 %"
    assert canvas.lanes.places[1].top > canvas.lanes.places[0].bottom
    assert canvas.lanes.scale.end_us >= MEASURED_US
    ends = [canvas.lanes.scale.x(row.finish_us.max()) for row in (planned, measured)]
    assert ends[1] / ends[0] == pytest.approx(MEASURED_US / PREDICTED_US)


@pytest.mark.parametrize("times_faster", [0.5, 1.0, 3.0])
def test_the_time_axis_covers_the_plan_and_the_traced_step_whichever_is_longer(
    ran, times_faster, qtbot
):
    run, canvas = ran.document.current.run, ran.panes.views["timeline"].canvas
    moved = {n: getattr(run, n) / times_faster for n in ("op_start_us", "op_finish_us")}
    ran.document.set_run(ran.document.current.plan, replace(run, **moved))
    longest_us = max(PREDICTED_US, MEASURED_US / times_faster)
    stop_us = pytest.approx(1.02 * longest_us)
    qtbot.waitUntil(lambda: canvas.lanes.scale.stop_us == stop_us)
    assert canvas.lanes.scale.is_fit


def test_the_legend_says_whether_the_traced_step_was_slower_or_faster(ran):
    run, timeline = ran.document.current.run, ran.panes.views["timeline"]

    def legend(step_us):
        steps_us = np.full(3, float(step_us))
        ran.document.set_run(ran.document.current.plan, replace(run, step_times_us=steps_us))
        return timeline.legend

    assert "traced, slower" in legend(MEASURED_US - 100)
    assert "traced, faster" in legend(MEASURED_US + 100)


def test_the_card_lists_the_facts_of_the_run(ran):
    card = ran.findChild(ResultCard)
    assert card.isVisible()
    assert card.step.text() == "3.8 ms"
    assert card.off.text() == "predicted 3.0 ms, 20.0 % too short"
    shown = [found.text() for found in card.facts.findChildren(QLabel)]
    facts = dict(zip(shown[::2], shown[1::2], strict=True))
    assert facts["ops on their device"] == "3 of 3"
    assert facts["out of order"] == "0 ops"
    assert facts["loss difference"] == "0"
    assert facts["TensorFlow by itself"] == "6.0 ms; plan −37.5 %"


def test_a_run_on_labels_shows_no_time_of_its_own(ran, qtbot):
    document, canvas = ran.document, ran.panes.views["timeline"].canvas
    entry, run = document.current, document.current.run
    qtbot.waitUntil(lambda: len(canvas.lanes.rows) > 1)
    document.set_run(entry.plan, replace(run, facts={"labels": True}))
    card, labelled = ran.findChild(ResultCard), document.current
    assert (card.step.text(), card.off.text()) == ("", "predicted 3.0 ms")
    assert card.title.text() == "Run on labels"
    assert not card.take_button.isVisible()
    facts = {fact.name: fact.value for fact in facts_of(labelled.run)}
    assert facts["ops on their device"] == "3 of 3"
    assert not [value for value in facts.values() if value.endswith("ms")]
    assert "measured" not in ran.panes.views["timeline"].legend
    assert "measured:" not in tooltip(document.project, document.bounds, labelled, "")
    qtbot.waitUntil(lambda: not any(row.measured for row in canvas.lanes.rows))
    lines = measured_facts(labelled.schedule, labelled.run, np.arange(3))
    assert lines == [("seen in the run", "3 of 3 ops")]


def test_the_card_warns_where_logical_cpus_share_a_machine(ran):
    card = ran.findChild(ResultCard)
    assert not card.caveat.isVisible()
    apart = replace(ran.document.current.plan, device=np.array([0, 1, 1]))
    run = replace(ran.document.current.run, plan=apart)
    ran.document.set_run(ran.document.current.plan, run)
    assert card.caveat.isVisible()
    assert "share caches, memory" in card.caveat.text()


def test_the_card_compares_with_data_parallelism(ran):
    run = ran.document.current.run
    timed = facts_of(replace(run, facts={"data_parallel": {"times_us": [3000.0]}}))[-1]
    assert (timed.name, timed.value) == ("data parallel", "3.0 ms; plan +25.0 %")
    refused = facts_of(replace(run, facts={"data_parallel": {"why_not": "it is no script"}}))[-1]
    assert (refused.name, refused.value) == ("data parallel", "not timed")
    assert "it is no script" in refused.tip
    facts = {"data_parallel": {"why_not": "it takes long", "predicted_us": 2000.0}}
    assert facts_of(replace(run, facts=facts))[-1].value == "2.0 ms, predicted"


def test_the_card_reports_an_unplanned_order_and_ops_that_did_not_run(ran):
    left_out = {"count": 2, "reasons": {"a constant": 2}, "ops": ["x", "y"]}
    run = replace(ran.document.current.run, facts={"ordered": False, "not_run": left_out})
    ran.document.set_run(ran.document.current.plan, run)
    labels = ran.findChild(ResultCard).facts.findChildren(QLabel)
    assert "TensorFlow’s own" in [found.text() for found in labels]
    assert "did not run as ops: 2 a constant" in labels[0].toolTip()


def test_the_card_judges_splits_by_the_first_step(ran):
    run = ran.document.current.run
    plan = replace(run.plan, splits=(Split("loss", "batch", 2),))
    run = replace(run, plan=plan, loss_difference=0.12, first_step_difference=6e-8)
    facts = {fact.name: fact for fact in facts_of(run)}
    assert facts["first step difference"].role == "good"
    assert (facts["loss drift"].value, facts["loss drift"].role) == ("1.2e−01", "plain")
    assert "round differently" in facts["loss drift"].tip
    wrong = facts_of(replace(run, first_step_difference=0.01))
    assert {fact.name: fact.role for fact in wrong}["first step difference"] == "bad"


def test_a_narrow_header_has_a_short_run_button(opened):
    opened.resize(1440, 800)
    assert opened.header.run_button.text() == "Run on this machine"
    opened.resize(1000, 800)
    assert opened.header.run_button.text() == "Run here"


def test_the_inspector_compares_each_op(ran, qtbot):
    from enplace_studio.widgets.fact_widgets import Line

    ran.document.select([1])
    inspector = ran.panes.views["inspector"]

    def values():
        return {line.left: line.right for line in inspector.findChildren(Line)}

    qtbot.waitUntil(lambda: "compute time" in values())
    assert values()["compute time"] == "1.2 ms, prediction −20.0 %"
    assert values()["ran from"] == "1.2 ms to 2.5 ms"


def test_the_executors_overhead_is_not_a_prediction_error(ran):
    """A trace holds an op's own time; its cost also includes the calibrated overhead."""
    document = ran.document
    object.__setattr__(document.problem.profile.measured, "op_overhead_us", 250.0)
    predicted_us, measured_us = total_times(document.schedule, document.current.run, np.arange(3))
    assert (predicted_us, measured_us) == (2250, MEASURED_US)


def test_measured_costs_can_be_taken_and_undone(ran, qtbot):
    add_plan(ran, "second")
    first = ran.document.plans[0]
    ran.document.choose_plan(first)
    ran.findChild(ResultCard).take_button.click()
    assert ran.document.schedule.makespan_us == MEASURED_US
    assert [e.schedule.makespan_us for e in ran.document.plans] == [MEASURED_US] * 2
    assert ran.document.current.run is not None
    assert ran.findChild(ResultCard).off.text() == "predicted 3.8 ms, exactly right"
    qtbot.waitUntil(lambda: "Took the measured costs" in ran.toast.text)
    ran.document.undo_stack.undo()
    assert [e.schedule.makespan_us for e in ran.document.plans] == [PREDICTED_US] * 2


def test_an_edited_plan_has_not_been_run(ran):
    ran.document.place([2], 1)
    assert ran.document.current.run is None
    assert ran.document.current.origin.run is not None


def test_the_measurement_of_a_removed_plan_is_dropped(opened, qtbot):
    entry = add_plan(opened)
    opened.header.run_button.click()
    opened.document.remove_plan(entry)
    with qtbot.waitSignal(opened.studio.measuring.done):
        pass
    assert "no longer open" in opened.toast.text
    assert opened.document.plans == []


def test_a_failed_run_keeps_the_plan_and_gives_the_reason(opened, model, asked, qtbot, monkeypatch):
    add_plan(opened)
    source = dict(opened.document.problem.profile.measured.source)
    source["path"] = str(model("leave.py"))
    opened.document.problem.profile.measured.source.update(source)
    monkeypatch.setattr(FailureReport, "exec", lambda report: asked.append(report) or 0)
    opened.header.run_button.click()
    qtbot.waitUntil(lambda: isinstance(asked[-1], FailureReport))
    assert "exit status 3" in asked[-1].why
    assert opened.document.current.run is None
    assert not opened.studio.is_measuring


def test_a_run_is_saved_with_the_project_and_restored(ran, tmp_path):
    before = ran.document.current.run
    path = tmp_path / "mine.enplace"
    ran.studio.saving.save_to(path)
    ran.studio.files.wait()
    after = open_file(path).project.current.run
    assert after.step_time_us == before.step_time_us
    for name in ("op_time_us", "op_start_us", "op_finish_us", "op_device"):
        np.testing.assert_array_equal(getattr(after, name), getattr(before, name))
    assert after.loss_difference == 0
    assert after.to_json() == before.to_json()


def test_an_op_without_measurement_stays_so_in_a_project(ran):
    run, plan = ran.document.current.run, ran.document.current.plan
    unseen = replace(run, op_time_us=np.array([np.nan, 1.0, 2.0]))
    kept = json.loads(json.dumps(run_to_json(unseen), allow_nan=False))
    again = run_from_json(kept, ran.document.problem, plan)
    np.testing.assert_array_equal(again.op_time_us, unseen.op_time_us)


def test_a_run_that_was_checked_by_module_is_kept_and_shown_as_such(ran):
    run, plan = ran.document.current.run, ran.document.current.plan
    unseen = dict.fromkeys(("ops_checked", "ops_on_planned_device", "order_violations"))
    by_module = replace(run, **unseen, modules_checked=3, modules_on_planned_device=2)
    again = run_from_json(
        json.loads(json.dumps(run_to_json(by_module))), ran.document.problem, plan
    )
    assert (again.checked, again.in_place, again.order_violations) == ("module", (2, 3), None)
    assert again.faults == ["1 module not where planned"]
    first, second = facts_of(again)[:2]
    assert (first.name, first.value) == ("modules on their device", "2 of 3")
    assert (second.name, second.value) == ("order", "TensorFlow’s own")


@pytest.mark.parametrize(
    "damage",
    [
        None,
        {},
        {"arrays": {}},
        {"arrays": {"op_time_us": [1]}},
        {"arrays": {"op_time_us": [10**400]}, "run": {}},
    ],
)
def test_a_damaged_run_is_dropped(ran, damage):
    assert run_from_json(damage, ran.document.problem, ran.document.current.plan) is None


def test_a_run_with_another_number_of_ops_is_dropped(ran):
    kept = run_to_json(ran.document.current.run)
    kept["arrays"]["op_time_us"].append(1.0)
    assert run_from_json(kept, ran.document.problem, ran.document.current.plan) is None
