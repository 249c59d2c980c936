"""Wherever a time shows that nobody has measured, the studio says that it is estimated."""

from dataclasses import replace

import pytest
from PySide6.QtWidgets import QLabel

from documents import document_of
from enplace.values.measurement import Measurement
from enplace_studio.files import session
from enplace_studio.frameworks.open_model import OpenModel
from enplace_studio.frameworks.profile_page import ProfilePage
from enplace_studio.jobs.solver import Solver
from enplace_studio.model.can_run import why_no_run
from enplace_studio.model.plan_facts import tooltip
from enplace_studio.shell.header import Header
from enplace_studio.shell.status import StatusLine
from enplace_studio.solve.chosen_method import ChosenMethod
from enplace_studio.views.inspector.inspector_facts import op_facts
from enplace_studio.views.inspector.inspector_view import InspectorView
from enplace_studio.views.plans.card import PlanCard
from enplace_studio.views.timeline.timeline_view import TimelineView
from problems import cluster_of, profile_of


def document(**measured):
    profile = profile_of({"a": 10, "b": 20}, [("a", "b", 8)])
    known = replace(profile, measured=Measurement(**measured))
    return document_of(known, cluster_of(2), {"a": 0, "b": 0})


def header(opened):
    solver = Solver()
    return Header(opened, solver, ChosenMethod(solver))


def status(opened):
    return StatusLine(opened, Solver())


def card(opened):
    return PlanCard(opened.project, opened.bounds, opened.current)


def page(opened):
    return ProfilePage(opened.problem.profile, None, None)


def texts(shown):
    found = " ".join(label.text() for label in shown.findChildren(QLabel))
    own = {PlanCard: lambda: shown.text(), TimelineView: lambda: shown.legend}
    return f"{own.get(type(shown), str)()} {found}"


@pytest.mark.parametrize("show", [header, status, card, InspectorView, TimelineView, page])
def test_every_place_with_a_step_time_says_that_it_is_estimated(qtbot, show):
    for measured, is_estimated in (({"estimated": "H200"}, True), ({}, False)):
        opened = document(**measured)
        shown = show(opened)
        qtbot.addWidget(shown)
        assert ("estimated" in texts(shown).lower()) == is_estimated


def test_an_op_and_the_hint_of_a_plan_say_so_too():
    opened = document(estimated="A100")
    assert "estimated step time" in tooltip(opened.project, opened.bounds, opened.current, "")
    assert ("on a GPU, estimated", "0.010 ms") in op_facts(opened.problem, None, 0)


def test_an_estimated_profile_opens_on_a_cluster_of_its_gpu():
    profile = document(estimated="A100").problem.profile
    assert session.open_profile(profile).project.cluster.name.startswith("a100-")


def test_the_plan_of_a_model_that_is_only_a_graph_cannot_run():
    source = {"path": "/x/m.onnx", "kind": "onnx", "framework_name": "onnx"}
    assert "which Enplace does not run" in why_no_run(document(estimated="H200", source=source))


def test_an_onnx_model_is_opened_with_sizes_and_a_gpu(qtbot, tmp_path):
    path = tmp_path / "m.onnx"
    path.write_bytes(b"\x08\x07")
    dialog = OpenModel(path, None)
    qtbot.addWidget(dialog)
    assert dialog.profile_button.text() == "Open"
    assert "estimated" in dialog.what.text()
    assert not dialog.form.isRowVisible(dialog.devices)
    dialog.fields["batch_size"].setValue(4)
    dialog.fields["sizes"].setText("seq_len=64, width=32")
    dialog.fields["gpu"].setEditText("h100")
    dialog.accept()
    source = dialog.request.source
    assert (source.batch_size, source.text("gpu")) == (4, "h100")
    assert source.options["sizes"] == (("seq_len", 64), ("width", 32))


@pytest.mark.parametrize(("sizes", "gpu"), [("seq_len", ""), ("seq_len=0", ""), ("", "h300")])
def test_what_no_model_can_have_is_refused_in_the_dialog(qtbot, tmp_path, sizes, gpu):
    path = tmp_path / "m.onnx"
    path.write_bytes(b"\x08\x07")
    dialog = OpenModel(path, None)
    qtbot.addWidget(dialog)
    dialog.fields["sizes"].setText(sizes)
    dialog.fields["gpu"].setEditText(gpu)
    dialog.accept()
    assert dialog.request is None
    assert (sizes or gpu) in dialog.what.text()
