"""Menus at the right mouse button."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QPoint, Qt
from PySide6.QtGui import QAction
from PySide6.QtWidgets import QAbstractScrollArea, QMenu, QWidget


def new_menu(parent: QWidget) -> QMenu:
    """Make a menu that is deleted once it closes."""
    menu = QMenu(parent)
    menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
    return menu


def add_action(
    menu: QMenu, text: str, do: Callable[[], object], *, enabled: bool = True
) -> QAction:
    """Add an action to a menu; names in its text may have an ``&``, which is no mnemonic."""
    action = menu.addAction(text.replace("&", "&&"))
    action.triggered.connect(lambda *_: do())
    action.setEnabled(enabled)
    return action


def offer_menu(widget: QWidget, make: Callable[[QPoint], QMenu | None]) -> None:
    """Open a menu at the right mouse button; ``make`` gets the point of the widget."""
    ground = widget.viewport() if isinstance(widget, QAbstractScrollArea) else widget

    def pop_up(at: QPoint) -> None:
        if (menu := make(at)) is not None:
            menu.popup(ground.mapToGlobal(at))

    widget.setContextMenuPolicy(Qt.ContextMenuPolicy.CustomContextMenu)
    widget.customContextMenuRequested.connect(pop_up)
