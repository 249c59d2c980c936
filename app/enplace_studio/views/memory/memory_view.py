"""The memory pane."""

from __future__ import annotations

from functools import partial

import numpy as np
from PySide6.QtCore import QPoint
from PySide6.QtGui import QAction, QResizeEvent
from PySide6.QtWidgets import QLabel, QMenu, QWidget

from enplace.text import count, ms
from enplace_studio.explain.holdings import contents_at
from enplace_studio.jobs.call_later import call_later
from enplace_studio.jobs.solver import Solver
from enplace_studio.model.document import Document
from enplace_studio.model.requests import Wanted
from enplace_studio.views.memory.bar import CURVE_PX, DeviceMemory
from enplace_studio.widgets.column import ROOM_OF_BAR
from enplace_studio.widgets.device_menu import device_menu
from enplace_studio.widgets.labels import paragraph
from enplace_studio.widgets.menu import offer_menu
from enplace_studio.widgets.messages import button
from enplace_studio.widgets.panel import Need, ScrollPanel
from enplace_studio.widgets.pictures import Drawing
from enplace_studio.widgets.theme import theme

MOST_LEAST = 260
"""With many devices, curves scroll rather than take the room of all other panes."""
COLUMN_SPACING = 10
LEGEND = "weights and optimiser · activations · received, from dark to light; dashed: capacity"


def make_view(document: Document, solver: Solver) -> MemoryView:
    """Make the pane; it needs no solver."""
    return MemoryView(document)


class MemoryView(ScrollPanel):
    """The memory of each device: a bar against its capacity, and the curve over the step."""

    def __init__(self, document: Document, parent: QWidget | None = None) -> None:
        super().__init__("Memory", parent=parent)
        self._document = document
        self.offer_picture(document.requests.save_picture.emit)
        self.devices: list[DeviceMemory] = []
        self._wants_curves = False
        self._texts: list[QLabel] = []
        self._about: QLabel | None = None
        self.curves_button = button("Curves", self._ask_for_curves, kind="link")
        self.curves_button.setToolTip("Show how much memory is in use over the step")
        self.header.addWidget(self.curves_button)
        everything = partial(document.requests.list_rows.emit, Wanted("memory"))
        self.table_button = button("Tensors", everything, kind="link")
        self.table_button.setToolTip("List the tensors in memory at the peak of each device")
        self.header.addWidget(self.table_button)
        call_later(
            self,
            self.rebuild,
            document.opened,
            document.current_changed,
            document.pipeline_changed,
        )
        self.rebuild()

    def drawing(self) -> Drawing | None:
        """Return all devices with their curves, those scrolled out of sight too."""
        for each in self.devices:
            each.show_curve(CURVE_PX[1])
        if self._about is not None:
            self._about.show()
        drawn = super().drawing()
        self._fit_curves()
        return drawn

    def rebuild(self) -> None:
        """Show the current plan's schedule."""
        self.devices, self._texts, self._about = [], [], None
        many = "" if self._document.pipeline is None else "pipeline"
        self.set_legend(many)
        self.table_button.setVisible(self._document.schedule is not None and not many)
        column = self.column.fill(COLUMN_SPACING)
        schedule = self._document.schedule
        if schedule is None:
            self._texts = [paragraph("How much memory a plan needs on each device appears here.")]
        else:
            pipeline = self._document.pipeline
            peaks = schedule.peak_bytes if pipeline is None else pipeline.peak_bytes
            used = np.flatnonzero(peaks > 0).tolist()
            self.devices = [DeviceMemory(schedule, device, pipeline) for device in used]
            for widget in self.devices:
                widget.asked.connect(self._list_contents)
                offer_menu(widget, partial(self.menu_at, widget))
                column.addWidget(widget)
            of = "" if pipeline is None else "of all samples in flight: "
            self._about = paragraph(of + LEGEND)
            self._texts = [self._about]
            devices = schedule.problem.cluster.devices
            if idle := np.flatnonzero(peaks == 0).tolist():
                names = ", ".join(devices[device].label for device in idle)
                self._texts.append(paragraph(f"not used: {names}"))
        for text in self._texts:
            column.addWidget(text)
        self._fit_curves()

    # Curves, if there is room

    def need(self) -> Need:
        least, wanted, most = (self._height_with(px) for px in (0, CURVE_PX[0], CURVE_PX[1]))
        if not self._wants_curves:
            return Need(self.title_height, least, max(least, wanted), most)
        return Need(self.title_height, max(least, min(wanted, MOST_LEAST)), wanted, most)

    def _height_with(self, curve_px: int) -> int:
        """Return the height of the panel with curves of this height, or without any (0)."""
        texts = [text for text in self._texts if curve_px or text is not self._about]
        heights = [each.height_with(curve_px) for each in self.devices]
        heights += [text.heightForWidth(self.inner_width - ROOM_OF_BAR) for text in texts]
        return self.around_height + sum(heights) + COLUMN_SPACING * (len(heights) - 1)

    def _ask_for_curves(self) -> None:
        self._wants_curves = True
        self._fit_curves()
        self.hold_room(True)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._fit_curves()

    def _fit_curves(self) -> None:
        """Make the curves as high as the room allows; in too little room, leave them out."""
        drawn = [each for each in self.devices if not each.is_compact]
        least, most = CURVE_PX
        spare = self.height() - self._height_with(least)
        more = int(spare / max(len(drawn), 1) / theme.scale)
        px = min(least + max(more, 0), most) if spare >= 0 or self._wants_curves else 0
        self.curves_button.setVisible(not px and bool(drawn))
        if self._about is not None:
            self._about.setVisible(px > 0)
        for each in drawn:
            each.show_curve(px)

    def menu_at(self, widget: DeviceMemory, at: QPoint) -> QMenu:
        """Make the menu of a device: its contents, its ops, its lock, and the picture."""
        device, schedule = widget.device, widget.schedule
        menu = device_menu(self._document, device, self)
        first, moments = menu.actions()[0], [(widget.split.peak_us, "at the peak")]
        if not widget.is_compact and widget.curve_area.contains(at):
            time_us = widget.time_at(at.x())
            moments.insert(0, (time_us, f"at {ms(time_us)}"))
        for time_us, when in moments if widget.pipeline is None else ():
            action = QAction(f"List what is in it {when}", menu)
            action.triggered.connect(partial(self._list_contents, device, time_us))
            menu.insertAction(first, action)
            holders = {held.op for held in contents_at(schedule, device, time_us)}
            select = QAction(f"Select the {count(len(holders), 'op')} that fill it {when}", menu)
            select.triggered.connect(partial(self._document.select, sorted(holders)))
            menu.insertAction(first, select)
        menu.insertSeparator(first)
        menu.addSeparator()
        menu.addActions(self.actions())
        return menu

    def _list_contents(self, device: int, time_us: float) -> None:
        """List everything in a device's memory at a moment."""
        want = Wanted("memory", where=(device, time_us))
        self._document.requests.list_rows.emit(want)
