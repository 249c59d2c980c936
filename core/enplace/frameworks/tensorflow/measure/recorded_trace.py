"""A recorded ``RunMetadata`` as a profile: a single traced step that somebody saved.

The graph is that of the partitions, if they were saved too (``output_partition_graphs``). Otherwise
it comes from the labels of the ops in the trace, ``name = Type(inputs)``. These do not say which
output of its producer an input from another device is: we assume the first.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf import text_format
from google.protobuf.message import DecodeError
from tensorflow.core.framework.types_pb2 import DT_RESOURCE
from tensorflow.core.protobuf.config_pb2 import RunMetadata

from enplace.files.reading import naming, read_bytes
from enplace.frameworks.tensorflow.graph import node_of
from enplace.frameworks.tensorflow.measure.profile import assemble, find_edges
from enplace.frameworks.tensorflow.measure.trace import (
    OpTrace,
    check_kernels,
    is_executor,
    is_gpu,
    op_traces,
)
from enplace.frameworks.tensorflow.shapes import TensorShape
from enplace.frameworks.tensorflow.step import LoadError
from enplace.values.limits import MAX_TIME_US
from enplace.values.measurement import Measurement
from enplace.values.profile import Profile

_LABEL = re.compile(r"(?:\[[^]]*\])*+(?P<name>\S+) = (?P<op>\w+)\((?P<inputs>.*)\)")
_COPY = re.compile(r"(?P<name>.+?)(/ctrl)?/_\d+")
"""Names of the ends of a transfer."""

_FED = re.compile(r"_arg_(?P<name>.+)_\d+_\d+")
_SENDS, _RECEIVES = ("_Send", "_HostSend"), ("_Recv", "_HostRecv")
_TYPES = {"_Arg": "Placeholder"}
_OWN_VARIABLE = ("Variable", "VariableV2")
_REFERENCES = 100
"""Data types from here on are references to a variable."""

_SLOT = re.compile(r"\d{1,9}", re.ASCII)

_MAX_FILE_BYTES, _MAX_FIELDS, _MAX_ROWS = 128 << 20, 3_500_000, 500_000
"""Most that a trace may hold: a message takes up to 200 bytes of memory, however small it is in the
file, and large ones cannot be many. An honest row has 15 messages, and counts as 30. A row or node
takes another 1000 bytes. Protobuf crashes where it gets no memory.
"""

_IS_LENGTH, _LENGTH, _SMALL = 7, 2, 32
"""Bits of a field's first byte that are as given if its length follows, as for a message, and the
length of a message that is small. In texts, few pairs of characters look so."""

_TEXT_FIELDS = 2
"""In text form, a message takes as much as so many."""


@dataclass(frozen=True)
class _Node:
    name: str
    op: str
    input: tuple[str, ...]


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
    with naming(path):
        return _profile(Path(path).stem, _parse(read_bytes(path, _MAX_FILE_BYTES)))


def _profile(name: str, metadata: Any) -> Profile:
    devices, graphs = metadata.step_stats.dev_stats, metadata.partition_graphs
    n_rows, n_nodes = sum(len(d.node_stats) for d in devices), sum(len(g.node) for g in graphs)
    _check_count(n_rows + n_nodes, _MAX_ROWS)
    rows = _rows(metadata)
    nodes = _of_partitions(graphs) or _of_labels(rows)
    if not nodes:
        raise LoadError("its rows name no ops; record it with trace_level FULL_TRACE")
    return _assemble(name, nodes, metadata, rows)


def _parse(content: bytes) -> Any:
    is_text = content.lstrip().startswith(b"step_stats")
    fields = _text_fields(content) if is_text else _small_fields(content)
    _check_count(fields + content.count(b","), _MAX_FIELDS)  # labels are split at commas
    metadata = RunMetadata()
    try:
        if is_text:
            text_format.Parse(content, metadata)
        else:
            metadata.ParseFromString(content)
    except (DecodeError, text_format.ParseError, UnicodeDecodeError, RecursionError):
        raise LoadError("the recorded trace is damaged; record it again") from None
    return metadata


def _small_fields(content: bytes) -> int:
    """Count what may be a small message in a binary file, or more."""
    values = np.frombuffer(content, np.uint8)
    may_start = values[:-1] & _IS_LENGTH == _LENGTH
    return int(np.count_nonzero(may_start & (values[1:] < _SMALL)))


def _text_fields(content: bytes) -> int:
    """Count the messages of a text."""
    return _TEXT_FIELDS * (content.count(b"{") + content.count(b"<"))


def _check_count(found: int, most: int) -> None:
    if found > most:
        raise LoadError("it holds far more than any real trace; do not trust it")


def _rows(metadata: Any) -> list[Any]:
    """Return the executors' rows; kernels and copies have rows of their own."""
    devices = metadata.step_stats.dev_stats
    return [row for d in devices if is_executor(d.device) for row in d.node_stats]


