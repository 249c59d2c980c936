"""Inputs of Tarnawski et al. 2020 (NeurIPS): nodes with two latencies, edges with a cost.

An edge's cost is the time to move the producer's output between an accelerator and host memory.
Enplace needs bytes and a link instead. The reader finds the rate (bytes per ms) at which the file's
own sizes and costs agree, so that cost = b1 * bytes exactly; it is 2 GiB/s in the authors' operator
files. Between two accelerators, the paper writes to host memory and reads from it: b1 doubles, and
the transfer occupies both buses. CPUs read and write host memory at no cost (section 3).

A node's size is its weights and its activations. It becomes persistent bytes, and tensors take no
memory of their own (:attr:`~enplace.values.profile.Profile.held_bytes`), so that what fits by the
paper's sum fits here.

Simulated for its step time, such a graph differs from the paper's own sums in two ways:

- In the paper, a tensor that two accelerators read is written to host memory once; here it is
  written once for each of them, which costs more.
- In appendix B, every consumer of a node with uneven costs has an edge of its own; here, consumers
  of equal cost on one device share a transfer, which costs less.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from typing import Any

import numpy as np

from enplace.errors import DanglingEdgeError, DuplicateOpError, EnplaceWarning, FileError
from enplace.files.fields import each_object, number, shown, take, whole
from enplace.readers.registry import Content, reader
from enplace.text import count
from enplace.values.cluster import Cluster, Device, Link
from enplace.values.measurement import Measurement
from enplace.values.profile import MAX_BYTES, Profile, make_profile

US_PER_MS = 1000.0
OPERATOR_RATE = 2**31 / 1000
"""Bytes per ms in the operator files and all latency files: 2 GiB/s."""

LAYER_RATE = 2.0**31
"""Bytes per ms in the throughput layer files: a thousand times more."""

DECIMAL_RATE = 1e6
"""Bytes per ms where a file gives no sizes: costs written in decimals become whole bytes."""

EXACT = 1e-6
"""Largest error that rounding to whole bytes may add to a cost, as a share of the largest cost."""

MOST_EDGE_BYTES, MOST_BYTES = 2.0**50, 2.0**58
"""Most bytes of an edge, and of all edges together, where bytes are invented. With them, an edge
that costs a millionth of the most expensive one stays exact, and a profile's limits are kept."""


def _is_dnn_partitioning(content: Content) -> bool:
    fields = content.fields
    undeclared = not content.declared_format and "ops" not in fields
    return undeclared and "nodes" in fields and "edges" in fields


@reader(
    "dnn-partitioning",
    title="Inputs of Tarnawski et al. 2020",
    suffixes=(".json", ".json.gz"),
    matches=_is_dnn_partitioning,
)
def read_dnn_partitioning(content: Content) -> Profile:
    """Make a profile of a throughput or latency input.

    Colour classes become colocation groups, forward and backward nodes together (appendix B: nodes
    of one class share a device). Node sizes become persistent bytes. Costs that differ between the
    out-edges of one node become outputs of their own. ``measured`` keeps what the 2020 placers
    need: the cluster and the numbers of the backward nodes.

    Raises
    ------
    FileError, ProfileError
        With the node's or edge's place in the file.

    Warns
    -----
    EnplaceWarning
        If the costs are a thousand times too small for their sizes, as in the paper's layer files.
    """
    data = content.fields
    nodes = [_node(node, where) for node, where in each_object(data, "nodes", "")]
    index = {node["id"]: i for i, node in enumerate(nodes)}
    if len(index) < len(nodes):
        double = Counter(node["id"] for node in nodes).most_common(1)[0][0]
        raise DuplicateOpError(f"nodes: two have the id {shown(double)}; ids must be unique")
    edges = [_edge(edge, where, index) for edge, where in each_object(data, "edges", "")]
    rate = _rate(edges)
    names = _unique_names(nodes)
    return make_profile(
        content.stem,
        op_names=names,
        op_types=[_op_type(name) for name in names],
        scopes=[_scope(name) for name in names],
        time_us=np.array([(node["gpu_us"], node["cpu_us"]) for node in nodes]),
        persistent_bytes=[node["size"] for node in nodes],
        colocation=[node["colour"] for node in nodes],
        edge_source=[edge["source"] for edge in edges],
        edge_output=_outputs(edges),
        edge_op=[edge["target"] for edge in edges],
        edge_bytes=[round(edge["cost_ms"] * rate) for edge in edges],
        measured=Measurement(
            paper="Tarnawski et al. 2020",
            cluster=_cluster(data, rate),
            backward=tuple(i for i, node in enumerate(nodes) if node["backward"]),
        ),
    )


