"""The search bar: a query, what it finds, and the queries that the user has saved."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QStringListModel, Qt, Signal
from PySide6.QtGui import QKeyEvent
from PySide6.QtWidgets import (
    QCompleter,
    QFrame,
    QHBoxLayout,
    QInputDialog,
    QLabel,
    QLineEdit,
    QMenu,
    QPushButton,
    QToolButton,
    QWidget,
)

from enplace.text import count
from enplace_studio.document import Document
from enplace_studio.panel import label, plain_tip
from enplace_studio.queries import completions

_WIDTH, _LEAST_WIDTH, _REST = 300, 90, 330
"""Width of the line, the least, and that of the widgets beside it."""

HELP = """A query is a list of terms; an op must satisfy all of them.
decoder            name, scope, type, group or device
type:MatMul        also name:, scope: and device:
time>1ms           also weights>10MiB and out>1MiB
critical           on the critical path
pinned, crossing   pinned; at an edge across devices
-type:Const        everything but these"""


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
        self.line.setCompleter(self._make_completer())
        self.found: QLabel = label("", "dim")
        self.all = QPushButton()
        self.all.setProperty("link", True)
        self.all.clicked.connect(self.all_wanted)
        self.saved = _small_button("☆", "Saved queries", self._show_saved)
        layout = QHBoxLayout(self)
        layout.setContentsMargins(8, 6, 8, 6)
        layout.setSpacing(6)
        for widget in (self.line, self.found, self.all, self.saved):
            layout.addWidget(widget)
        for text, tip, action in (
            ("‹", "Previous (Shift+Enter)", lambda: self.stepped.emit(-1)),
            ("›", "Next (Enter)", lambda: self.stepped.emit(1)),
            ("×", "Close (Esc)", self.closed.emit),
        ):
            layout.addWidget(_small_button(text, tip, action))
        self.line.textEdited.connect(self._complete)
        self.line.textChanged.connect(lambda text: self.changed.emit(text.strip()))
        self.show_found(0)

    def _make_completer(self) -> QCompleter:
        completer = QCompleter(self._ways_on, self)
        completer.setCompletionMode(QCompleter.CompletionMode.UnfilteredPopupCompletion)
        completer.setMaxVisibleItems(12)
        return completer

    def _complete(self, text: str) -> None:
        project = self._document.project
        self._ways_on.setStringList(completions(project, text) if project and text else [])

    def show_found(self, ops: int, where: str = "", fault: str = "") -> None:
        """Show the number of matches and where they are, or what is wrong with the query."""
        words = f"{count(ops, 'op')} {where}" if ops else "nothing found"
        self.found.setText(fault or (words if self.line.text() else ""))
        self.all.setVisible(ops > 0)
        self.all.setText(f"Select all {ops:,}")
        self.adjustSize()

    def fit_into(self, width: int) -> None:
        """Shrink the line in a narrow pane."""
        self.line.setMinimumWidth(max(_LEAST_WIDTH, min(_WIDTH, width - _REST)))
        self.adjustSize()

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
        menu = QMenu(self)
        menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        known, query = self._document.queries, self.line.text().strip()
        for name, text in known.items():
            shown = f"{name}\t{text}".replace("&", "&&")  # no mnemonic
            menu.addAction(shown).triggered.connect(lambda _, text=text: self.line.setText(text))
        if known:
            menu.addSeparator()
        save = menu.addAction("Save this query…")
        save.setEnabled(bool(query))
        save.triggered.connect(self._ask_name)
        for name in [name for name, text in known.items() if text == query]:
            remove = menu.addAction(f"Remove “{name}”".replace("&", "&&"))
            remove.triggered.connect(lambda _, name=name: self._document.save_query(name, ""))
        return menu

    def _ask_name(self) -> None:
        query = self.line.text().strip()
        name, agreed = QInputDialog.getText(
            self.window(), "Save the query", f"Name for “{query}”:", text=query
        )
        if agreed and name.strip():
            self._document.save_query(name.strip(), query)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() == Qt.Key.Key_Escape:
            self.closed.emit()
        elif event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter):
            back = event.modifiers() & Qt.KeyboardModifier.ShiftModifier
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
