"""Asking what would make the open model fit, and opening the plan of a row."""

from __future__ import annotations

from dataclasses import replace

from PySide6.QtWidgets import QWidget

from enplace.files.folders import temporary_folder
from enplace.machine.pipelines.pipeline import planned_rule
from enplace.placing.options import load_values
from enplace.values.problem import STEP_TIME, THROUGHPUT, split_problem
from enplace_studio.files.opening import Files
from enplace_studio.files.session import Opened, entry_for
from enplace_studio.model.document import Document
from enplace_studio.widgets.part import Part


class Fitting(Part):
    """Shows the dialog, and opens what the user chooses there."""

    def __init__(self, document: Document, files: Files, parent: QWidget) -> None:
        super().__init__(document, parent)
        self._files = files

    def ask(self) -> None:
        """Look for what would make the open model fit, at the cluster's own speeds."""
        from enplace_studio.solve.fit_dialog import FitDialog

        project = self._document.project
        if project is None:
            return
        plan = project.current.plan if project.current is not None else None
        aim = THROUGHPUT if plan is not None and plan.objective == THROUGHPUT else STEP_TIME
        values = load_values(planned_rule(plan)) if plan is not None and aim == THROUGHPUT else {}
        problem = replace(project.model, cluster=project.cluster)
        with temporary_folder() as folder:
            dialog = FitDialog(problem, aim, values, folder, self.window())
            if plan is not None:
                dialog.proven.connect(lambda: self._document.take_proof(problem, plan))
            if dialog.exec() and dialog.opened is not None:
                self.take(dialog.opened, dialog.is_same_model)

    def take(self, opened: Opened, is_same_model: bool) -> None:
        """Add a plan to the list, on its cluster; or open its project, if its batch is another."""
        found = opened.project.plans[0]
        if not is_same_model:
            self._files.open_unsaved(opened)
            return
        project = self._document.project
        assert project is not None
        if opened.project.cluster != project.cluster:
            self._document.set_cluster(opened.project.cluster)
            project = self._document.project
            assert project is not None
        problem = split_problem(project.model, found.plan.splits)
        self._document.import_plan(entry_for(problem, found.name, found.plan), problem)
