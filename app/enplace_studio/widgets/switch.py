"""A row of buttons of which one is pressed."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtWidgets import QButtonGroup, QPushButton, QWidget


def make_switch(parent: QWidget, choices: Sequence[tuple[str, str]]) -> QButtonGroup:
    """Make a button for each choice, a title and a tooltip, with the first one pressed."""
    group = QButtonGroup(parent)
    for at, (title, tip) in enumerate(choices):
        button = QPushButton(title)
        button.setCheckable(True)
        button.setProperty("switch", True)
        button.setToolTip(tip)
        group.addButton(button, at)
    group.button(0).setChecked(True)
    return group
