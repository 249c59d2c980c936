"""The line below the plans: what data parallelism would take, which is no plan of single ops."""

from __future__ import annotations

from functools import partial

from PySide6.QtCore import QObject, Qt
from PySide6.QtWidgets import QLabel

from enplace.placers.data_parallel import Replicas, mirrored, why_not_mirrored
from enplace.text import count, ms, size
from enplace.values.problem import Problem
from enplace_studio.jobs.background import Background
from enplace_studio.jobs.call_later import call_later
from enplace_studio.model.document import Document
from enplace_studio.widgets.labels import plain_tip

ABOUT = (
    "Every GPU has a copy of the whole model and takes its share of the batch; before the update, "
    "all sum their gradients. This is a prediction for comparison: it is no plan for single ops, "
    "so there is nothing to show or drag."
)


class ReplicasLine(QLabel):
    """The predicted step time with a copy of the model on each GPU."""

    def __init__(self, document: Document) -> None:
        super().__init__()
        self._document = document
        self._background = Background(QObject(self))  # nobody waits for it: no busy cursor
        self._asked: Problem | None = None
        self._found = ""
        self.setProperty("role", "dim")
        self.setWordWrap(True)
        self.setTextFormat(Qt.TextFormat.PlainText)  # it may name a type from a file
        self.setToolTip(plain_tip(ABOUT))
        self.hide()
        call_later(self, self.refresh, document.opened, document.current_changed)

    def refresh(self) -> None:
        """Predict for the open model and cluster, once there is a plan to compare with."""
        project = self._document.project
        if project is None or project.current is None:
            self.hide()
            return
        problem, asked = project.problem, self._asked
        if asked is None or (problem.profile, problem.cluster) != (asked.profile, asked.cluster):
            self._asked, self._found = problem, ""
            self._background.forget()
            self._background.start(partial(_predict, problem), self._keep)
        self._show()

    def _keep(self, found: str) -> None:
        self._found = found
        self._show()

    def _show(self) -> None:
        self.setVisible(bool(self._found))
        self.setText(self._found)


def _predict(problem: Problem) -> str:
    """Describe data parallelism, or say why it cannot be predicted; empty if there is none."""
    if why := why_not_mirrored(problem):
        return why
    found = mirrored(problem)
    return describe(found) if found else ""


def describe(found: Replicas) -> str:
    """Describe data parallelism in short: its step time, what each copy needs, and its shares."""
    peak = size(found.peak_bytes)
    title = f"For comparison: data parallelism, {count(found.number, 'replica')}"
    if not found.fits:
        return f"{title}: does not fit, each needs {peak}"
    most = f"{peak} each" if not found.about_shares else f"at most {peak} each"
    return " ".join([f"{title}: {ms(found.step_time_us)} per step, {most}.", found.about]).strip()
