"""Clusters in the custom JSON format."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from enplace.files.json_text import dump_json
from enplace.readers.cluster_json import NAME, VERSION
from enplace.values.cluster import Cluster, Device


def cluster_to_json(cluster: Cluster) -> dict[str, Any]:
    """Write a cluster in the custom format as plain data, with every link spelt out."""
    names = [device.name for device in cluster.devices]
    return {
        "format": f"{NAME}/{VERSION}",
        "name": cluster.name,
        "description": cluster.description,
        "devices": [_device_to_json(device) for device in cluster.devices],
        "channels": list(cluster.channels),
        "links": [
            {
                "from": names[link.source],
                "to": names[link.target],
                "b0_us": link.b0_us,
                "b1_us_per_byte": link.b1_us_per_byte,
                "channels": [cluster.channels[channel] for channel in link.channels],
            }
            for link in cluster.links
        ],
        **({"hosts": dict(cluster.hosts)} if cluster.hosts else {}),
    }


def _device_to_json(device: Device) -> dict[str, Any]:
    written = asdict(device) | {"capacity_bytes": device.memory_bytes}
    if not device.reserve_bytes:
        del written["reserve_bytes"]
    return {key: value for key, value in written.items() if value != ""}


def cluster_text(cluster: Cluster) -> str:
    """Write a cluster as JSON text, with one line for each device and each link."""
    parts = []
    for key, value in cluster_to_json(cluster).items():
        if key in ("devices", "links"):
            lines = ",".join(f"\n    {dump_json(entry)}" for entry in value)
            parts.append(f'  "{key}": [{lines}\n  ]' if value else f'  "{key}": []')
        else:
            parts.append(f'  "{key}": {dump_json(value)}')
    return "{\n" + ",\n".join(parts) + "\n}"
