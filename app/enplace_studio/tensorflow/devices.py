"""On which devices of this machine something is measured."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtWidgets import QComboBox, QFileDialog

from enplace.cluster import Cluster
from enplace.profile import Profile
from enplace.text import count
from enplace_studio.tensorflow.facts import local_cluster

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


def devices_for(cluster: Cluster, profile: Profile) -> str:
    """The devices of this machine that a plan for a cluster needs.

    Where they are those that the profile was measured on, they are called as they were then.
    """
    asked, measured_on = profile.measured.get("devices"), local_cluster(profile)
    if isinstance(asked, str) and measured_on and _names(measured_on) == _names(cluster):
        return asked
    kind = "gpu" if cluster.gpus else "cpu"
    return f"{kind}:{sum(device.kind == kind for device in cluster.devices)}"


def devices_title(cluster: Cluster) -> str:
    """The same as a person says it."""
    if any(name.startswith("/job:") for name in _names(cluster)):
        return f"{count(cluster.n_devices, 'device')} on several hosts"
    if cluster.gpus:
        return count(len(cluster.gpus), "GPU")
    return count(cluster.n_devices, "logical CPU device")


def _names(cluster: Cluster) -> list[str]:
    return [device.name for device in cluster.devices]
