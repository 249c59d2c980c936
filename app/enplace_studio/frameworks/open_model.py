"""The dialog that opens a model: which one, its options, and the devices to profile it on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PySide6.QtCore import Qt
from PySide6.QtWidgets import (
    QComboBox,
    QDialog,
    QFileDialog,
    QLineEdit,
    QWidget,
)

from enplace.errors import EnplaceError
from enplace.frameworks.framework import Framework, ModelKind
from enplace.frameworks.registry import frameworks, kinds, suffixes
from enplace.frameworks.source import Source, check_batch_sizes, source_of
from enplace.option import Option, merge, read_values
from enplace_studio.frameworks.devices import DeviceChoice
from enplace_studio.frameworks.option_fields import field_of, offer, value_of
from enplace_studio.widgets.form import Form, number_field
from enplace_studio.widgets.labels import label, paragraph, set_role
from enplace_studio.widgets.layouts import STRETCH, hbox, vbox
from enplace_studio.widgets.messages import DialogButtons, button
from enplace_studio.widgets.theme import theme

WIDTH = 560
STEPS, WARM_UPS = 100, 10
MOST_STEPS = 10_000
ESTIMATE = "estimate"
"""The option of models whose times can be estimated instead of measured."""


@dataclass(frozen=True)
class ProfileRequest:
    """The model to profile, the devices and the number of steps."""

    source: Source
    devices: str
    steps: int
    warm_ups: int
    batch_sizes: tuple[int, ...]


class OpenModel(QDialog):
    """Asks for a model; once accepted, :attr:`request` holds what to profile."""

    def __init__(self, path: Path | None, parent: QWidget) -> None:
        super().__init__(parent)
        self.setWindowTitle("Open a model")
        self.setMinimumWidth(round(WIDTH * theme.scale))
        self.request: ProfileRequest | None = None
        self.path = QLineEdit(placeholderText="The model’s file or folder")
        self.path.setAccessibleName("Model")
        self.what = paragraph("")
        declared = merge(*(kind.fields for kind in kinds()))
        self.fields = {key: field_of(option) for key, option in declared.items()}
        self.devices = DeviceChoice()
        self.steps = number_field(1, MOST_STEPS, STEPS)
        self.warm_ups = number_field(0, MOST_STEPS, WARM_UPS)
        self.batch_sizes = QLineEdit(placeholderText="only the model’s own")
        self._buttons = DialogButtons(self, "Profile")
        self.profile_button = self._buttons.accept
        self.profile_button.setDefault(True)
        self.heading = label("Profile it", "title")
        self.heading.setContentsMargins(0, 8, 0, 0)
        self.hint = paragraph(
            "From several small batch sizes, such as 8, 16, 32, Enplace estimates a batch that is "
            "too large for one device. In a script’s arguments, {batch} stands for the size."
        )
        self.form = Form()
        self._lay_out(declared)
        self.path.textChanged.connect(self._show_kind)
        estimate = self.fields.get(ESTIMATE)
        if isinstance(estimate, QComboBox):
            estimate.editTextChanged.connect(self._show_measuring)
        self.path.setText(str(path) if path else "")
        self._show_kind()

    # Construction

    def _lay_out(self, declared: Mapping[str, Option]) -> None:
        files = button("File…", self._ask_file), button("Folder…", self._ask_folder)
        self._fill_form(declared)
        self.missing = label("")
        self.missing.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        choose, end = hbox((self.path, 1), *files), (STRETCH, 0)
        parts = choose, self.what, self.form, self.missing, end, self._buttons
        vbox(*parts, on=self, spacing=12, margins=(20, 20, 20, 16))

    def _fill_form(self, declared: Mapping[str, Option]) -> None:
        """Add the fields of the model, then those of the measurement."""
        of_profile: tuple[tuple[str, QWidget], ...] = (
            ("Devices", self.devices),
            ("Traced steps", self.steps),
            ("Warm-ups", self.warm_ups),
            ("Batch sizes", self.batch_sizes),
            ("", self.hint),
        )
        for key, shown in self.fields.items():
            self.form.add(declared[key].title, shown)
        self.form.addRow(self.heading)
        for name, field in of_profile:
            self.form.add(name, field)

    # The choices

    def _ask_file(self) -> None:
        pattern = " ".join(f"*{suffix}" for suffix in suffixes())
        name, _ = QFileDialog.getOpenFileName(
            self, "Open a model", self._start(), f"Models ({pattern});;All files (*)"
        )
        if name:
            self.path.setText(name)

    def _ask_folder(self) -> None:
        if name := QFileDialog.getExistingDirectory(self, "Open a model", self._start()):
            self.path.setText(name)

    def _start(self) -> str:
        """Return the folder in which a file dialog starts."""
        return str(Path(self.path.text()).parent) if self.path.text() else ""

    def _show_kind(self) -> None:
        """Show the kind of the chosen model, and the options of that kind."""
        source, why = self._source({})
        kind = source.model_kind if source else None
        set_role(self.what, "bad" if why else "dim")
        self.what.setText(why or (kind.description if kind else _what_can_be_opened()))
        self._show_fields(kind.fields if kind else ())
        if source is not None and not source.is_recorded:
            self.devices.offer(source.framework)
        is_recorded = kind is not None and kind.is_recorded
        self._show_measuring()
        self.profile_button.setText("Open" if is_recorded else "Profile")
        usable = [source.framework] if source else list(frameworks().values())
        is_usable = self._show_missing(usable)
        self.profile_button.setEnabled(source is not None and is_usable)
        self.adjustSize()

    def _show_fields(self, declared: Sequence[Option]) -> None:
        """Show the fields of a kind of model, each with what stands for an empty one."""
        options = {option.key: option for option in declared}
        for key, field in self.fields.items():
            self.form.setRowVisible(field, key in options)
            if key in options:
                offer(field, options[key])

    def _show_missing(self, usable: Sequence[Framework]) -> bool:
        """Explain how to install a framework unless one is; return whether one is."""
        is_usable = any(framework.is_installed for framework in usable)
        states = "\n".join(framework.state for framework in usable)
        self.missing.setText(f"{states}\nThen open the model again.")
        self.missing.setHidden(is_usable)
        return is_usable

    def _show_measuring(self) -> None:
        """Show the fields of the measurement, unless the model is recorded or only estimated."""
        source, _ = self._source({})
        measures = source is not None and not source.is_recorded and not self._is_estimated(source)
        of_batch = measures and source is not None and source.framework.estimates_batches
        for field in (self.heading, self.devices, self.steps, self.warm_ups):
            self.form.setRowVisible(field, measures)
        self.form.setRowVisible(self.batch_sizes, of_batch)
        self.form.setRowVisible(self.hint, of_batch)

    def _is_estimated(self, source: Source) -> bool:
        """Whether op times are to come from a GPU's figures instead of a measurement."""
        declared = {option.key for option in source.model_kind.fields}
        return ESTIMATE in declared and bool(value_of(self.fields[ESTIMATE]))

    def _source(self, options: dict[str, object]) -> tuple[Source | None, str]:
        """Return the chosen model, or why it is not valid; neither if the field is empty."""
        text = self.path.text().strip()
        if not text:
            return None, ""
        try:
            return source_of(text, **options), ""
        except EnplaceError as error:
            return None, f"{error}."

    def _options(self, kind: ModelKind) -> dict[str, Any]:
        """Return what is said of a model of some kind.

        Raises
        ------
        EnplaceError
            If a text is none of an option's values.
        """
        said = {option.key: value_of(self.fields[option.key]) for option in kind.fields}
        return read_values(kind.fields, said, kind.name)

    def accept(self) -> None:
        """Accept the input, or show what is wrong with it."""
        source, why = self._source({})
        try:
            if source is not None:
                source, why = self._source(self._options(source.model_kind))
            is_asked = self.form.isRowVisible(self.batch_sizes)
            sizes = _whole_numbers(self.batch_sizes.text() if is_asked else "")
            if source is not None and sizes:
                check_batch_sizes(source, sizes)
        except (ValueError, EnplaceError) as error:
            source, why = None, str(error)
        if source is None:
            set_role(self.what, "bad")
            self.what.setText(why)
            return
        self.request = ProfileRequest(
            source, self.devices.text, self.steps.value(), self.warm_ups.value(), sizes
        )
        super().accept()


def _whole_numbers(text: str) -> tuple[int, ...]:
    """Read numbers separated by commas or spaces.

    Raises
    ------
    ValueError
        With a sentence for the user.
    """
    words = text.replace(",", " ").split()
    if wrong := [word for word in words if not word.isdigit() or int(word) == 0]:
        raise ValueError(f"Batch sizes are whole numbers such as 8, 16, 32, not “{wrong[0]}”.")
    return tuple(map(int, words))


def _what_can_be_opened() -> str:
    models = "; ".join(framework.models for framework in frameworks().values())
    return f"{models[:1].upper()}{models[1:]}. Drop it on the window, or choose it here."
