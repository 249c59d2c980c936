"""What would make the open model fit: the worker's rows, the dialog, and opening one of them."""

from pathlib import Path

import pytest
from PySide6.QtCore import QObject, Signal

from enplace.machine import simulate
from enplace.processes.codecs import problem_to_json, profile_message
from enplace.processes.wire import DONE, Message
from enplace.values.problem import STEP_TIME
from enplace_studio.files import session
from enplace_studio.jobs import fit_worker
from enplace_studio.model.document import Document
from enplace_studio.model.edits import with_plan
from enplace_studio.model.open_project import PlanEntry, start_project
from enplace_studio.model.previews import unfit_text
from enplace_studio.solve import fit_dialog
from enplace_studio.solve.fit_dialog import CHANGE, FITS, OPEN, FitDialog
from problems import cluster_of, plan_of, profile_of
from stops import nameless_stops


def project():
    """Return two ops that read 60 bytes each, on a GPU with 100, and a plan that does not fit."""
    profile = profile_of(
        {"x": 1, "a": 10, "b": 10, "c": 10},
        [("x", "a", 60), ("x", "b", 60), ("a", "c", 60), ("b", "c", 60)],
    )
    started = start_project(profile, cluster_of(1, capacity_bytes=100))
    plan = plan_of(started.problem, dict.fromkeys("xabc", 0))
    entry = PlanEntry("first", plan, simulate(started.problem, plan))
    return with_plan(started, entry, choose=True)


class Inbox:
    """The end of a connection: what the worker is sent, and what it sends."""

    def __init__(self, *messages):
        self.left, self.sent = list(messages), []

    def receive(self):
        return self.left.pop(0)

    def send(self, message):
        self.sent.append(message)


def rows_of(problem, folder):
    details = {"problem": problem_to_json(problem), "objective": STEP_TIME, "values": {}}
    job = Message("fit", details | {"folder": f"{folder}"})
    inbox = Inbox(profile_message(problem.profile), job)
    assert fit_worker.serve(inbox).do == DONE
    return inbox.sent


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """Return what the worker sends, and the folder with its projects."""
    folder = tmp_path_factory.mktemp("rows")
    return rows_of(project().problem, folder), folder


def test_the_worker_sends_each_row_and_writes_a_project_that_shows_its_plan(rows):
    sent, folder = rows
    found = [each.details for each in sent if each.do == fit_worker.FOUND]
    assert [len(each["fits"]) for each in found] == [*range(1, len(found)), len(found) - 1]
    *_, before, last = found  # all rows, and these with the fastest first
    assert sorted(before["keys"]) == sorted(last["keys"])
    n_fit = sum(last["fits"])
    assert last["fits"] == [False] + [True] * n_fit + [False] * (len(last["fits"]) - 1 - n_fit)
    assert not last["fits"][0]
    assert True in last["fits"]
    for key, fits in zip(last["keys"], last["fits"], strict=True):
        path = fit_worker.file_of(folder, key)
        assert path.exists() == fits
        if fits:
            assert session.open_file(path).project.current.schedule.fits


class FakeWorker(QObject):
    received = Signal(object)

    def __init__(self, program, messages, parent):
        super().__init__(parent)
        self.is_closed = False

    def close(self):
        self.is_closed = True


@pytest.fixture
def dialog(qtbot, monkeypatch, rows):
    monkeypatch.setattr(fit_dialog, "StudioWorker", FakeWorker)
    made = FitDialog(project().problem, STEP_TIME, {}, rows[1])
    qtbot.addWidget(made)
    made.show()
    for message in rows[0]:
        made._worker.received.emit(message)
    return made


def links(dialog):
    cells = (dialog.table.cellWidget(at, OPEN) for at in range(dialog.table.rowCount()))
    return [each for each in cells if each is not None]


