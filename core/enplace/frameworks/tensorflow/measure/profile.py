"""Profiling a step: every op's time, bytes and memory on the devices of this machine.

After Pesto, section 3.1: some warm-ups, many traced steps, trimmed statistics. The step runs
unplaced, where TensorFlow's placer puts it. Tracing slows a step down, so the step time comes from
untraced steps. The part of it outside of ops is spread over them, so that the simulated step takes
as long as the measured one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf.config_pb2 import ConfigProto

from enplace.frameworks.tensorflow.devices import Devices, stock_config
from enplace.frameworks.tensorflow.graph import node_of, slot_of
from enplace.frameworks.tensorflow.hosts.servers import check_devices, serving
from enplace.frameworks.tensorflow.measure.links import measure_links
from enplace.frameworks.tensorflow.measure.speeds import measure_speeds
from enplace.frameworks.tensorflow.measure.trace import (
    OpTrace,
    check_kernels,
    op_traces,
    peak_bytes,
    trimmed,
)
from enplace.frameworks.tensorflow.shapes import TensorShape, tensor_shapes
from enplace.frameworks.tensorflow.split.split_graph import split_lengths
from enplace.frameworks.tensorflow.step import OpenStep, Step, StepGraph
from enplace.names.passes import pass_of_scope
from enplace.names.scopes import traced_scopes
from enplace.processes.worker import Report, ignore
from enplace.readers.calibration import calibrate
from enplace.readers.colocation import colocation_groups
from enplace.readers.views import find_views
from enplace.values.measurement import Measurement
from enplace.values.op_kinds import is_view_type, kind_of_type
from enplace.values.profile import CONTROL, Profile, edge_columns, make_profile

STOCK_WARM_UPS, STOCK_STEPS = 3, 20
"""Steps of TensorFlow by itself: before they count, and at most."""

Edge = tuple[int, int, int, int]
"""Source, output, consumer, bytes."""


def profile_step(
    step: Step,
    devices: Devices,
    steps: int = 100,
    warm_ups: int = 10,
    progress: Report = ignore,
) -> Profile:
    """Measure a step.

    Parameters
    ----------
    steps, warm_ups : int
        Traced steps, and uncounted steps before them. As many steps run untraced.

    Returns
    -------
    Profile
        ``measured`` holds ``step_time_us``, ``op_devices``, ``op_deviation`` (normalised
        standard deviation by op), ``peak_bytes`` by device, ``cluster``, ``links``, ``steps``,
        ``warm_ups``, ``split_lengths`` (see
        :func:`~enplace.frameworks.tensorflow.split.split_graph.split_lengths`) and
        ``op_overhead_us`` or ``launch_gap_us``.

    Raises
    ------
    LoadError
        If the kernels of a GPU were not traced.
    """
    with serving(devices) as target:
        check_devices(target, devices, devices.names)
        graph = StepGraph(step)
        opened = partial(OpenStep, step, graph, target=target)
        times_us, traces = _run(opened, _one_thread(devices), steps, warm_ups, progress)
        stock_us = _stock_us(opened, devices, steps, progress)
        cluster, links = measure_links(devices, progress, target)
        cluster = measure_speeds(cluster, devices, progress)
    progress("Fitting op times to the measured step", None)
    ops = op_traces(traces, [step.graph_def])
    check_kernels(ops)
    measured = Measurement(
        step_time_us=float(np.median(times_us)),
        stock_step_time_us=stock_us,
        op_devices={n.name: _device(ops.get(n.name), devices) for n in step.graph_def.node},
        op_deviation={
            name: trimmed(trace.times_us)[1] for name, trace in ops.items() if trace.times_us
        },
        op_kernels={name: trace.n_kernels for name, trace in ops.items() if trace.n_kernels},
        peak_bytes={_named(name, devices): peak for name, peak in peak_bytes(traces).items()},
        cluster=cluster,
        links=tuple(links),
        steps=steps,
        warm_ups=warm_ups,
        framework="tensorflow",
        framework_version=tf.__version__,
        function=step.function,
        left_out=tuple(step.left_out),
        compiled=step.compiled,
        batch_shapes=step.batch_shapes,
        device_scopes={op: _named(device, devices) for op, device in step.asked.items()},
    )
    profile = _agreeing(_assemble(step, ops, measured))
    launched = np.array([ops[name].n_kernels if name in ops else 0 for name in profile.op_names])
    if launched.any():
        return calibrate(profile, launched, cluster, "gpu")
    ran = np.array([name in ops for name in profile.op_names], dtype=np.int64)
    return calibrate(profile, ran, cluster, "cpu")


def graph_profile(step: Step, devices: Devices) -> Profile:
    """Return the graph of a step with the sizes known before it runs, and no times."""
    nowhere = {node.name: _device(None, devices) for node in step.graph_def.node}
    scopes = {op: _named(device, devices) for op, device in step.asked.items()}
    measured = Measurement(op_devices=nowhere, batch_shapes=step.batch_shapes, device_scopes=scopes)
    return _agreeing(_assemble(step, {}, measured))


def _one_thread(devices: Devices) -> ConfigProto:
    """Make a CPU run one op at a time, so that ops do not slow each other down."""
    config = deepcopy(devices.config)
    config.allow_soft_placement = True
    if not any(device.kind == "gpu" for device in devices.cluster.devices):
        config.inter_op_parallelism_threads = 1
    return config


def _stock_us(
    opened: Callable[..., OpenStep], devices: Devices, steps: int, progress: Report
) -> float | None:
    """Time a few steps as TensorFlow runs them by itself; None if it lacks memory for that."""
    config, times_us = stock_config(devices), list[float]()
    if not devices.tasks:  # a server of TensorFlow's has its own threads, and takes no such wish
        config.use_per_session_threads = True  # and not the one thread of the session before
    try:
        with opened(config=config) as alone:
            for _ in range(STOCK_WARM_UPS + min(steps, STOCK_STEPS)):
                progress("Measuring TensorFlow by itself", None)
                times_us.append(_timed(alone))
    except tf.errors.ResourceExhaustedError:
        return None
    return float(np.median(times_us[STOCK_WARM_UPS:]))


def _timed(opened: OpenStep) -> float:
    begin = time.perf_counter_ns()
    opened.run()
    return (time.perf_counter_ns() - begin) / 1e3


def _run(
    open_step: Callable[..., OpenStep],
    config: ConfigProto,
    steps: int,
    warm_ups: int,
    progress: Report,
) -> tuple[list[float], list[Any]]:
    """Run untraced steps for their times, and as many traced ones for their statistics."""
    full = tf.compat.v1.RunOptions(trace_level=tf.compat.v1.RunOptions.FULL_TRACE)
    times_us, traces = [], []
    with open_step(config=config) as opened:
        for i in range(warm_ups + steps):
            times_us.append(_timed(opened))
            progress("Measuring steps", 0.5 * (i + 1) / (warm_ups + steps))
        for i in range(steps):
            metadata = tf.compat.v1.RunMetadata()
            opened.run(full, metadata)
            traces.append(metadata.step_stats)
            progress("Tracing every op", 0.5 + 0.5 * (i + 1) / steps)
    return times_us[warm_ups:], traces


def _named(device: str, devices: Devices) -> str:
    """Return the cluster's name of a TensorFlow device."""
    names = dict(zip(devices.names, (d.name for d in devices.cluster.devices), strict=True))
    return names.get(device, device.removeprefix("/device:"))


