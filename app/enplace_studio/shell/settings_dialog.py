"""The settings: how the studio looks, how long a search takes, and where files are."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import QComboBox, QDialog, QLineEdit, QWidget

from enplace_studio.files.recovery import BACKUPS, BACKUPS_IN_ALL
from enplace_studio.model.method_facts import whole_seconds
from enplace_studio.shell.parts import Studio
from enplace_studio.solve.chosen_method import TIME_LIMITS_S
from enplace_studio.widgets.column import height_at
from enplace_studio.widgets.form import Form
from enplace_studio.widgets.labels import label
from enplace_studio.widgets.layouts import STRETCH, vbox
from enplace_studio.widgets.messages import close_row
from enplace_studio.widgets.theme import MODES, TEXT_SIZES, theme

WIDTH = 560


class SettingsDialog(QDialog):
    """Settings, which are kept at once, and facts about files.

    Attributes
    ----------
    mode, text_size, time_limit : QComboBox
    """

    def __init__(self, studio: Studio, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setWindowTitle("Settings")
        self._studio = studio
        self.mode, self.text_size, self.time_limit = QComboBox(), QComboBox(), QComboBox()
        self._fill()
        form = Form()
        self._add_looks(form)
        self._add_files(form)
        vbox(form, STRETCH, close_row(self), on=self, spacing=16, margins=(22, 18, 22, 16))
        self.setMinimumWidth(round(WIDTH * theme.scale))

    def showEvent(self, event: QShowEvent) -> None:
        """Have room for all texts that wrap, which depends on fonts that are only known now."""
        super().showEvent(event)
        if (layout := self.layout()) is not None:
            self.setMinimumHeight(height_at(layout, self.width()))

    def _fill(self) -> None:
        for mode, title in MODES.items():
            self.mode.addItem(title, mode)
        self.mode.setCurrentIndex(self.mode.findData(theme.mode))
        self.mode.activated.connect(lambda: self._studio.set_theme(self.mode.currentData()))
        for text_size, title in TEXT_SIZES.items():
            self.text_size.addItem(title, text_size)
        self.text_size.setCurrentIndex(self.text_size.findData(self._studio.text_size))
        self.text_size.activated.connect(
            lambda: self._studio.keep_text_size(self.text_size.currentData())
        )
        chosen = self._studio.chosen
        for limit in sorted({*TIME_LIMITS_S, chosen.time_limit_s}):
            self.time_limit.addItem(whole_seconds(limit), limit)
        self.time_limit.setCurrentIndex(self.time_limit.findData(chosen.time_limit_s))
        self.time_limit.activated.connect(
            lambda: chosen.set_time_limit(self.time_limit.currentData())
        )

    def _add_looks(self, form: Form) -> None:
        form.add_heading("Looks")
        form.add("Theme", self.mode)
        form.add("Text size", self.text_size, "From the next start of the studio on.")
        form.add_heading("Solving")
        form.add("Time limit", self.time_limit, "For methods that search; others end on their own.")

    def _add_files(self, form: Form) -> None:
        form.add_heading("Files")
        form.add("Unsaved work", label("Copied a second after each change, in case of a crash"))
        form.add(
            "Backups",
            _path(self._studio.recovery.backups.folder),
            f"The last {BACKUPS} of each project that was overwritten or discarded, "
            f"{BACKUPS_IN_ALL} in all; see File › Open a backup.",
        )
        form.add("Settings", _path(Path(self._studio.settings.fileName())))


def _path(path: Path) -> QLineEdit:
    """Show a path, to be read and copied."""
    shown = QLineEdit(str(path))
    shown.setReadOnly(True)
    shown.setCursorPosition(0)
    return shown
