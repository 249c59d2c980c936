"""TensorFlow's own transfers between hosts, over gRPC, as its traces record them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import permutations
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework.step_stats_pb2 import StepStats

from enplace.frameworks.tensorflow.devices import Devices, DevicesError
from enplace.frameworks.tensorflow.measure.link_fit import SIZES, measured_link, with_lines
from enplace.processes.worker import Report
from enplace.values.cluster import Cluster, Link
from enplace.values.device_names import task_of
from enplace.values.measurement import MeasuredLink
from enplace.values.profile import FloatArray

WARM_UPS, REPEATS = 3, 10
MOST_TRIES = 40
"""Most tries of one transfer: now and then a trace has no row for it."""

_ROW = "RecvTensor"


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
        found[here, there] = measured_link(devices.cluster, a, b, SIZES, times_us)

    def line_of(link: Link) -> MeasuredLink | None:
        here, there = (task_of(devices.names[end]) for end in (link.source, link.target))
        return found.get((here, there))

    return with_lines(devices.cluster, line_of), list(found.values())


def transfer_times_us(devices: Devices, target: str, source: str, sink: str) -> FloatArray:
    """Median time that a receiver waits for each of :data:`SIZES` bytes; shape (n_sizes,)."""
    full = tf.compat.v1.RunOptions(trace_level=tf.compat.v1.RunOptions.FULL_TRACE)
    medians = []
    with tf.Graph().as_default() as graph:
        runs = [make_copy(size, source, sink) for size in SIZES]
        with tf.compat.v1.Session(target, graph, devices.config) as session:
            for size, run in zip(SIZES, runs, strict=True):
                session.run(run.start)
                times_us: list[float] = []
                for _ in range(MOST_TRIES):
                    if len(times_us) >= WARM_UPS + REPEATS:
                        break
                    metadata = tf.compat.v1.RunMetadata()
                    session.run(run.there, options=full, run_metadata=metadata)
                    times_us += [us for n, us in received(metadata.step_stats) if n == size]
                if len(times_us) <= WARM_UPS:
                    raise DevicesError(
                        f"transfers from {source} to {sink} could not be measured: TensorFlow's "
                        f"traces do not show them; profile again"
                    )
                medians.append(np.median(times_us[WARM_UPS:]))
                session.run(run.end)
    return np.array(medians)


@dataclass(frozen=True)
class Copy:
    """Ops that fill a variable, use it on its own device or on another, and free it.

    A server keeps the variables of a closed session.
    """

    start: Any
    here: Any
    there: Any
    end: Any


def make_copy(size_bytes: int, source: str, target: str) -> Copy:
    """Make the ops of a copy."""
    with tf.device(source):
        variable = tf.Variable(tf.zeros(size_bytes // 4), trainable=False)
        value = variable.read_value()
        here = tf.raw_ops.Shape(input=tf.identity(value)[:1]).op
        end = tf.raw_ops.DestroyResourceOp(resource=variable.handle)
    with tf.device(target):
        there = tf.raw_ops.Shape(input=tf.identity(value)[:1]).op
    return Copy(variable.initializer, here, there, end)


def received(stats: StepStats) -> Iterable[tuple[int, float]]:
    """List bytes, and time from request to arrival, of everything that came from another host."""
    for device in stats.dev_stats:
        for row in device.node_stats:
            if row.node_name == _ROW:
                size = row.output[0].tensor_description.allocation_description.requested_bytes
                yield int(size), float(row.op_end_rel_micros - row.op_start_rel_micros)
