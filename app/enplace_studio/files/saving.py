"""Saving the project, and writing any other file that the user names."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from PySide6.QtWidgets import QFileDialog, QMessageBox, QWidget

from enplace.errors import EnplaceError, FileError
from enplace.files.reading import refuse_pipe
from enplace.writers import write_project
from enplace_studio.files import session
from enplace_studio.files.recovery import Recovery
from enplace_studio.files.session import RecentFiles
from enplace_studio.jobs.solver import Solver
from enplace_studio.model.can_run import model_source
from enplace_studio.model.document import Document
from enplace_studio.model.open_project import FileVersion
from enplace_studio.widgets.part import Part

PROJECTS = "Projects (*.enplace)"

_Button = QMessageBox.StandardButton


def do_nothing() -> None:
    """Follow a request after which nothing else is to be done."""


def version_of(path: Path | None) -> FileVersion | None:
    """Tell one version of a file from another; None without a file."""
    if path is None:
        return None
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


class Saving(Part):
    """Saves the project, and asks what to do about unsaved work and overwritten files."""

    def __init__(
        self,
        document: Document,
        solver: Solver,
        recent: RecentFiles,
        recovery: Recovery,
        parent: QWidget,
    ) -> None:
        super().__init__(document, parent)
        self._solver, self.recent, self.recovery = solver, recent, recovery

    def may_leave(self, again: Callable[[], object]) -> bool:
        """Return whether nothing is unsaved or being solved, or the user discards it.

        If the user chooses to save, ``again`` is called once it is saved.
        """
        if self._solver.is_asked and not self.may_abandon(
            "A search is running",
            "Leave anyway and lose what it has found so far? “Stop, keep the best” would keep it.",
        ):
            return False
        return self._may_discard(again)  # its plan may have come while the user was asked

    def _may_discard(self, again: Callable[[], object]) -> bool:
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
            self.recovery.keep_discarded()
        return answer == _Button.Discard

    def save(self, then: Callable[[], object] = do_nothing) -> None:
        """Save the project, then call ``then``; ask for a file name if it has none."""
        path = self._document.path
        if path is None:
            self.save_as(then)
        elif self._is_own(path) or self._ask_to_overwrite(path, then):
            self.save_to(path, then)

    def _is_own(self, path: Path) -> bool:
        """Whether a file holds what was read from it or written to it here."""
        return path == self._document.path and version_of(path) == self._document.seen

    def _ask_to_overwrite(self, path: Path, then: Callable[[], object]) -> bool:
        """Ask what to do about a file that another program changed; true to write it anyway."""
        is_gone = not os.path.exists(path)
        done = "deleted or moved" if is_gone else "changed"
        here = "Save here again" if is_gone else "Overwrite"
        chosen = self.choose(
            "The file is gone" if is_gone else "The file has changed",
            f"Another program or window has {done} {path.name} since you opened it.",
            "Save your work in another file, or here again?"
            if is_gone
            else "Save your work in another file to keep both, or overwrite the file? What is "
            "overwritten stays in File › Open a backup.",
            "Save as…",
            here,
        )
        if chosen == "Save as…":
            self.save_as(then)
        return chosen == here

    def save_as(self, then: Callable[[], object] = do_nothing) -> None:
        name = self._ask_save("Save the project", ".enplace", PROJECTS)
        if name:
            self.save_to(Path(name), then)

    def save_to(self, path: Path, then: Callable[[], object] = do_nothing) -> None:
        """Write the project to a file, then call ``then``."""
        path, document = path.absolute(), self._document
        if document.project is None:
            return
        project = session.to_project(document.project, document.view, proofs=document.bounds.proofs)
        work, n_opened, is_own = document.work, document.n_opened, self._is_own(path)
        backups = self.recovery.backups
        is_what_if = document.project.scale != (1.0, 1.0)
        without = ", without the what-if" if is_what_if else ""

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
            return version_of(path), fault

        def finish(version: FileVersion | None, fault: str) -> None:
            if document.n_opened == n_opened:
                document.mark_saved(path, version, work)
            self.recent.add(path)
            self.done.emit(f"Saved {path.name}{without}")
            if fault:
                self.failed.emit(f"{path.name} is saved; what it replaced is not kept: {fault}")
            then()

        self.background.start(write, lambda found: finish(*found), self.fail)

    # Any other file

    def ask_write(
        self,
        title: str,
        suffix: str,
        write: Callable[[Path], Sequence[str] | None],
        file_filter: str = "",
    ) -> None:
        """Ask for a file name and write the file in a thread; `write` may return lines to show."""
        name = self._ask_save(title, suffix, file_filter or f"(*{suffix})")
        if name:
            path = Path(name)

            def write_file() -> str:
                refuse_pipe(path)
                notes = write(path)
                written = f"Wrote {path.name}"
                return f"{written}. {' '.join(notes)}" if notes else written

            self.background.start(write_file, self.done.emit, self.fail)

    def _ask_save(self, title: str, suffix: str, file_filter: str) -> str:
        problem, source = self._document.problem, model_source(self._document) or {}
        suggested = (problem.profile.name.replace("/", "-") if problem else "") + suffix
        beside = self._document.path or Path(str(source.get("path", "")))
        if os.path.isdir(beside.parent):
            suggested = str(beside.parent / suggested)
        name, chosen = QFileDialog.getSaveFileName(self.window(), title, suggested, file_filter)
        if ";;" in file_filter and chosen:
            suffix = chosen.partition("*")[2].rstrip(")")
        return name if not name or Path(name).suffix else name + suffix
