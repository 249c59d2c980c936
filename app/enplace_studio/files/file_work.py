"""What all work with files shares: a thread, dialogs, and lines for the user."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QFileDialog, QMessageBox, QWidget

from enplace.errors import EnplaceError
from enplace_studio.jobs.background import Background
from enplace_studio.model.document import Document
from enplace_studio.model.open_project import FileVersion

PROJECTS = "Projects (*.enplace)"
MOST_NAMES = 3
"""Most names in a message."""

_ROLES = (QMessageBox.ButtonRole.AcceptRole, QMessageBox.ButtonRole.DestructiveRole)


def do_nothing() -> None:
    """Follow a request after which nothing else is to be done."""


class FileWork(QWidget):
    """Reads and writes in a thread; a widget only so that its dialogs have a parent.

    Signals ``done`` and ``failed`` carry one line for the user.
    """

    done = Signal(str)
    failed = Signal(str)

    def __init__(self, document: Document, parent: QWidget) -> None:
        super().__init__(parent)
        self.hide()
        self._document, self.background = document, Background(self)

    def _fail(self, error: EnplaceError) -> None:
        self.failed.emit(str(error))

    def _ask_file(self, title: str, file_filter: str, folder: str = "") -> Path | None:
        """Ask which file to read; None if the user cancels."""
        name, _ = QFileDialog.getOpenFileName(self.window(), title, folder, file_filter)
        return Path(name) if name else None

    def _choose(self, title: str, text: str, more: str, *choices: str, details: str = "") -> str:
        """Ask the user to choose; return the choice, or an empty text if the user cancels."""
        box = QMessageBox(self.window())
        box.setTextFormat(Qt.TextFormat.PlainText)  # names of files may look like HTML
        box.setWindowTitle(title)
        box.setText(text)
        box.setInformativeText(more)
        box.setDetailedText(details)
        buttons = {box.addButton(c, role): c for c, role in zip(choices, _ROLES, strict=False)}
        box.addButton(QMessageBox.StandardButton.Cancel)
        box.setDefaultButton(next(iter(buttons)))
        box.exec()
        return next((c for each, c in buttons.items() if each is box.clickedButton()), "")


def few(names: Sequence[str]) -> str:
    """List the first names."""
    more = ", …" if len(names) > MOST_NAMES else ""
    return ", ".join(names[:MOST_NAMES]) + more


def version_of(path: Path | None) -> FileVersion | None:
    """Tell one version of a file from another; None without a file."""
    if path is None:
        return None
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
