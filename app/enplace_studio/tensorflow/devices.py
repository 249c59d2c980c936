"""On which devices of this machine something is measured."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from PySide6.QtWidgets import QComboBox, QFileDialog

from enplace.cluster import Cluster
from enplace.clusters import cluster_from_json
from enplace.text import count

NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")

_GPUS = {"gpu:all": "All GPUs", "gpu:2": "2 GPUs", "gpu:4": "4 GPUs"}
_CPUS = {"cpu:2": "2 logical CPU devices", "cpu:4": "4 logical CPU devices", "cpu:1": "1 CPU"}
_FILE = "A cluster file with hosts…"


def usual_devices() -> dict[str, str]:
    """Texts that name devices and what a person calls them, likeliest first."""
    return {**_GPUS, **_CPUS} if NVIDIA_DRIVER.exists() else {**_CPUS, **_GPUS}


class DeviceChoice(QComboBox):
    """The usual choices, and a cluster file for several hosts."""

    def __init__(self) -> None:
        super().__init__()
        self.setAccessibleName("Devices")
        for text, title in usual_devices().items():
            self.addItem(title, text)
        self.addItem(_FILE)
        self.activated.connect(self._activated)
        self._last = 0

    @property
    def text(self) -> str:
        """The chosen devices as the worker knows them."""
        return str(self.currentData())

    def add_file(self, path: Path) -> None:
        """Choose a cluster file."""
        self.insertItem(0, f"Hosts of {path.name}", str(path))
        self.setCurrentIndex(0)

    def _activated(self, index: int) -> None:
        if self.itemText(index) == _FILE:
            name, _ = QFileDialog.getOpenFileName(self, "Choose a cluster", "", "Clusters (*.json)")
            self.setCurrentIndex(self._last)
            if name:
                self.add_file(Path(name))
        self._last = self.currentIndex()


def devices_for(cluster: Cluster, measured: Mapping[str, Any]) -> str:
    """The devices of this machine that a plan for a cluster needs.

    Parameters
    ----------
    measured : mapping
        That of the profile: where the plan's devices are those it was measured on, those are meant.
    """
    asked, found = measured.get("devices"), measured.get("cluster")
    if asked and found and _names(cluster_from_json(found)) == _names(cluster):
        return str(asked)
    kind = "gpu" if cluster.gpus else "cpu"
    return f"{kind}:{sum(device.kind == kind for device in cluster.devices)}"


def devices_title(cluster: Cluster) -> str:
    """The same as a person says it."""
    if cluster.gpus:
        return count(len(cluster.gpus), "GPU")
    return count(cluster.n_devices, "logical CPU device")


def _names(cluster: Cluster) -> list[str]:
    return [device.name for device in cluster.devices]