def _device(trace: OpTrace | None, devices: Devices) -> str:
    """Find where an op ran; an op without a row was fed, or belongs to the host."""
    return _named(trace.device if trace and trace.device else devices.host, devices)


def _assemble(step: Step, ops: dict[str, OpTrace], measured: Measurement) -> Profile:
    nodes = list(step.graph_def.node)
    names = [node.name for node in nodes]
    shapes = tensor_shapes(step)
    edges, ties = find_edges(nodes, shapes, ops)
    persistent = {name: int(value.nbytes) for name, value in step.variables.items()}
    return assemble(
        step.name,
        [(node.name, node.op) for node in nodes],
        edges,
        ties + _asked_for(nodes),
        time_us=np.array([_times(ops.get(name), measured, name) for name in names]),
        persistent_bytes=[persistent.get(name, 0) for name in names],
        temporary_bytes=[ops[name].temporary_bytes if name in ops else 0 for name in names],
        measured=replace(measured, split_lengths=split_lengths(step.graph_def, shapes)),
    )


def _agreeing(profile: Profile) -> Profile:
    """Leave out scopes that ask for two devices for ops which must share one.

    TensorFlow runs an op that takes a variable's handle where the variable is.
    """
    asked = profile.measured.device_scopes
    by_group: dict[str, set[str]] = {}
    of_variable: dict[str, str] = {}
    for op, group, n_bytes in zip(
        profile.op_names, profile.colocation, profile.persistent_bytes.tolist(), strict=True
    ):
        if op in asked and group:
            by_group.setdefault(group, set()).add(asked[op])
            if n_bytes:
                of_variable.setdefault(group, asked[op])
    group_of = dict(zip(profile.op_names, profile.colocation, strict=True))
    home = {g: of_variable.get(g, min(found)) for g, found in by_group.items()}
    agreed = {op: home.get(group_of[op], device) for op, device in asked.items()}
    return replace(profile, measured=replace(profile.measured, device_scopes=agreed))


