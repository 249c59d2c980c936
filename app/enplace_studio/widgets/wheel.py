"""The wheel over what a number is set with: it scrolls the pane, unless the user works there."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QObject, Qt
from PySide6.QtWidgets import QWidget


class _Guard(QObject):
    """Lets the wheel pass a field or slider that does not have the focus."""

    def eventFilter(self, field: QObject, event: QEvent) -> bool:
        is_wheel = event.type() == QEvent.Type.Wheel
        if is_wheel and isinstance(field, QWidget) and not field.hasFocus():
            event.ignore()
            return True
        return False


_GUARD = _Guard()
"""One for all, so that a field that is guarded twice is not asked twice."""


def scroll_past(field: QWidget) -> None:
    """Let the wheel change a field or slider only once it was clicked or tabbed to."""
    if field.focusPolicy() == Qt.FocusPolicy.WheelFocus:
        field.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
    field.installEventFilter(_GUARD)
