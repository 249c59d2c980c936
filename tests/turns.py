"""Turns of the event loop for the studio's tests."""

from PySide6.QtWidgets import QApplication

MOST_TURNS = 40
"""More than all panes need together: each follows an edit in a turn of its own, some in two."""


def take_turns() -> None:
    """Let everything that was put off until a later turn of the event loop happen."""
    for _ in range(MOST_TURNS):
        QApplication.processEvents()
        QApplication.sendPostedEvents()
