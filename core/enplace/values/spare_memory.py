"""What is said of memory that a plan leaves: what is in reserve, and what is nearly full."""

from __future__ import annotations

from enplace.text import listed, percent, size
from enplace.values.arrays import IntArray
from enplace.values.cluster import Cluster, Device

NEARLY_FULL = 0.95
"""Share of a device's memory above which a plan that fits is said to fill it nearly."""


def is_nearly_full(device: Device, peak_bytes: int) -> bool:
    """Whether a device has enough memory for a plan, but hardly more than that."""
    return NEARLY_FULL * device.memory_bytes < peak_bytes <= device.capacity_bytes


def about_full(cluster: Cluster, peak_bytes: IntArray) -> str:
    """Name the devices that a plan nearly fills; empty if there are none.

    Parameters
    ----------
    peak_bytes : int array, shape (n_devices,)
    """
    full = [
        f"{device.label} ({percent(peak / device.memory_bytes)})"
        for device, peak in zip(cluster.devices, peak_bytes.tolist(), strict=True)
        if is_nearly_full(device, peak)
    ]
    if not full:
        return ""
    return (
        f"Nearly full: {listed(full)}. What no profile counts, such as the context of CUDA or a "
        f"longer input, may not fit; a reserve, such as --reserve 5%, keeps some memory free."
    )


def about_reserves(cluster: Cluster) -> str:
    """Say how much memory is reserved on which devices; empty if none is."""
    names: dict[int, list[str]] = {}
    for device in cluster.devices:
        if device.reserve_bytes:
            names.setdefault(device.reserve_bytes, []).append(device.label)
    kept = [f"{size(n_bytes)} on {listed(on)}" for n_bytes, on in names.items()]
    return f"In reserve, and not counted above: {'; '.join(kept)}." if kept else ""


def about_memory(
    cluster: Cluster, peak_bytes: IntArray, verdict: str = "This plan does not fit"
) -> list[str]:
    """Name the reserves, the devices that exceed their memory, and those that are nearly full.

    Parameters
    ----------
    peak_bytes : int array, shape (n_devices,)
    verdict : str
        What is known about plans that fit, if this one does not.
    """
    lacking = [
        f"{verdict}: {device.label} needs {size(float(peak))} "
        f"({int(peak):,} bytes) and has {size(device.capacity_bytes)} "
        f"({device.capacity_bytes:,} bytes)."
        for device, peak in zip(cluster.devices, peak_bytes, strict=True)
        if peak > device.capacity_bytes
    ]
    return [*filter(None, [about_reserves(cluster), *lacking, about_full(cluster, peak_bytes)])]
