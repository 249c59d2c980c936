"""Turns of the event loop for the studio's tests."""

from PySide6.QtCore import QPoint, QPointF, Qt
from PySide6.QtGui import QWheelEvent
from PySide6.QtWidgets import QApplication, QWidget

MOST_TURNS = 40
"""More than all panes need together: each follows an edit in a turn of its own, some in two."""


def take_turns() -> None:
    """Let everything that was put off until a later turn of the event loop happen."""
    for _ in range(MOST_TURNS):
        QApplication.processEvents()
        QApplication.sendPostedEvents()


def turn_wheel(widget: QWidget) -> None:
    """Turn the wheel a notch, the pointer on the middle of a widget."""
    middle, down = QPointF(widget.rect().center()), QPoint(0, -120)
    event = QWheelEvent(
        middle,
        QPointF(widget.mapToGlobal(middle)),
        QPoint(),
        down,
        Qt.MouseButton.NoButton,
        Qt.KeyboardModifier.NoModifier,
        Qt.ScrollPhase.NoScrollPhase,
        False,
    )
    QApplication.sendEvent(widget, event)
