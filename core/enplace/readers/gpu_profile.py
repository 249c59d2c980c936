"""GPU profiles of TensorFlow steps, format ``tf-op-profile/1``.

A node's record is read as follows:

* an op with kernels takes their time and a launch gap for each (see :mod:`.calibration`);
* an op that is assigned to a GPU but launches nothing (Const, Shape, Reshape...) runs on the host
  next to the stream and takes no GPU time;
* an op on the CPU takes the median of its traced host time;
* an edge out of a by-reference output (TensorFlow 1 variables) carries no bytes and ties both ends
  to one device.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from enplace.errors import DanglingEdgeError, FileError
from enplace.files.fields import check_format, each_object, is_object, number, shown, take, whole
from enplace.names.scopes import scopes_of
from enplace.readers.calibration import calibrate
from enplace.readers.colocation import colocation_groups
from enplace.readers.registry import Content, reader
from enplace.readers.views import find_views
from enplace.values.cluster import Cluster, Device, Link
from enplace.values.measurement import Measurement
from enplace.values.op_kinds import is_view_type
from enplace.values.profile import (
    CONTROL,
    MAX_BYTES,
    MAX_TIME_US,
    Profile,
    edge_columns,
    make_profile,
)

NAME, VERSION = "tf-op-profile", 1

GIB = 1 << 30
H200_BYTES = 143771 << 20
LOGICAL_GPU_BYTES = 30 * GIB
HOST_BYTES = 125 * GIB
HOST_LANES = 16

# Cost of sending a tensor in a TensorFlow step on the machine of the profiles, in us and us per
# byte: the time of a whole call that sends one, less that of an empty call, fitted over 4 bytes to
# 256 MiB. The copy itself is the smaller part of the latency (0.7 to 1.5 us); the rest is waiting
# for the stream, the rendezvous, and waking the receiver.
HOST_TO_GPU = (45.2, 2.535e-5)
GPU_TO_HOST = (40.9, 2.614e-5)
GPU_TO_GPU = (47.3, 1.301e-6)
"""Between logical GPUs of one chip: far faster than any NVLink."""

BIG_COPY_BYTES = 1 << 20
"""Smallest copy from which the bandwidth is measured."""


@reader(
    "tf-op-profile",
    title="GPU profiles of TensorFlow steps",
    suffixes=(".json", ".json.gz"),
    matches=lambda content: content.declared_format == NAME,
)
def read_gpu_profile(content: Content) -> Profile:
    """Make a profile of a measured TensorFlow step.

    Raises
    ------
    FileError, ProfileError
        With the node's or edge's place in the file.
    """
    data = content.fields
    check_format({"format": data.get("schema")}, NAME, VERSION)
    nodes = [_node(*each, i) for i, each in enumerate(each_object(data, "nodes", ""))]
    edges = _edges(take(data, "edges", list, ""), nodes)
    cluster = _cluster(data, nodes)
    profile = make_profile(
        _name(data),
        op_names=[node["name"] for node in nodes],
        op_types=[node["op"] for node in nodes],
        scopes=scopes_of(nodes, edges),
        time_us=np.array([_times(node) for node in nodes]).reshape(-1, 2),
        persistent_bytes=[node["var_bytes"] for node in nodes],
        temporary_bytes=[node["temp_bytes"] for node in nodes],
        colocation=_colocation(nodes, edges),
        **edge_columns([edge[:4] for edge in edges]),
        shares=find_views([is_view_type(node["op"]) for node in nodes], [e[:4] for e in edges]),
        measured=_measured(data, nodes, cluster),
    )
    kernels = np.array([node["n_kernels"] for node in nodes])
    return calibrate(profile, kernels, cluster)


def _name(data: dict[str, Any]) -> str:
    parts = (data.get("model"), data.get("variant"))
    return "_".join(part for part in parts if isinstance(part, str) and part) or "model"


def _node(node: dict[str, Any], where: str, index: int) -> dict[str, Any]:
    if node.get("id", index) != index:
        raise FileError(
            f"{where}.id: must be {index}, its place in the list, not {shown(node['id'])}"
        )
    colocate, outs = (take(node, key, list, where, []) for key in ("colocate", "out"))
    return {
        "name": take(node, "name", str, where),
        "op": take(node, "op", str, where, ""),
        "device": take(node, "device", str, where, "GPU:0"),
        "gpu_us": number(node, "gpu_us", where, 0, high=MAX_TIME_US),
        "cpu_us": number(node, "cpu_us_median", where, 0, high=MAX_TIME_US),
        "n_kernels": whole(node, "n_kernels", where, 0, high=1e6),
        "var_bytes": whole(node, "var_bytes", where, 0, high=MAX_BYTES),
        "temp_bytes": whole(node, "temp_bytes", where, 0, high=MAX_BYTES),
        "colocate": [group for group in colocate if isinstance(group, str)],
        "tag": node.get("tag") if isinstance(node.get("tag"), str) else "",
        "ref": [isinstance(o, dict) and o.get("ref") is True for o in outs],
    }


def _edges(values: list[Any], nodes: list[dict[str, Any]]) -> list[tuple[int, int, int, int, bool]]:
    """Read each edge: source, output, consumer, bytes, and whether it is by reference.

    Those of a consumer come in the order of its inputs, as in the file.
    """
    edges = []
    for i, value in enumerate(values):
        usable = isinstance(value, list) and len(value) == 5
        if not usable or not all(type(n) is int for n in value):
            raise FileError(f"edges[{i}]: must be five whole numbers, not {shown(value)}")
        source, output, target, _, size = value
        for end in (source, target):
            if not 0 <= end < len(nodes):
                raise DanglingEdgeError(f"edges[{i}]: there is no node {end}; remove the edge")
        if not (CONTROL <= output <= 1 << 31 and 0 <= size <= MAX_BYTES):
            raise FileError(
                f"edges[{i}]: output {output} or {size} bytes is impossible; correct it"
            )
        refs = nodes[source]["ref"]
        by_reference = 0 <= output < len(refs) and refs[output]
        edges.append((source, output, target, 0 if by_reference else size, by_reference))
    return edges


def _times(node: dict[str, Any]) -> tuple[float, float]:
    """Return GPU and CPU time without launch gaps; NaN for the kind that it did not run on."""
    if node["device"].startswith("GPU"):
        return (node["gpu_us"] if node["n_kernels"] else 0.0), math.nan
    return math.nan, node["cpu_us"]


def _colocation(
    nodes: list[dict[str, Any]], edges: list[tuple[int, int, int, int, bool]]
) -> list[str]:
    """Return the graph's colocation groups, merged along by-reference edges."""
    ops_of: dict[str, int] = {node["name"]: op for op, node in enumerate(nodes)}
    ties = [
        (ops_of.setdefault(group, op), op)
        for op, node in enumerate(nodes)
        for group in node["colocate"]
    ]
    ties += [(source, target) for source, _, target, _, by_reference in edges if by_reference]
    return colocation_groups([node["name"] for node in nodes], ties)


