"""The devices of this machine for a profile or a run, as the user names them."""

from __future__ import annotations

import re
from pathlib import Path

from enplace.errors import ClusterError
from enplace.frameworks.nvml import visible_cards
from enplace.values.cluster import Cluster
from enplace.values.device_names import task_of
from enplace.values.measurement import Measurement

LOCAL = re.compile(r"(?i)(gpu|cpu):(\d+|all)")
"""Devices of this machine, as a person names them."""

_NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")


def usual_devices() -> str:
    """Return the devices on which a model is most likely profiled here."""
    return "gpu:all" if _NVIDIA_DRIVER.exists() or visible_cards() else "cpu:2"


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
