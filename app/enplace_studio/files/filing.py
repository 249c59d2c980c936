"""Opening, saving, importing and exporting, with the questions they ask.

Files are read and written in threads, so that the window stays responsive.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import _lru_cache_wrapper
from pathlib import Path

from PySide6.QtCore import QDateTime, QLocale, Qt, Signal
from PySide6.QtWidgets import QFileDialog, QMessageBox, QWidget

from enplace.bounds import with_bound
from enplace.errors import EnplaceError, FileError
from enplace.files.reading import open_to_read, refuse_pipe
from enplace.files.writing import remove_abandoned_files, write_atomically
from enplace.frameworks.registry import exporters
from enplace.placers.references import result_for
from enplace.readers import (
    PlanFile,
    cluster_json,
    complete_plan,
    constraints,
    plans,
    read_plan,
    read_plan_cluster,
    read_project,
)
from enplace.readers.clusters import cluster_from
from enplace.readers.constraints import ConstraintsFile, constrain, read_constraints
from enplace.readers.samples import Sample, samples
from enplace.text import count, ms, one_line
from enplace.values.cluster import Cluster
from enplace.values.problem import Problem, split_problem
from enplace.values.profile import Profile
from enplace.writers import write_constraints, write_plan, write_project
from enplace_studio.explain.cluster_facts import cluster_title
from enplace_studio.files import session
from enplace_studio.files.recovery import Recovery, last_written_s
from enplace_studio.files.session import Opened, RecentFiles
from enplace_studio.jobs.background import Background
from enplace_studio.model import edits
from enplace_studio.model.can_run import is_model
from enplace_studio.model.constraints import agree
from enplace_studio.model.document import Document, PlanEntry
from enplace_studio.model.open_project import FileVersion, start_project
from enplace_studio.widgets.panel import plain_tip
from enplace_studio.widgets.pictures import SUFFIXES, Drawing, write_picture

PLAN_FILTER, PROJECTS = "Plans (*.json)", "Projects (*.enplace)"
CONSTRAINTS = "Constraints (*.json)"
PICTURES = ";;".join(f"{suffix[1:].upper()} (*{suffix})" for suffix in SUFFIXES)
MOST_NAMES = 3
"""Most names in a message."""

_FORMAT = re.compile(rb'^\s*\{\s*"format"\s*:\s*"(?P<name>[a-z-]+)/')
_HEAD_BYTES = 1000

_Button = QMessageBox.StandardButton


def _empty_caches() -> None:
    """Empty the caches of Enplace's functions: their keys would keep closed models in memory.

    Those without a limit know nothing of models, but what is read once, such as the presets.
    """
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in ("enplace", "enplace_studio"):
            for function in vars(module).values():
                if isinstance(function, _lru_cache_wrapper) and function.cache_info().maxsize:
                    function.cache_clear()


def _do_nothing() -> None:
    pass


class Filing(QWidget):
    """Opens and writes files; a widget only so that its dialogs have a parent.

    Signals ``done`` and ``failed`` carry one line for the user.
    """

    done = Signal(str)
    failed = Signal(str)
    model_named = Signal(object)
    """Emitted with the path of a model that has no profile yet."""
    cluster_read = Signal(object)
    """Emitted with a :class:`Cluster` from a file that the user opened."""

    def __init__(
        self, document: Document, recent: RecentFiles, recovery: Recovery, parent: QWidget
    ) -> None:
        super().__init__(parent)
        self.hide()
        self._document, self.recent, self._recovery = document, recent, recovery
        self._opening, self._background = Background(self), Background(self)
        document.requests.export_plan.connect(self.ask_export_plan)
        document.requests.save_picture.connect(self.ask_save_picture)

    def wait(self) -> None:
        """Block until everything is read and written."""
        while self._opening.is_busy or self._background.is_busy:
            self._opening.wait()
            self._background.wait()

    def _fail(self, error: EnplaceError) -> None:
        self.failed.emit(str(error))

    # Opening

    def open_sample(self, sample: Sample, then: Callable[[], object] = _do_nothing) -> None:
        """Open a bundled sample on its own cluster, then call ``then``."""

        def read() -> Opened:
            profile = session.open_file(sample.path).project.problem.profile
            return Opened(start_project(profile, cluster_from(sample.cluster, profile)))

        self._open(read, then=then)

    def open_path(self, path: Path, then: Callable[[], object] = _do_nothing) -> None:
        """Open any readable file, then call ``then``; a bundled sample opens on its own cluster.

        A plan, constraints or a cluster are for the open model.
        """
        path = path.absolute()  # a copy of unsaved work may be opened from another folder
        if is_model(path):
            self.model_named.emit(path)
            return
        if use := self._use_of(path):
            if self._document.project is None:
                self.failed.emit(f"{path.name} belongs to a model; open that first")
            else:
                use(path)
            return
        for sample in samples():
            if sample.path == Path(os.path.realpath(path)):
                self.open_sample(sample, then)
                return

        def finish() -> None:
            self.recent.add(path)
            then()

        self._open(lambda: session.open_file(path), path, then=finish)

    def _use_of(self, path: Path) -> Callable[[Path], None] | None:
        """Return what imports a file into the open model; None if it is opened itself."""
        parts = {
            plans.NAME: self.import_plan,
            constraints.NAME: self.import_constraints,
            cluster_json.NAME: self._read_cluster,
        }
        return parts.get(_format_of(path))

    def open_paths(self, paths: Sequence[Path]) -> None:
        """Open one model or project of several files, and import all that belong to a model."""
        opened = [path for path in paths if self._use_of(path) is None]
        parts = [path for path in paths if path not in opened]
        clusters = [path for path in parts if self._use_of(path) == self._read_cluster]
        left_out = [*opened[1:], *clusters[1:]]
        parts = [path for path in parts if path not in left_out]

        def use_parts() -> None:
            for path in parts:
                self.open_path(path)
            if left_out:
                names = _few([path.name for path in left_out])
                why = "one model and one cluster can be open at a time"
                self._fail_last(f"left out {names}: {why}")

        if opened and is_model(opened[0]):  # it must be measured first
            left_out, parts = [*left_out, *parts], []
            use_parts()
        if opened:
            self.open_path(opened[0], use_parts)
        else:
            use_parts()

    def _fail_last(self, text: str) -> None:
        """Report a fault once all files are read: what they change hides what was said before."""
        if self._background.is_busy:
            self._background.start(lambda: None, lambda _: self._fail_last(text))
        else:
            self.failed.emit(text)

    def use_text(self, paths: Sequence[Path]) -> str:
        """Say what :meth:`open_paths` does with files: ``open a.enplace and import 2 files``."""
        opened = [path for path in paths if self._use_of(path) is None]
        n_parts = len(paths) - len(opened)
        parts = paths[0].name if len(paths) == 1 else count(n_parts, "file")
        texts = [f"open {opened[0].name}"] if opened else []
        return " and ".join([*texts, *([f"import {parts}"] if n_parts else [])])

    def open_profile(self, profile: Profile, then: Callable[[], object] = _do_nothing) -> None:
        """Open a new measurement, not yet saved in a file; then call ``then``."""
        self._open(lambda: session.open_profile(profile), saved=False, then=then)

    def _open(
        self,
        read: Callable[[], Opened],
        path: Path | None = None,
        saved: bool = True,
        then: Callable[[], object] = _do_nothing,
    ) -> None:
        """Read in a thread, then show; a later call replaces an earlier one."""
        if not self.may_leave(lambda: self._open(read, path, saved, then)):
            return
        before = self._document.project

        def show(opened: Opened, version: FileVersion | None) -> None:
            changed = self._document.project is not before
            if changed and not self.may_leave(lambda: show(opened, version)):
                return
            self._document.open(opened.project, opened.path, opened.view, saved)
            self._document.seen = version
            then()

        def read_version() -> tuple[Opened, FileVersion | None]:
            if path is not None:
                remove_abandoned_files(path.parent)
            before = _version_of(path)  # another program may write it while it is read
            opened = read()
            if opened.is_copy:  # its file may have changed since the copy's author saw it
                return opened, opened.seen
            return opened, before if opened.path == path else _version_of(opened.path)

        _empty_caches()
        self._opening.forget()
        self._opening.start(read_version, lambda found: show(*found), self._fail)

    def close_project(self) -> None:
        """Go back to the start page."""
        if self.may_leave(self.close_project):
            self._document.open(None)

    def ask_open(self) -> None:
        name, _ = QFileDialog.getOpenFileName(self.window(), "Open", "", session.file_filter())
        if name:
            self.open_path(Path(name))

    # After a crash

    def offer_recovery(self) -> None:
        """Ask whether to recover work that a crash left unsaved."""
        left = self._recovery.leftovers()
        self._background.start(
            lambda: [(path, _model_in(path), last_written_s(path)) for path in left],
            self._ask_to_recover,
        )

    def _ask_to_recover(self, found: Sequence[tuple[Path, str, float]]) -> None:
        """Ask about each copy in turn, until the user opens one or cancels."""
        for path, model, written_s in found:
            changed = QDateTime.fromSecsSinceEpoch(int(written_s))
            when = QLocale.system().toString(changed, QLocale.FormatType.ShortFormat)
            answer = QMessageBox.question(
                self.window(),
                "Unsaved work found",
                plain_tip(
                    f"Enplace ended without saving {model}, last changed {when}. "
                    f"Open the work it kept, or discard it?"
                ),
                _Button.Open | _Button.Discard | _Button.Cancel,
                _Button.Open,
            )
            if answer == _Button.Cancel:  # asks again at the next start
                return
            if answer == _Button.Open:
                self._recover(path)
                return
            self._recovery.backups.add(path)

    def _recover(self, copy: Path) -> None:
        self._open(
            lambda: session.open_copy(copy),
            saved=False,
            then=lambda: self._recovery.take_over(copy),
        )

    def ask_open_backup(self) -> None:
        """Ask for a project that was overwritten or discarded; it opens as unsaved."""
        folder = str(self._recovery.backups.folder)
        name, _ = QFileDialog.getOpenFileName(self.window(), "Open a backup", folder, PROJECTS)
        if name:
            path = Path(name)
            self._open(lambda: replace(session.open_file(path), path=None), saved=False)

    # Saving

    def may_leave(self, again: Callable[[], object]) -> bool:
        """Return whether nothing is unsaved, or the user discards it.

        If the user chooses to save, ``again`` is called once it is saved.
        """
        if not self._document.modified:
            return True
        answer = QMessageBox.question(
            self.window(),
            "Unsaved work",
            "Save the changes to this project first?",
            _Button.Save | _Button.Discard | _Button.Cancel,
            _Button.Save,
        )
        if answer == _Button.Save:
            self.save(again)
        if answer == _Button.Discard:
            self._recovery.keep_discarded()
        return answer == _Button.Discard

    def save(self, then: Callable[[], object] = _do_nothing) -> None:
        """Save the project, then call ``then``; ask for a file name if it has none."""
        path = self._document.path
        if path is None:
            self.save_as(then)
        elif self._is_own(path) or self._ask_to_overwrite(path, then):
            self.save_to(path, then)

    def _is_own(self, path: Path) -> bool:
        """Whether a file holds what was read from it or written to it here."""
        return path == self._document.path and _version_of(path) == self._document.seen

    def _ask_to_overwrite(self, path: Path, then: Callable[[], object]) -> bool:
        """Ask what to do about a file that another program changed; true to write it anyway."""
        is_gone = not os.path.exists(path)
        box = _box(self.window())
        box.setWindowTitle("The file is gone" if is_gone else "The file has changed")
        done = "deleted or moved" if is_gone else "changed"
        box.setText(f"Another program or window has {done} {path.name} since you opened it.")
        box.setInformativeText(
            "Save your work in another file, or here again?"
            if is_gone
            else "Save your work in another file to keep both, or overwrite the file? What is "
            "overwritten stays in File › Open a backup."
        )
        another = box.addButton("Save as…", QMessageBox.ButtonRole.AcceptRole)
        here = "Save here again" if is_gone else "Overwrite"
        overwrite = box.addButton(here, QMessageBox.ButtonRole.DestructiveRole)
        box.addButton(_Button.Cancel)
        box.setDefaultButton(another)
        box.exec()
        if box.clickedButton() is another:
            self.save_as(then)
        return box.clickedButton() is overwrite

    def save_as(self, then: Callable[[], object] = _do_nothing) -> None:
        name = self._ask_save("Save the project", ".enplace", PROJECTS)
        if name:
            self.save_to(Path(name), then)

    def save_to(self, path: Path, then: Callable[[], object] = _do_nothing) -> None:
        """Write the project to a file, then call ``then``."""
        path, document = path.absolute(), self._document
        if document.project is None:
            return
        project = session.to_project(document.project, document.view)
        work, n_opened, is_own = document.work, document.n_opened, self._is_own(path)
        backups = self._recovery.backups

        def write() -> tuple[FileVersion | None, str]:
            fault = ""
            refuse_pipe(path)
            try:
                backups.add_copy(path)
            except EnplaceError as error:
                if not is_own:
                    raise FileError(
                        f"{path.name} is not overwritten, for its content cannot be kept "
                        f"({error}); save your work in another file"
                    ) from None
                fault = str(error)  # the new version matters more
            write_project(path, project)
            return _version_of(path), fault

        def finish(version: FileVersion | None, fault: str) -> None:
            if document.n_opened == n_opened:
                document.mark_saved(path, version, work)
            self.recent.add(path)
            self.done.emit(f"Saved {path.name}")
            if fault:
                self.failed.emit(f"{path.name} is saved; what it replaced is not kept: {fault}")
            then()

        self._background.start(write, lambda found: finish(*found), self._fail)

    def _ask_save(self, title: str, suffix: str, file_filter: str) -> str:
        problem = self._document.problem
        suggested = (problem.profile.name.replace("/", "-") if problem else "") + suffix
        name, chosen = QFileDialog.getSaveFileName(self.window(), title, suggested, file_filter)
        if file_filter == PICTURES and chosen:
            suffix = chosen.partition("*")[2].rstrip(")")
        return name if not name or Path(name).suffix else name + suffix

    # Exporting

    def ask_export_plan(self, entry: PlanEntry | None = None) -> None:
        """Ask for a file and write a plan of the list, or the current one, to it."""
        entry = entry or self._document.current
        if entry is not None:
            schedule, known_us = entry.schedule, self._known_us(entry)
            self.ask_write(
                "Export the plan",
                ".plan.json",
                lambda path: write_plan(path, with_bound(schedule, known_us)),
            )

    def ask_export(self, form: str, suffix: str) -> None:
        """Ask for a file and export the current schedule to it."""
        entry = self._document.current
        if entry is not None:
            text = self.exported(form, entry)
            self.ask_write("Export", suffix, lambda path: write_atomically(path, text()))

    def exported(self, form: str, entry: PlanEntry) -> Callable[[], str]:
        """Return a function for a thread, which writes a plan in a file format."""
        project, known_us = self._document.project, self._known_us(entry)
        exporter = exporters()[form]
        model = None if project is None or entry.cluster is not None else project.model
        return lambda: exporter.text(result_for(exporter, entry.schedule, model, known_us))

    def _known_us(self, entry: PlanEntry) -> float | None:
        """Return the bound that is known by now."""
        return self._document.bounds.find_us(entry.schedule.problem)

    def ask_write(
        self, title: str, suffix: str, write: Callable[[Path], object], file_filter: str = ""
    ) -> None:
        """Ask for a file name and write the file in a thread."""
        name = self._ask_save(title, suffix, file_filter or f"(*{suffix})")
        if name:
            path = Path(name)

            def write_file() -> None:
                refuse_pipe(path)
                write(path)

            self._background.start(
                write_file, lambda _: self.done.emit(f"Wrote {path.name}"), self._fail
            )

    def ask_save_picture(self, drawing: Drawing | None) -> None:
        """Ask for a file and write a view's picture to it, as SVG, PNG or PDF."""
        project = self._document.project
        if drawing is None or project is None:
            return
        title = drawing.title or f"{drawing.name} · {project.problem.profile.name}"
        if project.current is not None and not drawing.title:
            measured = project.problem.measured_profile.measured
            step = measured.title_of(ms(project.current.schedule.makespan_us))
            title += f" · {project.current.name}, {step}"
        self.ask_write(
            "Save picture of this view",
            SUFFIXES[0],
            lambda path: write_picture(path, drawing, title),
            PICTURES,
        )

    # Importing a plan

    def ask_import_plan(self) -> None:
        name, _ = QFileDialog.getOpenFileName(self.window(), "Import a plan", "", PLAN_FILTER)
        if name:
            self.import_plan(Path(name))

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

        self._background.start(lambda: _plan_or_cluster(path, project.model), add, self._fail)

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

        self._background.start(make, add, self._fail)

    def _accept_cluster(self, path: Path, cluster: Cluster) -> bool:
        """Ask whether to switch to the cluster that a plan was made for."""
        box, title = _box(self.window()), cluster_title(cluster)
        box.setWindowTitle("The plan was made for another cluster")
        box.setText(f"{path.name} uses devices of {title}, which the open cluster does not have.")
        box.setInformativeText(
            "Switch to that cluster? Plans that need the open one stay in the list."
        )
        switch = box.addButton("Switch and open the plan", QMessageBox.ButtonRole.AcceptRole)
        box.addButton(_Button.Cancel)
        box.exec()
        return box.clickedButton() is switch

    def _accept_mismatch(self, path: Path, found: PlanFile) -> bool:
        box = _box(self.window())
        box.setWindowTitle("The plan was made for another graph")
        box.setText(
            f"{path.name} does not place {count(len(found.missing), 'op')} of this model and names "
            f"{count(len(found.unknown), 'op')} that it does not have."
        )
        box.setInformativeText(
            "Place only the missing ops, next to their neighbours, and keep the rest?"
        )
        lines = [f"not placed: {name}" for name in found.missing]
        box.setDetailedText("\n".join([*lines, *(f"not in the model: {n}" for n in found.unknown)]))
        place = box.addButton("Place the missing ops", QMessageBox.ButtonRole.AcceptRole)
        box.addButton(_Button.Cancel)
        box.exec()
        return box.clickedButton() is place

    def _read_cluster(self, path: Path) -> None:
        problem = self._document.problem
        if problem is not None:
            profile = problem.measured_profile
            self._background.start(
                lambda: cluster_from(os.path.realpath(path), profile),
                self.cluster_read.emit,
                self._fail,
            )

    # Importing and exporting constraints

    def ask_export_constraints(self) -> None:
        """Ask for a file and write the constraints that hold to it."""
        problem = self._document.problem
        if problem is not None:
            self.ask_write(
                "Export constraints",
                ".constraints.json",
                lambda path: write_constraints(path, problem),
            )

    def ask_import_constraints(self) -> None:
        title = "Import constraints"
        name, _ = QFileDialog.getOpenFileName(self.window(), title, "", CONSTRAINTS)
        if name:
            self.import_constraints(Path(name))

    def import_constraints(self, path: Path) -> None:
        """Add the constraints of a file; report what it names and the model does not have."""
        problem = self._document.problem
        if problem is not None:
            self._background.start(
                lambda: read_constraints(path, problem),
                lambda found: self._add_constraints(path, problem, found),
                self._fail,
            )

    def _add_constraints(self, path: Path, read_for: Problem, found: ConstraintsFile) -> None:
        problem = self._document.problem
        if problem is None or problem.measured_profile is not read_for.measured_profile:
            return  # another model is now open
        if problem is not read_for:  # edited since
            self.import_constraints(path)
            return
        is_known = agree(found.problem, problem)
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
            f"{_few(found.unknown)}; constraints with them were left out"
        )
    if n := len(found.overruled):
        faults.append(
            f"{count(n, 'op')} {'is' if n == 1 else 'are'} pinned to another device already: "
            f"{_few(found.overruled)}; your pins stay"
        )
    return ". ".join(faults)


def _few(names: Sequence[str]) -> str:
    """List the first names."""
    more = ", …" if len(names) > MOST_NAMES else ""
    return ", ".join(names[:MOST_NAMES]) + more


def _box(parent: QWidget) -> QMessageBox:
    """Make a box that shows names of files as they are, even if they look like HTML."""
    box = QMessageBox(parent)
    box.setTextFormat(Qt.TextFormat.PlainText)
    return box


def _format_of(path: Path) -> str:
    """Return the name of the format that a JSON file begins with; empty if it names none."""
    try:
        with open_to_read(path) as file:
            found = _FORMAT.search(file.read(_HEAD_BYTES))
    except (OSError, EnplaceError):  # whoever reads it reports the fault
        return ""
    return found["name"].decode() if found else ""


def _version_of(path: Path | None) -> FileVersion | None:
    """Tell one version of a file from another; None without a file."""
    if path is None:
        return None
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def _model_in(path: Path) -> str:
    """Return the name of a project's model, or a substitute if the file is damaged."""
    try:
        return f"“{read_project(path).profile.name}”"
    except EnplaceError:
        return "its work"
