"""Every key on one page, by topic, made from the actions themselves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from PySide6.QtCore import Qt
from PySide6.QtGui import QKeySequence
from PySide6.QtWidgets import QDialog, QGridLayout, QVBoxLayout, QWidget

from enplace_studio.shell.actions import MENUS, VIEW_KEYS, Action
from enplace_studio.widgets.column import Column
from enplace_studio.widgets.labels import label
from enplace_studio.widgets.layouts import STRETCH, Part, hbox, vbox
from enplace_studio.widgets.messages import close_row
from enplace_studio.widgets.sizes import give_size

SIZE = (860, 620)
COLUMNS = 2
IN_VIEWS = "In the graph and the timeline"

Topic = tuple[str, list[tuple[str, str]]]
"""A heading, and the keys and titles below it."""


def native_keys(keys: str) -> str:
    """Return a shortcut in the notation of the system."""
    return QKeySequence(keys).toString(QKeySequence.SequenceFormat.NativeText)


def topics(actions: Iterable[Action]) -> list[Topic]:
    """Return every key by topic: the menus, and what views handle themselves."""
    known = list(actions)
    found = {title: _lines(action for action in known if action.menu == title) for title in MENUS}
    found["Edit"] += _device_lines(action for action in known if not action.menu)
    found[IN_VIEWS] = list(VIEW_KEYS)
    return [(title, lines) for title, lines in found.items() if lines]


def _lines(actions: Iterable[Action]) -> list[tuple[str, str]]:
    return [
        (" or ".join(map(native_keys, action.keys)), action.title.rstrip("…"))
        for action in actions
        if action.keys
    ]


def _device_lines(actions: Iterable[Action]) -> list[tuple[str, str]]:
    """Sum up the actions without a menu: one key for each device."""
    keys = [action.keys[0] for action in actions]
    return [(f"{keys[0]} … {keys[-1]}", "Pin selection to a device")] if keys else []


def in_columns(found: Sequence[Topic], n: int) -> list[list[Topic]]:
    """Spread topics over columns of about the same height, in order."""
    total = sum(len(lines) + 2 for _, lines in found)
    columns: list[list[Topic]] = [[] for _ in range(n)]
    above = 0
    for topic in found:
        height = len(topic[1]) + 2
        columns[min(n - 1, int((above + height / 2) * n / total))].append(topic)
        above += height
    return columns


class KeySheet(QDialog):
    """Every key on one page."""

    def __init__(self, actions: Iterable[Action], parent: QWidget) -> None:
        super().__init__(parent)
        self.setWindowTitle("Keys")
        give_size(self, SIZE)
        page = Column("Keys by topic")
        columns = [(_column(found), 1) for found in in_columns(topics(actions), COLUMNS)]
        page.fill().addLayout(hbox(*columns, spacing=36))
        vbox((page, 1), close_row(self), on=self, margins=(22, 18, 14, 14))


def _column(found: Sequence[Topic]) -> QVBoxLayout:
    parts: list[Part] = []
    for title, lines in found:
        parts += [label(title, "title"), _table(lines), 12]
    return vbox(*parts, STRETCH, spacing=6)


def _table(lines: Sequence[tuple[str, str]]) -> QGridLayout:
    grid = QGridLayout()
    grid.setHorizontalSpacing(14)
    grid.setVerticalSpacing(5)
    grid.setColumnStretch(0, 1)
    for number, (keys, title) in enumerate(lines):
        grid.addWidget(label(title, wraps=True), number, 0)
        grid.addWidget(label(keys, "dim"), number, 1, Qt.AlignmentFlag.AlignRight)
    return grid
