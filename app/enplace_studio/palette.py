"""The command palette."""

from __future__ import annotations

from PySide6.QtWidgets import QDialog, QVBoxLayout, QWidget

from enplace_studio.commands import Command, all_commands, op_commands
from enplace_studio.menus import Menus
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
