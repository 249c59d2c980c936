"""Fields of a form for what kinds of models and frameworks declare as options."""

from __future__ import annotations

from typing import Any

from PySide6.QtWidgets import QCheckBox, QComboBox, QLineEdit, QSpinBox

from enplace.option import MAX_SIZE, SWITCH, TEXT, WHOLE, Option
from enplace_studio.widgets.form import number_field

Field = QLineEdit | QComboBox | QSpinBox | QCheckBox


def field_of(option: Option) -> Field:
    """Make the field of an option; in a list of values, others can be typed."""
    if option.values == SWITCH:
        switch = QCheckBox("Yes")
        switch.setChecked(bool(option.default))
        return switch
    if option.values == WHOLE:
        return number_field(0, option.most or MAX_SIZE, 0)
    is_list = bool(option.choices) or (option.values == TEXT and bool(option.suggested))
    return QComboBox(editable=True) if is_list else QLineEdit()


def offer(field: Field, option: Option) -> None:
    """Show what stands for an empty field, offer an option's values, and keep what is typed."""
    empty = option.help.partition(" [default: ")[2].removesuffix("]") or str(option.default or "")
    if isinstance(field, QSpinBox):
        field.setSpecialValueText(empty)
    elif isinstance(field, QLineEdit):
        field.setPlaceholderText(empty or "".join(option.suggested[:1]))
    elif isinstance(field, QComboBox):
        typed = field.currentText()
        field.clear()
        field.addItems([*(option.choices or option.suggested)])
        field.setCurrentIndex(-1)
        field.setEditText(typed)
        if (line := field.lineEdit()) is not None:
            line.setPlaceholderText(empty)


def value_of(field: Field) -> Any:
    """Return what is in a field; None or an empty text if nothing is."""
    if isinstance(field, QSpinBox):
        return field.value() or None
    if isinstance(field, QCheckBox):
        return field.isChecked()
    return (field.currentText() if isinstance(field, QComboBox) else field.text()).strip()
