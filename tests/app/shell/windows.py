"""What tests do with a window: open and import files, press keys, answer questions."""

from contextlib import contextmanager

from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QFileDialog, QMessageBox

from enplace.machine import simulate
from enplace_studio.model.document import PlanEntry
from enplace_studio.model.edits import with_plan
from enplace_studio.model.open_project import start_project
from problems import cluster_of, plan_of, profile_of

BUTTON = QMessageBox.StandardButton


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
    window.studio.exchange.import_plan(path)
    window.studio.files.wait()


def answer(monkeypatch, button):
    """Answer every question with this button; return the questions that were asked."""
    asked = []
    monkeypatch.setattr(QMessageBox, "question", lambda *args: asked.append(args[2]) or button)
    return asked


def name_file(monkeypatch, path):
    for method in ("getSaveFileName", "getOpenFileName"):
        monkeypatch.setattr(QFileDialog, method, lambda *_: (str(path), ""))


def click(box, text):
    """Answer a question with one of its buttons."""
    next(each for each in box.buttons() if each.text() == text).click()
