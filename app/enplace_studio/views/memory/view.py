"""The memory pane."""

from __future__ import annotations

from functools import partial

import numpy as np
from PySide6.QtCore import QPoint, Qt
from PySide6.QtGui import QAction
from PySide6.QtWidgets import QMenu, QWidget

from enplace.text import count, ms
from enplace.values.device_names import device_label
from enplace.values.schedule import Schedule
from enplace_studio.device_menu import device_menu
from enplace_studio.document import Document
from enplace_studio.jobs import Solver
from enplace_studio.op_menu import op_menu
from enplace_studio.panel import Column, Panel, paragraph
from enplace_studio.pictures import Drawing, draw_widget
from enplace_studio.views.memory.bar import DeviceMemory
from enplace_studio.views.memory.contents import MemoryTable
from enplace_studio.views.memory.holdings import contents_at

LEGEND = "weights and optimiser · activations · received, from dark to light; dashed: capacity"


def make_view(document: Document, solver: Solver) -> MemoryView:
    """Make the pane; it needs no solver."""
    return MemoryView(document)


class MemoryView(Panel):
    """The memory of each device: a bar against its capacity, and the curve over the step."""

    def __init__(self, document: Document, parent: QWidget | None = None) -> None:
        super().__init__("Memory", parent=parent)
        self._document = document
        self.offer_picture(document.requests.save_picture.emit)
        self.devices: list[DeviceMemory] = []
        self._column = Column()
        self.body.addWidget(self._column, 1)
        document.opened.connect(self.rebuild)
        # Runs after the other views, so that the window stays responsive when a plan changes.
        document.current_changed.connect(self.rebuild, Qt.ConnectionType.QueuedConnection)
        self.rebuild()

    def drawing(self) -> Drawing | None:
        """Return all devices, those scrolled out of sight too."""
        contents = self._column.widget()
        return None if contents is None else draw_widget("Memory", contents)

    def rebuild(self) -> None:
        """Show the current plan's schedule."""
        column = self._column.fill(spacing=10)
        self.devices = []
        schedule = self._document.schedule
        if schedule is None:
            column.addWidget(paragraph("How much memory a plan needs on each device appears here."))
        else:
            used = np.flatnonzero(schedule.peak_bytes > 0).tolist()
            self.devices = [DeviceMemory(schedule, device) for device in used]
            for widget in self.devices:
                widget.asked.connect(partial(self.show_contents, schedule))
                widget.setContextMenuPolicy(Qt.ContextMenuPolicy.CustomContextMenu)
                widget.customContextMenuRequested.connect(partial(self._open_menu, widget))
                column.addWidget(widget)
            column.addWidget(paragraph(LEGEND))
            devices = schedule.problem.cluster.devices
            if idle := np.flatnonzero(schedule.peak_bytes == 0).tolist():
                names = ", ".join(device_label(devices[device].name) for device in idle)
                column.addWidget(paragraph(f"not used: {names}"))

    def _open_menu(self, widget: DeviceMemory, at: QPoint) -> None:
        self.menu_at(widget, at).popup(widget.mapToGlobal(at))

    def menu_at(self, widget: DeviceMemory, at: QPoint) -> QMenu:
        """Make the menu of a device: its contents, its ops, its lock, and the picture."""
        device, schedule = widget.device, widget.schedule
        menu = device_menu(self._document, device, self)
        first, moments = menu.actions()[0], [(widget.split.peak_us, "at the peak")]
        if not widget.is_compact and widget.curve_area.contains(at):
            time_us = widget.time_at(at.x())
            moments.insert(0, (time_us, f"at {ms(time_us)}"))
        for time_us, when in moments:
            action = QAction(f"List what is in it {when}", menu)
            action.triggered.connect(partial(self.show_contents, schedule, device, time_us))
            menu.insertAction(first, action)
            holders = {held.op for held in contents_at(schedule, device, time_us)}
            select = QAction(f"Select the {count(len(holders), 'op')} that fill it {when}", menu)
            select.triggered.connect(partial(self._document.select, sorted(holders)))
            menu.insertAction(first, select)
        menu.insertSeparator(first)
        menu.addSeparator()
        menu.addActions(self.actions())
        return menu

    def _open_row_menu(self, table: MemoryTable, at: QPoint) -> None:
        """Open the menu of the ops in the chosen rows; the click has just selected them."""
        project = self._document.project
        if project is not None and self._document.selection:
            menu = op_menu(self._document, project, table)
            menu.popup(table.table.viewport().mapToGlobal(at))

    def show_contents(self, schedule: Schedule, device: int, time_us: float) -> MemoryTable:
        """List everything in a device's memory at a moment, beside the window's other panes."""
        table = MemoryTable(schedule, device, time_us, self.window())
        table.chosen.connect(self._document.select)
        table.table.setContextMenuPolicy(Qt.ContextMenuPolicy.CustomContextMenu)
        table.table.customContextMenuRequested.connect(partial(self._open_row_menu, table))
        self._document.opened.connect(table.close)  # its ops are those of this graph
        table.show()
        return table
