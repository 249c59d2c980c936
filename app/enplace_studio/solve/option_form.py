"""Fields for the options of a method, made from their declarations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QCheckBox, QComboBox, QFileDialog, QLineEdit, QWidget

from enplace.option import FILE, SWITCH, Option, Value
from enplace.text import capital
from enplace_studio.widgets.form import Form
from enplace_studio.widgets.labels import plain_tip
from enplace_studio.widgets.layouts import hbox
from enplace_studio.widgets.messages import button


class OptionForm(QWidget):
    """A field for each option, with its help below.

    Attributes
    ----------
    fields : dict of str to QWidget
        By the name of the option.
    form : Form
    """

    changed = Signal()

    def __init__(self, options: Sequence[Option], values: Mapping[str, Value]) -> None:
        super().__init__()
        self.fields: dict[str, QWidget] = {}
        self._read: dict[str, Callable[[], Value]] = {}
        self._options = options
        self.form = Form()
        self.form.setContentsMargins(0, 0, 0, 0)
        for option in options:
            field = self._add_field(option, values.get(option.name, option.default))
            self.fields[option.name].setAccessibleName(option.title)
            field.setToolTip(plain_tip(option.help))
            help_text, _ = help_and_default(option)
            self.form.add(option.title, field, help_text)
        self.setLayout(self.form)

    def values(self) -> dict[str, Value]:
        """Return the values that differ from their default.

        Raises
        ------
        EnplaceError
            If a text is none of an option's values.
        """
        found = {option.name: self._read[option.name]() for option in self._options}
        return {o.name: found[o.name] for o in self._options if found[o.name] != o.default}

    def _add_field(self, option: Option, value: Value) -> QWidget:
        if option.values == SWITCH:
            return self._add_switch(option, value)
        if option.choices:
            return self._add_choice(option, value)
        return self._add_line(option, value)

    def _add_switch(self, option: Option, value: Value) -> QWidget:
        box = QCheckBox("Yes")
        box.setChecked(bool(value))
        box.toggled.connect(self.changed)
        self._read[option.name] = box.isChecked
        self.fields[option.name] = box
        return box

    def _add_choice(self, option: Option, value: Value) -> QWidget:
        box = QComboBox()
        for each in dict.fromkeys([option.default, *option.choices]):
            box.addItem(str(each) or help_and_default(option)[1], each)
        box.setCurrentIndex(box.findData(value))
        box.currentIndexChanged.connect(self.changed)
        self._read[option.name] = box.currentData
        self.fields[option.name] = box
        return box

    def _add_line(self, option: Option, value: Value) -> QWidget:
        """Add a line for a number or a file; an empty one stands for the default."""
        line = QLineEdit("" if value == option.default else str(value))
        line.setPlaceholderText(help_and_default(option)[1])
        line.textChanged.connect(self.changed)
        self.fields[option.name] = line
        self._read[option.name] = lambda: (
            option.parse(line.text().strip()) if line.text().strip() else option.default
        )
        if option.values != FILE:
            return line
        row = QWidget()
        choose = button("Choose…", lambda: self._ask_file(option, line))
        hbox((line, 1), choose, on=row, margins=(0, 0, 0, 0))
        row.setFocusProxy(line)
        return row

    def _ask_file(self, option: Option, line: QLineEdit) -> None:
        name, _ = QFileDialog.getOpenFileName(self.window(), option.title, line.text())
        if name:
            line.setText(name)


def help_and_default(option: Option) -> tuple[str, str]:
    """Return the help of an option, and its default in words."""
    help_text, _, words = option.help.partition(" [default: ")
    words = words.removesuffix("]") or str(option.default) or "none"
    return help_text, capital(words)
