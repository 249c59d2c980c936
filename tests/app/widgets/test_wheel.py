"""The wheel over fields: it scrolls the pane, unless the user works in the field."""

import pytest
from PySide6.QtTest import QTest

from enplace_studio.widgets.form import number_field
from enplace_studio.widgets.labels import ElidedCombo
from turns import turn_wheel


def number():
    field = number_field(1, 9, 5)
    return field, field.value


def choice():
    field = ElidedCombo()
    field.addItems(["one", "two", "three"])
    field.setCurrentIndex(1)
    return field, field.currentIndex


@pytest.mark.parametrize("make", [number, choice])
def test_a_field_outside_of_a_form_lets_the_wheel_pass_until_it_has_the_focus(make, qtbot):
    field, value = make()
    qtbot.addWidget(field)
    field.show()
    before = value()
    turn_wheel(field)
    assert value() == before
    assert not field.hasFocus()
    field.activateWindow()
    assert QTest.qWaitForWindowActive(field)
    field.setFocus()
    turn_wheel(field)
    assert value() != before
