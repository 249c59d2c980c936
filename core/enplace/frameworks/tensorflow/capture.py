"""Make a step that runs on its own of a traced function and the arguments of its calls."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import deepcopy
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef
from tensorflow.python.eager.polymorphic_function.concrete_function import ConcreteFunction
from tensorflow.python.util import nest

from enplace.frameworks.tensorflow.devices import eager_task, short_name
from enplace.frameworks.tensorflow.graph import (
    WRAPPER,
    FlatGraph,
    all_nodes,
    data_of,
    flatten,
    node_of,
)
from enplace.frameworks.tensorflow.step import Batch, LoadError, Step
from enplace.names.passes import is_in_backward_scope

N_BATCHES = 8
"""Most batches that are recorded."""

MAX_DRAWS = 64
"""Most batches that are drawn to find that many of one shape."""

MAX_BATCHES_BYTES = 1 << 28
"""Recording stops once the batches are this large together."""

MAX_GRAPH_BYTES = (1 << 31) - (1 << 20)
"""Largest graph with its constants: TensorFlow keeps it in one message."""

GET_NEXT = ("IteratorGetNext", "IteratorGetNextSync", "IteratorGetNextAsOptional")
_LOSS_VARIABLE = "loss/total"
"""End of the name of the variable in which Keras sums up the loss."""

_SEED = 87_654_321

_EXPLAINED = {
    "LookupTable": "a lookup table; look words up in the dataset, with dataset.map, and not",
    "Dataset": "a whole dataset; call the function once for each batch, and do not loop over all",
    "Rng": "a random generator that is not a variable; use the keras.random layers, not one",
    "Queue": "a queue; feed the batches with tf.data, not",
    "Summary": "a summary writer; write summaries of what the step returns, not",
    "MultiDeviceIterator": "an iterator for several devices; train without tf.distribute, not",
}
"""Resources that cannot leave their process, by part of the op type, and the start of the fix."""


def step_of(name: str, function: ConcreteFunction, calls: Sequence[Sequence[Any]]) -> Step:
    """Extract the step of a traced function from its process.

    Random ops without a seed get one, so that two runs of the step give the same result.

    Parameters
    ----------
    calls : sequence of sequences of tensors
        The flat arguments of some calls. Where the function takes its batches from an iterator,
        :data:`N_BATCHES` batches are drawn from that, and the first call's other arguments come
        with each.

    Raises
    ------
    LoadError
        If the function uses a resource other than variables and one dataset's iterator, or was
        copied for several replicas.
    """
    flat = flatten(function)
    if has_replicas(node.name for node in flat.graph_def.node):
        raise LoadError(
            "the script already splits its batch over replicas with tf.distribute, and Enplace "
            "places the step of one; run it without the strategy, or with one replica, as "
            "tf.distribute.MirroredStrategy(['CPU:0'])"
        )
    graph_def = deepcopy(flat.graph_def)
    nodes = {node.name: node for node in graph_def.node}
    given = dict(zip(flat.arguments, calls[0], strict=True))
    captured = dict(zip(flat.captures, function.captured_inputs, strict=True))
    _make_constants(nodes, captured)
    resources = {n: t for n, t in {**given, **captured}.items() if not is_plain(t)}
    variables = {n: _become_variable(nodes[n], t) for n, t in resources.items() if _is_variable(t)}
    _check_consumers(graph_def, resources.keys() - variables.keys())
    iterator = iterator_of(graph_def)
    fix_seeds(graph_def)
    _check_loop(graph_def)
    _check_size(name, graph_def)
    batches = [batch_of(call) for call in calls]
    if iterator is not None:
        batches = _drawn(graph_def, resources[iterator.name], batches[0])
    outputs, losses, handed_over = _outputs(function, flat, nodes)
    return Step(
        name,
        graph_def,
        variables,
        batches,
        inputs=tuple(n for n, tensor in given.items() if is_plain(tensor)),
        iterator=iterator.name if iterator is not None else "",
        outputs=outputs,
        targets=tuple(dict.fromkeys((*flat.control_outputs, *handed_over))),
        losses=losses or tuple(v for v in variables if v.endswith(_LOSS_VARIABLE)),
        trainable=_trainable(function, captured),
        function=str(function.graph.name),
        asked={
            **flat.asked,
            **_asked_of_variables({n: resources[n] for n in variables}),
        },
    )


def _asked_of_variables(handles: Mapping[str, Any]) -> dict[str, str]:
    """Find variables that are not where TensorFlow makes them without being asked."""
    usual = "/device:GPU:0" if tf.config.list_logical_devices("GPU") else "/device:CPU:0"
    homes = {name: short_name(handle.device, eager_task()) for name, handle in handles.items()}
    return {
        name: home
        for name, home in homes.items()
        if home not in (usual, "") and (home != "/device:CPU:0" or _could_be_on_gpu(handles[name]))
    }


def _could_be_on_gpu(handle: Any) -> bool:
    """Return whether TensorFlow keeps such variables on a GPU if there is one."""
    data = handle._handle_data.shape_and_type
    return bool(data) and tf.as_dtype(data[0].dtype).is_floating


def brought_by(getter: NodeDef) -> tuple[list[tf.DType], list[tf.TensorShape]]:
    """Return the types and the shapes of the parts of a batch that an op fetches."""
    types, shapes = getter.attr["output_types"].list.type, getter.attr["output_shapes"].list.shape
    return [*map(tf.as_dtype, types)], [*map(tf.TensorShape, shapes)]


def batch_of(call: Iterable[Any]) -> Batch:
    """Return the arguments of a call that are neither variables nor iterators."""
    return tuple(np.asarray(tensor.numpy()) for tensor in call if is_plain(tensor))


def most_alike(batches: Iterable[Batch]) -> list[Batch]:
    """Return the batches of the shape that came most often."""
    by_shape: dict[tuple[tuple[int, ...], ...], list[Batch]] = {}
    for batch in batches:
        by_shape.setdefault(tuple(part.shape for part in batch), []).append(batch)
    return max(by_shape.values(), key=len, default=[])


def are_enough(batches: Sequence[Batch]) -> bool:
    """Return whether to record no more batches: these are enough of one shape, or too many."""
    n_bytes = sum(part.nbytes for batch in batches for part in batch)
    many = len(most_alike(batches)) >= N_BATCHES or len(batches) >= MAX_DRAWS
    return many or n_bytes >= MAX_BATCHES_BYTES


def fix_seeds(graph_def: GraphDef) -> None:
    """Give each random op without a seed one derived from its name."""
    for node in all_nodes(graph_def):
        seeds = [node.attr[key] for key in ("seed", "seed2") if key in node.attr]
        if len(seeds) == 2 and not any(seed.i for seed in seeds):
            seeds[0].i, seeds[1].i = _SEED, zlib.crc32(node.name.encode())


def is_plain(tensor: Any) -> bool:
    """Return whether a tensor holds values, and is no variable or iterator."""
    return tensor.dtype not in (tf.resource, tf.variant)


def _is_variable(tensor: Any) -> bool:
    """Return whether a tensor is a variable's handle: only these have a dtype and shape."""
    data = getattr(tensor, "_handle_data", None)
    return bool(tensor.dtype == tf.resource and data is not None and data.is_set)


