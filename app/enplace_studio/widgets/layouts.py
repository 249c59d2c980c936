"""Layouts written as what they hold: ``vbox(title, (table, 1), hbox(STRETCH, close))``."""

from __future__ import annotations

from typing import TypeVar

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QBoxLayout, QHBoxLayout, QLayout, QVBoxLayout, QWidget

STRETCH = -1
"""All the room that the other parts leave; ``(STRETCH, 0)`` if others may want it too."""

Item = QWidget | QLayout | int
Part = Item | tuple[Item, int] | tuple[Item, Qt.AlignmentFlag]
"""A widget, a layout, a space in pixels or :data:`STRETCH`; with its share of the room that is
left, or with its alignment."""

Margins = tuple[int, int, int, int]
_Layout = TypeVar("_Layout", bound=QBoxLayout)


def hbox(
    *parts: Part,
    on: QWidget | None = None,
    spacing: int | None = None,
    margins: Margins | None = None,
) -> QHBoxLayout:
    """Lay out parts from left to right; on a widget, or in another layout."""
    return _filled(QHBoxLayout() if on is None else QHBoxLayout(on), parts, spacing, margins)


def vbox(
    *parts: Part,
    on: QWidget | None = None,
    spacing: int | None = None,
    margins: Margins | None = None,
) -> QVBoxLayout:
    """Lay out parts from top to bottom; on a widget, or in another layout."""
    return _filled(QVBoxLayout() if on is None else QVBoxLayout(on), parts, spacing, margins)


def _filled(
    layout: _Layout, parts: tuple[Part, ...], spacing: int | None, margins: Margins | None
) -> _Layout:
    if spacing is not None:
        layout.setSpacing(spacing)
    if margins is not None:
        layout.setContentsMargins(*margins)
    for part in parts:
        item, how = part if isinstance(part, tuple) else (part, int(part == STRETCH))
        align = how if isinstance(how, Qt.AlignmentFlag) else Qt.AlignmentFlag(0)
        share = 0 if isinstance(how, Qt.AlignmentFlag) else how
        if isinstance(item, QWidget):
            layout.addWidget(item, share, align)
        elif isinstance(item, QLayout):
            layout.addLayout(item, share)
        elif item == STRETCH:
            layout.addStretch(share)
        else:
            layout.addSpacing(item)
    return layout


def clear(layout: QLayout) -> None:
    """Remove the widgets of a layout."""
    while (item := layout.takeAt(0)) is not None:
        if (widget := item.widget()) is not None:
            widget.hide()
            widget.deleteLater()
