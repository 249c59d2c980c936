"""A table of all ops that a plan splits."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import Qt
from PySide6.QtWidgets import (
    QAbstractItemView,
    QDialog,
    QHeaderView,
    QTableWidget,
    QTableWidgetItem,
    QVBoxLayout,
    QWidget,
)

from enplace.text import count, ms, size
from enplace_studio.messages import button
from enplace_studio.panel import label, plain_tip
from enplace_studio.theme import theme
from enplace_studio.views.inspector.facts import SplitFact

COLUMNS = ("Op", "Type", "Time", "Weights", "Split")
SIZE = (860, 560)


class SplitTable(QDialog):
    """The split list in the form of FastT's Table 5; deleted when closed."""

    def __init__(self, splits: Sequence[SplitFact], parent: QWidget) -> None:
        super().__init__(parent)
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.setWindowTitle("Split ops")
        self.resize(*(round(length * theme.scale) for length in SIZE))
        self.table = QTableWidget(len(splits), len(COLUMNS))
        self._fill(splits)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(16, 16, 16, 14)
        layout.addWidget(label(count(len(splits), "split op"), "heading"))
        layout.addWidget(self.table, 1)
        layout.addWidget(button("Close", self.accept), 0, Qt.AlignmentFlag.AlignRight)

    def _fill(self, splits: Sequence[SplitFact]) -> None:
        table = self.table
        table.setHorizontalHeaderLabels(list(COLUMNS))
        table.verticalHeader().hide()
        table.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
        table.setSelectionBehavior(QAbstractItemView.SelectionBehavior.SelectRows)
        table.setTextElideMode(Qt.TextElideMode.ElideLeft)
        table.setWordWrap(False)
        for row, fact in enumerate(splits):
            weights = size(fact.weights_bytes) if fact.weights_bytes else ""
            texts = (fact.op, fact.op_type, ms(fact.time_us), weights, fact.how)
            for column, text in enumerate(texts):
                item = QTableWidgetItem(text)
                item.setToolTip(plain_tip(text))
                if column in (2, 3):
                    right = Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter
                    item.setTextAlignment(right)
                table.setItem(row, column, item)
        header = table.horizontalHeader()
        header.setSectionResizeMode(QHeaderView.ResizeMode.ResizeToContents)
        header.setSectionResizeMode(0, QHeaderView.ResizeMode.Stretch)
