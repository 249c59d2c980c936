"""The command palette, and the list of all keys."""

from __future__ import annotations

from PySide6.QtWidgets import QDialog, QGridLayout, QVBoxLayout, QWidget

from enplace_studio.actions import VIEW_KEYS
from enplace_studio.commands import Command, all_commands, native_keys, op_commands
from enplace_studio.menus import Menus
from enplace_studio.panel import label
from enplace_studio.search_list import Row, SearchList, matches
from enplace_studio.studio import Studio
from enplace_studio.theme import theme

SIZE = (620, 460)


class Palette(QDialog):
    """A line that runs anything: type a few letters and press Enter."""

    def __init__(self, menus: Menus, studio: Studio, parent: QWidget) -> None:
        super().__init__(parent)
        self.setWindowTitle("Commands")
        self.resize(*(round(length * theme.scale) for length in SIZE))
        self._studio, self._known = studio, all_commands(menus, studio)
        self.search = SearchList(self._find, "Type a command, a method, a plan, or the name of ops")
        self.search.chosen.connect(self._run)
        layout = QVBoxLayout(self)
        layout.addWidget(self.search)
        self.search.fill()
        self.search.setFocus()

    def _find(self, typed: str) -> list[Row]:
        rows: list[Row] = []
        for kind, commands in [*self._known.items(), ("Ops", op_commands(self._studio, typed))]:
            found = [command for command in commands if matches(typed, command.title)]
            if found:
                rows += [Row(kind), *(Row(c.title, c, (c.note,), c.title) for c in found)]
        return rows

    def _run(self) -> None:
        command = self.search.current
        self.accept()
        if isinstance(command, Command):
            command.run()


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
