"""A recorded ``RunMetadata`` as a profile: a single traced step that somebody saved.

The graph is that of the partitions, if they were saved too (``output_partition_graphs``). Otherwise
it comes from the labels of the ops in the trace, ``name = Type(inputs)``. These do not say which
output of its producer an input from another device is: we assume the first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf import text_format
from google.protobuf.message import DecodeError
from tensorflow.core.framework.types_pb2 import DT_RESOURCE
from tensorflow.core.protobuf.config_pb2 import RunMetadata

from enplace.disk import read_bytes
from enplace.frameworks.tensorflow.graph import node_of
from enplace.frameworks.tensorflow.step import LoadError
from enplace.frameworks.tensorflow.trace import OpTrace, op_traces
from enplace.names.scopes import traced_scopes
from enplace.readers.ties import colocation_groups
from enplace.values.measurement import Measurement
from enplace.values.profile import CONTROL, Profile, make_profile

_LABEL = re.compile(r"(?:\[[^]]*\])*(?P<name>\S+) = (?P<op>\w+)\((?P<inputs>.*)\)")
_COPY = re.compile(r"(?P<name>.+?)(/ctrl)?/_\d+")
"""Names of the ends of a transfer."""

_FED = re.compile(r"_arg_(?P<name>.+)_\d+_\d+")
_SENDS, _RECEIVES = ("_Send", "_HostSend"), ("_Recv", "_HostRecv")
_TYPES = {"_Arg": "Placeholder"}
_OWN_VARIABLE = ("Variable", "VariableV2")
_REFERENCES = 100
"""Data types from here on are references to a variable."""


@dataclass(frozen=True)
class _Node:
    name: str
    op: str
    inputs: tuple[str, ...]


def profile_of_trace(path: str) -> Profile:
    """Read a trace in binary or text form.

    Returns
    -------
    Profile
        ``measured`` holds ``step_time_us`` (of the traced step), ``op_devices`` and ``op_kernels``.

    Raises
    ------
    LoadError
        If the file has no trace, or its ops cannot be identified.
    """
    metadata = _read(path)
    rows = _rows(metadata)
    nodes = _of_partitions(metadata.partition_graphs) or _of_labels(rows)
    if not nodes:
        raise LoadError(f"{path}: its rows name no ops; record it with trace_level FULL_TRACE")
    return _assemble(Path(path).stem, nodes, metadata, rows)


def _read(path: str) -> Any:
    content, metadata = read_bytes(path), RunMetadata()
    try:
        if content.lstrip().startswith(b"step_stats"):
            text_format.Parse(content, metadata)
        else:
            metadata.ParseFromString(content)
    except (DecodeError, text_format.ParseError, UnicodeDecodeError):
        raise LoadError(f"{path}: the recorded trace is damaged; record it again") from None
    return metadata


def _rows(metadata: Any) -> list[Any]:
    """Return the executors' rows; kernels and copies have rows of their own."""
    devices = metadata.step_stats.dev_stats
    return [row for d in devices if _is_executor(d.device) for row in d.node_stats]


def _is_executor(device: str) -> bool:
    return "/stream:" not in device and "/memcpy" not in device


def _of_partitions(graphs: Iterable[Any]) -> list[_Node]:
    """Rebuild the graph as it was before partitioning, without transfers and their helper ops."""
    nodes = [node for graph in graphs for node in graph.node]
    sent = {node.attr["tensor_name"].s: node.input[0] for node in nodes if node.op in _SENDS}
    stands_for: dict[str, str] = {}
    for node in nodes:
        if node.op in _RECEIVES:
            stands_for[node.name] = sent.get(node.attr["tensor_name"].s, "")
        elif _COPY.fullmatch(node.name) and node.op in ("Const", "Identity") and node.input:
            stands_for[node.name] = node.input[0]
    kept = [n for n in nodes if n.op not in (*_SENDS, "_Retval") and n.name not in stands_for]
    return [_Node(n.name, n.op, _origins(n.input, stands_for)) for n in kept]


def _origins(tensors: Iterable[str], stands_for: dict[str, str]) -> tuple[str, ...]:
    """Find the nodes that inputs come from, past all transfers."""
    found = []
    for tensor in tensors:
        control = tensor.startswith("^")
        while (name := node_of(tensor)) in stands_for:
            tensor = stands_for[name]
            control |= tensor.startswith("^")
        if tensor:
            found.append(f"^{node_of(tensor)}" if control else tensor)
    return tuple(found)


