"""Opening, saving, importing and exporting, with the questions that belong to them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from PySide6.QtCore import QDateTime, QLocale, Signal
from PySide6.QtWidgets import QFileDialog, QMessageBox, QWidget

from enplace.disk import write_atomically
from enplace.errors import EnplaceError
from enplace.names.groups import Grouping
from enplace.readers import PlanFile, complete_plan, read_plan, read_project
from enplace.readers.clusters import cluster_from
from enplace.readers.samples import Sample, samples
from enplace.text import count
from enplace.values.profile import Profile
from enplace.writers import write_plan
from enplace_studio import session
from enplace_studio.aside import aside
from enplace_studio.document import Document, PlanEntry
from enplace_studio.machine import is_model
from enplace_studio.session import Opened, RecentFiles, Recovery

PLAN_FILTER = "Plans (*.json)"

_Button = QMessageBox.StandardButton


class Filing(QWidget):
    """What the window does with files; a widget only so that its dialogs have a parent.

    Signals ``done`` and ``failed`` carry one line for the person.
    """

    done = Signal(str)
    failed = Signal(str)
    model_named = Signal(object)
    """The path of a model: there is no profile of it yet."""

    def __init__(
        self, document: Document, recent: RecentFiles, recovery: Recovery, parent: QWidget
    ) -> None:
        super().__init__(parent)
        self.hide()
        self._document, self.recent, self._recovery = document, recent, recovery

    # Opening

    def open_sample(self, sample: Sample) -> bool:
        """Open a bundled sample on its own cluster."""

        def read() -> Opened:
            opened = session.open_file(sample.path)
            profile = opened.state.problem.profile
            return Opened(session.first_state(profile, cluster_from(sample.cluster, profile)))

        return self._open(read)

    def open_path(self, path: Path) -> bool:
        """Open any readable file; a bundled sample opens on its own cluster."""
        if is_model(path):
            self.model_named.emit(path)
            return False
        for sample in samples():
            if sample.path == path.resolve():
                return self.open_sample(sample)
        opened = self._open(lambda: session.open_file(path))
        if opened:
            self.recent.add(path)
        return opened

    def open_profile(self, profile: Profile) -> bool:
        """Open what was just measured; no file holds it yet."""
        return self._open(lambda: session.open_profile(profile), saved=False)

    def _open(self, read: Callable[[], Opened], saved: bool = True) -> bool:
        if not self.may_leave():
            return False

        def work() -> tuple[Opened, Grouping]:
            opened = read()
            return opened, opened.grouping

        try:
            opened, grouping = aside(work)
        except EnplaceError as error:
            self.failed.emit(str(error))
            return False
        self._document.open(opened.state, opened.path, opened.view, saved, grouping)
        return True

    def close(self) -> bool:
        """Back to the start page."""
        leaving = self.may_leave()
        if leaving:
            self._document.open(None)
        return leaving

    def ask_open(self) -> None:
        name, _ = QFileDialog.getOpenFileName(self.window(), "Open", "", session.file_filter())
        if name:
            self.open_path(Path(name))

    def offer_recovery(self) -> None:
        """After a crash: ask whether to go on with what was unsaved."""
        for path in self._recovery.leftovers():
            changed = QDateTime.fromSecsSinceEpoch(int(path.stat().st_mtime))
            when = QLocale.system().toString(changed, QLocale.FormatType.ShortFormat)
            answer = QMessageBox.question(
                self.window(),
                "Unsaved work found",
                f"Enplace ended without saving{_model_in(path)}, last changed {when}. "
                f"Open the work it kept, or discard it?",
                _Button.Open | _Button.Discard | _Button.Cancel,
                _Button.Open,
            )
            if answer == _Button.Cancel:  # asks again at the next start
                return
            accepted = answer == _Button.Open
            if accepted and not self._recover(path):
                return
            path.unlink(missing_ok=True)
            if accepted:
                return

    def _recover(self, path: Path) -> bool:
        def read() -> Opened:
            opened = session.open_file(path)
            return Opened(opened.state, None, opened.view)

        return self._open(read, saved=False)

    # Saving

    def may_leave(self) -> bool:
        """Whether unsaved work is saved, or the person gives it up."""
        if not self._document.modified:
            return True
        answer = QMessageBox.question(
            self.window(),
            "Unsaved work",
            "Save the changes to this project first?",
            _Button.Save | _Button.Discard | _Button.Cancel,
            _Button.Save,
        )
        return self.save() if answer == _Button.Save else answer == _Button.Discard

    def save(self) -> bool:
        """Write the project; asks for a name where it has none yet."""
        path = self._document.path
        return self.save_to(path) if path else self.save_as()

    def save_as(self) -> bool:
        name = self._ask_save("Save the project", ".enplace", "Projects (*.enplace)")
        return bool(name) and self.save_to(Path(name))

    def save_to(self, path: Path) -> bool:
        """Write the project to a file."""
        try:
            session.save(self._document, path)
        except EnplaceError as error:
            self.failed.emit(str(error))
            return False
        self.recent.add(path)
        self.done.emit(f"Saved {path.name}")
        return True

    def _ask_save(self, title: str, suffix: str, file_filter: str) -> str:
        assert self._document.problem is not None
        suggested = self._document.problem.profile.name.replace("/", "-") + suffix
        name, _ = QFileDialog.getSaveFileName(self.window(), title, suggested, file_filter)
        return name if not name or Path(name).suffix else name + suffix

    # Plans

    def ask_export_plan(self, entry: PlanEntry | None = None) -> None:
        """Ask where to write a plan of the list, or the current one."""
        self.ask_write("Export the plan", ".plan.json", lambda path: self.export_plan(path, entry))

    def export_plan(self, path: Path, entry: PlanEntry | None = None) -> None:
        """Write ``plan.json`` for teammates and training scripts."""
        entry = entry or self._document.current
        assert entry is not None
        plan, schedule = entry.plan, entry.schedule
        aside(lambda: write_plan(path, schedule.problem, plan, schedule))

    def ask_export(self, form: str, suffix: str) -> None:
        """Write the current schedule for another program or another person."""
        from enplace.frameworks.registry import exporters

        def export(path: Path) -> None:
            schedule = self._document.schedule
            assert schedule is not None
            aside(lambda: write_atomically(path, exporters()[form].write(schedule)))

        self.ask_write("Export", suffix, export)

    def ask_write(self, title: str, suffix: str, write: Callable[[Path], None]) -> None:
        """Ask for a file's name and write it."""
        name = self._ask_save(title, suffix, f"(*{suffix})")
        if not name:
            return
        try:
            write(Path(name))
        except EnplaceError as error:
            self.failed.emit(str(error))
        else:
            self.done.emit(f"Wrote {Path(name).name}")

    def ask_import_plan(self) -> None:
        name, _ = QFileDialog.getOpenFileName(self.window(), "Import a plan", "", PLAN_FILTER)
        if name:
            self.import_plan(Path(name))

    def import_plan(self, path: Path) -> bool:
        """Add the plan of a file; ask what to do where it was made for another graph."""
        state = self._document.state
        assert state is not None
        try:
            found = aside(lambda: read_plan(path, state.model))
            if (found.missing or found.unknown) and not self._accept_mismatch(path, found):
                return False
            plan = aside(lambda: complete_plan(found.problem, found))
            entry = session.entry_for(found.problem, path.stem, plan, path.name)
        except EnplaceError as error:
            self.failed.emit(str(error))
            return False
        return self._document.add_plan(entry)

    def _accept_mismatch(self, path: Path, found: PlanFile) -> bool:
        box = QMessageBox(self.window())
        box.setWindowTitle("The plan was made for another graph")
        box.setText(
            f"{path.name} does not place {count(len(found.missing), 'op')} of this model and names "
            f"{count(len(found.unknown), 'op')} that it does not have."
        )
        box.setInformativeText(
            "Place only the missing ops, beside their neighbours, and keep the rest?"
        )
        lines = [f"not placed: {name}" for name in found.missing]
        box.setDetailedText("\n".join([*lines, *(f"not in the model: {n}" for n in found.unknown)]))
        place = box.addButton("Place the missing ops", QMessageBox.ButtonRole.AcceptRole)
        box.addButton(_Button.Cancel)
        box.exec()
        return box.clickedButton() is place


def _model_in(path: Path) -> str:
    """The model of a project, for a sentence; nothing where the file is damaged."""
    try:
        return f" “{aside(lambda: read_project(path)).profile.name}”"
    except EnplaceError:
        return " its work"
