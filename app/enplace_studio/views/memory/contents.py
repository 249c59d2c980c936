"""A table of everything in a device's memory at a moment."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QDialog, QWidget

from enplace.text import count, ms, size
from enplace.values.device_names import device_label
from enplace.values.schedule import Schedule
from enplace_studio.views.memory.holdings import Holding, contents_at
from enplace_studio.widgets.labels import label, paragraph
from enplace_studio.widgets.layouts import vbox
from enplace_studio.widgets.messages import close_row
from enplace_studio.widgets.tables import Number, Table
from enplace_studio.widgets.theme import theme

COLUMNS = ("Op", "What", "Memory")
SIZE = (720, 560)
MOST_ROWS = 2000
"""Most rows of the table; the last of them sums up the rest."""


def sum_by_kind(held: Collection[Holding]) -> str:
    """Say how much memory each kind of contents takes, the largest first."""
    sums: dict[str, int] = defaultdict(int)
    for holding in held:
        sums[holding.kind] += holding.bytes
    largest = sorted(sums.items(), key=lambda each: -each[1])
    return "  +  ".join(f"{kind} {size(n_bytes)}" for kind, n_bytes in largest)


class MemoryTable(QDialog):
    """What a device's memory holds at a moment; the rows add up to what the curve shows.

    ``chosen`` carries the ops of the rows that the user clicked. It is deleted when closed.
    """

    chosen = Signal(object)

    def __init__(self, schedule: Schedule, device: int, time_us: float, parent: QWidget) -> None:
        super().__init__(parent)
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        name = device_label(schedule.problem.cluster.devices[device].name)
        self.setWindowTitle(f"Memory of {name}")
        self.resize(*(round(length * theme.scale) for length in SIZE))
        self._held = contents_at(schedule, device, time_us)
        self.total_bytes = sum(holding.bytes for holding in self._held)
        self.table = Table(COLUMNS, self._rows(schedule, self._held))
        self.table.itemSelectionChanged.connect(self._choose)
        heading = label(f"{size(self.total_bytes)} on {name} at {ms(time_us)}", "heading")
        hint = paragraph("Click rows to select their ops. Ctrl+C copies them as text.")
        parts = heading, label(sum_by_kind(self._held)), hint, (self.table, 1), close_row(self)
        vbox(*parts, on=self, margins=(16, 16, 16, 14))

    def _rows(self, schedule: Schedule, held: Collection[Holding]) -> list[tuple[str, str, Number]]:
        names = schedule.problem.profile.op_names
        shown = list(held)[: MOST_ROWS - (len(held) > MOST_ROWS)]
        rows = [(names[h.op], h.kind, Number(size(h.bytes), h.bytes)) for h in shown]
        if len(shown) < len(held):
            rest_bytes = self.total_bytes - sum(holding.bytes for holding in shown)
            more = f"and {count(len(held) - len(shown), 'smaller one')}"
            rows.append((more, "", Number(size(rest_bytes), rest_bytes)))
        return rows

    def _choose(self) -> None:
        rows = {index.row() for index in self.table.selectedIndexes()}
        given = (self.table.row_given(row) for row in rows)
        shown = MOST_ROWS - (len(self._held) > MOST_ROWS)
        self.chosen.emit({self._held[row].op for row in given if row < min(shown, len(self._held))})