def _make_constants(nodes: Mapping[str, NodeDef], captured: Mapping[str, Any]) -> None:
    for name, tensor in captured.items():
        if is_plain(tensor):
            nodes[name].op = "Const"
            nodes[name].attr["value"].tensor.CopyFrom(tf.make_tensor_proto(tensor.numpy()))
            nodes[name].attr.pop("shape", None)


def _become_variable(node: NodeDef, handle: Any) -> NDArray[Any]:
    """Turn a placeholder into the variable it stands for; return the variable's value."""
    held = handle._handle_data.shape_and_type[0]
    node.op = "VarHandleOp"
    node.attr.clear()
    node.attr["dtype"].type = held.dtype
    node.attr["shape"].shape.CopyFrom(held.shape)
    node.attr["shared_name"].s = node.name.encode()
    value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.as_dtype(held.dtype))
    return np.asarray(value.numpy())


def _trainable(function: ConcreteFunction, captured: Mapping[str, Any]) -> frozenset[str]:
    wanted = {id(variable.handle) for variable in function.graph.trainable_variables}
    return frozenset(name for name, tensor in captured.items() if id(tensor) in wanted)


def iterator_of(graph_def: GraphDef) -> NodeDef | None:
    """Find the only op from which batches are fetched."""
    getters = [node for node in graph_def.node if node.op in GET_NEXT]
    names = {node_of(node.input[0]) for node in getters}
    if len(names) > 1:
        raise LoadError(
            f"the step takes batches from {len(names)} iterators; zip the datasets into one with "
            f"tf.data.Dataset.zip"
        )
    if len(getters) > 1:
        raise LoadError(
            f"the step takes {len(getters)} batches from its iterator; take one, or several as one "
            f"batch with dataset.batch"
        )
    return next((node for node in graph_def.node if node.name in names), None)


