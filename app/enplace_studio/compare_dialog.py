"""The question which methods to compare."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QDialog, QListWidget, QListWidgetItem, QVBoxLayout, QWidget

from enplace.text import count
from enplace_studio.jobs import Method, estimate_s
from enplace_studio.messages import DialogButtons, button
from enplace_studio.method_facts import whole_seconds
from enplace_studio.panel import label, paragraph, plain_tip
from enplace_studio.theme import theme

SIZE = (420, 520)


class CompareDialog(QDialog):
    """A list of methods to tick, and how long the ticked ones take."""

    def __init__(
        self, methods: Sequence[Method], time_limit_s: float, parent: QWidget | None = None
    ) -> None:
        super().__init__(parent)
        self.setWindowTitle("Compare methods")
        self.resize(*(round(length * theme.scale) for length in SIZE))
        self._methods, self._time_limit_s = methods, time_limit_s
        self.list = QListWidget()
        self.list.setAccessibleName("Methods")
        for method in methods:
            item = QListWidgetItem(method.title)
            item.setToolTip(plain_tip(method.source or method.title))
            item.setCheckState(Qt.CheckState.Checked)
            self.list.addItem(item)
        self.estimate = paragraph("")
        self._every = button("None", self._tick_all_or_none)
        self.buttons = DialogButtons(self, "Compare", self._every)
        self.buttons.accept.setDefault(True)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(16, 16, 16, 14)
        layout.addWidget(label("Each method adds a plan to the list", "heading"))
        layout.addWidget(self.list, 1)
        layout.addWidget(self.estimate)
        layout.addLayout(self.buttons)
        self.list.itemChanged.connect(self._show_estimate)
        self._show_estimate()

    @property
    def chosen(self) -> list[str]:
        """The names of the ticked methods."""
        return [method.name for method in self._ticked()]

    def _ticked(self) -> list[Method]:
        return [
            method
            for row, method in enumerate(self._methods)
            if self.list.item(row).checkState() == Qt.CheckState.Checked
        ]

    def _tick_all_or_none(self) -> None:
        state = Qt.CheckState.Unchecked if self._ticked() else Qt.CheckState.Checked
        for row in range(self.list.count()):
            self.list.item(row).setCheckState(state)

    def _show_estimate(self) -> None:
        ticked = self._ticked()
        spent = whole_seconds(estimate_s(ticked, self._time_limit_s))
        self.estimate.setText(f"{count(len(ticked), 'method')}, about {spent}" if ticked else "")
        self.buttons.accept.setEnabled(bool(ticked))
        self._every.setText("None" if ticked else "All")
