"""The devices of this machine for a profile or a run, as the user names them."""

from __future__ import annotations

import re
from pathlib import Path

from enplace.errors import ClusterError
from enplace.frameworks.nvml import visible_cards
from enplace.text import read_size
from enplace.values.cluster import Cluster
from enplace.values.device_names import task_of
from enplace.values.measurement import Measurement

LOCAL = re.compile(r"(?i)(gpu|cpu):(\d+|all|#\d+(?:,\d+)*)(?:@(\d+(?:\.\d+)?[KMGT]i?B))?")
"""Devices of this machine: a kind, how many or (after ``#``) which, and the memory of each."""

_NVIDIA_DRIVERS = (
    Path("/proc/driver/nvidia/version"),
    Path("/usr/lib/wsl/lib/libcuda.so.1"),  # that of Windows, as WSL2 shows it
)


def has_gpus() -> bool:
    """Return whether this machine seems to have GPUs that a framework can use."""
    return any(path.exists() for path in _NVIDIA_DRIVERS) or bool(visible_cards())


def devices_for(cluster: Cluster, measured: Measurement) -> str:
    """Return the devices of this machine that a plan for a cluster needs.

    Parameters
    ----------
    measured : Measurement
        The profile's. For the cluster of that profile, the devices are those that were measured.

    Raises
    ------
    ClusterError
        If the cluster has several hosts: only the user says where they are.
    """
    known = measured.cluster
    if measured.devices and known is not None and known.index == cluster.index:
        if LOCAL.fullmatch(measured.devices) is None:
            # A file must not choose the machines that a user's model is sent to.
            raise ClusterError(
                "the profile was measured on several hosts; give their cluster file with --devices"
            )
        return measured.devices
    if host := next(filter(task_of, cluster.index), ""):
        raise ClusterError(f"'{host}' is on another host; give the cluster's file with --devices")
    kind = "gpu" if any(device.kind == "gpu" for device in cluster.devices) else "cpu"
    return f"{kind}:{sum(device.kind == kind for device in cluster.devices)}"


def choose_gpus(devices: str | None, gpus: str, memory: str) -> str | None:
    """Return the devices of ``--devices``, ``--gpus`` and ``--gpu-memory`` as one text.

    None leaves them to the caller. The text stays with the profile, so that its plans run on the
    same GPUs.

    Raises
    ------
    ClusterError
        If these contradict each other, or one cannot be read.
    """
    if gpus:
        numbers = [word.strip() for word in gpus.split(",")]
        if not all(map(str.isdecimal, numbers)) or len({*map(int, numbers)}) < len(numbers):
            raise ClusterError(f"--gpus '{gpus}': write the numbers of different GPUs, such as 0,2")
        if devices:
            raise ClusterError("--gpus and --devices both choose the devices; leave one out")
        devices = f"gpu:#{','.join(numbers)}"
    if not memory:
        return devices
    if not read_size(memory):
        raise ClusterError(f"--gpu-memory '{memory}': write a size, such as 12GiB or 800MiB")
    devices = devices or "gpu:all"
    if not devices.lower().startswith("gpu:") or "@" in devices:
        raise ClusterError(f"--gpu-memory is for GPUs of this machine, not for '{devices}'")
    return f"{devices}@{memory.replace(' ', '')}"


def cuda_visible(devices: str, shown: str | None) -> str | None:
    """Return ``CUDA_VISIBLE_DEVICES`` for a process that uses some devices; None if it may stay.

    A framework numbers the GPUs that it sees and starts them all, so the others are hidden.

    Parameters
    ----------
    shown : str or None
        The variable's value so far. The user counts the GPUs that it shows.
    """
    match = LOCAL.fullmatch(devices.strip())
    if match is None:
        return None
    if match[1].lower() == "cpu":
        return "-1"
    if not match[2].startswith("#"):
        return None
    known = shown.split(",") if shown is not None else None
    numbers = [int(word) for word in match[2][1:].split(",")]
    if known is None:
        return ",".join(map(str, numbers))
    return ",".join(known[number] for number in numbers if number < len(known))