def _check_consumers(graph_def: GraphDef, resources: Collection[str]) -> None:
    """Refuse resources that are neither variables nor iterators."""
    for node in graph_def.node:
        for name in map(node_of, node.input):
            if name in resources and node.op not in GET_NEXT:
                raise LoadError(_why_not(node, name))


def _why_not(consumer: NodeDef, name: str) -> str:
    found = (text for part, text in _EXPLAINED.items() if part in consumer.op)
    text = next(found, "")
    if text:
        return f"the training step uses {text} inside the step ('{name}', op {consumer.op})"
    return (
        f"the training step uses something that is neither a variable nor the iterator of its data "
        f"('{name}', op {consumer.op}); move that out of the step, or if a tf.distribute strategy "
        f"put it there, train without the strategy"
    )


def _check_loop(graph_def: GraphDef) -> None:
    """Refuse a training loop that is a single op: there is nothing to place."""
    inside = (node.name for body in graph_def.library.function for node in body.node_def)
    outside = (node.name for node in graph_def.node)
    if any(map(is_in_backward_scope, inside)) and not any(map(is_in_backward_scope, outside)):
        raise LoadError(
            "the whole training loop, or all of its gradients, is one loop op; let the "
            "tf.function do one step, and call it once for each batch"
        )


def has_replicas(names: Iterable[str]) -> bool:
    """Return whether some ops are a tf.distribute strategy's copies for its second device.

    A strategy adds no prefix for the first device; a ``replica_0`` means a person chose the names.
    """
    known = list(names)
    return any("replica_1/" in n for n in known) and not any("replica_0/" in n for n in known)


def _check_size(name: str, graph_def: GraphDef) -> None:
    if (size := graph_def.ByteSize()) > MAX_GRAPH_BYTES:
        raise LoadError(
            f"{name}: the step holds constants of {size / 2**30:.1f} GiB, too large for a graph; "
            f"pass the data as arguments or with tf.data"
        )


def _drawn(graph_def: GraphDef, resource: Any, given: Batch) -> list[Batch]:
    """Draw batches from an iterator; return those of the commonest shape.

    The call's other arguments come first.
    """
    getter = next(node for node in graph_def.node if node.op in GET_NEXT)
    if getter.op != GET_NEXT[0]:
        raise LoadError("the step checks whether its iterator has a batch; use next(iterator)")
    types, shapes = brought_by(getter)
    batches: list[Batch] = []
    while not are_enough(batches):
        try:
            parts = tf.raw_ops.IteratorGetNext(
                iterator=resource, output_types=types, output_shapes=shapes
            )
        except tf.errors.OutOfRangeError:
            break
        batches.append((*given, *(np.asarray(part.numpy()) for part in parts)))
    if not batches:
        raise LoadError("the dataset is empty; give it at least one batch")
    return most_alike(batches)


def _outputs(
    function: ConcreteFunction, flat: FlatGraph, nodes: Mapping[str, NodeDef]
) -> tuple[tuple[str, ...], tuple[str, ...], list[str]]:
    """Find the tensors that the function returns, the losses, and nodes that wrap tensors."""
    parts: list[tuple[str, str, Any]] = []
    wrappers = []
    structure = nest.flatten_with_joined_string_paths(function.structured_outputs)
    paths = {id(_tensor_of(leaf)): (path, leaf) for path, leaf in structure}
    for tensor, output in zip(flat.outputs, function.outputs, strict=True):
        path, leaf = paths.get(id(output), ("", None))
        node = nodes[node_of(tensor)]
        if is_plain(output):
            parts.append((tensor, path, output))
        elif node.op == WRAPPER:
            wrappers.append(node.name)
            specs = nest.flatten_with_joined_string_paths(leaf.element_spec)
            parts += [(t, *spec) for t, spec in zip(data_of(node), specs, strict=True)]
    numbers = [
        (t, path) for t, path, kind in parts if kind.dtype.is_floating and kind.shape.rank == 0
    ]
    losses = [t for t, path in numbers if "loss" in path] or [t for t, _ in numbers]
    return tuple(t for t, _, _ in parts), tuple(losses), wrappers


def _tensor_of(leaf: Any) -> Any:
    """Return the tensor of a leaf of the returned structure."""
    return getattr(leaf, "_variant_tensor", leaf)
