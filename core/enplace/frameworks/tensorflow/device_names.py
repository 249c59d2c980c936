"""TensorFlow's names of devices."""

from __future__ import annotations

import re
from collections.abc import Iterable

from enplace.values.cluster import Cluster

_FULL_NAME = re.compile(r"/(job|replica|task|device):.*")
_ASKED = re.compile(r"(?:/job:localhost)?/device:(gpu|cpu):(\d+)", re.IGNORECASE)
_SHORT_NAME = re.compile(r"(gpu|cpu):(\d+)", re.IGNORECASE)


def device_names(cluster: Cluster) -> list[str]:
    """Return TensorFlow's name of each device.

    A full name, such as ``/job:worker/task:1/device:GPU:0``, is kept; ``GPU:1`` gets its prefix.
    If a name has no number, or two have the same, devices are numbered by kind.
    """
    found = [_tensorflow_device(device.name) for device in cluster.devices]
    if all(found) and len(set(found)) == len(found):
        return found
    counts: dict[str, int] = {}
    names = []
    for device in cluster.devices:
        number = counts[device.kind] = counts.get(device.kind, -1) + 1
        names.append(f"/device:{device.kind.upper()}:{number}")
    return names


def asked_devices(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Map ops to the device that a script asks for, of ops and what TensorFlow notes of each.

    The full names that a tf.distribute strategy gives are left out, and so is what names no device
    but a kind or a task.
    """
    found = {op: _ASKED.fullmatch(device) for op, device in pairs if device}
    return {op: f"/device:{m[1].upper()}:{int(m[2])}" for op, m in found.items() if m}


def _tensorflow_device(name: str) -> str:
    if _FULL_NAME.fullmatch(name):
        return name
    match = _SHORT_NAME.fullmatch(name)
    return f"/device:{match[1].upper()}:{int(match[2])}" if match else ""