def _node(node: dict[str, Any], where: str) -> dict[str, Any]:
    supported = _flag(node, "supportedOnFpga", where, True)
    colour = node.get("colorClass")
    if not (colour is None or type(colour) in (int, str)):
        raise FileError(f"{where}.colorClass: must be a number or a text, not {shown(colour)}")
    return {
        "id": whole(node, "id", where, low=-(2**53), high=2**53),
        "name": take(node, "name", str, where, "") or f"node{node['id']}",
        "gpu_us": number(node, "fpgaLatency", where) * US_PER_MS if supported else math.nan,
        "cpu_us": number(node, "cpuLatency", where) * US_PER_MS
        if node.get("cpuLatency") is not None or not supported
        else math.nan,
        "size": round(number(node, "size", where, 0, high=MAX_BYTES)),
        "backward": _flag(node, "isBackwardNode", where, False),
        "colour": "" if colour is None else f"colour {colour}",
    }


def _flag(node: dict[str, Any], key: str, where: str, default: bool) -> bool:
    """Read true, false, 1 or 0; the authors' files use both spellings."""
    value = node.get(key, default)
    if value not in (0, 1):
        raise FileError(f"{where}.{key}: must be true or false, not {shown(value)}")
    return bool(value)


def _edge(edge: dict[str, Any], where: str, index: dict[int, int]) -> dict[str, Any]:
    ends = []
    for key in ("sourceId", "destId"):
        node = whole(edge, key, where, low=-(2**53), high=2**53)
        if node not in index:
            raise DanglingEdgeError(
                f"{where}.{key}: there is no node {node}; add it or remove the edge"
            )
        ends.append(index[node])
    return {
        "source": ends[0],
        "target": ends[1],
        "cost_ms": number(edge, "cost", where, high=1e9),
        "size": number(edge, "size", where, 0, high=MAX_BYTES),
    }


def _rate(edges: list[dict[str, Any]]) -> float:
    """Find the bytes per ms that turn costs into the file's sizes, or into whole bytes."""
    ratios = Counter(
        float(f"{edge['size'] / edge['cost_ms']:.9g}")
        for edge in edges
        if edge["size"] and edge["cost_ms"]
    )
    usual = ratios.most_common(1)[0][0] if ratios else DECIMAL_RATE
    near = [rate for rate in (OPERATOR_RATE, LAYER_RATE) if math.isclose(usual, rate, rel_tol=1e-6)]
    rate = near[0] if near else usual
    costs_ms = np.array([edge["cost_ms"] for edge in edges if edge["cost_ms"]])
    lost_ms = np.abs(np.rint(costs_ms * rate) / rate - costs_ms)
    if lost_ms.max(initial=0.0) > EXACT * costs_ms.max(initial=0.0):
        rate = min(MOST_EDGE_BYTES / float(costs_ms.max()), MOST_BYTES / float(costs_ms.sum()))
        warnings.warn(
            "the sizes of edges do not match their costs; the costs are used, and the bytes shown "
            "are invented to match them",
            EnplaceWarning,
            stacklevel=3,
        )
    if rate == LAYER_RATE:
        warnings.warn(
            "communication costs are 1000 times smaller than the sizes given take at 2 GiB/s "
            "(as in the layer files of Tarnawski et al.); they are used unchanged",
            EnplaceWarning,
            stacklevel=3,
        )
    return rate


def _outputs(edges: list[dict[str, Any]]) -> list[int]:
    """Number the output of each edge: one for every distinct cost of its source."""
    costs: dict[int, dict[float, int]] = {}
    return [
        costs.setdefault(edge["source"], {}).setdefault(edge["cost_ms"], len(costs[edge["source"]]))
        for edge in edges
    ]


def _unique_names(nodes: list[dict[str, Any]]) -> list[str]:
    count = Counter(node["name"] for node in nodes)
    return [
        node["name"] if count[node["name"]] == 1 else f"{node['name']}#{node['id']}"
        for node in nodes
    ]


def _scope(name: str) -> str:
    """Drop a name's last part, as in ``bert.encoder.layer.2.bias`` or ``MatMul5_Grad/Mul``."""
    return name.replace(".", "/").rpartition("/")[0]


def _op_type(name: str) -> str:
    last = name.rpartition("/")[2]
    return "" if "." in last else last.split("_")[0].rstrip("0123456789")


def _cluster(data: dict[str, Any], rate: float) -> Cluster:
    accelerators = whole(data, "maxFPGAs", "", 1, low=1, high=200)
    cpus = whole(data, "maxCPUs", "", 1, high=50)
    memory = max(1, whole(data, "maxSizePerFPGA", "", 2**34, high=MAX_BYTES))
    devices = [Device(f"GPU:{i}", "gpu", memory) for i in range(accelerators)]
    devices += [Device(f"CPU:{i}", "cpu", MAX_BYTES) for i in range(cpus)]
    buses = [f"bus {device.name}" for device in devices[:accelerators]]
    links = []
    for a in range(len(devices)):
        for b in range(len(devices)):
            ends = [end for end in (a, b) if end < accelerators]
            channels = tuple(ends) or (accelerators,)
            # Transfers between accelerators pass through the host's memory, if there is a host.
            times = len(ends) if cpus else 1
            if a != b:
                links.append(Link(a, b, 0.0, times * US_PER_MS / rate, channels))
    return Cluster(
        "from-file",
        tuple(devices),
        (*buses, "host memory"),
        tuple(links),
        f"{count(accelerators, 'accelerator')} and {count(cpus, 'CPU')}, from the input",
    )
