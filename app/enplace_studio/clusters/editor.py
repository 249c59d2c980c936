"""A dialog that edits a cluster in two tables, beside its picture."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from PySide6.QtCore import (
    QAbstractItemModel,
    QLocale,
    QModelIndex,
    QPersistentModelIndex,
    QRect,
    Qt,
)
from PySide6.QtWidgets import (
    QAbstractItemView,
    QCheckBox,
    QComboBox,
    QDialog,
    QFileDialog,
    QFrame,
    QHBoxLayout,
    QHeaderView,
    QLineEdit,
    QScrollArea,
    QStyledItemDelegate,
    QStyleOptionViewItem,
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
from enplace_studio.clusters.link_patterns import (
    ALL,
    CHANNELS,
    EACH_ITS_OWN,
    JOIN,
    LinkRow,
    choices_of_ends,
    compress,
    expand,
    from_words,
    in_words,
    split_channels,
)
from enplace_studio.clusters.topology import TopologyView
from enplace_studio.explain.cluster_facts import bandwidth_text, devices_text, memory_text
from enplace_studio.jobs.call_later import call_later
from enplace_studio.widgets.labels import label, paragraph
from enplace_studio.widgets.layouts import STRETCH, hbox, vbox
from enplace_studio.widgets.messages import DialogButtons, button
from enplace_studio.widgets.sizes import give_size
from enplace_studio.widgets.theme import theme

MIB = 2**20
FILE_FILTER = "Clusters (*.json)"
DEVICE_COLUMNS = ("Name", "Kind", "Memory, MiB", "Reserve, MiB", "Speed", "Lanes", "Chip", "Card")
LINK_HELP = (
    "A later line overrides an earlier one. Links that share a channel send one at a time; a link "
    "may be on several."
)
LINK_COLUMNS = ("From", "To", "Latency, µs", "Bandwidth, GB/s", "Channels")
FROM, TO, CHANNEL = 0, 1, 4
SIZE, PICTURE_PX, CHOICE_PX = (1000, 640), 290, 12


class ClusterEditor(QDialog):
    """A table of devices and one of links; the picture follows, and errors appear at the bottom."""

    def __init__(self, cluster: Cluster, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setWindowTitle("Edit cluster")
        give_size(self, SIZE)
        self.cluster = cluster
        self.name, self.description = QLineEdit(), QLineEdit()
        self.devices, self.links = _table(DEVICE_COLUMNS), _table(LINK_COLUMNS)
        self.name.setAccessibleName("Name")
        self.description.setAccessibleName("Description")
        self.devices.setAccessibleName("Devices")
        self.links.setAccessibleName("Links")
        self.links.setItemDelegateForColumn(FROM, _Choices(self._ends, self.links))
        self.links.setItemDelegateForColumn(TO, _Choices(self._ends, self.links))
        self.links.setItemDelegateForColumn(CHANNEL, _Channels(self._channels, self.links))
        by_contents = QHeaderView.ResizeMode.ResizeToContents
        self.links.horizontalHeader().setSectionResizeMode(CHANNEL, by_contents)
        self._fault = label("", "bad", wraps=True)
        self.topology, self._about = TopologyView(), paragraph("")
        card = QFrame()
        card.setProperty("card", True)
        card.setFixedWidth(round(PICTURE_PX * theme.scale))
        vbox(self.topology, self._about, STRETCH, on=card, margins=(12, 12, 12, 12))
        about = label("Description"), (self.description, 3)
        add, remove = ("Add a device", self.add_device), ("Remove", self.remove_device)
        alike = ("One line for all pairs", self.link_all_alike)
        link, unlink = ("Add a line", self.add_line), ("Remove", self.remove_line)
        others = button("Import JSON…", self._import), button("Export JSON…", self._export)
        buttons = DialogButtons(self, "Use this cluster", *others)
        buttons.accept.setDefault(True)
        tables = vbox(
            _heading("Devices", add, remove),
            (self.devices, 3),
            _heading("Links", alike, link, unlink),
            (self.links, 2),
            paragraph(LINK_HELP),
        )
        vbox(
            hbox(label("Name"), (self.name, 1), *about),
            (hbox((tables, 1), card, spacing=12), 1),
            self._fault,
            buttons,
            on=self,
            margins=(16, 16, 16, 14),
        )
        call_later(self, self._draw, self.devices.itemChanged, self.links.itemChanged)
        self.show_cluster(cluster)
        self._draw()

    def show_cluster(self, cluster: Cluster) -> None:
        """Fill the fields and tables."""
        data = self._shown = cluster_to_json(cluster)
        self.name.setText(data["name"])
        self.description.setText(data["description"])
        self.description.setCursorPosition(0)
        _fill(self.devices, [_device_row(device) for device in data["devices"]])
        names = [device["name"] for device in data["devices"]]
        self._show_links(compress([_link_row(link) for link in data["links"]], names))
        self._fault.clear()

    def _draw(self) -> None:
        """Draw what the tables say, or say what is wrong with them."""
        self._fault.clear()
        try:
            cluster = self.read()
        except EnplaceError as error:
            self._fault.setText(str(error))
            return
        self.topology.show_cluster(cluster)
        links = bandwidth_text(cluster).replace("none", "no links")
        facts = devices_text(cluster), memory_text(cluster), links
        self._about.setText(" · ".join(facts))

    def _show_links(self, rows: Iterable[Sequence[str]]) -> None:
        _fill(self.links, [in_words(row) for row in rows])

    def _link_rows(self) -> list[LinkRow]:
        return [from_words(row) for row in _rows(self.links)]

    def _ends(self) -> list[str]:
        return choices_of_ends([row[0] for row in _rows(self.devices)])

    def _channels(self) -> list[str]:
        """List the channels to choose from: those in use, and the usual ones."""
        used = [each for row in _rows(self.links) for each in split_channels(row[CHANNEL])]
        return list(dict.fromkeys([CHANNELS[EACH_ITS_OWN], *used, *CHANNELS.values()]))

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
        rows = expand(self._link_rows(), names)
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
        rows, links = _rows(self.devices), self._link_rows()
        model = rows[-1]
        kind = model[1]
        taken = {row[0] for row in rows}
        name = next(n for i in range(len(rows) + 1) if (n := f"{kind.upper()}:{i}") not in taken)
        linked = {row[:2] for row in expand(links, [*taken, name])}
        for other in sorted(taken):
            pairs = [ends for ends in ((name, other), (other, name)) if ends not in linked]
            links += [(a, b, *self._usual_cost, f"{a}->{b}") for a, b in pairs]
        _fill(self.devices, [*rows, [name, *model[1:]]])
        self._show_links(links)
        self.devices.selectRow(len(rows))
        self.devices.scrollToBottom()

    def remove_device(self) -> None:
        """Remove the chosen device (by default the last) and its links."""
        rows = _rows(self.devices)
        at = self.devices.currentRow()
        gone = rows.pop(at if at >= 0 else -1)[0]
        _fill(self.devices, rows)
        self._show_links([row for row in self._link_rows() if gone not in row[:2]])

    @property
    def _usual_cost(self) -> list[str]:
        """The latency and bandwidth of the chosen line, by default the first."""
        rows, at = _rows(self.links), max(self.links.currentRow(), 0)
        return rows[at][2:4] if rows else ["10", "25"]

    def link_all_alike(self) -> None:
        """Describe all links in one line, with the cost of the chosen one."""
        self._show_links([(ALL, ALL, *self._usual_cost, EACH_ITS_OWN)])

    def add_line(self) -> None:
        """Add a line for all pairs, to be narrowed down."""
        rows = self._link_rows()
        self._show_links([*rows, (ALL, ALL, *self._usual_cost, EACH_ITS_OWN)])
        self.links.selectRow(len(rows))
        self.links.scrollToBottom()

    def remove_line(self) -> None:
        """Remove the chosen line of links, by default the last."""
        rows, at = self._link_rows(), self.links.currentRow()
        if rows:
            rows.pop(at if at >= 0 else -1)
            self._show_links(rows)

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


class _Choices(QStyledItemDelegate):
    """Edits a cell with a list of choices; another text can be typed."""

    def __init__(self, choices: Callable[[], Sequence[str]], parent: QWidget) -> None:
        super().__init__(parent)
        self._choices = choices

    def createEditor(
        self,
        parent: QWidget,
        option: QStyleOptionViewItem,
        index: QModelIndex | QPersistentModelIndex,
    ) -> QWidget:
        field = QComboBox(parent, editable=True)
        field.addItems(list(self._choices()))
        field.setCurrentText(index.data())
        field.setCurrentIndex(field.findText(index.data()))
        field.view().setMinimumWidth(field.view().sizeHintForColumn(0) + 2 * CHOICE_PX)
        return field


class _Channels(_Choices):
    """Edits a cell with a box to check for each channel, and a field for another one."""

    def displayText(self, value: Any, locale: QLocale | QLocale.Language) -> str:
        return " and ".join(split_channels(str(value)))

    def createEditor(
        self,
        parent: QWidget,
        option: QStyleOptionViewItem,
        index: QModelIndex | QPersistentModelIndex,
    ) -> QWidget:
        return ChannelBoxes(self._choices(), split_channels(index.data()), parent)

    def setEditorData(self, editor: QWidget, index: QModelIndex | QPersistentModelIndex) -> None:
        """Keep the boxes as they were made."""

    def setModelData(
        self,
        editor: QWidget,
        model: QAbstractItemModel,
        index: QModelIndex | QPersistentModelIndex,
    ) -> None:
        assert isinstance(editor, ChannelBoxes)
        model.setData(index, JOIN.join(editor.chosen))

    def updateEditorGeometry(
        self,
        editor: QWidget,
        option: QStyleOptionViewItem,
        index: QModelIndex | QPersistentModelIndex,
    ) -> None:
        cell, screen = QRect(option.rect), editor.screen().availableGeometry()
        table = editor.parentWidget()
        assert table is not None
        cell.moveTo(table.mapToGlobal(cell.topLeft()))
        shown = QRect(cell.bottomLeft(), editor.sizeHint().expandedTo(cell.size()))
        if shown.bottom() > screen.bottom():
            shown.moveBottom(cell.top())
        shown.moveRight(min(shown.right(), screen.right()))
        editor.setGeometry(shown)


class ChannelBoxes(QFrame):
    """A box to check for each channel that a link may be on; a click aside closes them."""

    def __init__(self, names: Sequence[str], chosen: Sequence[str], parent: QWidget) -> None:
        super().__init__(parent, Qt.WindowType.Popup)
        self.setProperty("card", True)
        self.boxes = [QCheckBox(name.replace("&", "&&")) for name in names]
        for box, name in zip(self.boxes, names, strict=True):
            box.setChecked(name in chosen)
        self._names, self.other = names, QLineEdit()
        self.other.setPlaceholderText("another channel")
        self.other.setAccessibleName("Another channel")
        inner = QWidget()
        vbox(*self.boxes, on=inner, spacing=4, margins=(2, 4, 2, 4))
        area = QScrollArea()
        area.setFrameShape(QFrame.Shape.NoFrame)
        area.setWidgetResizable(True)
        area.setWidget(inner)
        area.viewport().setAutoFillBackground(False)
        inner.setAutoFillBackground(False)  # setWidget has just turned it on
        vbox((area, 1), self.other, on=self, spacing=4, margins=(8, 4, 8, 8))
        self.setFocusProxy(self.boxes[0])

    @property
    def chosen(self) -> list[str]:
        """The channels chosen."""
        boxes = zip(self._names, self.boxes, strict=True)
        checked = [name for name, box in boxes if box.isChecked()]
        return list(dict.fromkeys([*checked, *split_channels(self.other.text())]))


def _heading(title: str, *actions: tuple[str, Callable[[], None]]) -> QHBoxLayout:
    buttons = [button(text, action) for text, action in actions]
    return hbox(label(title, "title"), (STRETCH, 0), *buttons)


_Trigger = QAbstractItemView.EditTrigger


def _table(columns: Sequence[str]) -> QTableWidget:
    table = QTableWidget(0, len(columns))
    table.setHorizontalHeaderLabels(list(columns))
    table.horizontalHeader().setSectionResizeMode(QHeaderView.ResizeMode.Stretch)
    table.verticalHeader().hide()
    table.setEditTriggers(_Trigger.AllEditTriggers & ~_Trigger.CurrentChanged)
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
    channels = JOIN.join(link["channels"])
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
        "channels": split_channels(channels),
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
