"""Forms: fields with their names and help."""

from __future__ import annotations

from PySide6.QtCore import QRect, Qt
from PySide6.QtWidgets import (
    QCheckBox,
    QFormLayout,
    QLabel,
    QLineEdit,
    QSizePolicy,
    QSpinBox,
    QWidget,
)

from enplace_studio.widgets.labels import label, paragraph
from enplace_studio.widgets.layouts import vbox
from enplace_studio.widgets.wheel import scroll_past


def number_field(low: int, high: int, value: int) -> QSpinBox:
    """Make a field for a whole number; once it has the focus, arrow keys and wheel change it."""
    made = QSpinBox(minimum=low, maximum=high, value=value)
    made.setGroupSeparatorShown(True)
    made.lineEdit().setTextMargins(7, 0, 7, 0)  # the style sheet's padding does not apply to it
    scroll_past(made)
    return made


class Form(QFormLayout):
    """A form with names on the left and fields as wide as possible on the right."""

    def __init__(self) -> None:
        super().__init__()
        self.setHorizontalSpacing(16)
        self.setVerticalSpacing(8)
        self.setLabelAlignment(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignTop)
        self.setFieldGrowthPolicy(QFormLayout.FieldGrowthPolicy.AllNonFixedFieldsGrow)

    def add(self, name: str, field: QWidget, help_text: str = "") -> None:
        """Add a row, its name vertically centred on the field, with a help text below."""
        scroll_past(field)
        if not help_text:
            if isinstance(field, QCheckBox):  # its row is as high as its neighbours
                field.setMinimumHeight(QLineEdit().sizeHint().height())
            self.addRow(_name_of(name, field), field)
            return
        self.addRow(_name_of(name, field), vbox(field, paragraph(help_text), spacing=3))

    def add_heading(self, text: str) -> None:
        """Add a heading above the next rows."""
        shown = label(text, "title")
        shown.setMinimumHeight(shown.sizeHint().height() + (14 if self.rowCount() else 0))
        shown.setAlignment(Qt.AlignmentFlag.AlignBottom)
        self.addRow(shown)

    def add_first(self, name: str, field: QWidget) -> None:
        """Add a row above all others."""
        scroll_past(field)
        self.insertRow(0, _name_of(name, field), field)

    def setGeometry(self, place: QRect) -> None:
        if place.width() != self.geometry().width():
            self.invalidate()  # Qt would keep the heights that texts had at another width
        super().setGeometry(place)


def _name_of(name: str, field: QWidget) -> QLabel:
    shown = label(name)
    shown.setMinimumHeight(max(field.sizeHint().height(), field.minimumHeight()))
    shown.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Fixed)
    shown.setBuddy(field)
    return shown
