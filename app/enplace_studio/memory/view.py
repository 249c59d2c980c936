"""The memory pane."""

from __future__ import annotations

import numpy as np
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QFrame, QScrollArea, QVBoxLayout, QWidget

from enplace_studio.document import Document
from enplace_studio.memory.bar import DeviceMemory
from enplace_studio.panel import Panel, label


class MemoryView(Panel):
    """How full each device gets: a bar against its capacity, and the curve over the step."""

    def __init__(self, document: Document, parent: QWidget | None = None) -> None:
        super().__init__("Memory", parent=parent)
        self._document = document
        self.devices: list[DeviceMemory] = []
        self._area = QScrollArea()
        self._area.setFrameShape(QFrame.Shape.NoFrame)
        self._area.setWidgetResizable(True)
        self._area.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self._area.viewport().setAutoFillBackground(False)
        self.body.addWidget(self._area, 1)
        document.opened.connect(self.rebuild)
        document.current_changed.connect(self.rebuild)
        self.rebuild()

    def rebuild(self) -> None:
        """Show the current plan's schedule."""
        contents = QWidget()
        column = QVBoxLayout(contents)
        column.setContentsMargins(0, 0, 4, 0)  # clear of the scroll bar
        column.setSpacing(10)
        self.devices = []
        schedule = self._document.schedule
        if schedule is None:
            column.addWidget(_quiet("How much memory a plan needs on each device appears here."))
        else:
            used = np.flatnonzero(schedule.peak_bytes > 0).tolist()
            self.devices = [DeviceMemory(schedule, device) for device in used]
            for widget in self.devices:
                column.addWidget(widget)
            column.addWidget(_quiet("weights and optimiser · activations · received"))
            if idle := np.flatnonzero(schedule.peak_bytes == 0).tolist():
                names = ", ".join(self._document.device_label(device) for device in idle)
                column.addWidget(_quiet(f"not used: {names}"))
        column.addStretch(1)
        scrolled = self._area.verticalScrollBar().value()
        self._area.setWidget(contents)
        contents.setAutoFillBackground(False)  # the area has just turned it on
        self._area.verticalScrollBar().setValue(scrolled)


def _quiet(text: str) -> QWidget:
    made = label(text, "dim")
    made.setWordWrap(True)
    return made
