"""TensorFlow's own transfers between hosts, over gRPC, as its traces record them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import permutations
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework.step_stats_pb2 import StepStats

from enplace.frameworks.tensorflow.devices import Devices, DevicesError
from enplace.frameworks.tensorflow.measure.link_fit import SIZES, fit_line
from enplace.values.cluster import Cluster
from enplace.values.device_names import task_of
from enplace.values.measurement import MeasuredLink
from enplace.values.profile import FloatArray

WARM_UPS, REPEATS = 3, 10
MOST_TRIES = 40
"""Most tries of one transfer: now and then a trace has no row for it."""

_ROW = "RecvTensor"

Report = Callable[[str, float | None], None]


def measure_transfers(
    devices: Devices, target: str, progress: Report
) -> tuple[Cluster, list[MeasuredLink]]:
    """Measure the links between a cluster's hosts; return the cluster with them, and the results.

    Any two devices of two hosts get the link measured between the hosts' first devices.

    Parameters
    ----------
    target : str
        The server to connect to; see :func:`enplace.frameworks.tensorflow.hosts.servers.serving`.

    Returns
    -------
    Cluster
        With presets within a host.
    list of MeasuredLink
    """
    first: dict[str, int] = {}
    for number, name in enumerate(devices.names):
        first.setdefault(task_of(name), number)
    pairs = list(permutations(first.items(), 2))
    found = {}
    for done, ((here, a), (there, b)) in enumerate(pairs):
        progress(f"Measuring transfers from {here} to {there}", done / len(pairs))
        times_us = transfer_times_us(devices, target, devices.names[a], devices.names[b])
        b0_us, b1, r2 = fit_line(np.array(SIZES, dtype=np.float64), times_us)
        found[here, there] = MeasuredLink(
            devices.cluster.devices[a].name,
            devices.cluster.devices[b].name,
            tuple(SIZES),
            tuple(times_us.tolist()),
            b0_us,
            b1,
            r2,
        )
    return _with_links(devices, found), list(found.values())


def _with_links(devices: Devices, found: dict[tuple[str, str], MeasuredLink]) -> Cluster:
    links = []
    for link in devices.cluster.links:
        ends = task_of(devices.names[link.source]), task_of(devices.names[link.target])
        if line := found.get(ends):
            link = replace(link, b0_us=line.b0_us, b1_us_per_byte=line.b1_us_per_byte)
        links.append(link)
    return replace(devices.cluster, links=tuple(links))


def transfer_times_us(devices: Devices, target: str, source: str, sink: str) -> FloatArray:
    """Median time that a receiver waits for each of :data:`SIZES` bytes; shape (n_sizes,)."""
    full = tf.compat.v1.RunOptions(trace_level=tf.compat.v1.RunOptions.FULL_TRACE)
    medians = []
    with tf.Graph().as_default() as graph:
        runs = [_transfer(size, source, sink) for size in SIZES]
        with tf.compat.v1.Session(target, graph, devices.config) as session:
            for size, (start, sent, end) in zip(SIZES, runs, strict=True):
                session.run(start)
                times_us: list[float] = []
                for _ in range(MOST_TRIES):
                    if len(times_us) >= WARM_UPS + REPEATS:
                        break
                    metadata = tf.compat.v1.RunMetadata()
                    session.run(sent, options=full, run_metadata=metadata)
                    times_us += [us for n, us in received(metadata.step_stats) if n == size]
                if len(times_us) <= WARM_UPS:
                    raise DevicesError(
                        f"transfers from {source} to {sink} could not be measured: TensorFlow's "
                        f"traces do not show them; profile again"
                    )
                medians.append(np.median(times_us[WARM_UPS:]))
                session.run(end)
    return np.array(medians)


def _transfer(size: int, source: str, sink: str) -> tuple[Any, Any, Any]:
    """Make ops that fill a variable, use it on another device, and free it.

    A server keeps the variables of a closed session.
    """
    with tf.device(source):
        variable = tf.compat.v1.get_variable(
            f"sent_{size}", (size // 4,), initializer=tf.zeros_initializer(), use_resource=True
        )
        value = tf.identity(variable.read_value())
        end = tf.raw_ops.DestroyResourceOp(resource=variable.handle)
    with tf.device(sink):
        there = tf.raw_ops.Shape(input=tf.identity(value)[:1])
    return variable.initializer, there.op, end


def received(stats: StepStats) -> Iterable[tuple[int, float]]:
    """List bytes, and time from request to arrival, of everything that came from another host."""
    for device in stats.dev_stats:
        for row in device.node_stats:
            if row.node_name == _ROW:
                size = row.output[0].tensor_description.allocation_description.requested_bytes
                yield int(size), float(row.op_end_rel_micros - row.op_start_rel_micros)
