"""The choice of devices to measure on."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtWidgets import QComboBox, QFileDialog

from enplace.errors import ClusterError
from enplace.frameworks.framework import Framework
from enplace.frameworks.registry import usual_framework
from enplace.text import count
from enplace.values.cluster import Cluster
from enplace.values.device_names import task_of

_GPUS = {"gpu:all": "All GPUs", "gpu:2": "2 GPUs", "gpu:4": "4 GPUs"}
_CPUS = {"cpu:2": "2 logical CPU devices", "cpu:4": "4 logical CPU devices", "cpu:1": "1 CPU"}
_FILE = "A cluster file with hosts…"


def usual_devices(framework: Framework) -> dict[str, str]:
    """List the worker's names of devices and their titles, the likeliest first."""
    listed = _GPUS | _CPUS if framework.usual_devices() in _GPUS else _CPUS | _GPUS
    return {text: title for text, title in listed.items() if _has(framework, text)}


def _has(framework: Framework, devices: str) -> bool:
    try:
        framework.check_devices(devices)
    except ClusterError:
        return False
    return True


class DeviceChoice(QComboBox):
    """A list of the usual devices, and a cluster file for several hosts."""

    def __init__(self) -> None:
        super().__init__()
        self.setAccessibleName("Devices")
        self.activated.connect(self._activated)
        self._framework: Framework | None = None
        self.offer(usual_framework())

    def offer(self, framework: Framework) -> None:
        """List the devices that a framework may have, if another one's are listed."""
        if framework is self._framework:
            return
        self._framework, self._last = framework, 0
        self.clear()
        for text, title in usual_devices(framework).items():
            self.addItem(title, text)
        if framework.server is not None:
            self.addItem(_FILE)

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
