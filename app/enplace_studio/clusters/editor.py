"""A dialog that edits a cluster in two tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from PySide6.QtWidgets import (
    QAbstractItemView,
    QDialog,
    QFileDialog,
    QHBoxLayout,
    QHeaderView,
    QLineEdit,
    QTableWidget,
    QTableWidgetItem,
    QWidget,
)

from enplace.errors import ClusterError, EnplaceError
from enplace.files.writing import write_atomically
from enplace.readers.cluster_json import cluster_from_json
from enplace.readers.clusters import read_cluster
from enplace.values.cluster import Cluster
from enplace.writers.clusters import cluster_text, cluster_to_json
from enplace_studio.clusters.link_patterns import ALL, LinkRow, compress, expand
from enplace_studio.widgets.labels import label, paragraph
from enplace_studio.widgets.layouts import STRETCH, hbox, vbox
from enplace_studio.widgets.messages import DialogButtons, button

MIB = 2**20
FILE_FILTER = "Clusters (*.json)"
DEVICE_COLUMNS = ("Name", "Kind", "Memory, MiB", "Reserve, MiB", "Speed", "Lanes", "Chip", "Card")
EACH_ITS_OWN = "{from}->{to}"
"""The channel of a pattern that gives each link one of its own."""
LINK_HELP = (
    "A line such as GPU:* to GPU:*, or all to all, describes many links; a later line overrides an "
    "earlier one. In the channels, {from} and {to} stand for the two devices."
)
LINK_COLUMNS = ("From", "To", "Latency, µs", "Bandwidth, GB/s", "Channels")


class ClusterEditor(QDialog):
    """A table of devices and one of links; errors appear at the bottom."""

    def __init__(self, cluster: Cluster, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setWindowTitle("Edit cluster")
        self.resize(760, 640)
        self.cluster = cluster
        self.name, self.description = QLineEdit(), QLineEdit()
        self.devices, self.links = _table(DEVICE_COLUMNS), _table(LINK_COLUMNS)
        self.name.setAccessibleName("Name")
        self.description.setAccessibleName("Description")
        self.devices.setAccessibleName("Devices")
        self.links.setAccessibleName("Links")
        self._fault = label("", "bad", wraps=True)
        about = label("Description"), (self.description, 3)
        add, remove = ("Add a device", self.add_device), ("Remove", self.remove_device)
        alike = ("One line for all pairs", self.link_all_alike)
        link, unlink = ("Add a line", self.add_line), ("Remove", self.remove_line)
        others = button("Import JSON…", self._import), button("Export JSON…", self._export)
        buttons = DialogButtons(self, "Use this cluster", *others)
        buttons.accept.setDefault(True)
        vbox(
            hbox(label("Name"), (self.name, 1), *about),
            _heading("Devices", add, remove),
            (self.devices, 3),
            _heading("Links", alike, link, unlink),
            (self.links, 2),
            paragraph(LINK_HELP),
            self._fault,
            buttons,
            on=self,
            margins=(16, 16, 16, 14),
        )
        self.show_cluster(cluster)

    def show_cluster(self, cluster: Cluster) -> None:
        """Fill the fields and tables."""
        data = self._shown = cluster_to_json(cluster)
        self.name.setText(data["name"])
        self.description.setText(data["description"])
        self.description.setCursorPosition(0)
        _fill(self.devices, [_device_row(device) for device in data["devices"]])
        names = [device["name"] for device in data["devices"]]
        _fill(self.links, compress([_link_row(link) for link in data["links"]], names))
        self._fault.clear()

    def read(self) -> Cluster:
        """Read the cluster from the fields and tables.

        Raises
        ------
        EnplaceError
            Names the device or link, and the fix.
        """
        # Untouched values keep the digits that the table does not show.
        exact_device = {tuple(_device_row(device)): device for device in self._shown["devices"]}
        exact_link = {_link_row(link): link for link in self._shown["links"]}
        devices = [exact_device.get(tuple(r)) or _device_of(r) for r in _rows(self.devices)]
        names = [device["name"] for device in devices]
        rows = expand(_rows(self.links), names)
        links = [exact_link.get(row) or _link_of(row) for row in rows]
        channels = dict.fromkeys(channel for link in links for channel in link["channels"])
        return cluster_from_json(
            {
                "format": self._shown["format"],
                "name": self.name.text().strip() or "custom",
                "description": self.description.text().strip(),
                "devices": devices,
                "channels": list(channels),
                "links": links,
            }
        )

    def add_device(self) -> None:
        """Add a copy of the last device, with the links to all others that no pattern gives it."""
        rows, links = _rows(self.devices), _rows(self.links)
        model = rows[-1]
        kind = model[1]
        taken = {row[0] for row in rows}
        name = next(n for i in range(len(rows) + 1) if (n := f"{kind.upper()}:{i}") not in taken)
        linked = {row[:2] for row in expand(links, [*taken, name])}
        for other in sorted(taken):
            pairs = [ends for ends in ((name, other), (other, name)) if ends not in linked]
            links += [[a, b, *self._usual_cost, f"{a}->{b}"] for a, b in pairs]
        _fill(self.devices, [*rows, [name, *model[1:]]])
        _fill(self.links, links)
        self.devices.selectRow(len(rows))
        self.devices.scrollToBottom()

    def remove_device(self) -> None:
        """Remove the chosen device (by default the last) and its links."""
        rows = _rows(self.devices)
        at = self.devices.currentRow()
        gone = rows.pop(at if at >= 0 else -1)[0]
        _fill(self.devices, rows)
        _fill(self.links, [row for row in _rows(self.links) if gone not in row[:2]])

    @property
    def _usual_cost(self) -> list[str]:
        """The latency and bandwidth of the chosen line, by default the first."""
        rows, at = _rows(self.links), max(self.links.currentRow(), 0)
        return rows[at][2:4] if rows else ["10", "25"]

    def link_all_alike(self) -> None:
        """Describe all links in one line, with the cost of the chosen one."""
        _fill(self.links, [[ALL, ALL, *self._usual_cost, EACH_ITS_OWN]])

    def add_line(self) -> None:
        """Add a line for all pairs, to be narrowed down."""
        rows = _rows(self.links)
        _fill(self.links, [*rows, [ALL, ALL, *self._usual_cost, EACH_ITS_OWN]])
        self.links.selectRow(len(rows))
        self.links.scrollToBottom()

    def remove_line(self) -> None:
        """Remove the chosen line of links, by default the last."""
        rows, at = _rows(self.links), self.links.currentRow()
        if rows:
            rows.pop(at if at >= 0 else -1)
            _fill(self.links, rows)

    def accept(self) -> None:
        def use() -> None:
            self.cluster = self.read()

        if self._try(use):
            super().accept()

    def _import(self) -> None:
        name, _ = QFileDialog.getOpenFileName(self, "Import a cluster", "", FILE_FILTER)
        if name:
            self._try(lambda: self.show_cluster(read_cluster(Path(name))))

    def _export(self) -> None:
        suggested = f"{self.name.text() or 'cluster'}.json"
        name, _ = QFileDialog.getSaveFileName(self, "Export the cluster", suggested, FILE_FILTER)
        if name:
            self._try(lambda: write_atomically(name, cluster_text(self.read()) + "\n"))

    def _try(self, do: Callable[[], object]) -> bool:
        """Do something and return whether it went well; show what is wrong if it did not."""
        try:
            do()
        except EnplaceError as error:
            self._fault.setText(str(error))
            return False
        return True


def _heading(title: str, *actions: tuple[str, Callable[[], None]]) -> QHBoxLayout:
    buttons = [button(text, action) for text, action in actions]
    return hbox(label(title, "title"), (STRETCH, 0), *buttons)


def _table(columns: Sequence[str]) -> QTableWidget:
    table = QTableWidget(0, len(columns))
    table.setHorizontalHeaderLabels(list(columns))
    table.horizontalHeader().setSectionResizeMode(QHeaderView.ResizeMode.Stretch)
    table.verticalHeader().hide()
    table.setSelectionBehavior(QAbstractItemView.SelectionBehavior.SelectRows)
    return table


def _fill(table: QTableWidget, rows: Sequence[Sequence[str]]) -> None:
    table.setRowCount(len(rows))
    for number, row in enumerate(rows):
        for column, text in enumerate(row):
            table.setItem(number, column, QTableWidgetItem(text))


def _rows(table: QTableWidget) -> list[list[str]]:
    def text(row: int, column: int) -> str:
        item = table.item(row, column)
        return item.text().strip() if item else ""

    columns = range(table.columnCount())
    return [[text(row, column) for column in columns] for row in range(table.rowCount())]


def _device_row(device: dict[str, Any]) -> list[str]:
    memory, speed = f"{device['capacity_bytes'] / MIB:.12g}", f"{device['speed']:g}"
    lanes, chip = str(device["lanes"]), device.get("chip", "")
    reserve = f"{device.get('reserve_bytes', 0) / MIB:.6g}"
    card = device.get("model", "")
    return [device["name"], device["kind"], memory, reserve, speed, lanes, chip, card]


def _device_of(row: Sequence[str]) -> dict[str, Any]:
    name, kind, memory, reserve, speed, lanes, chip, card = row
    where = f"device '{name}'"
    return {
        "name": name,
        "kind": kind,
        "capacity_bytes": round(_number(memory, where, "memory") * MIB),
        "speed": _number(speed, where, "speed"),
        "lanes": round(_number(lanes, where, "lanes")),
        "chip": chip,
        "model": card,
        "reserve_bytes": round(_number(reserve or "0", where, "reserve", low=0) * MIB),
    }


def _link_row(link: dict[str, Any]) -> LinkRow:
    slowness = link["b1_us_per_byte"]
    bandwidth = f"{1e-3 / slowness:.4g}" if slowness else "inf"
    channels = "; ".join(link["channels"])
    return (link["from"], link["to"], f"{link['b0_us']:.4g}", bandwidth, channels)


def _link_of(row: Sequence[str]) -> dict[str, Any]:
    source, target, latency, bandwidth, channels = row
    where = f"link {source} to {target}"
    gigabytes = _number(bandwidth, where, "bandwidth", high=math.inf)
    return {
        "from": source,
        "to": target,
        "b0_us": _number(latency, where, "latency", low=0),
        "b1_us_per_byte": 1e-3 / gigabytes,
        "channels": [name.strip() for name in channels.split(";") if name.strip()],
    }


def _number(text: str, where: str, what: str, low: float = 1e-9, high: float = 1e12) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not low <= value <= high:
        least = "above 0" if low else "of 0 or more"
        raise ClusterError(f"{where}: {what} must be a number {least}, not '{text}'")
    return value
