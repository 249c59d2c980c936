"""The window takes in plans, constraints and clusters, and exports them and pictures."""

import json
from dataclasses import replace

import pytest
from PySide6.QtCore import QMimeData, QPointF, Qt, QUrl
from PySide6.QtGui import QDragEnterEvent, QDropEvent, QImage
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QFileDialog, QMessageBox
from tests.app.shell.windows import import_plan, name_file, trigger

import enplace as ep
import onnx_models
from documents import add_plan
from enplace.cli import run
from enplace.files.writing import write_atomically
from enplace.machine import simulate
from enplace.readers import read_plan
from enplace.readers.clusters import presets
from enplace.text import ms
from enplace.values.result import Result
from enplace.writers import write_plan, write_profile
from enplace.writers.clusters import cluster_text
from enplace_studio.files import session
from enplace_studio.model.document import PlanEntry
from enplace_studio.model.edits import with_plan
from enplace_studio.model.open_project import start_project
from enplace_studio.shell.actions import EXPORTS
from problems import cluster_of, plan_of, profile_of
from turns import take_turns

OF_LAYERS = {"deepspeed", "llama-cpp", "megatron", "split-spec", "torchtitan", "vllm"}
OF_A_MODEL = {"device-map", "onnx", "onnx-stages", "saved-model"} | OF_LAYERS
"""Formats that need the model that was profiled, or numbered layers."""


@pytest.mark.parametrize("form", ["plan", *sorted(EXPORTS.keys() - OF_A_MODEL)])
def test_every_export_writes_a_file(window, monkeypatch, tmp_path, form):
    name_file(monkeypatch, tmp_path / "out")
    trigger(window, f"export-{form}")
    (written,) = tmp_path.glob("out.*")
    assert written.stat().st_size > 0


def test_a_pipeline_is_exported_to_other_programs(window, monkeypatch, tmp_path):
    """What cannot hold a plan says why, and is off."""
    layers = profile_of(dict.fromkeys(("h_0/mm", "h_1/mm"), 1.0), [("h_0/mm", "h_1/mm", 4)])
    project = start_project(layers, cluster_of(2))
    both, one = (plan_of(project.problem, {"h_0/mm": 0, "h_1/mm": at}) for at in (1, 0))
    for name, plan in (("one", one), ("both", both)):
        entry = PlanEntry(name, plan, simulate(project.problem, plan))
        window.document.open(with_plan(project, entry, choose=True))
        take_turns()
        action = window.menus.by_id["export-vllm"]
        assert action.isEnabled() == (name == "both")
        assert ("GPU 0 has the whole model" in action.toolTip()) == (name == "one")
    name_file(monkeypatch, tmp_path / "out")
    trigger(window, "export-vllm")
    assert "VLLM_PP_LAYER_PARTITION=1,1" in (tmp_path / "out.vllm.env").read_text()


def test_a_plan_for_an_onnx_model_becomes_a_folder_of_stages(
    make_window, monkeypatch, tmp_path, qtbot
):
    """It says which branch of the model is in it."""
    profile = ep.read_onnx(onnx_models.save(onnx_models.merged_decoder(), tmp_path / "m.onnx"))
    project = start_project(profile, presets()["h200-2-nvlink"])
    host, inputs = project.cluster.index["CPU:0"], ("x", "past.0.key")
    on = {op: host if op in inputs else int(op == "lm_head") for op in profile.op_names}
    plan = plan_of(project.problem, on)
    window, entry = make_window(), PlanEntry("mine", plan, simulate(project.problem, plan))
    window.document.open(with_plan(project, entry, choose=True))
    name_file(monkeypatch, tmp_path / "out")
    said = []
    window.studio.done.connect(said.append)
    trigger(window, "export-onnx-stages")
    qtbot.waitUntil(lambda: bool(said))
    assert said[0].startswith("Wrote out.stages. Of the two branches of If op")
    assert {each.name for each in (tmp_path / "out.stages").iterdir()} == {
        "stage-1.onnx", "stage-2.onnx", "stages.json",
    }  # fmt: skip


