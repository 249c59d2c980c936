"""The search bar: a query, what it finds, and the queries that the user has saved."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from PySide6.QtCore import QEvent, QObject, QRect, QStringListModel, Qt, Signal
from PySide6.QtGui import QKeyEvent
from PySide6.QtWidgets import (
    QCompleter,
    QFrame,
    QHBoxLayout,
    QInputDialog,
    QLineEdit,
    QMenu,
    QSpacerItem,
    QToolButton,
    QWidget,
)

from enplace.text import count
from enplace_studio.model.document import Document
from enplace_studio.model.queries import completions
from enplace_studio.widgets.labels import ElidedLabel, plain_tip
from enplace_studio.widgets.layouts import STRETCH, hbox, vbox
from enplace_studio.widgets.menu import add_action, new_menu
from enplace_studio.widgets.messages import button

HELP = """A query is a list of terms; an op must satisfy all of them.
decoder            name, scope, type, group or device
type:MatMul        also name:, scope: and device:
scope:"lstm 0"     a scope or group as the graph prints it
time>1ms           also weights>10MiB and out>1MiB
critical           on the critical path
pinned, crossing   pinned; at an edge across devices
up:type:Softmax    what leads to them; also down:, inputs:, outputs: and like:
-type:Const        everything but these
Tab takes the first term that is offered. Enter selects all that is found; F3 and Shift+F3 go
from group to group."""
HINT = "Name, scope, type, group or device; hover over the line for all terms"


class SearchBar(QFrame):
    """A line for a query with completion, the number of matches, next and previous."""

    changed = Signal(str)
    stepped = Signal(int)
    all_wanted = Signal()
    closed = Signal()

    def __init__(self, document: Document, parent: QWidget) -> None:
        super().__init__(parent)
        self._document = document
        self.setProperty("card", True)
        self.setAutoFillBackground(True)
        self.line = QLineEdit(placeholderText="Find ops: type:MatMul time>1ms critical")
        self.line.setAccessibleName("Find ops")
        self.line.setToolTip(plain_tip(HELP))
        self._ways_on = QStringListModel(self)
        self.completer = self._make_completer()
        self.found = ElidedLabel("dim")
        self.found.setMaximumHeight(self.found.sizeHint().height())
        tip = "Select all that is found (Enter)"
        self.all = button("", self.all_wanted.emit, kind="link", tip=tip)
        self.saved = _small_button("☆", "Saved queries", self._show_saved)
        top = hbox((self.line, 1), self.saved)
        for text, tip, action in (
            ("‹", "Previous group (Shift+F3)", lambda: self.stepped.emit(-1)),
            ("›", "Next group (F3)", lambda: self.stepped.emit(1)),
            ("×", "Close (Esc)", self.closed.emit),
        ):
            top.addWidget(_small_button(text, tip, action))
        below = hbox((self.found, 1000), STRETCH, self.all)
        vbox(top, below, on=self, spacing=4, margins=(8, 6, 8, 6))
        self._keep_height(below)
        self.line.textEdited.connect(self._complete)
        self.line.textChanged.connect(lambda text: self.changed.emit(text.strip()))
        self.show_found(0)

    def _keep_height(self, row: QHBoxLayout) -> None:
        """Keep the height of the row whose button comes and goes, so that no card moves."""
        row.addSpacerItem(QSpacerItem(0, self.all.sizeHint().height()))

    def _make_completer(self) -> QCompleter:
        """Make the list of ways to go on; one that the line owned would cover what is found."""
        completer = QCompleter(self._ways_on, self)
        completer.setCompletionMode(QCompleter.CompletionMode.UnfilteredPopupCompletion)
        completer.setMaxVisibleItems(12)
        completer.setWidget(self.line)
        completer.activated.connect(self.line.setText)
        completer.highlighted.connect(self.line.setText)
        popup = completer.popup()
        assert popup is not None
        popup.installEventFilter(self)
        return completer

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        """Take the way to go on at Tab that is highlighted, or else the first."""
        if isinstance(event, QKeyEvent) and event.key() == Qt.Key.Key_Tab:
            if event.type() == QEvent.Type.KeyPress:
                popup = self.completer.popup()
                assert popup is not None
                self.line.setText(self._ways_on.stringList()[max(popup.currentIndex().row(), 0)])
                popup.hide()
            return True
        return super().eventFilter(watched, event)

    def _complete(self, text: str) -> None:
        """Offer ways to go on, below the whole bar."""
        project = self._document.project
        self._ways_on.setStringList(completions(project, text) if project and text else [])
        self.completer.complete(QRect(0, 0, self.line.width(), self.height() - self.line.y()))

    def show_found(self, ops: int, where: str = "", fault: str = "") -> None:
        """Show the number of matches and where they are, or what is wrong with the query."""
        words = f"{count(ops, 'op')} {where}" if ops else "nothing found"
        self.found.set_text(fault or (words if self.line.text() else HINT))
        self.found.setAccessibleName(self.found.whole)
        self.all.setVisible(ops > 0)
        self.all.setText(f"Select all {ops:,}")

    def begin(self) -> None:
        """Show the bar, ready to type."""
        self.show()
        self.raise_()
        self.line.setFocus()
        self.line.selectAll()

    # Saved queries

    def _show_saved(self) -> None:
        self.saved_menu().popup(self.saved.mapToGlobal(self.saved.rect().bottomLeft()))

    def saved_menu(self) -> QMenu:
        """Make the menu of saved queries, to run, add or remove one."""
        menu = new_menu(self)
        known, query = self._document.queries, self.line.text().strip()
        for name, text in known.items():
            add_action(menu, f"{name}\t{text}", partial(self.line.setText, text))
        if known:
            menu.addSeparator()
        add_action(menu, "Save this query…", self._ask_name, enabled=bool(query))
        for name in [name for name, text in known.items() if text == query]:
            add_action(menu, f"Remove “{name}”", partial(self._document.save_query, name, ""))
        return menu

    def _ask_name(self) -> None:
        query = self.line.text().strip()
        name, agreed = QInputDialog.getText(
            self.window(), "Save the query", f"Name for “{query}”:", text=query
        )
        if agreed and name.strip():
            self._document.save_query(name.strip(), query)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        back = bool(event.modifiers() & Qt.KeyboardModifier.ShiftModifier)
        if event.key() == Qt.Key.Key_Escape:
            self.closed.emit()
        elif event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter):
            self.all_wanted.emit()
        elif event.key() == Qt.Key.Key_F3:
            self.stepped.emit(-1 if back else 1)
        else:
            super().keyPressEvent(event)


def _small_button(text: str, tip: str, action: Callable[[], object]) -> QToolButton:
    made = QToolButton()
    made.setText(text)
    made.setToolTip(tip)
    made.setAccessibleName(tip)
    made.setAutoRaise(True)
    made.clicked.connect(lambda: action())
    return made
