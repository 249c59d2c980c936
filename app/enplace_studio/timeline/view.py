"""The timeline pane."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QHBoxLayout, QScrollBar, QWidget

from enplace.text import ms, percent
from enplace_studio.document import Document
from enplace_studio.panel import Panel, label, plain_tip
from enplace_studio.prediction import step_error
from enplace_studio.timeline.canvas import TimelineCanvas


class TimelineView(Panel):
    """When everything runs: lanes, transfers, the critical path and what it consists of."""

    def __init__(self, document: Document, parent: QWidget | None = None) -> None:
        super().__init__("Timeline", parent=parent)
        self._document = document
        self.canvas = TimelineCanvas(document)
        self._bar = QScrollBar(Qt.Orientation.Vertical)
        self._bar.setVisible(False)
        self._bar.valueChanged.connect(self._scroll)
        self.summary = label("", "dim")
        self.summary.setWordWrap(True)
        lanes = QHBoxLayout()
        lanes.setSpacing(4)
        lanes.addWidget(self.canvas, 1)
        lanes.addWidget(self._bar)
        self.body.addLayout(lanes, 1)
        self.body.addWidget(self.summary)
        self.canvas.summary_changed.connect(self._show_summary)
        self.canvas.extent_changed.connect(self._show_extent)
        document.opened.connect(self._show_legend)
        document.current_changed.connect(self._show_legend)
        self._show_legend()

    def _show_legend(self) -> None:
        schedule, baseline = self._document.schedule, self._document.baseline
        if schedule is None or self._document.current is None:
            self.set_legend("")
            return
        step, run = ms(schedule.makespan_us), self._document.current.run
        if run is not None:
            off = step_error(schedule, run)
            shown = "" if off is None else f" ({percent(off, signed=True)})"
            step += f" predicted{shown}, {ms(run.step_time_us)} measured"
        if baseline is not None:
            delta_us = schedule.makespan_us - baseline.makespan_us
            step += f"   {ms(delta_us, signed=True)} since your edits (thin lines: before)"
        self.set_legend(f"{step}   ·   W A S D to move")

    def _show_summary(self, text: str) -> None:
        self.summary.setText(text.replace(" ms", "\u00a0ms"))  # a unit stays with its number
        self.summary.setToolTip(plain_tip(text))

    def _show_extent(self) -> None:
        """The scroll bar follows the canvas."""
        extra = self.canvas.content_px - self.canvas.room_px
        self._bar.setVisible(extra > 0)
        self._bar.setRange(0, max(extra, 0))
        self._bar.setPageStep(max(self.canvas.room_px, 1))
        self._bar.setValue(round(self.canvas.scroll_px))

    def _scroll(self, value: int) -> None:
        if value != round(self.canvas.scroll_px):
            self.canvas.scroll_rows(value - self.canvas.scroll_px)
