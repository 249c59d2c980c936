"""Choosing a cluster."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import groupby
from pathlib import Path

from PySide6.QtCore import Qt
from PySide6.QtWidgets import (
    QDialog,
    QFileDialog,
    QListWidget,
    QListWidgetItem,
    QVBoxLayout,
    QWidget,
)

from enplace.errors import EnplaceError
from enplace.readers.clusters import cluster_from, presets
from enplace.values.cluster import Cluster
from enplace.values.profile import Profile
from enplace_studio.cluster_editor import FILE_FILTER, ClusterEditor, read_cluster
from enplace_studio.messages import DialogButtons, button
from enplace_studio.panel import label


def cluster_title(cluster: Cluster) -> str:
    """Return the beginning of a cluster's description, marked if it was edited."""
    title = re.split(r"[,.:(] ?(?!\d)", cluster.description, maxsplit=1)[0].strip()
    is_edited = presets().get(cluster.name, cluster) != cluster
    return (title or cluster.name) + (", edited" if is_edited else "")


def family(cluster: Cluster) -> str:
    """Return the heading of a preset in the list."""
    if "paper" in cluster.description:
        return "Testbeds of the papers"
    if all(device.kind == "cpu" for device in cluster.devices):
        return "Logical CPU devices"
    return "PCIe" if "PCIe" in cluster.description else "NVLink servers"


class ClusterChooser(QDialog):
    """Presets under headings, the profile's own devices, or a file."""

    def __init__(self, profile: Profile, current: Cluster, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setWindowTitle("Choose a cluster")
        self.resize(600, 620)
        self.chosen: Cluster | None = None
        self.list = QListWidget()
        self.list.setWordWrap(True)
        self.list.currentItemChanged.connect(self._describe)
        self.list.itemActivated.connect(lambda item: self.accept())
        self._text = label("", "dim")
        self._text.setWordWrap(True)
        self._text.setMinimumHeight(64)
        self._text.setAlignment(Qt.AlignmentFlag.AlignTop)
        layout = QVBoxLayout(self)
        layout.addWidget(self.list, 1)
        layout.addWidget(self._text)
        others = button("From a file…", self._from_file), button("Edit…", self._edit)
        buttons = DialogButtons(self, "Use this cluster", *others)
        buttons.accept.setDefault(True)
        layout.addLayout(buttons)
        self._fill(profile, current)

    def _fill(self, profile: Profile, current: Cluster) -> None:
        known = presets()
        if known.get(current.name) != current:
            self._heading("Now in use")
            self._add(current, current)
        if own := carried_cluster(profile):
            self._heading("Where the model was measured")
            self._add(own, current)
        order = ("Testbeds of the papers", "NVLink servers", "PCIe", "Logical CPU devices")
        clusters = sorted(known.values(), key=lambda c: order.index(family(c)))
        for title, members in groupby(clusters, key=family):
            self._heading(title)
            for cluster in members:
                self._add(cluster, current)

    def _heading(self, title: str) -> None:
        item = QListWidgetItem(title, self.list)
        item.setFlags(Qt.ItemFlag.NoItemFlags)
        font = item.font()
        font.setBold(True)
        item.setFont(font)

    def _add(self, cluster: Cluster, current: Cluster) -> None:
        item = QListWidgetItem(f"    {cluster_title(cluster)}    {cluster.name}", self.list)
        item.setData(Qt.ItemDataRole.UserRole, cluster)
        if cluster == current and self.list.currentItem() is None:
            self.list.setCurrentItem(item)

    def _describe(self) -> None:
        cluster = self._current()
        self._text.setText(cluster.description or cluster.name if cluster else "")

    def _current(self) -> Cluster | None:
        item = self.list.currentItem()
        return item.data(Qt.ItemDataRole.UserRole) if item else None

    def accept(self) -> None:
        self.chosen = self.chosen or self._current()
        super().accept()

    def _from_file(self) -> None:
        name, _ = QFileDialog.getOpenFileName(self, "Open a cluster", "", FILE_FILTER)
        if name:
            self._try(lambda: read_cluster(Path(name)))

    def _edit(self) -> None:
        cluster = self._current()
        if cluster is None:
            return
        editor = ClusterEditor(cluster, self)
        if editor.exec():
            self.chosen = editor.cluster
            self.accept()

    def _try(self, make: Callable[[], Cluster]) -> None:
        try:
            self.chosen = make()
        except EnplaceError as error:
            self._text.setText(str(error))
        else:
            self.accept()


def carried_cluster(profile: Profile) -> Cluster | None:
    """Return the devices that the profile was measured on, if it names them."""
    try:
        return cluster_from("local", profile)
    except EnplaceError:
        return None
