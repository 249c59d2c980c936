"""Copies of unsaved work, for recovery after a crash, and dated backups of what was replaced."""

from __future__ import annotations

import glob
import logging
import os
import secrets
import time
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from PySide6.QtCore import QObject, QThreadPool, QTimer, Signal

from enplace.errors import EnplaceError, FileError
from enplace.files.folders import find_files, make_private_folder
from enplace.files.locks import hold_lock, is_abandoned
from enplace.files.reading import MAX_ARCHIVE_BYTES
from enplace.files.writing import remove_abandoned_files, shortened_name, write_atomically
from enplace.readers import Project
from enplace.system import yield_to_main_thread
from enplace.text import size
from enplace.writers import write_project
from enplace_studio.files.session import to_project
from enplace_studio.jobs.call_later import is_editing
from enplace_studio.model.document import Document
from enplace_studio.model.open_project import OpenProject

log = logging.getLogger(__name__)

AUTOSAVE_MS, LATEST_S = 400, 10.0
"""Time from the first change that is not in the copy to the next copy, in a pause and at most."""

RETRY_MS = 10_000
"""Time from a copy that could not be written to the next try."""

DISCARDED = "discarded"
"""Name of the backups of work that was never saved."""

BACKUPS, BACKUPS_IN_ALL, BACKUP_BYTES = 10, 100, 8 << 30
"""Most backups of one file, and of all, and the most room for all."""


