"""Links between the devices of this machine, fitted to measured copies of several sizes.

T_comm = b0 + b1 * bytes (Pesto, section 3.1). Logical CPUs share their memory, so nothing is
copied between them or measured, and their links keep the cluster's presets.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import tensorflow as tf

from enplace.frameworks.tensorflow.devices import Devices
from enplace.frameworks.tensorflow.fit import SIZES, fit_line
from enplace.frameworks.tensorflow.transfers import measure_transfers
from enplace.values.cluster import Cluster
from enplace.values.measurement import MeasuredLink
from enplace.values.profile import FloatArray

REPEATS = 10

Report = Callable[[str, float | None], None]


def measure_links(
    devices: Devices, progress: Report, target: str = ""
) -> tuple[Cluster, list[MeasuredLink]]:
    """Measure the links of a cluster; return the cluster with them, and the measurements.

    Parameters
    ----------
    target : str
        The server to connect to, if the devices belong to several hosts.

    Returns
    -------
    Cluster
        With presets where nothing could be measured.
    list of MeasuredLink
    """
    if devices.tasks:
        return measure_transfers(devices, target, progress)
    cluster = devices.cluster
    kinds = [device.kind for device in cluster.devices]
    # A host has one memory: between its CPUs, or within one chip, nothing is copied.
    real = [link for link in cluster.links if "gpu" in (kinds[link.source], kinds[link.target])]
    found, links = [], list(cluster.links)
    for number, link in enumerate(real):
        a, b = devices.names[link.source], devices.names[link.target]
        progress(f"Measuring copies from {a} to {b}", number / len(real))
        times_us = copy_times_us(devices, a, b)
        b0_us, b1, r2 = fit_line(np.array(SIZES, dtype=np.float64), times_us)
        links[links.index(link)] = replace(link, b0_us=b0_us, b1_us_per_byte=b1)
        found.append(
            MeasuredLink(
                cluster.devices[link.source].name,
                cluster.devices[link.target].name,
                tuple(SIZES),
                tuple(times_us.tolist()),
                b0_us,
                b1,
                r2,
            )
        )
    return replace(cluster, links=tuple(links)) if found else cluster, found


def copy_times_us(devices: Devices, source: str, target: str) -> FloatArray:
    """Median time to copy each of :data:`SIZES` bytes, less a run that copies nothing."""
    times = []
    with tf.Graph().as_default() as graph:
        runs = [_copy(size, source, target) for size in SIZES]
        with tf.compat.v1.Session(graph=graph, config=devices.config) as session:
            session.run([start for start, _, _ in runs])
            for _, here, there in runs:
                times.append(_median_us(session, there) - _median_us(session, here))
    copied: FloatArray = np.maximum(times, 0.1)
    return copied


def _copy(size: int, source: str, target: str) -> tuple[Any, Any, Any]:
    """Make ops that fill a variable, read it on its own device, and read it on another."""
    with tf.device(source):
        variable = tf.compat.v1.get_variable(
            f"copied_{size}", (size // 4,), initializer=tf.zeros_initializer(), use_resource=True
        )
        value = variable.read_value()
        here = tf.raw_ops.Shape(input=tf.identity(value)[:1])
    with tf.device(target):
        there = tf.raw_ops.Shape(input=tf.identity(value)[:1])
    return variable.initializer, here.op, there.op


def _median_us(session: Any, op: Any) -> float:
    times_us = []
    for _ in range(REPEATS + 2):
        begin = time.perf_counter_ns()
        session.run(op)
        times_us.append((time.perf_counter_ns() - begin) / 1e3)
    return float(np.median(times_us[2:]))
