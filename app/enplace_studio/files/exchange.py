"""Plans, constraints and pictures in files: export, and import into the open model."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QWidget

from enplace.bounds import is_outdated, with_bound
from enplace.errors import EnplaceError
from enplace.frameworks.compared import result_for
from enplace.frameworks.registry import exporters
from enplace.readers import PlanFile, complete_plan, read_plan, read_plan_cluster
from enplace.readers.clusters import cluster_from
from enplace.readers.constraints import ConstraintsFile, constrain, read_constraints
from enplace.text import as_sentence, count, one_line
from enplace.values.cluster import Cluster
from enplace.values.problem import Problem, split_problem
from enplace.values.profile import Profile
from enplace.values.result import Result
from enplace.writers import write_constraints, write_plan
from enplace_studio.explain.cluster_facts import cluster_title
from enplace_studio.files import session
from enplace_studio.files.saving import Saving
from enplace_studio.model import edits
from enplace_studio.model.document import Document, PlanEntry
from enplace_studio.model.notes import told_notes
from enplace_studio.model.prices import headline, what_if_text
from enplace_studio.widgets.part import Part
from enplace_studio.widgets.pictures import SUFFIXES, Drawing, write_picture

PLANS, CONSTRAINTS = "Plans (*.json)", "Constraints (*.json)"
PICTURES = ";;".join(f"{suffix[1:].upper()} (*{suffix})" for suffix in SUFFIXES)
MOST_NAMES = 3
"""Most names in a message."""


def few(names: Sequence[str]) -> str:
    """List the first names."""
    more = ", …" if len(names) > MOST_NAMES else ""
    return ", ".join(names[:MOST_NAMES]) + more


class Exchange(Part):
    """Writes plans, constraints and pictures to files, and reads those that others have written."""

    cluster_read = Signal(object)
    """Emitted with a :class:`Cluster` from a file that the user opened."""

    def __init__(self, document: Document, saving: Saving, parent: QWidget) -> None:
        super().__init__(document, parent)
        self._ask_write = saving.ask_write
        document.requests.export_plan.connect(self.ask_export_plan)
        document.requests.save_picture.connect(self.ask_save_picture)

    # Exporting

    def ask_export_plan(self, entry: PlanEntry | None = None) -> None:
        """Ask for a file and write a plan of the list, or the current one, to it."""
        entry = entry or self._document.current
        if entry is not None:
            schedule, proofs = entry.schedule, self._document.bounds.proofs
            if what_if := as_sentence(self._what_if(entry)):
                told = schedule.plan.with_notes(as_sentence(schedule.plan.note), what_if)
                if is_outdated(schedule):  # what was said is not about this what-if
                    told = replace(told, note=what_if, noted_us=None, noted_for="")
                schedule = replace(schedule, plan=told)
            self._ask_write(
                "Export the plan",
                ".plan.json",
                lambda path: write_plan(path, with_bound(schedule, proofs.of_rivals(schedule))),
            )

    def ask_export(self, form: str, suffix: str) -> None:
        """Ask for a file and export the current schedule to it."""
        entry = self._document.current
        if entry is not None:
            exporter, result = exporters()[form], self.exported(form, entry)
            self._ask_write(
                f"Export {exporter.title}", suffix, lambda path: exporter.write_to(path, result())
            )

    def exported(self, form: str, entry: PlanEntry) -> Callable[[], Result]:
        """Return a function for a thread, which makes what a file format shows of a plan."""
        project, proofs = self._document.project, self._document.bounds.proofs
        assert project is not None, "the plan is one of an open project"
        exporter, is_here = exporters()[form], entry.cluster is None
        model = project.model if is_here else None
        what_if = self._what_if(entry)
        notes, opened = told_notes(project, entry), tuple(project.grouping.opened)

        def make() -> Result:
            proof = proofs.of_rivals(entry.schedule) if exporter.shows_bound else None
            result = result_for(exporter, entry.schedule, model, proof)
            return replace(result, notes=notes, opened=opened, what_if=what_if)

        return make

    def _what_if(self, entry: PlanEntry) -> str:
        """Say which what-if a plan of the list is priced in."""
        project = self._document.project
        if project is None or entry.cluster is not None:
            return ""
        return what_if_text(*project.scale)

    def ask_save_picture(self, drawing: Drawing | None) -> None:
        """Ask for a file and write a view's picture to it, as SVG, PNG or PDF."""
        project = self._document.project
        if drawing is None or project is None:
            return
        title = drawing.title or f"{drawing.name} · {project.problem.profile.name}"
        if project.current is not None and not drawing.title:
            measured = project.problem.measured_profile.measured
            step = measured.title_of(headline(project.current.plan, project.current.schedule))
            title += f" · {project.current.name}, {step}"
        if (what_if := what_if_text(*project.scale)) and not drawing.title:
            title += f", {what_if}"
        self._ask_write(
            "Save picture of this view",
            SUFFIXES[0],
            lambda path: write_picture(path, drawing, title),
            PICTURES,
        )

    # Importing a plan

    def ask_import_plan(self) -> None:
        if path := self.ask_file("Import a plan", PLANS):
            self.import_plan(path)

    def import_plan(self, path: Path) -> None:
        """Add a plan from a file; ask what to do if it is for another graph or cluster."""
        project = self._document.project
        if project is None:
            return

        def add(found: PlanFile | Cluster) -> None:
            if isinstance(found, PlanFile):
                self._complete(path, project.model.measured_profile, found)
            elif self._accept_cluster(path, found) and self._document.set_cluster(found):
                self.import_plan(path)

        self.background.start(lambda: _plan_or_cluster(path, project.model), add, self.fail)

    def _complete(self, path: Path, profile: Profile, found: PlanFile) -> None:
        """Place the missing ops, if the user agrees, and add the plan."""
        if not (found.missing or found.unknown) or self._accept_mismatch(path, found):
            self._add_plan(path, profile, found)

    def _add_plan(self, path: Path, profile: Profile, found: PlanFile) -> None:
        """Add a plan and its constraints, unless another model is now open."""
        project = self._document.project
        if project is None or project.model.measured_profile is not profile:
            return
        model = project.model

        def make() -> tuple[PlanEntry, Problem, str]:
            problem = split_problem(model, found.plan.splits)
            faults = ""
            try:
                constrained = constrain(problem, found.constraints)
                mine = replace(project, problem=problem)
                edits.check_locks(mine, constrained.problem.pins, problem.locked)
                problem, faults = constrained.problem, _faults_of(constrained)
            except EnplaceError as error:
                faults = f"its constraints contradict yours, and are left out: {error}"
            plan = complete_plan(problem, found)
            return session.entry_for(problem, path.stem, plan, path.name), problem, faults

        def add(made: tuple[PlanEntry, Problem, str]) -> None:
            entry, problem, faults = made
            now = self._document.project
            if now is None or now.model is not model:  # edited since
                self._add_plan(path, profile, found)
                return
            self._document.import_plan(entry, problem)
            if faults:
                self.failed.emit(one_line(f"in {path.name}, {faults}"))
            elif any(found.constraints.values()):
                self.done.emit(f"Imported {path.name} with its constraints")

        self.background.start(make, add, self.fail)

    def _accept_cluster(self, path: Path, cluster: Cluster) -> bool:
        """Ask whether to switch to the cluster that a plan was made for."""
        switch = "Switch and open the plan"
        chosen = self.choose(
            "The plan was made for another cluster",
            f"{path.name} uses devices of {cluster_title(cluster)}, which the open cluster does "
            "not have.",
            "Switch to that cluster? Plans that need the open one stay in the list.",
            switch,
        )
        return chosen == switch

    def _accept_mismatch(self, path: Path, found: PlanFile) -> bool:
        place = "Place the missing ops"
        lines = [f"not placed: {name}" for name in found.missing]
        lines += [f"not in the model: {name}" for name in found.unknown]
        chosen = self.choose(
            "The plan was made for another graph",
            f"{path.name} does not place {count(len(found.missing), 'op')} of this model and names "
            f"{count(len(found.unknown), 'op')} that it does not have.",
            "Place only the missing ops, next to their neighbours, and keep the rest?",
            place,
            details="\n".join(lines),
        )
        return chosen == place

    def read_cluster(self, path: Path) -> None:
        """Read a cluster for the open model."""
        problem = self._document.problem
        if problem is not None:
            profile = problem.measured_profile
            self.background.start(
                lambda: cluster_from(os.path.realpath(path), profile),
                self.cluster_read.emit,
                self.fail,
            )

    # Importing and exporting constraints

    def ask_export_constraints(self) -> None:
        """Ask for a file and write the constraints that hold to it."""
        problem = self._document.problem
        if problem is not None:
            self._ask_write(
                "Export constraints",
                ".constraints.json",
                lambda path: write_constraints(path, problem),
            )

    def ask_import_constraints(self) -> None:
        if path := self.ask_file("Import constraints", CONSTRAINTS):
            self.import_constraints(path)

    def import_constraints(self, path: Path) -> None:
        """Add the constraints of a file; report what it names and the model does not have."""
        problem = self._document.problem
        if problem is not None:
            self.background.start(
                lambda: read_constraints(path, problem),
                lambda found: self._add_constraints(path, problem, found),
                self.fail,
            )

    def _add_constraints(self, path: Path, read_for: Problem, found: ConstraintsFile) -> None:
        problem = self._document.problem
        if problem is None or problem.measured_profile is not read_for.measured_profile:
            return  # another model is now open
        if problem is not read_for:  # edited since
            self.import_constraints(path)
            return
        is_known = found.problem.constraints == problem.constraints
        added = self._document.add_constraints(found.problem)
        if faults := _faults_of(found):
            self.failed.emit(one_line(f"in {path.name}, {faults}"))
        elif is_known:
            self.done.emit(f"{path.name} adds nothing to your constraints")
        elif added:
            self.done.emit(f"Imported {path.name}")


def _plan_or_cluster(path: Path, model: Problem) -> PlanFile | Cluster:
    """Read a plan; if that fails as it is for a cluster with other devices, that cluster."""
    try:
        return read_plan(path, model)
    except EnplaceError:
        cluster = read_plan_cluster(path)
        if cluster.index.keys() <= model.cluster.index.keys():
            raise
        return cluster


def _faults_of(found: ConstraintsFile) -> str:
    """Say which constraints of a file do not hold; empty if all do."""
    faults: list[str] = []
    if n := len(found.unknown):
        faults.append(
            f"{count(n, 'name')} {'is' if n == 1 else 'are'} not in this model or cluster: "
            f"{few(found.unknown)}; constraints with them were left out"
        )
    if n := len(found.overruled):
        faults.append(
            f"{count(n, 'op')} {'is' if n == 1 else 'are'} pinned to another device already: "
            f"{few(found.overruled)}; your pins stay"
        )
    return ". ".join(faults)
