"""The command palette, and the list of all keys."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QObject, Qt
from PySide6.QtGui import QKeyEvent, QKeySequence
from PySide6.QtWidgets import (
    QDialog,
    QGridLayout,
    QLineEdit,
    QListWidget,
    QListWidgetItem,
    QVBoxLayout,
    QWidget,
)

from enplace_studio.actions import VIEW_KEYS
from enplace_studio.menus import Menus
from enplace_studio.panel import label


def native_keys(keys: str) -> str:
    """Return a shortcut in the notation of the system."""
    return QKeySequence(keys).toString(QKeySequence.SequenceFormat.NativeText)


class Palette(QDialog):
    """A search field that runs any available action: type a few letters and press Enter."""

    def __init__(self, menus: Menus, parent: QWidget) -> None:
        super().__init__(parent)
        self.setWindowTitle("Commands")
        self.setMinimumSize(460, 360)
        self._menus = menus
        self.field = QLineEdit(placeholderText="Type a command")
        self.field.textChanged.connect(self._filter)
        self.field.installEventFilter(self)
        self.list = QListWidget()
        self.list.itemActivated.connect(lambda item: self._run())
        layout = QVBoxLayout(self)
        layout.addWidget(self.field)
        layout.addWidget(self.list)
        self._filter("")

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if not isinstance(event, QKeyEvent) or event.type() != QEvent.Type.KeyPress:
            return False
        step = {Qt.Key.Key_Down: 1, Qt.Key.Key_Up: -1}.get(Qt.Key(event.key()))
        if step is not None and self.list.count():
            self.list.setCurrentRow((self.list.currentRow() + step) % self.list.count())
            return True
        if event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter):
            self._run()
            return True
        return False

    def _filter(self, text: str) -> None:
        self.list.clear()
        for spec in self._menus.specs:
            action = self._menus.by_id[spec.id]
            title = action.text().replace("&", "").rstrip("…")
            if action.isEnabled() and spec.id != "palette" and matches(text, title):
                keys = f"    {native_keys(spec.keys[0])}" if spec.keys else ""
                item = QListWidgetItem(title + keys, self.list)
                item.setData(Qt.ItemDataRole.UserRole, spec.id)
        self.list.setCurrentRow(0)

    def _run(self) -> None:
        item = self.list.currentItem()
        if item is not None:
            self.accept()
            self._menus.by_id[item.data(Qt.ItemDataRole.UserRole)].trigger()


def matches(typed: str, title: str) -> bool:
    """Return whether the title contains every typed word."""
    return all(word in title.lower() for word in typed.lower().split())


class KeySheet(QDialog):
    """Every key on one page."""

    def __init__(self, menus: Menus, parent: QWidget) -> None:
        super().__init__(parent)
        self.setWindowTitle("Keys")
        lines = [
            (" or ".join(map(native_keys, spec.keys)), spec.title.rstrip("…"))
            for spec in menus.specs
            if spec.keys and not spec.id.startswith("place-")
        ]
        lines += [("1 … 8", "Pin selection to a device"), *VIEW_KEYS]
        half = (len(lines) + 1) // 2
        grid = QGridLayout(self)
        grid.setContentsMargins(20, 18, 20, 18)
        grid.setHorizontalSpacing(14)
        grid.setVerticalSpacing(8)
        grid.setColumnMinimumWidth(2, 24)
        for number, (keys, title) in enumerate(lines):
            row, column = number % half, 3 * (number // half)
            grid.addWidget(label(keys, "title"), row, column)
            grid.addWidget(label(title), row, column + 1)
