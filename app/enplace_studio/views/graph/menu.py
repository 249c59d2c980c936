"""The menu of the selected ops."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import Qt
from PySide6.QtGui import QAction
from PySide6.QtWidgets import QMenu, QWidget

from enplace_studio.document import Document
from enplace_studio.project import OpenProject

KEYS = 8  # number of devices with a number key


def place_menu(
    document: Document,
    project: OpenProject,
    parent: QWidget,
    open_card: Callable[[], object] | None = None,
) -> QMenu:
    """Make the menu of the selection; ``open_card`` opens the card under the pointer."""
    ops = sorted(document.selection)
    menu = QMenu(parent)
    menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
    place, forbid = menu.addMenu("Place on"), menu.addMenu("Forbid on")
    for device in range(project.problem.cluster.n_devices):
        name = project.device_label(device)
        _add_place(place, document, name, ops, device)
        kept_off = all((op, device) in project.problem.forbidden for op in ops)
        _add_forbid(forbid, document, name, ops, device, kept_off)
    menu.addSeparator()
    _add(menu, "Pin here\tP", lambda: document.pin_here(ops))
    _add(menu, "Unpin\tU", lambda: document.unpin(ops))
    _add(menu, "Colocate\tG", lambda: document.colocate(ops)).setEnabled(len(ops) > 1)
    _add(menu, "Separate\tShift+G", lambda: document.separate(ops))
    _add(menu, "Apply to all layers like this\tL", lambda: document.offer_stamp(ops))
    menu.addSeparator()
    _add(menu, "Run earlier\tAlt+Left", lambda: document.run_next(ops, earlier=True))
    _add(menu, "Run later\tAlt+Right", lambda: document.run_next(ops, earlier=False))
    forget = _add(menu, "Forget the order", lambda: document.forget_order(ops))
    forget.setEnabled(any(op in document.selection for p in project.problem.before for op in p))
    if open_card is not None:
        menu.addSeparator()
        _add(menu, "Open\tEnter", open_card)
    return menu


def _add(menu: QMenu, text: str, do: Callable[[], object]) -> QAction:
    action = menu.addAction(text)
    action.triggered.connect(lambda *_: do())
    return action


def _add_place(menu: QMenu, document: Document, name: str, ops: list[int], device: int) -> None:
    key = f"\t{device + 1}" if device < KEYS else ""
    _add(menu, name + key, lambda: document.place(ops, device))


def _add_forbid(
    menu: QMenu, document: Document, name: str, ops: list[int], device: int, kept_off: bool
) -> None:
    """Add an item, ticked if the selection is kept off the device; a second click allows it."""
    change = document.allow if kept_off else document.forbid
    action = _add(menu, name, lambda: change(ops, device))
    action.setCheckable(True)
    action.setChecked(kept_off)
