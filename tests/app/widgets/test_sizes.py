"""Dialogs are as large as they want, but never larger than their screen."""

import pytest
from PySide6.QtWidgets import QDialog

from enplace_studio.widgets.sizes import give_size


@pytest.mark.parametrize("size", [(300, 200), (5000, 200), (5000, 5000)])
def test_a_dialog_is_no_larger_than_its_screen(qtbot, size):
    dialog = QDialog()
    qtbot.addWidget(dialog)
    give_size(dialog, size)
    room = dialog.screen().availableSize()
    assert dialog.width() == 300 or dialog.width() < room.width()
    assert dialog.height() == 200 or dialog.height() < room.height()
