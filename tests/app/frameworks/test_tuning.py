"""Tuning from the studio, with the fake worker measuring for the tuning process."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from enplace.frameworks import tuning_process
from enplace.frameworks.source import source_of
from enplace.processes.worker import WorkerProgram
from enplace_studio.files.session import entry_for
from enplace_studio.frameworks.dialogs import FailureReport, RunQuestion
from fake_framework import code_to_use_worker
from forking import fork_workers
from problems import plan_of

FAKE_WORKER = Path(__file__).with_name("fake_worker.py")


@pytest.fixture(autouse=True)
def tuner(monkeypatch, fake_worker):
    """Make the tuning worker start the fake worker."""
    fork_workers(monkeypatch, nested=True)
    code = (
        f"{code_to_use_worker(sys.executable, str(FAKE_WORKER))}"
        "from enplace.frameworks import tuning_process; tuning_process.SEARCH_S = 0.5\n"
        "from enplace.processes.main import serve; serve(tuning_process.work)"
    )
    monkeypatch.setattr(
        tuning_process, "PROGRAM", WorkerProgram((sys.executable, "-c", code), "tuning")
    )


@pytest.fixture
def planned(window, fake, model, asked):
    """Open a profile of a model, and a plan for it."""

    def open_with(name, devices):
        source = source_of(str(model(name))).to_json()
        profile = fake.profile()
        measured = replace(profile.measured, source=source, devices="cpu:2")
        window.studio.files.open_profile(replace(profile, measured=measured))
        window.studio.files.wait()
        problem = window.document.problem
        window.document.add_plan(entry_for(problem, "mine", plan_of(problem, devices)))
        return window

    return open_with


def test_a_plan_that_cannot_be_improved_keeps_its_measurement(planned, qtbot, asked):
    window = planned("mine.py", {"a": 0, "b": 0, "c": 0})
    with qtbot.waitSignal(window.studio.measuring.done) as done:
        window.studio.measuring.tune_current()
        assert window.studio.measuring.strip.title.text() == "Tuning “mine”"
    assert "fastest plan found" in done.args[0]
    assert [entry.name for entry in window.document.plans] == ["mine"]
    assert window.document.current.run is not None
    assert any(isinstance(dialog, RunQuestion) for dialog in asked)


def test_a_faster_plan_is_added_and_shown(planned, qtbot):
    """The fake model is a chain with costly transfers, so one device is best."""
    window = planned("relay.py", {"a": 0, "b": 1, "c": 0})
    with qtbot.waitSignal(window.studio.measuring.done) as done:
        window.studio.measuring.tune_current()
    assert done.args[0].startswith("Tuned: a step takes")
    current = window.document.current
    assert current.name == "mine, tuned"
    assert len(set(current.plan.device.tolist())) == 1
    assert current.run is not None
    assert len(window.document.plans) == 2


def test_a_faster_plan_that_does_not_run_as_planned_is_not_added(planned, qtbot):
    window = planned("stray.py", {"a": 0, "b": 1, "c": 0})
    with qtbot.waitSignal(window.studio.measuring.done) as done:
        window.studio.measuring.tune_current()
    assert "did not run as planned and was dropped" in done.args[0]
    assert [entry.name for entry in window.document.plans] == ["mine"]
    assert window.document.current.run is not None


def test_a_crash_while_tuning_is_reported_and_changes_nothing(planned, qtbot, asked):
    window = planned("crash.py", {"a": 0, "b": 0, "c": 0})
    window.studio.measuring.tune_current()
    qtbot.waitUntil(lambda: any(isinstance(dialog, FailureReport) for dialog in asked))
    window.studio.measuring.cancel()
    qtbot.waitUntil(lambda: not window.studio.measuring.busy)
    assert window.document.current.run is None


def test_cancelling_ends_the_tuning(planned, qtbot):
    window = planned("stubborn.py", {"a": 0, "b": 0, "c": 0})
    window.studio.measuring.tune_current()
    qtbot.waitUntil(lambda: window.studio.measuring.job.text.split()[0].isdigit())
    with qtbot.waitSignal(window.studio.measuring.done) as done:
        window.studio.measuring.cancel()
    assert "cancelled" in done.args[0]
