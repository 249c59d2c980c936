"""A table of all ops that a plan splits, computes again, or keeps on the host."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QDialog, QWidget

from enplace.text import ms, size
from enplace_studio.views.inspector.inspector_facts import SplitFact, count_splits
from enplace_studio.widgets.labels import label
from enplace_studio.widgets.layouts import vbox
from enplace_studio.widgets.messages import close_row
from enplace_studio.widgets.sizes import give_size
from enplace_studio.widgets.tables import Cell, Number, Table

COLUMNS = ("Op", "Type", "Time", "Weights", "How")
SIZE = (860, 560)


class SplitTable(QDialog):
    """The split list in the form of FastT's Table 5; deleted when closed."""

    def __init__(self, splits: Sequence[SplitFact], parent: QWidget) -> None:
        super().__init__(parent)
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.setWindowTitle("Split, recomputed and offloaded ops")
        give_size(self, SIZE)
        self.table = Table(COLUMNS, [_row(fact) for fact in splits])
        heading = label(count_splits(splits), "heading")
        vbox(heading, (self.table, 1), close_row(self), on=self, margins=(16, 16, 16, 14))


def _row(fact: SplitFact) -> tuple[Cell, ...]:
    weights = size(fact.weights_bytes) if fact.weights_bytes else ""
    return (
        fact.op,
        fact.op_type,
        Number(ms(fact.time_us), fact.time_us),
        Number(weights, fact.weights_bytes),
        fact.how,
    )
