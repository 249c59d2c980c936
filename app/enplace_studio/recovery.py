"""Copies of unsaved work, for recovery after a crash, and dated backups of what was replaced."""

from __future__ import annotations

import glob
import logging
import os
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from PySide6.QtCore import QLockFile, QObject, QThreadPool, QTimer, Signal

from enplace.disk import (
    MAX_ARCHIVE_BYTES,
    make_private_folder,
    read_bytes,
    shortened_name,
    write_atomically,
)
from enplace.errors import EnplaceError
from enplace.readers import Project
from enplace.writers import write_project
from enplace_studio.document import Document
from enplace_studio.project import OpenProject
from enplace_studio.session import to_project

log = logging.getLogger(__name__)

AUTOSAVE_MS = 300
"""Time from the first change that is not in the copy to the next copy."""

RETRY_MS = 10_000
"""Time from a copy that could not be written to the next try."""

DISCARDED = "discarded"
"""Name of the backups of work that was never saved."""

BACKUPS, BACKUPS_IN_ALL = 10, 100
"""Most backups of files with one name, and of all files."""


class Backups:
    """The newest projects that were overwritten or discarded, each with its date; no Qt."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with suppress(EnplaceError):  # a backup reports the fault
            make_private_folder(folder)

    def add_copy(self, path: Path) -> None:
        """Copy a project that is about to be overwritten, if there is one.

        Raises
        ------
        FileError
            If it cannot be copied.
        """
        if not path.is_file():
            return
        name = shortened_name(path.stem)
        write_atomically(self._new(name), read_bytes(path, MAX_ARCHIVE_BYTES))
        self._prune(name)

    def add(self, path: Path) -> None:
        """Turn a copy of unsaved work into a backup, if there is one."""
        try:
            if path.exists():
                os.replace(path, self._new(DISCARDED))
        except OSError as error:
            log.warning("backup: %s", error)
        self._prune(DISCARDED)

    def _new(self, name: str) -> Path:
        """Return the file of a new backup."""
        first = f"{name} {datetime.now():%Y-%m-%d %H.%M.%S}"
        names = (first, *(f"{first} ({number})" for number in range(2, BACKUPS + 2)))
        new = [self.folder / f"{each}.enplace" for each in names]
        return next((file for file in new if not file.exists()), new[-1])

    def _prune(self, name: str) -> None:
        """Remove the oldest backups of a name, and of all, where there are too many."""
        for files, most in ((f"{glob.escape(name)} ????-??-?? *", BACKUPS), ("*", BACKUPS_IN_ALL)):
            try:
                found = self.folder.glob(f"{files}.enplace")
                old = sorted(found, key=lambda file: file.stat().st_mtime)
                for file in old[: max(0, len(old) - most)]:
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
        for lock in folder.glob("*.lock"):
            _is_abandoned(lock.with_suffix(""))
        self._file = folder / f"{os.getpid()}-{id(self):x}.enplace"
        self._recovered: Path | None = None
        self._kept: OpenProject | None = None
        self._fault = ""
        self._tried.connect(self._note_fault)
        self._lock = _lock_of(self._file)
        self._lock.tryLock(0)
        self._pool = QThreadPool(self)
        self._pool.setMaxThreadCount(1)
        self._timer = QTimer(self, interval=AUTOSAVE_MS, singleShot=True)
        self._timer.timeout.connect(self._write_next)
        for signal in (document.problem_changed, document.plans_changed, document.file_changed):
            signal.connect(self._note_change)

    def _note_change(self) -> None:
        """Plan the next copy. Later changes do not delay it."""
        if not self._timer.isActive():
            self._timer.start()

    def _write_next(self) -> None:
        """Write the next copy, unless the last one is still being written; then try again."""
        if self._pool.activeThreadCount():
            self._timer.start()
        else:
            self.write()

    def write(self) -> None:
        """Write the copy in the background, or remove it if everything is saved."""
        opened = self._document.project
        if opened is None or not self._document.modified:
            self._pool.start(self._remove)
        else:
            project = to_project(
                opened, self._document.view, self._document.path, self._document.seen
            )
            self._pool.start(lambda: self._write(project))

    def _write(self, project: Project) -> None:
        try:
            write_project(self._file, project, packed=False)  # soon, for large models too
        except EnplaceError as error:
            log.warning("autosave: %s", error)
            self._tried.emit(str(error))
        else:
            self._drop_recovered()
            self._tried.emit("")

    def _note_fault(self, fault: str) -> None:
        """Tell the user about the first fault of several, and try again later."""
        if fault and not self._fault:
            self.failed.emit(f"A crash would lose your unsaved work: {fault}")
        if fault:
            QTimer.singleShot(RETRY_MS, self, self._note_change)
        self._fault = fault

    def _remove(self) -> None:
        self._file.unlink(missing_ok=True)
        self._drop_recovered()
        self._tried.emit("")

    def _drop_recovered(self) -> None:
        """Remove the copy that was recovered: its work is in the new copy, or in a file."""
        if self._recovered is not None:
            self._recovered.unlink(missing_ok=True)
            self._recovered = None

    def keep_discarded(self) -> None:
        """Turn unsaved work into a backup, before other work takes its place."""
        opened = self._document.project
        if opened is not None and opened is not self._kept and self._document.modified:
            self._kept = opened
            project = to_project(
                opened, self._document.view, self._document.path, self._document.seen
            )
            self._pool.start(lambda: self._write_backup(project))

    def _write_backup(self, project: Project) -> None:
        self._write(project)
        self.backups.add(self._file)
        self._write(project)  # until other work is open: what is wanted instead may be damaged

    def leftovers(self) -> list[Path]:
        """Return the copies that a crash left behind, newest first."""
        copies = [path for path in self._folder.glob("*.enplace") if path != self._file]
        left = [path for path in copies if _is_abandoned(path)]
        return sorted(left, key=lambda path: path.stat().st_mtime, reverse=True)

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
        self._lock.unlock()


def _lock_of(path: Path) -> QLockFile:
    lock = QLockFile(f"{path}.lock")
    lock.setStaleLockTime(0)  # valid as long as its process lives, however old
    return lock


def _is_abandoned(path: Path) -> bool:
    """Return whether no running studio holds the lock of a copy; remove an abandoned lock."""
    lock = _lock_of(path)
    free = lock.tryLock(0)
    if free:
        lock.unlock()
    return free
