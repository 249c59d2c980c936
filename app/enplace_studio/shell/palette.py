"""The command palette."""

from __future__ import annotations

from PySide6.QtWidgets import QDialog, QWidget

from enplace_studio.shell.commands import Command, all_commands, op_commands
from enplace_studio.shell.menus import Menus
from enplace_studio.shell.parts import Studio
from enplace_studio.widgets.layouts import vbox
from enplace_studio.widgets.search_list import Row, SearchList, closeness, matches
from enplace_studio.widgets.sizes import give_size

SIZE = (620, 460)


class Palette(QDialog):
    """A line that runs anything: type a few letters and press Enter."""

    def __init__(self, menus: Menus, studio: Studio, parent: QWidget) -> None:
        super().__init__(parent)
        self.setWindowTitle("Commands")
        give_size(self, SIZE)
        self._studio, self._known = studio, all_commands(menus, studio)
        self.search = SearchList(self._find, "Type a command, a method, a plan, or the name of ops")
        self.search.chosen.connect(self._run)
        vbox(self.search, on=self)
        self.search.fill()
        self.search.setFocus()

    def _find(self, typed: str) -> list[Row]:
        """List what matches, by kind; the kind with the best match first, and in it that match."""
        kinds = [*self._known.items(), ("Ops", op_commands(self._studio, typed))]
        found: list[tuple[int, str, list[Command]]] = []
        for kind, commands in kinds:
            fitting = [command for command in commands if matches(typed, command.title)]
            if fitting:
                ranked = sorted(fitting, key=lambda command: closeness(typed, command.title))
                found.append((closeness(typed, ranked[0].title), kind, ranked))
        if typed.strip():
            found.sort(key=lambda each: each[0])
        rows: list[Row] = []
        for _, kind, commands in found:
            rows += [Row(kind), *(Row(c.title, c, (c.note,), c.title) for c in commands)]
        return rows

    def _run(self) -> None:
        command = self.search.current
        self.accept()
        if isinstance(command, Command):
            command.run()
