"""The ``measured`` block of a profile's file."""

from __future__ import annotations

from typing import Any

from enplace.files.records import write_record
from enplace.values.measurement import Measurement
from enplace.writers.clusters import cluster_to_json


def measurement_to_json(measured: Measurement) -> dict[str, Any]:
    """Write a measurement as plain data, without unknown fields."""
    cluster = measured.cluster and cluster_to_json(measured.cluster)
    return write_record(measured, cluster=cluster, other={}) | dict(measured.other)
