"""Finding ops by name, scope, type or device."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QKeyEvent
from PySide6.QtWidgets import (
    QComboBox,
    QFrame,
    QHBoxLayout,
    QLabel,
    QLineEdit,
    QToolButton,
    QWidget,
)

from enplace.names.groups import Grouping
from enplace.text import count
from enplace.values.device_names import device_label
from enplace.values.plan import Plan
from enplace.values.problem import Problem
from enplace_studio.panel import label
from enplace_studio.views.graph.facts import BoolArray

FIELDS = ("anything", "name", "scope", "type", "device")


def matching_ops(problem: Problem, plan: Plan | None, query: str, field: str) -> BoolArray:
    """Find the ops whose field contains the query, ignoring case; shape (n_ops,)."""
    profile, wanted = problem.profile, query.lower()
    texts: dict[str, Iterable[str]] = {
        "name": profile.op_names,
        "scope": profile.scopes,
        "type": profile.op_types,
    }
    if plan is not None:
        names = [d.name for d in problem.cluster.devices]
        spoken = [f"{name} {device_label(name)}" for name in names]
        texts["device"] = (spoken[device] for device in plan.device.tolist())
    found = np.zeros(profile.n_ops, dtype=bool)
    for name in texts if field == "anything" else [f for f in (field,) if f in texts]:
        found |= np.fromiter((wanted in text.lower() for text in texts[name]), bool, len(found))
    return found


def matching_groups(grouping: Grouping, ops: BoolArray, query: str, field: str) -> dict[int, int]:
    """Find groups with matching ops or a matching name, and the matching ops of each."""
    hits = np.bincount(grouping.group[ops & (grouping.group >= 0)], minlength=grouping.n_groups)
    named = field in ("anything", "scope")
    return {
        group: int(hits[group])
        for group, name in enumerate(grouping.names)
        if hits[group] or (named and query.lower() in name.lower())
    }


class SearchBar(QFrame):
    """A search field with a choice of what to search, the number of matches, next and previous."""

    changed = Signal(str, str)
    stepped = Signal(int)
    closed = Signal()

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        self.setProperty("card", True)
        self.setAutoFillBackground(True)
        self.line = QLineEdit(placeholderText="Find ops")
        self.line.setAccessibleName("Find ops")
        self.field = QComboBox()
        self.field.addItems(FIELDS)
        self.field.setAccessibleName("Where to search")
        self.found: QLabel = label("", "dim")
        layout = QHBoxLayout(self)
        layout.setContentsMargins(8, 6, 8, 6)
        layout.setSpacing(6)
        for widget in (self.line, self.field, self.found):
            layout.addWidget(widget)
        for text, tip, action in (
            ("‹", "Previous (Shift+Enter)", lambda: self.stepped.emit(-1)),
            ("›", "Next (Enter)", lambda: self.stepped.emit(1)),
            ("×", "Close (Esc)", self.closed.emit),
        ):
            layout.addWidget(_small_button(text, tip, action))
        self.line.textChanged.connect(self._emit_query)
        self.field.currentTextChanged.connect(self._emit_query)

    def show_found(self, groups: int, ops: int) -> None:
        """Show the number of matches."""
        nothing = "nothing found" if self.line.text() else ""
        words = f"{count(ops, 'op')} in {count(groups, 'group')}" if ops else count(groups, "group")
        self.found.setText(words if groups else nothing)
        self.adjustSize()

    def begin(self) -> None:
        """Show the bar, ready to type."""
        self.show()
        self.raise_()
        self.line.setFocus()
        self.line.selectAll()

    def _emit_query(self) -> None:
        self.changed.emit(self.line.text().strip(), self.field.currentText())

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() == Qt.Key.Key_Escape:
            self.closed.emit()
        elif event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter):
            back = event.modifiers() & Qt.KeyboardModifier.ShiftModifier
            self.stepped.emit(-1 if back else 1)
        else:
            super().keyPressEvent(event)


def _small_button(text: str, tip: str, action: Callable[[], object]) -> QToolButton:
    button = QToolButton()
    button.setText(text)
    button.setToolTip(tip)
    button.setAccessibleName(tip)
    button.setAutoRaise(True)
    button.clicked.connect(lambda: action())
    return button
