"""TensorFlow 1 graphs: exported with ``export_meta_graph``, or a bare graph."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable, Mapping
from copy import deepcopy
from glob import escape, glob
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf import text_format
from google.protobuf.message import DecodeError, Message
from numpy.typing import NDArray
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef
from tensorflow.core.protobuf.meta_graph_pb2 import MetaGraphDef
from tensorflow.python.framework.importer import import_graph_def

from enplace.files.reading import read_bytes, refuse_pipe
from enplace.frameworks.source import Source
from enplace.frameworks.tensorflow.capture import GET_NEXT, N_BATCHES, fix_seeds, iterator_of
from enplace.frameworks.tensorflow.device_names import asked_devices
from enplace.frameworks.tensorflow.error_text import first_line
from enplace.frameworks.tensorflow.graph import (
    all_nodes,
    consumers_of,
    has_effect,
    keep_needed,
    node_of,
    reached,
)
from enplace.frameworks.tensorflow.open.sample_batches import sample_batches
from enplace.frameworks.tensorflow.rewrite import VARIABLES
from enplace.frameworks.tensorflow.step import Batch, LoadError, Step, plain_config
from enplace.names.passes import BACKWARD, split_pass

UPDATES = re.compile(r"(Resource)?(Sparse)?Apply|(Resource)?(Assign|Scatter)Sub")
LOSS = re.compile(r"(loss|cost)[^/]*(/value)?$", re.IGNORECASE)

_MAX_FILE_BYTES = 1 << 31
"""The size of the largest message in protobuf; constants may hold all variables."""

_AGAIN = ", and export it again"

_EXPLAINED = {
    "NextIteration": "a loop of TensorFlow 1; call tf.compat.v1.enable_control_flow_v2() before "
    "building the model",
    "Queue": "a queue; feed the batches with tf.data or placeholders",
    "LookupTable": "a lookup table; look words up in the dataset",
}


def load_tf1(source: Source) -> Step:
    """Extract the training op of a graph, or else its inference: what depends on its inputs.

    Variables start from the checkpoint next to the file, or else from their initialisers. Fed
    values are samples; a dataset in the graph brings its own batches.

    Raises
    ------
    LoadError
        If the file is not a graph, or does not hold all that it needs.
    """
    meta = _read(Path(source.path))
    asked = asked_devices((node.name, node.device) for node in meta.graph_def.node)
    graph = _imported(source.path, meta.graph_def)
    targets, losses = _wanted(meta, graph)
    graph_def = needed_for(meta.graph_def, [*targets, *map(node_of, losses)])
    if not graph_def.node:
        raise LoadError(
            f"{source.path}: nothing in the graph can run; export the graph that trains"
        )
    iterator = find_iterator(source.path, graph_def, _AGAIN)
    placeholders = [node.name for node in graph_def.node if node.op == "Placeholder"]
    inputs = [graph.get_tensor_by_name(f"{name}:0") for name in placeholders]
    batches = sample_batches(inputs, source.batch_size)
    with tf.compat.v1.Session(graph=graph, config=plain_config(soft=True)) as session:
        variables = _initial_values(source.path, graph_def, meta.graph_def, session)
        if iterator:
            batches = _drawn(source.path, iterator, graph_def, session, batches[0])
            become_placeholder(iterator)
    return Step(
        source.name,
        graph_def,
        variables,
        batches,
        inputs=tuple(placeholders),
        iterator=iterator.name if iterator else "",
        outputs=losses,
        targets=targets,
        losses=losses if targets else (),
        trainable=trained_by(graph_def),
        asked=kept_of(graph_def, asked),
    )


def kept_of(graph_def: GraphDef, asked: Mapping[str, str]) -> dict[str, str]:
    """Return what is asked for ops of this graph."""
    return {node.name: asked[node.name] for node in graph_def.node if node.name in asked}


def trained_by(graph_def: GraphDef) -> frozenset[str]:
    """Find the variables that gradients are applied to."""
    return frozenset(node_of(node.input[0]) for node in graph_def.node if UPDATES.match(node.op))


def _read(path: Path) -> MetaGraphDef:
    """Read the graph in a file, binary or text, with what an export says of it."""
    content = read_bytes(path, _MAX_FILE_BYTES)
    for kind, is_text in itertools.product((MetaGraphDef, GraphDef), (False, True)):
        message = kind()
        if _parse(message, content, is_text):
            meta = message if kind is MetaGraphDef else MetaGraphDef(graph_def=message)
            if meta.graph_def.node:
                return meta
    raise LoadError(f"{path}: it holds no TensorFlow graph; export it again")


def _parse(message: Message, content: bytes, is_text: bool) -> bool:
    try:
        if is_text:
            text_format.Parse(content, message)
        else:
            message.ParseFromString(content)
    except (DecodeError, text_format.ParseError, UnicodeDecodeError, RecursionError):
        return False
    return True


def _imported(path: str, graph_def: GraphDef) -> tf.Graph:
    """Import the graph without devices, loops and branches as single ops, random ops seeded."""
    make_plain(graph_def)
    fix_seeds(graph_def)
    graph = tf.Graph()
    try:
        with graph.as_default():
            import_graph_def(graph_def, name="")
    except Exception as error:
        reason = first_line(error) or type(error).__name__
        raise LoadError(f"{path}: TensorFlow cannot import it: {reason}") from None
    return graph


def make_plain(graph_def: GraphDef) -> None:
    """Remove devices and shapes from a graph; loops and branches become single ops.

    TensorFlow finds the shapes itself: those noted in a file may contradict it.
    """
    for node in all_nodes(graph_def):
        node.device = ""
        node.attr.pop("_output_shapes", None)
        node.attr.pop("_lower_using_switch_merge", None)


def _wanted(meta: MetaGraphDef, graph: tf.Graph) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Find training ops and losses; without training, no ops and what depends on the inputs."""
    nodes = meta.graph_def.node
    consumed = {node_of(tensor) for node in nodes for tensor in node.input}
    sinks = [node.name for node in nodes if node.name not in consumed]
    after = consumers_of(meta.graph_def).__getitem__
    updated = reached([node.name for node in nodes if UPDATES.match(node.op)], after)
    ends = [node.name for node in nodes if node.op == "NoOp" or has_effect(node.op)]
    targets = _collection(meta, "train_op") or tuple(
        name for name in ends if name in updated and name in sinks
    )
    if targets:
        return targets, _collection(meta, "losses") or _losses(graph, sinks, updated)
    brings = [node.name for node in nodes if node.op in ("Placeholder", *GET_NEXT)]
    fed = reached(brings, after)
    ends = [graph.get_operation_by_name(name) for name in sinks if name in fed or not brings]
    return (), tuple(f"{op.name}:0" for op in ends if op.outputs and not has_effect(op.type))