class Backups:
    """The newest projects that were overwritten or discarded, each with its date; no Qt."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with suppress(EnplaceError):  # a backup reports the fault
            make_private_folder(folder)
        remove_abandoned_files(folder)

    def add_copy(self, path: Path) -> None:
        """Copy a project that is about to be overwritten, if there is one.

        Raises
        ------
        FileError
            If it cannot be copied, or is larger than any project.
        """
        if not os.path.isfile(path):
            return
        path = path.absolute()
        name = f"{shortened_name(path.stem)} in {shortened_name(path.parent.name)}"
        try:
            if path.stat().st_size > MAX_ARCHIVE_BYTES:
                raise FileError(f"{path}: larger than {size(MAX_ARCHIVE_BYTES)}")
            content = path.read_bytes()  # as it is, whatever it is
        except OSError as error:
            raise FileError(f"{path}: cannot read: {error.strerror}") from None
        write_atomically(self._new(name), content)
        self._prune(name)

    def add(self, path: Path) -> None:
        """Turn a copy of unsaved work into a backup, if there is one."""
        try:
            if os.path.exists(path):
                new = self._new(DISCARDED)
                os.replace(path, new)
                os.utime(new)  # it counts from now, however old the work is
        except OSError as error:
            log.warning("backup: %s", error)
        self._prune(DISCARDED)

    def _new(self, name: str) -> Path:
        """Return the file of a new backup."""
        first = f"{name} {datetime.now():%Y-%m-%d %H.%M.%S}"
        names = (first, *(f"{first} ({number})" for number in range(2, BACKUPS + 2)))
        new = [self.folder / f"{each}.enplace" for each in names]
        return next((file for file in new if not os.path.exists(file)), new[-1])

    def _prune(self, name: str) -> None:
        """Remove the oldest backups of a name, and of all, where there are too many."""
        for files, most in ((f"{glob.escape(name)} ????-??-?? *", BACKUPS), ("*", BACKUPS_IN_ALL)):
            try:
                copies = find_files(self.folder, f"{files}.enplace")
                found = [(each.stat(), each) for each in copies]
                left_bytes = BACKUP_BYTES
                found.sort(key=lambda each: each[0].st_mtime, reverse=True)
                for number, (status, file) in enumerate(found):
                    left_bytes -= status.st_size
                    if number >= most or (number and left_bytes < 0):
                        file.unlink(missing_ok=True)
            except OSError as error:  # another window does the same
                log.warning("backup: %s", error)


class Recovery(QObject):
    """Keeps a copy of unsaved work on disk, and finds copies that a crash left behind.

    Each running studio holds a lock next to its copy; a copy without a lock is from a crash.
    Signal ``failed`` carries one line for the user when unsaved work cannot be copied any more.

    Attributes
    ----------
    backups : Backups
    """

    failed = Signal(str)
    _tried = Signal(str)

    def __init__(self, document: Document, folder: Path) -> None:
        super().__init__(document)
        self._document, self._folder = document, folder
        with suppress(EnplaceError):  # writing the copy reports the fault
            make_private_folder(folder)
        self.backups = Backups(folder / "backups")
        remove_abandoned_files(folder)
        for lock in find_files(folder, "*.lock"):
            if not os.path.exists(lock.with_suffix("")) and is_abandoned(lock):
                with suppress(OSError):
                    lock.unlink(missing_ok=True)
        self._file = folder / f"{secrets.token_hex(8)}.enplace"
        self._lock: int | None = None
        self._recovered: Path | None = None
        self._kept: OpenProject | None = None
        self._fault = ""
        self._tried.connect(self._note_fault)
        self._pool = QThreadPool(self)
        self._pool.setMaxThreadCount(1)
        self._timer = QTimer(self, interval=AUTOSAVE_MS, singleShot=True)
        self._timer.timeout.connect(self._write_next)
        self._changed_s = 0.0
        """When that change was made."""
        for signal in (document.problem_changed, document.plans_changed, document.file_changed):
            signal.connect(self._note_change)

    def _note_change(self) -> None:
        """Plan the next copy. Later changes do not delay it."""
        if not self._timer.isActive():
            self._changed_s = time.monotonic()
            self._timer.start()

    def _write_next(self) -> None:
        """Write the next copy, unless the user edits or the last one is being written."""
        is_late = time.monotonic() - self._changed_s > LATEST_S
        if self._pool.activeThreadCount() or (is_editing() and not is_late):
            self._timer.start()
        else:
            self.write()

    def write(self) -> None:
        """Write the copy in the background, or remove it if everything is saved."""
        opened = self._document.project
        if opened is None or not self._document.modified:
            self._pool.start(self._remove)
        else:
            project, recovered = self._project_of(opened), self._recovered
            self._pool.start(lambda: self._write(project, recovered))

    def _project_of(self, opened: OpenProject) -> Project:
        document = self._document
        return to_project(
            opened, document.view, document.path, document.seen, document.bounds.proofs
        )

    def _write(self, project: Project, recovered: Path | None = None) -> None:
        """Write the copy; then the one that was recovered may go, if its work is in this one."""
        yield_to_main_thread()
        try:
            if self._lock is None:  # without it, another window would take this work for lost
                self._lock = hold_lock(_lock_of(self._file))
            write_project(self._file, project, packed=False)  # soon, for large models too
        except EnplaceError as error:
            log.warning("autosave: %s", error)
            self._tried.emit(str(error))
        else:
            if recovered is not None:
                _remove_copy(recovered)
            self._tried.emit("")

    def _note_fault(self, fault: str) -> None:
        """Tell the user about the first fault of several, and try again later."""
        if fault and not self._fault:
            self.failed.emit(f"A crash would lose your unsaved work: {fault}")
        if fault:
            QTimer.singleShot(RETRY_MS, self, self._note_change)
        self._fault = fault

    def _remove(self) -> None:
        """Remove the copies: their work is in a file, or was discarded."""
        with suppress(OSError):
            self._file.unlink(missing_ok=True)
        if self._recovered is not None:
            _remove_copy(self._recovered)
        self._tried.emit("")

    def keep_discarded(self) -> None:
        """Turn unsaved work into a backup, before other work takes its place."""
        opened = self._document.project
        if opened is not None and opened is not self._kept and self._document.modified:
            self._kept = opened
            project = self._project_of(opened)
            recovered = self._recovered
            self._pool.start(lambda: self._write_backup(project, recovered))

    def _write_backup(self, project: Project, recovered: Path | None) -> None:
        self._write(project, recovered)
        self.backups.add(self._file)
        if recovered is not None:  # still there if the disk is full
            self.backups.add(recovered)
        self._write(project)  # until other work is open: what is wanted instead may be damaged

    def leftovers(self) -> list[Path]:
        """Return the copies that a crash left behind, newest first."""
        copies = [path for path in find_files(self._folder, "*.enplace") if path != self._file]
        left = [path for path in copies if is_abandoned(_lock_of(path))]
        return sorted(left, key=last_written_s, reverse=True)

    def take_over(self, copy: Path) -> None:
        """Remove a recovered copy as soon as its work is on disk elsewhere."""
        self._recovered = copy
        self.write()

    def close(self) -> None:
        """End with the work saved, or else discarded, which leaves a backup."""
        self._timer.stop()
        self.keep_discarded()
        self._pool.waitForDone()
        self._remove()
        if self._lock is not None:
            _lock_of(self._file).unlink(missing_ok=True)
            os.close(self._lock)


def _lock_of(copy: Path) -> Path:
    return copy.with_name(f"{copy.name}.lock")


def last_written_s(path: Path) -> float:
    """Return when a file was last written, in seconds since 1970; 0 if it has gone."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _remove_copy(copy: Path) -> None:
    for path in (copy, _lock_of(copy)):
        with suppress(OSError):
            path.unlink(missing_ok=True)
