"""The choice of devices to measure on."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtWidgets import QComboBox, QFileDialog

from enplace.frameworks import devices
from enplace.text import count
from enplace.values.cluster import Cluster
from enplace.values.device_names import task_of

_GPUS = {"gpu:all": "All GPUs", "gpu:2": "2 GPUs", "gpu:4": "4 GPUs"}
_CPUS = {"cpu:2": "2 logical CPU devices", "cpu:4": "4 logical CPU devices", "cpu:1": "1 CPU"}
_FILE = "A cluster file with hosts…"


def usual_devices() -> dict[str, str]:
    """List the worker's names of devices and their titles, the likeliest first."""
    return {**_GPUS, **_CPUS} if devices.usual_devices() in _GPUS else {**_CPUS, **_GPUS}


class DeviceChoice(QComboBox):
    """A list of the usual devices, and a cluster file for several hosts."""

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
        """The chosen devices, named as the worker expects."""
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


def devices_title(cluster: Cluster) -> str:
    """Describe the devices that a plan for a cluster needs."""
    if any(task_of(name) for name in cluster.index):
        return f"{count(cluster.n_devices, 'device')} on several hosts"
    if n_gpus := sum(device.kind == "gpu" for device in cluster.devices):
        return count(n_gpus, "GPU")
    return count(cluster.n_devices, "logical CPU device")
