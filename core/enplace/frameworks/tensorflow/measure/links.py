"""Links between the devices of this machine, fitted to measured copies of several sizes.

T_comm = b0 + b1 * bytes (Pesto, section 3.1). Logical CPUs share their memory, so nothing is
copied between them or measured, and their links keep the cluster's presets.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import tensorflow as tf

from enplace.frameworks.tensorflow.devices import Devices
from enplace.frameworks.tensorflow.measure.link_fit import SIZES, measured_link, with_lines
from enplace.frameworks.tensorflow.measure.transfers import make_copy, measure_transfers
from enplace.processes.worker import Report
from enplace.values.cluster import Cluster, Link
from enplace.values.measurement import MeasuredLink
from enplace.values.profile import FloatArray

REPEATS = 10

TOGETHER_BYTES, MOST_DELAY = 64 << 20, 1.5
"""Bytes of each of two copies at the same time, and how much longer than alone both may take before
they are said to share a channel."""


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
    found: dict[Link, MeasuredLink] = {}
    for number, link in enumerate(real):
        a, b = devices.names[link.source], devices.names[link.target]
        progress(f"Measuring copies from {a} to {b}", number / len(real))
        times_us = copy_times_us(devices, a, b)
        found[link] = measured_link(cluster, link.source, link.target, SIZES, times_us)
    if found:
        cluster = _with_shared_channels(with_lines(cluster, found.get), devices, progress)
    return cluster, list(found.values())


def _with_shared_channels(cluster: Cluster, devices: Devices, progress: Report) -> Cluster:
    """Copy to, or from, every two GPUs at once; those that delay each other share a channel."""
    pairs = host_pairs(cluster)
    shared = []
    for number, (one, other) in enumerate(pairs):
        names = [cluster.devices[d].name for d in (one.source, one.target, other.source)]
        progress(f"Measuring copies at the same time: {', '.join(names)}", number / len(pairs))
        at = devices.names
        ends = [(at[link.source], at[link.target]) for link in (one, other)]
        alone_us = max(together_us(devices, [each]) for each in ends)
        if together_us(devices, ends) > MOST_DELAY * alone_us:
            shared.append((one, other))
    return share_channels(cluster, shared)


def host_pairs(cluster: Cluster) -> list[tuple[Link, Link]]:
    """List the pairs of links between the host and two different chips, in the same direction."""
    kinds = [device.kind for device in cluster.devices]
    gpu_of = [d.chip or d.name for d in cluster.devices]
    pairs = []
    for a, b in combinations(cluster.links, 2):
        down = kinds[a.source] == kinds[b.source] == "cpu" and a.source == b.source
        up = kinds[a.target] == kinds[b.target] == "cpu" and a.target == b.target
        ends = (a.target, b.target) if down else (a.source, b.source)
        if (down or up) and gpu_of[ends[0]] != gpu_of[ends[1]]:
            pairs.append((a, b))
    return pairs


def share_channels(cluster: Cluster, shared: Sequence[tuple[Link, Link]]) -> Cluster:
    """Let links that delay each other use one channel, which is named after them all."""
    group: dict[Link, set[Link]] = {}
    for one, other in shared:
        joined = group.get(one, {one}) | group.get(other, {other})
        group.update(dict.fromkeys(joined, joined))
    channels = list(cluster.channels)
    new: dict[Link, Link] = {}
    for links in {frozenset(links) for links in group.values()}:
        old = sorted(channel for link in links for channel in link.channels)
        channels.append(" + ".join(cluster.channels[channel] for channel in old))
        new |= {link: replace(link, channels=(len(channels) - 1,)) for link in links}
    return replace(
        cluster,
        channels=tuple(channels),
        links=tuple(new.get(link, link) for link in cluster.links),
    )


def together_us(devices: Devices, ends: Sequence[tuple[str, str]]) -> float:
    """Median time of copies that begin together, less a run that copies nothing."""
    with tf.Graph().as_default() as graph:
        runs = [make_copy(TOGETHER_BYTES, *each) for each in ends]
        with tf.compat.v1.Session(graph=graph, config=devices.config) as session:
            session.run([run.start for run in runs])
            there = median_us(session, [run.there for run in runs], REPEATS)
            here = median_us(session, [run.here for run in runs], REPEATS)
    return max(there - here, 0.1)


def copy_times_us(devices: Devices, source: str, target: str) -> FloatArray:
    """Median time to copy each of :data:`SIZES` bytes, less a run that copies nothing."""
    times = []
    with tf.Graph().as_default() as graph:
        runs = [make_copy(size, source, target) for size in SIZES]
        with tf.compat.v1.Session(graph=graph, config=devices.config) as session:
            session.run([run.start for run in runs])
            for run in runs:
                there = median_us(session, run.there, REPEATS)
                times.append(there - median_us(session, run.here, REPEATS))
    copied: FloatArray = np.maximum(times, 0.1)
    return copied


def median_us(session: Any, fetched: Any, repeats: int) -> float:
    """Return the median time of a call of a session, after two uncounted ones."""
    times_us = []
    for _ in range(repeats + 2):
        begin = time.perf_counter_ns()
        session.run(fetched)
        times_us.append((time.perf_counter_ns() - begin) / 1e3)
    return float(np.median(times_us[2:]))
