"""The stops of the Tab key in the studio."""

from PySide6.QtCore import Qt
from PySide6.QtGui import QAccessible
from PySide6.QtWidgets import QWidget


def nameless_stops(widget: QWidget) -> list[QWidget]:
    """Return the visible stops in a widget for which screen readers have no name."""
    stops = [
        each
        for each in (widget, *widget.findChildren(QWidget))
        if each.isVisible() and each.focusPolicy() & Qt.FocusPolicy.TabFocus
    ]
    assert stops
    readers = {each: QAccessible.queryAccessibleInterface(each) for each in stops}
    return [each for each in stops if not readers[each].text(QAccessible.Text.Name)]
