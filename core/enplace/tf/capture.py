"""From a traced function and what it was called with to a step that runs by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef
from tensorflow.python.eager.polymorphic_function.concrete_function import ConcreteFunction

from enplace.errors import EnplaceError
from enplace.tf.graph import FlatGraph, flatten
from enplace.tf.step import Batch, Step

N_BATCHES = 8
"""So many batches of a dataset are recorded."""


class CaptureError(EnplaceError):
    """The model has something in its step that cannot be taken out of its process."""


def step_of(name: str, function: ConcreteFunction, calls: Sequence[Sequence[Any]]) -> Step:
    """Take the step that a traced function does out of its process.

    Parameters
    ----------
    calls : sequence of sequences of tensors
        The flat arguments of some calls; where one is a dataset's iterator, the first call's is
        asked for :data:`N_BATCHES` batches.

    Raises
    ------
    CaptureError
        If the function uses a resource other than variables and one dataset.
    """
    flat = flatten(function)
    graph_def = GraphDef()
    graph_def.CopyFrom(flat.graph_def)
    nodes = {node.name: node for node in graph_def.node}
    variables, trainable = _variables(function, flat, nodes)
    iterator, batches = _batches(flat, nodes, calls)
    dtypes = {
        node: tensor.dtype for node, tensor in zip(flat.outputs, function.outputs, strict=True)
    }
    outputs = tuple(o for o in flat.outputs if dtypes[o] not in (tf.resource, tf.variant))
    losses = tuple(o for o, t in zip(flat.outputs, function.outputs, strict=True) if _is_loss(t))
    return Step(
        name,
        graph_def,
        variables,
        batches,
        inputs=() if iterator else flat.arguments,
        iterator=iterator,
        outputs=outputs,
        targets=flat.control_outputs,
        losses=losses or tuple(v for v in variables if v.endswith("loss/total")),
        trainable=trainable,
    )


def _is_loss(tensor: Any) -> bool:
    return bool(tensor.dtype.is_floating and tensor.shape.rank == 0)


def _variables(
    function: ConcreteFunction, flat: FlatGraph, nodes: dict[str, NodeDef]
) -> tuple[dict[str, NDArray[Any]], frozenset[str]]:
    """Make the placeholders of captured tensors variables or constants; the variables' values."""
    known = {id(v.handle): v for v in function.graph.variables}
    values: dict[str, NDArray[Any]] = {}
    trainable = set()
    for name, captured in zip(flat.captures, function.captured_inputs, strict=True):
        variable = known.get(id(captured))
        if variable is not None:
            values[name] = np.asarray(variable.numpy())
            _become_variable(nodes[name], variable)
            if variable.trainable:
                trainable.add(name)
        elif captured.dtype in (tf.resource, tf.variant):
            raise CaptureError(
                f"'{name}' is a resource that is neither a variable nor a dataset; "
                f"move it out of the training step"
            )
        else:
            nodes[name].op = "Const"
            nodes[name].attr["value"].tensor.CopyFrom(tf.make_tensor_proto(captured.numpy()))
            nodes[name].attr.pop("shape", None)
    return values, frozenset(trainable)


def _become_variable(node: NodeDef, variable: Any) -> None:
    node.op = "VarHandleOp"
    node.attr.clear()
    node.attr["dtype"].type = variable.dtype.as_datatype_enum
    node.attr["shape"].shape.CopyFrom(variable.shape.as_proto())
    node.attr["shared_name"].s = node.name.encode()


def _batches(
    flat: FlatGraph, nodes: dict[str, NodeDef], calls: Sequence[Sequence[Any]]
) -> tuple[str, list[Batch]]:
    """The iterator's placeholder, if there is one, and the batches."""
    resources = [i for i, tensor in enumerate(calls[0]) if tensor.dtype == tf.resource]
    if not resources:
        return "", [tuple(np.asarray(t.numpy()) for t in call) for call in calls]
    if len(calls[0]) > 1:
        raise CaptureError(
            "the step takes a dataset's iterator and other arguments; pass one or the other"
        )
    getter = next(
        node
        for node in nodes.values()
        if node.op == "IteratorGetNext" and node.input[0] == flat.arguments[0]
    )
    types = list(getter.attr["output_types"].list.type)
    shapes = [tf.TensorShape(shape) for shape in getter.attr["output_shapes"].list.shape]
    batches: list[Batch] = []
    while len(batches) < N_BATCHES:
        try:
            parts = tf.raw_ops.IteratorGetNext(
                iterator=calls[0][0],
                output_types=[tf.as_dtype(t) for t in types],
                output_shapes=shapes,
            )
        except tf.errors.OutOfRangeError:
            break
        batch = tuple(np.asarray(part.numpy()) for part in parts)
        if not batches or [p.shape for p in batch] == [p.shape for p in batches[0]]:
            batches.append(batch)
    return flat.arguments[0], batches
