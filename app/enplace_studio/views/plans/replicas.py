"""The lines below the plans: what data parallelism and other choices of people would take."""

from __future__ import annotations

from functools import partial

from PySide6.QtCore import QObject, Qt
from PySide6.QtWidgets import QLabel

from enplace.frameworks.alternatives import find_alternatives
from enplace.frameworks.registry import framework_of
from enplace.machine.pipelines.pipeline import planned_rule
from enplace.placers.alternatives import Alternative
from enplace.placers.data_parallel import Replicas, mirrored, why_not_mirrored
from enplace.text import count, ms, size
from enplace.values.plan import Plan
from enplace.values.problem import STEP_TIME, Problem
from enplace_studio.jobs.background import Background
from enplace_studio.jobs.call_later import call_later
from enplace_studio.model.document import Document
from enplace_studio.widgets.labels import plain_tip

ABOUT = (
    "Every GPU has a copy of the whole model and takes its share of the batch; before the update, "
    "all sum their gradients. This is a prediction for comparison: it is no plan for single ops, "
    "so there is nothing to show or drag. Of a PyTorch model, the other lines are what people pick "
    "by rules of thumb."
)


class ReplicasLine(QLabel):
    """The predicted step time with a copy of the model on each GPU."""

    def __init__(self, document: Document) -> None:
        super().__init__()
        self._document = document
        self._background = Background(QObject(self))  # nobody waits for it: no busy cursor
        self._asked: tuple[object, ...] = ()
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
        problem = project.problem
        plan = project.current.plan
        asked = problem.profile, problem.cluster, plan.objective, plan.load_rule
        if asked != self._asked:
            self._asked, self._found = asked, ""
            self._background.forget()
            self._background.start(partial(_predict, problem, plan), self._keep)
        self._show()

    def _keep(self, found: str) -> None:
        self._found = found
        self._show()

    def _show(self) -> None:
        self.setVisible(bool(self._found))
        self.setText(self._found)


def _predict(problem: Problem, plan: Plan) -> str:
    """Describe what people pick instead, or say why it cannot be predicted."""
    lines = []
    if plan.objective == STEP_TIME:
        found = mirrored(problem)
        lines.append(why_not_mirrored(problem) or (describe(found) if found else ""))
    others = find_alternatives(problem, plan.objective, rule=planned_rule(plan))
    lines += [_describe_other(each, plan.objective) for each in others]
    text = "\n".join(filter(None, lines))
    return framework_of(problem.measured_profile).in_own_words(text)


def _describe_other(each: Alternative, objective: str) -> str:
    """Describe what has no replicas in short."""
    if not each.fits:
        return f"{each.name}: does not fit, {each.why_not or each.memory}"
    unit = "per step" if objective == STEP_TIME else "per sample"
    return f"{each.name}: {ms(each.value_us)} {unit}, {each.memory}."


def describe(found: Replicas) -> str:
    """Describe data parallelism in short: its step time, what each copy needs, and its shares."""
    peak = size(found.peak_bytes)
    title = f"For comparison: data parallelism, {count(found.number, 'replica')}"
    if not found.fits:
        return f"{title}: does not fit, each needs {peak}"
    most = f"{peak} each" if not found.about_shares else f"at most {peak} each"
    return " ".join([f"{title}: {ms(found.step_time_us)} per step, {most}.", found.about]).strip()
