"""Parts of a window that are not seen: they work in threads, and ask and report."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QFileDialog, QMessageBox, QWidget

from enplace.errors import EnplaceError
from enplace_studio.jobs.background import Background
from enplace_studio.model.document import Document

_ROLES = (QMessageBox.ButtonRole.AcceptRole, QMessageBox.ButtonRole.DestructiveRole)
_Result = TypeVar("_Result")


class Part(QWidget):
    """Does something for the window; a widget only so that its dialogs have a parent.

    Signals ``done`` and ``failed`` carry one line for the user.
    """

    done = Signal(str)
    failed = Signal(str)

    def __init__(self, document: Document, parent: QWidget) -> None:
        super().__init__(parent)
        self.hide()
        self._document, self.background = document, Background(self)

    def fail(self, error: EnplaceError) -> None:
        """Report an error."""
        self.failed.emit(str(error))

    def attempt(self, make: Callable[[], _Result]) -> _Result | None:
        """Return what a function returns; report an error, and return None."""
        try:
            return make()
        except EnplaceError as error:
            self.fail(error)
            return None

    def ask_file(self, title: str, file_filter: str, folder: str = "") -> Path | None:
        """Ask which file to read; None if the user cancels."""
        name, _ = QFileDialog.getOpenFileName(self.window(), title, folder, file_filter)
        return Path(name) if name else None

    def may_abandon(self, title: str, text: str) -> bool:
        """Ask whether to abandon what is running."""
        choice = QMessageBox.StandardButton
        buttons = choice.Discard | choice.Cancel
        answer = QMessageBox.question(self.window(), title, text, buttons, choice.Cancel)
        return answer == choice.Discard

    def choose(self, title: str, text: str, more: str, *choices: str, details: str = "") -> str:
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
