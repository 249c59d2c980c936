"""How fast the GPUs of this machine are, if they are not all of one model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import tensorflow as tf

from enplace.frameworks.tensorflow.devices import Devices
from enplace.frameworks.tensorflow.measure.links import median_us
from enplace.processes.worker import Report
from enplace.values.cluster import Cluster
from enplace.values.profile import FloatArray

WIDTH = 4096
"""Rows and columns of the matrices that the kernels work on; 64 MiB each."""

REPEATS = 5

Kernel = Callable[[Any], Any]

KERNELS: tuple[Kernel, ...] = (
    lambda x: tf.matmul(x, x),
    lambda x: tf.nn.conv2d(x[None, :512, :512, None], x[:9, :32][:, None, None], 1, "SAME"),
    lambda x: tf.nn.softmax(x),
    lambda x: x * 2 + x,
    lambda x: tf.reduce_sum(x, axis=0),
    lambda x: tf.transpose(x),
)
"""Bound by arithmetic, or by memory, as most kernels of a step are."""


def measure_speeds(cluster: Cluster, devices: Devices, progress: Report) -> Cluster:
    """Measure one set of kernels on each model of GPU; return the cluster with their speeds.

    Op times are those of the first GPU, where a step is profiled, so its speed is 1. GPUs of one
    model are taken to be equally fast, and are not measured.
    """
    first: dict[str, int] = {}
    for number, model in enumerate(devices.models):
        if model:
            first.setdefault(model, number)
    if len(first) < 2:
        return cluster
    times_us = {}
    for done, (model, number) in enumerate(first.items()):
        progress(f"Measuring the speed of {devices.names[number]}", done / len(first))
        times_us[model] = kernel_times_us(devices, devices.names[number])
    speed = relative_speeds(times_us)
    models = zip(cluster.devices, devices.models, strict=True)
    return replace(
        cluster,
        devices=tuple(replace(device, speed=speed.get(model, 1.0)) for device, model in models),
    )


def relative_speeds(times_us: dict[str, FloatArray]) -> dict[str, float]:
    """Return the speed of each model: the geometric mean over the kernels, 1 for the first."""
    reference = next(iter(times_us.values()))
    return {
        model: float(np.exp(np.log(reference / times).mean())) for model, times in times_us.items()
    }


def kernel_times_us(devices: Devices, device: str) -> FloatArray:
    """Return the median time of each of :data:`KERNELS` on a device."""
    with tf.Graph().as_default() as graph:
        with tf.device(device):
            matrix = tf.compat.v1.get_variable(
                "matrix", (WIDTH, WIDTH), initializer=tf.ones_initializer(), use_resource=True
            )
            # The shape of a result waits for the result, but nothing is copied.
            results = [kernel(matrix.read_value()) for kernel in KERNELS]
            ends = [tf.raw_ops.Shape(input=result[:1]).op for result in results]
        with tf.compat.v1.Session(graph=graph, config=devices.config) as session:
            session.run(matrix.initializer)
            return np.maximum([median_us(session, end, REPEATS) for end in ends], 0.1)