def _of_partitions(graphs: Iterable[Any]) -> list[_Node]:
    """Rebuild the graph as it was before partitioning, without transfers and their helper ops."""
    nodes = [node for graph in graphs for node in graph.node]
    sent = {n.attr["tensor_name"].s: n.input[0] for n in nodes if n.op in _SENDS and n.input}
    stands_for: dict[str, str] = {}
    for node in nodes:
        if node.op in _RECEIVES:
            stands_for[node.name] = sent.get(node.attr["tensor_name"].s, "")
        elif _COPY.fullmatch(node.name) and node.op in ("Const", "Identity") and node.input:
            stands_for[node.name] = node.input[0]
    origins = _origins(stands_for)
    kept = [n for n in nodes if n.op not in (*_SENDS, "_Retval") and n.name not in stands_for]
    return [_Node(n.name, n.op, _without_transfers(n.input, origins)) for n in kept]


def _origins(stands_for: dict[str, str]) -> dict[str, str]:
    """Find the tensor that each end of a transfer stands for, past all transfers."""
    origins: dict[str, str] = {}
    for name in stands_for:
        passed: dict[str, None] = {}
        while name in stands_for and name not in origins:
            if name in passed:
                raise LoadError(f"transfer {name[:60]!a} leads back to itself; record it again")
            passed[name] = None
            name = node_of(stands_for[name])
        for end in reversed(passed):
            origins[end] = _origin(stands_for[end], origins)
    return origins


def _origin(tensor: str, origins: dict[str, str]) -> str:
    origin = origins.get(node_of(tensor), tensor)
    return f"^{node_of(origin)}" if origin and tensor.startswith("^") else origin


def _without_transfers(tensors: Iterable[str], origins: dict[str, str]) -> tuple[str, ...]:
    """Find the tensors that inputs stand for; without those that nobody sends."""
    return tuple(filter(None, (_origin(tensor, origins) for tensor in tensors)))


def _of_labels(rows: Sequence[Any]) -> list[_Node]:
    found = [match for row in rows if (match := _LABEL.fullmatch(row.timeline_label))]
    inputs = {m["name"]: [t for t in m["inputs"].split(", ") if t] for m in found}
    helpers = {
        name: copy["name"]
        for name in {*inputs, *(node_of(t) for given in inputs.values() for t in given)}
        if (copy := _COPY.fullmatch(name))
    }
    origins, gone = _origins(helpers), {*helpers, "_SOURCE"}
    known = {m["name"]: m for m in found if m["name"] not in gone and m["op"] != "_Retval"}
    return [
        _Node(
            name,
            match["op"],
            tuple(t for t in _without_transfers(inputs[name], origins) if node_of(t) in known),
        )
        for name, match in known.items()
    ]


def _assemble(name: str, nodes: list[_Node], metadata: Any, rows: list[Any]) -> Profile:
    traces = op_traces([metadata.step_stats], metadata.partition_graphs)
    check_kernels(traces)
    _check_inputs(nodes)
    called = _names(nodes)
    references = {
        f"{row.node_name}:{output.slot}": TensorShape(None, tf.float32, None, by_reference=True)
        for row in rows
        for output in row.output
        if (dtype := output.tensor_description.dtype) == DT_RESOURCE or dtype > _REFERENCES
    }
    value = TensorShape(None, tf.float32, None, by_reference=False)
    edges, ties = find_edges(nodes, defaultdict(lambda: value, references), traces)
    own = {called[n]: t for n, t in traces.items() if n in called}
    return assemble(
        name,
        [(called[node.name], _TYPES.get(node.op, node.op.removeprefix("_Mkl"))) for node in nodes],
        edges,
        ties,
        time_us=np.array([_times(traces.get(node.name, OpTrace())) for node in nodes]),
        persistent_bytes=_variables(nodes, traces),
        temporary_bytes=[traces.get(node.name, OpTrace()).temporary_bytes for node in nodes],
        measured=Measurement(
            framework="tensorflow",
            step_time_us=_span_us(rows),
            op_devices={n: t.device.removeprefix("/device:") for n, t in own.items()},
            op_kernels={n: t.n_kernels for n, t in own.items() if t.n_kernels},
            steps=1,
        ),
    )


def _check_inputs(nodes: Iterable[_Node]) -> None:
    names = {node.name for node in nodes}
    for tensor in (tensor for node in nodes for tensor in node.input):
        if node_of(tensor) not in names:
            raise LoadError(f"op {node_of(tensor)[:60]!a} is used, but not in it; record it again")
        if not (tensor.startswith("^") or _SLOT.fullmatch(tensor.partition(":")[2] or "0")):
            raise LoadError(f"input {tensor[:60]!a} names no output of an op; record it again")


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
    time_us = sum(trace.times_us)
    return (time_us, np.nan) if is_gpu(trace.device) else (np.nan, time_us)


def _variables(nodes: Iterable[_Node], traces: dict[str, OpTrace]) -> list[int]:
    """Return the bytes of each node that holds a variable: what its readers get."""
    read = {
        node_of(node.input[0]): _outputs(traces, node.name).get(0, 0)
        for node in nodes
        if node.op == "ReadVariableOp" and node.input
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
    span = max(end for _, end in spans) - min(start for start, _ in spans) if spans else 0
    if not 0 <= span <= MAX_TIME_US:
        raise LoadError(f"its step takes {span} µs, which is impossible; record it again")
    return float(span)