def _collection(meta: MetaGraphDef, name: str) -> tuple[str, ...]:
    return tuple(meta.collection_def[name].node_list.value)


def _losses(graph: tf.Graph, sinks: list[str], updated: set[str]) -> tuple[str, ...]:
    """Find single numbers with the name of a loss, or else those that nothing consumes."""
    numbers = [
        op
        for op in graph.get_operations()
        if op.name not in updated
        and len(op.outputs) == 1
        and op.outputs[0].dtype.base_dtype.is_floating
        and op.outputs[0].shape.rank == 0
        and op.type not in ("Const", "Placeholder", *VARIABLES)
        and split_pass(op.name)[0] != BACKWARD
    ]
    found = [op for op in numbers if LOSS.search(op.name)]
    return tuple(f"{op.name}:0" for op in found or [op for op in numbers if op.name in sinks])


def needed_for(whole: GraphDef, wanted: Iterable[str]) -> GraphDef:
    """Copy the ops that the wanted ones need, and no colocation with ops that are left out."""
    graph_def = deepcopy(whole)
    keep_needed(graph_def, wanted)
    kept = {f"loc:@{node.name}".encode() for node in graph_def.node}
    for node in graph_def.node:
        if "_class" in node.attr:
            classes = [value for value in node.attr["_class"].list.s if value in kept]
            node.attr["_class"].list.s[:] = classes
    return graph_def