def test_an_export_just_after_an_edit_tells_the_gap_that_simulate_tells(
    window, monkeypatch, tmp_path, capsys, qtbot
):
    """The bound of the edit's constraints is not known yet; that of the plan before also holds."""
    document, profile = window.document, profile_of(dict.fromkeys("abc", 10.0))
    project = start_project(profile, cluster_of(2))
    plan = plan_of(project.problem, {"a": 0, "b": 0, "c": 1})
    entry = PlanEntry("first", plan, simulate(project.problem, plan))
    document.open(with_plan(project, entry, choose=True))
    qtbot.waitUntil(lambda: document.bounds.gap(document.schedule) == 0)
    document.place(range(3), 1)
    name_file(monkeypatch, tmp_path / "plan.json")
    report = window.studio.exchange.exported("html", document.current)
    trigger(window, "export-plan")
    write_profile(tmp_path / "p.enplace", profile)
    files = [str(tmp_path / name) for name in ("p.enplace", "plan.json")]
    assert run(["simulate", *files, "--json"]) == 0
    gap = json.loads(capsys.readouterr().out)["gap"]
    assert report().gap == pytest.approx(gap)
    written = json.loads((tmp_path / "plan.json").read_text())["predicted"]
    assert 1 - written["lower_bound_us"] / written["step_time_us"] == pytest.approx(gap)


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
    pinned = problem.constrained(pins={0: 1}, forbidden=frozenset({(2, 1)}))
    plan = plan_of(pinned, {"a": 1, "b": 0, "c": 0})
    write_plan(tmp_path / "one.json", Result(simulate(pinned, plan)))
    locked = problem.constrained(pins={1: 0, 2: 0}, locked=frozenset({0}))
    write_plan(tmp_path / "two.json", Result(simulate(locked, plan)))
    drop(window, tmp_path / "one.json", tmp_path / "two.json", says="import 2 files")
    assert [entry.name for entry in window.document.plans][-2:] == ["one", "two"]
    now = window.document.problem
    assert (now.pins, now.forbidden, now.locked) == ({0: 1, 1: 0, 2: 0}, {(2, 1)}, {0})
    window.document.undo_stack.undo()
    assert (window.document.problem.pins, window.document.problem.locked) == ({0: 1}, frozenset())


def test_a_plan_whose_constraints_contradict_mine_is_added_without_them(window, tmp_path):
    problem = window.document.problem
    free = problem.constrained(forbidden=frozenset({(0, 0)}))
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
    pinned = window.document.problem.constrained(pins={2: 0})
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
    window.studio.exchange.import_constraints(path)
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
    window.studio.exchange.import_constraints(path)
    window.document.place([1], 1)
    window.studio.files.wait()
    assert window.document.problem.pins == {0: 1, 1: 1}


def test_constraints_of_a_model_that_is_closed_meanwhile_are_dropped(window, tmp_path):
    path = tmp_path / "team.json"
    path.write_text('{"format": "enplace-constraints/1", "pin": [["a", "GPU:1"]]}')
    window.studio.exchange.import_constraints(path)
    other = start_project(profile_of({"a": 1}), cluster_of(2))
    window.document.open(other)
    window.studio.files.wait()
    assert window.document.project is other


def test_the_picture_of_plans_side_by_side_is_exported(window, monkeypatch, tmp_path):
    add_plan(window.document, "second", {"a": 0, "b": 0, "c": 0})
    trigger(window, "side-by-side")
    name_file(monkeypatch, tmp_path / "two.png")
    trigger(window, "save-picture")
    shown = window.panes.views["compare"]
    assert QImage(str(tmp_path / "two.png")).width() >= 2 * shown.width()


def test_the_picture_of_the_focused_view_is_saved(window, monkeypatch, tmp_path, qtbot):
    view = window.panes.views["timeline"]
    window.activateWindow()
    assert QTest.qWaitForWindowActive(window)
    view.canvas.setFocus()
    qtbot.waitUntil(lambda: "critical path" in view.summary.text())  # it follows shortly after
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


def test_a_plan_of_the_list_is_exported_from_its_menu(window, monkeypatch, tmp_path):
    first = window.document.current
    window.document.place([0], 1)
    assert window.document.current is not first
    name_file(monkeypatch, tmp_path / "first.plan.json")
    window.document.requests.export_plan.emit(first)
    window.studio.files.wait()
    found = read_plan(tmp_path / "first.plan.json", first.schedule.problem)
    assert found.plan.device.tolist() == first.plan.device.tolist()