def test_the_dialog_shows_a_row_for_each_change_and_a_click_opens_it(dialog, rows):
    last = rows[0][-1].details
    assert dialog.table.rowCount() == len(last["fits"])
    assert dialog.table.item(0, CHANGE).text() == "As it is"
    assert dialog.table.item(0, FITS).text().startswith("no")
    assert dialog.headline.text() == last["headline"]
    assert not nameless_stops(dialog)
    dialog._worker.received.emit(Message(DONE))
    assert not dialog.bar.isVisible()
    first, *_ = links(dialog)
    assert len(links(dialog)) == sum(last["fits"])
    first.click()
    dialog.background.wait()
    assert dialog._worker.is_closed
    assert dialog.opened.project.current.schedule.fits


def open_row(rows, same_model):
    """Return the first project that fits with the batch as it is, or with another."""
    last = rows[0][-1].details
    fitting = zip(last["keys"], last["fits"], last["same_model"], strict=True)
    key = next(key for key, fits, same in fitting if fits and same == same_model)
    return session.open_file(fit_worker.file_of(rows[1], key))


def test_a_plan_for_a_larger_card_is_added_on_that_card(window, rows):
    window.document.open(project(), Path("x.enplace"), {})
    window.studio.fitting.take(open_row(rows, same_model=True), is_same_model=True)
    document = window.document
    assert document.current.schedule.fits
    assert document.problem.cluster == document.current.schedule.problem.cluster
    assert len(document.plans) == 2
    document.undo_stack.undo()
    document.undo_stack.undo()
    assert document.current.name == "first"


def test_a_card_that_does_not_fit_asks_and_another_batch_opens_unsaved(
    window, rows, monkeypatch, qtbot
):
    window.document.open(project(), Path("x.enplace"), {})
    asked = []
    monkeypatch.setattr(FitDialog, "exec", lambda dialog: asked.append(dialog) or 0)
    monkeypatch.setattr(fit_dialog, "StudioWorker", FakeWorker)
    window.panes.views["plans"].cards[0].make_fit.click()
    assert len(asked) == 1
    status = window.status_line
    qtbot.waitUntil(lambda: status.make_fit.isVisibleTo(status))
    window.document.open(project(), None, {})
    window.studio.fitting.take(open_row(rows, same_model=False), is_same_model=False)
    window.studio.files.wait()
    assert window.document.path is None
    assert window.document.modified
    assert window.document.current.schedule.fits


def test_what_is_proven_is_said_of_the_plans_too(dialog, rows):
    opened = project()
    document = Document()
    document.open(opened)
    assert unfit_text(document.schedule).startswith("this plan does not fit: ")
    plan = document.current.plan
    dialog.proven.connect(lambda: document.take_proof(opened.problem, plan))
    assert dialog.headline.text().startswith("Proven: ")
    dialog._worker.received.emit(next(each for each in rows[0] if each.do == fit_worker.PROVEN))
    assert unfit_text(document.schedule).startswith(
        "does not fit, proven for every plan that keeps what ops make: "
    )
    assert document.undo_stack.count() == 0


@pytest.mark.parametrize(("temporary", "is_known"), [(50, False), (70, True)])
def test_what_is_proven_of_whole_blocks_is_said_of_all_plans_only_if_it_holds_for_them(
    temporary, is_known, monkeypatch, tmp_path
):
    """A card holds both ops' variables, but not what op a needs while it runs, too."""
    profile = profile_of(
        {"a": 10, "b": 10}, persistent={"a": 40, "b": 40}, temporary={"a": temporary}
    )
    problem = start_project(profile, cluster_of(2, capacity_bytes=100)).problem
    block = problem.constrained(together=[(0, 1)])
    monkeypatch.setattr(fit_worker, "at_usual_grain", lambda problem, objective: block)
    sent = rows_of(problem, tmp_path)
    first = next(each.details for each in sent if each.do == fit_worker.FOUND)
    assert first["headline"].startswith("Proven: ")
    assert (fit_worker.PROVEN in [each.do for each in sent]) is is_known