def _of_labels(rows: Sequence[Any]) -> list[_Node]:
    found = [match for row in rows if (match := _LABEL.fullmatch(row.timeline_label))]
    inputs = {m["name"]: [t for t in m["inputs"].split(", ") if t] for m in found}
    helpers = {
        name: copy["name"]
        for name in {*inputs, *(node_of(t) for given in inputs.values() for t in given)}
        if (copy := _COPY.fullmatch(name))
    }
    gone = {*helpers, "_SOURCE"}
    known = {m["name"]: m for m in found if m["name"] not in gone and m["op"] != "_Retval"}
    return [
        _Node(
            name,
            match["op"],
            tuple(t for t in _origins(inputs[name], helpers) if node_of(t) in known),
        )
        for name, match in known.items()
    ]


def _assemble(name: str, nodes: list[_Node], metadata: Any, rows: list[Any]) -> Profile:
    traces, called = op_traces([metadata.step_stats]), _names(nodes)
    number = {node.name: i for i, node in enumerate(nodes)}
    by_reference = {
        (row.node_name, output.slot)
        for row in rows
        for output in row.output
        if (dtype := output.tensor_description.dtype) == DT_RESOURCE or dtype > _REFERENCES
    }
    edges, ties = [], []
    for node in nodes:
        for tensor in node.inputs:
            source, at = node_of(tensor), number[node.name]
            slot = CONTROL if tensor.startswith("^") else int(tensor.partition(":")[2] or 0)
            is_tie = (source, slot) in by_reference
            size = 0 if is_tie else _outputs(traces, source).get(slot, 0)
            edges.append((number[source], slot, at, size))
            if is_tie:
                ties.append((number[source], at))
    kernels = {called[n]: t.n_kernels for n, t in traces.items() if t.n_kernels and n in called}
    columns = np.array(edges, dtype=np.int64).reshape(-1, 4).T
    return make_profile(
        name,
        op_names=[called[node.name] for node in nodes],
        op_types=[_TYPES.get(node.op, node.op.removeprefix("_Mkl")) for node in nodes],
        scopes=traced_scopes([(called[node.name], node.op) for node in nodes], edges),
        time_us=np.array([_times(traces.get(node.name, OpTrace())) for node in nodes]),
        persistent_bytes=_variables(nodes, traces),
        temporary_bytes=[traces.get(node.name, OpTrace()).temporary_bytes for node in nodes],
        colocation=colocation_groups([called[node.name] for node in nodes], ties),
        edge_source=columns[0],
        edge_output=columns[1],
        edge_op=columns[2],
        edge_bytes=columns[3],
        measured=Measurement(
            step_time_us=_span_us(rows),
            op_devices={
                called[n]: t.device.removeprefix("/device:")
                for n, t in traces.items()
                if n in called
            },
            op_kernels=kernels,
            steps=1,
        ),
    )


def _names(nodes: Iterable[_Node]) -> dict[str, str]:
    """Return each node's name in the model's own graph: a session renames fed nodes."""
    taken = {node.name for node in nodes}
    fed = {node.name: _FED.fullmatch(node.name) for node in nodes if node.op == "_Arg"}
    known = {name: match["name"] for name, match in fed.items() if match}
    return {name: known[name] if known.get(name, name) not in taken else name for name in taken}


def _outputs(traces: dict[str, OpTrace], name: str) -> dict[int, int]:
    return traces[name].output_bytes if name in traces else {}


def _times(trace: OpTrace) -> tuple[float, float]:
    """Return time on a GPU and on a CPU; an op without a row takes 0 on both."""
    if not trace.device:
        return 0.0, 0.0
    if "GPU" in trace.device.upper():
        return sum(trace.kernel_us), np.nan
    return np.nan, sum(trace.host_us)


def _variables(nodes: Iterable[_Node], traces: dict[str, OpTrace]) -> list[int]:
    """Return the bytes of each node that holds a variable: what its readers get."""
    read = {
        node_of(node.inputs[0]): _outputs(traces, node.name).get(0, 0)
        for node in nodes
        if node.op == "ReadVariableOp" and node.inputs
    }
    return [
        _outputs(traces, node.name).get(0, 0)
        if node.op in _OWN_VARIABLE
        else read.get(node.name, 0)
        for node in nodes
    ]


def _span_us(rows: Iterable[Any]) -> float:
    """Measure from the first start to the last end; the trace's clock has whole microseconds."""
    spans = [(row.all_start_micros, row.all_start_micros + row.all_end_rel_micros) for row in rows]
    return float(max(end for _, end in spans) - min(start for start, _ in spans)) if spans else 0.0