def _measured(data: dict[str, Any], nodes: list[dict[str, Any]], cluster: Cluster) -> Measurement:
    step = take(data, "step_ms", dict, "", {})
    machine = take(data, "machine", dict, "", {})
    memory = take(data, "memory", dict, "", {})
    peaks = take(memory, "allocator_peak_bytes", dict, "memory", {})
    return Measurement(
        step_time_us=number(step, "untraced_median", "step_ms", high=1e9) * 1000,
        op_devices={node["name"]: node["device"] for node in nodes},
        op_kernels={node["name"]: node["n_kernels"] for node in nodes if node["n_kernels"]},
        gpu=take(machine, "gpu_name", str, "machine", ""),
        framework="tensorflow",
        cluster=cluster,
        peak_bytes={
            device.name: whole(peaks, allocator, "memory.allocator_peak_bytes")
            for device in cluster.devices
            if peaks.get(allocator := f"{device.name.replace(':', '_')}_bfc") is not None
        },
        tf32=None if data.get("tf32") is None else take(data, "tf32", bool, ""),
        placement=take(data, "placement", str, "", ""),
        config=take(data, "config", dict, "", {}),
    )


def _cluster(data: dict[str, Any], nodes: list[dict[str, Any]]) -> Cluster:
    """Return the profile's devices; logical GPUs run one at a time on the chip that they share.

    This is close to the measurements: kernels that fill the chip gain nothing from running at the
    same time.
    """
    n_gpus = whole(data, "logical_gpus", "", 1, low=1, high=64)
    capacity = H200_BYTES if n_gpus == 1 else LOGICAL_GPU_BYTES
    chip = "GPU" if n_gpus > 1 else ""
    devices = [Device(f"GPU:{i}", "gpu", capacity, chip=chip) for i in range(n_gpus)]
    devices.append(Device("CPU:0", "cpu", HOST_BYTES, lanes=HOST_LANES))
    names = [device.name for device in devices]
    for i, node in enumerate(nodes):
        if node["device"] not in names:
            raise FileError(
                f"nodes[{i}].device: {shown(node['device'])} is none of {', '.join(names)}"
            )
    to_gpu, to_host = _host_links(take(data, "copies", list, "", []))
    links: list[Link] = []
    for a in range(n_gpus + 1):
        for b in range(n_gpus + 1):
            costs = to_gpu if a == n_gpus else to_host if b == n_gpus else GPU_TO_GPU
            if a != b:
                links.append(Link(a, b, *costs, (len(links),)))
    return Cluster(
        "local",
        tuple(devices),
        tuple(f"{names[link.source]}->{names[link.target]}" for link in links),
        tuple(links),
        "The devices that this profile was measured on.",
    )


def _host_links(copies: list[Any]) -> tuple[tuple[float, float], tuple[float, float]]:
    """Fit latency and inverse bandwidth, host to GPU and back, from the copies of the step itself.

    Images come from pageable memory, which is several times slower than bus benchmarks show.
    """
    links = []
    for kind, (b0, usual_b1) in (("MemcpyH2D", HOST_TO_GPU), ("MemcpyD2H", GPU_TO_HOST)):
        seen = [
            (number(copy, "bytes", where), number(copy, "median_us", where))
            for where, copy in ((f"copies[{i}]", copy) for i, copy in enumerate(copies))
            if is_object(copy, where).get("kind") == kind
        ]
        rates = [us / size for size, us in seen if size >= BIG_COPY_BYTES]
        links.append((b0, float(np.median(rates)) if rates else usual_b1))
    return links[0], links[1]