def find_iterator(where: str, graph_def: GraphDef, then: str = "") -> NodeDef | None:
    """Find the op from which batches are fetched; refuse ops that cannot be part of a step.

    Parameters
    ----------
    where : str
        The file or the line of the script, for messages.
    then : str
        What to do after the fix.
    """
    for node in graph_def.node:
        for part, text in _EXPLAINED.items():
            if part in node.op:
                raise LoadError(f"{where}: op '{node.name}' ({node.op}) is part of {text}{then}")
    try:
        return iterator_of(graph_def)
    except LoadError as error:
        raise LoadError(f"{where}: {error}{then}") from None


def _initial_values(
    path: str, graph_def: GraphDef, whole: GraphDef, session: tf.compat.v1.Session
) -> dict[str, NDArray[Any]]:
    """Find each variable's value in the checkpoint next to the graph, or run its initialiser."""
    variables = {node.name: node for node in graph_def.node if node.op in VARIABLES}
    stored = _stored(path.removesuffix(".meta"), variables)
    assignments = _initialisers(whole)
    if missing := [v for v in variables if v not in stored and v not in assignments]:
        raise LoadError(
            f"{path}: variable '{missing[0]}' has no initial value; put the checkpoint next to the "
            f"graph, or export it with its initialisers"
        )
    session.run([assignments[v] for v in variables if v in assignments])
    started = {name: _value(session, variables[name]) for name in variables.keys() - stored.keys()}
    return {name: (stored | started)[name] for name in variables}


def _stored(prefix: str, names: Iterable[str]) -> dict[str, NDArray[Any]]:
    """Read these variables from a checkpoint; empty if there is none."""
    if not os.path.exists(f"{prefix}.index"):
        return {}
    for file in glob(f"{escape(prefix)}.*"):
        refuse_pipe(file)
    checkpoint = tf.train.load_checkpoint(prefix)
    return {name: checkpoint.get_tensor(name) for name in names if checkpoint.has_tensor(name)}


def _initialisers(whole: GraphDef) -> dict[str, str]:
    """Find the op that gives each variable its first value."""
    nodes = {node.name: node for node in whole.node}
    found: dict[str, str] = {}
    for node in whole.node:
        if node.op in ("Assign", "AssignVariableOp"):
            variable = node_of(node.input[0])
            restores = "Restore" in nodes[node_of(node.input[1])].op
            if node.name == f"{variable}/Assign" or (variable not in found and not restores):
                found[variable] = node.name
    return found


def _value(session: tf.compat.v1.Session, node: NodeDef) -> NDArray[Any]:
    tensor = session.graph.get_tensor_by_name(f"{node.name}:0")
    if tensor.dtype == tf.resource:
        with session.graph.as_default():
            dtype = tf.as_dtype(node.attr["dtype"].type)
            tensor = tf.raw_ops.ReadVariableOp(resource=tensor, dtype=dtype)
    return np.asarray(session.run(tensor))


def _drawn(
    path: str,
    iterator: NodeDef,
    graph_def: GraphDef,
    session: tf.compat.v1.Session,
    fed: Batch,
) -> list[Batch]:
    """Draw batches from the graph's own dataset; fed values come first."""
    getter = next(n for n in graph_def.node if n.op in GET_NEXT)
    starts = [
        op.name
        for op in session.graph.get_operations()
        if op.type == "MakeIterator" and op.inputs[1].op.name == iterator.name
    ]
    parts = session.graph.get_operation_by_name(getter.name).outputs
    batches: list[Batch] = []
    try:
        session.run(starts)
        while len(batches) < N_BATCHES:
            batches.append((*fed, *map(np.asarray, session.run(parts))))
    except tf.errors.OutOfRangeError:
        pass
    except tf.errors.OpError as error:
        reason = first_line(error)
        raise LoadError(f"{path}: the dataset in the graph gives no batch: {reason}") from None
    if not batches:
        raise LoadError(f"{path}: the dataset in the graph is empty; export it with data")
    return [b for b in batches if [p.shape for p in b] == [p.shape for p in batches[0]]]


def become_placeholder(node: NodeDef, dtype: tf.DType = tf.resource) -> None:
    """Let an op be fed instead of run."""
    node.op = "Placeholder"
    del node.input[:]
    node.attr.clear()
    node.attr["dtype"].type = dtype.as_datatype_enum