def assemble(
    name: str,
    nodes: Sequence[tuple[str, str]],
    edges: Sequence[Edge],
    ties: Sequence[tuple[int, int]],
    measured: Measurement,
    **columns: Any,
) -> Profile:
    """Make a profile of a graph of TensorFlow's.

    Parameters
    ----------
    nodes : sequence of (str, str)
        Name and type of each op.
    edges, ties
        See :func:`find_edges`; the edges of an op are in the order of its inputs.
    **columns
        All that the graph does not tell, or is to be other than it tells.
    """
    names, types = [name for name, _ in nodes], [kind for _, kind in nodes]
    if "scopes" not in columns:
        columns["scopes"] = traced_scopes(nodes, edges)
        columns["op_passes"] = [pass_of_scope(scope) for scope in columns["scopes"]]
    columns |= {"op_types": types, "op_kinds": [*map(kind_of_type, types)]}
    columns |= {"colocation": colocation_groups(names, ties), **edge_columns(edges)}
    shares = find_views([*map(is_view_type, types)], edges)
    return make_profile(name, op_names=names, **columns, shares=shares, measured=measured)


def _times(trace: OpTrace | None, measured: Measurement, name: str) -> tuple[float, float]:
    """Return time on a GPU and on a CPU; NaN for the kind of device that the op did not run on."""
    time_us = trimmed(trace.times_us)[0] if trace and trace.times_us else 0.0
    on_gpu = measured.op_devices[name].startswith("GPU")
    return (time_us, np.nan) if on_gpu else (np.nan, time_us)


def find_edges(
    nodes: Sequence[Any], shapes: Mapping[str, TensorShape], ops: Mapping[str, OpTrace]
) -> tuple[list[Edge], list[tuple[int, int]]]:
    """Find all edges, and the pairs of ops that a resource or reference keeps on one device.

    Parameters
    ----------
    nodes : sequence
        With name and input.
    ops : mapping
        Traces, for the bytes of tensors whose shape is not known before the step runs.
    """
    number = {node.name: i for i, node in enumerate(nodes)}
    edges, ties = [], []
    for node in nodes:
        for tensor in node.input:
            name, at = node_of(tensor), number[node.name]
            if tensor.startswith("^"):
                edges.append((number[name], CONTROL, at, 0))
                continue
            slot = slot_of(tensor)
            known = shapes[f"{name}:{slot}"]
            is_tie = known.dtype == tf.resource or known.by_reference
            traced = ops[name].output_bytes.get(slot, 0) if name in ops else 0
            size = 0 if is_tie else traced if known.n_bytes is None else known.n_bytes
            if name in ops and slot in ops[name].host_outputs:
                size = 0  # it takes no memory of the GPU, and is not copied from there
            edges.append((number[name], slot, at, size))
            if is_tie:
                ties.append((number[name], at))
    return edges, ties


def _asked_for(nodes: Sequence[Any]) -> list[tuple[int, int]]:
    """Find the pairs of ops that the graph itself colocates (``loc:@``)."""
    number = {node.name: i for i, node in enumerate(nodes)}
    return [
        (number[owner], number[node.name])
        for node in nodes
        if "_class" in node.attr  # asking for it would add it
        for group in node.attr["_class"].list.s
        if group.startswith(b"loc:@") and (owner := group[5:].decode()) in number
    ]
