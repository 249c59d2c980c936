"""Fields of forms."""

from PySide6.QtWidgets import QComboBox, QLineEdit, QWidget

from enplace_studio.widgets.form import number_field
from enplace_studio.widgets.layouts import hbox
from enplace_studio.widgets.style import make_sheet
from enplace_studio.widgets.theme import theme


def ink(row, field):
    """Return the first and last line of pixels with a digit in a field."""
    image, place = row.grab().toImage(), field.geometry().adjusted(4, 4, -4, -4)
    columns = range(place.left(), min(place.left() + 30, place.right()))
    lines = [
        y
        for y in range(place.top(), place.bottom())
        if any(image.pixelColor(x, y).lightness() < 120 for x in columns)
    ]
    return lines[0], lines[-1]


def test_numbers_are_as_high_as_the_fields_beside_them_and_stand_on_one_line(qtbot):
    theme.set_mode("light")
    line, number, choice = QLineEdit("850"), number_field(1, 999, 850), QComboBox()
    choice.addItem("850")
    row = QWidget()
    row.setStyleSheet(make_sheet(theme))
    qtbot.addWidget(row)
    fields = line, number, choice
    hbox(*fields, on=row)
    row.show()
    assert len({field.height() for field in fields}) == 1
    assert len({ink(row, field) for field in fields}) == 1
