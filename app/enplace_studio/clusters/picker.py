"""Choosing a cluster."""

from __future__ import annotations

import re
from pathlib import Path

from PySide6.QtWidgets import QDialog, QFileDialog, QFrame, QWidget

from enplace.errors import EnplaceError
from enplace.readers.clusters import cluster_from, presets, read_cluster
from enplace.values.cluster import Cluster
from enplace.values.profile import Profile
from enplace_studio.clusters.editor import FILE_FILTER, ClusterEditor
from enplace_studio.clusters.topology import TopologyView
from enplace_studio.explain.cluster_facts import (
    bandwidth_text,
    cluster_title,
    devices_text,
    family,
    memory_text,
)
from enplace_studio.widgets.column import Column
from enplace_studio.widgets.labels import label, paragraph
from enplace_studio.widgets.layouts import hbox, vbox
from enplace_studio.widgets.messages import DialogButtons, button
from enplace_studio.widgets.search_list import Row, SearchList, matches
from enplace_studio.widgets.sizes import give_size
from enplace_studio.widgets.theme import theme

SIZE = (940, 600)
LIST_WIDTH, DETAILS_WIDTH = 480, 330
HEADINGS = ("Devices", "Memory", "Links")
FAMILIES = ("Testbeds of the papers", "NVLink servers", "PCIe", "Logical CPU devices")


class ClusterChooser(QDialog):
    """Presets under headings, the profile's own devices, or a file."""

    def __init__(self, profile: Profile, current: Cluster, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setWindowTitle("Choose a cluster")
        give_size(self, SIZE)
        self.chosen: Cluster | None = None
        self._groups = offered(profile, current)
        self.search = SearchList(self._find, "Search clusters")
        self.search.setMinimumWidth(round(LIST_WIDTH * theme.scale))
        self.search.moved.connect(self._describe)
        self.search.chosen.connect(self.accept)
        self.topology, self._details = TopologyView(), Column("About the cluster")
        self._fault = label("", "bad", wraps=True)
        self._lay_out()
        self.search.fill(current)
        self.search.setFocus()

    def _lay_out(self) -> None:
        card = QFrame()
        card.setProperty("card", True)
        card.setFixedWidth(round(DETAILS_WIDTH * theme.scale))
        vbox(self.topology, (self._details, 1), on=card, margins=(14, 12, 10, 12))
        middle = hbox((self.search, 1), card, spacing=10)
        others = button("From a file…", self._from_file), button("Edit…", self._edit)
        self.buttons = DialogButtons(self, "Use this cluster", *others)
        self.buttons.accept.setDefault(True)
        parts = (middle, 1), self._fault, self.buttons
        vbox(*parts, on=self, spacing=12, margins=(14, 14, 14, 14))
        self._fault.hide()

    def _find(self, typed: str) -> list[Row]:
        groups: list[list[Row]] = []
        for title, clusters in self._groups.items():
            found = [
                row for row in map(_row, clusters) if matches(typed, f"{title} {_text_of(row)}")
            ]
            if found:
                found.sort(key=lambda row: _misses(typed, row))
                groups.append([Row(title, columns=HEADINGS), *found])  # it may be out of sight
        groups.sort(key=lambda group: _misses(typed, group[1]))
        return [row for group in groups for row in group]

    def _describe(self) -> None:
        cluster, column = self._current(), self._details.fill(6)
        self.topology.show_cluster(cluster)
        self.buttons.accept.setEnabled(cluster is not None)
        if cluster is not None:
            column.addWidget(label(cluster.name, "title"))
            column.addWidget(paragraph(cluster.description))

    def _current(self) -> Cluster | None:
        current = self.search.current
        return current if isinstance(current, Cluster) else None

    def accept(self) -> None:
        self.chosen = self.chosen or self._current()
        super().accept()

    def _from_file(self) -> None:
        name, _ = QFileDialog.getOpenFileName(self, "Open a cluster", "", FILE_FILTER)
        if not name:
            return
        try:
            self.chosen = read_cluster(Path(name))
        except EnplaceError as error:
            self._fault.setText(str(error))
            self._fault.show()
        else:
            self.accept()

    def _edit(self) -> None:
        cluster = self._current()
        if cluster is None:
            return
        editor = ClusterEditor(cluster, self)
        if editor.exec():
            self.chosen = editor.cluster
            self.accept()


def _row(cluster: Cluster) -> Row:
    facts = (devices_text(cluster), memory_text(cluster), bandwidth_text(cluster))
    return Row(cluster_title(cluster), cluster, facts, cluster.name)


def _misses(typed: str, row: Row) -> int:
    """Count the typed words that are no whole words of a cluster's title or of its devices.

    "4 v100" asks for four devices, not for what sends 48.2 GB/s.
    """
    named = re.findall(r"[\w.]+", f"{row.title} {row.columns[0]}".lower())
    return sum(word not in named for word in typed.lower().split())


def _text_of(row: Row) -> str:
    return " ".join((row.title, row.tip, *row.columns))


def offered(profile: Profile, current: Cluster) -> dict[str, list[Cluster]]:
    """Return the clusters to choose from, by heading: the open one, the profile's, the presets."""
    known = presets()
    own = carried_cluster(profile)
    groups = {
        "Now in use": [current] if known.get(current.name) != current else [],
        "Where the model was measured": [own] if own is not None else [],
        **{title: [c for c in known.values() if family(c) == title] for title in FAMILIES},
    }
    return {title: clusters for title, clusters in groups.items() if clusters}


def carried_cluster(profile: Profile) -> Cluster | None:
    """Return the devices that the profile was measured on, if it names them."""
    try:
        return cluster_from("local", profile)
    except EnplaceError:
        return None
