"""Sizes of a step's tensors, as far as they are known before it runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass

import tensorflow as tf
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef
from tensorflow.python.eager.polymorphic_function.concrete_function import ConcreteFunction
from tensorflow.python.framework.func_graph import FuncGraph
from tensorflow.python.framework.importer import import_graph_def
from tensorflow.python.ops.handle_data_util import copy_handle_data

from enplace.frameworks.tensorflow.capture import GET_NEXT
from enplace.frameworks.tensorflow.error_text import first_line
from enplace.frameworks.tensorflow.graph import FlatGraph
from enplace.frameworks.tensorflow.step import LoadError, Step


@dataclass(frozen=True)
class TensorShape:
    """One output of an op.

    Attributes
    ----------
    shape : tuple of (int or None), or None
        None for a size, or for all of them, that is known only when the step runs.
    dtype : tf.DType
        Of the values; never a reference type.
    n_bytes : int or None
        None where the shape, or the size of one value, is unknown.
    by_reference : bool
        Whether consumers get the variable itself (TensorFlow 1), and so must be on its device.
    """

    shape: tuple[int | None, ...] | None
    dtype: tf.DType
    n_bytes: int | None
    by_reference: bool

    @property
    def sizes(self) -> tuple[int, ...] | None:
        """The shape if all of it is known."""
        known = tuple(size for size in self.shape or () if size is not None)
        return known if self.shape is not None and len(known) == len(self.shape) else None


def tensor_shapes(step: Step) -> dict[str, TensorShape]:
    """Find shape, type and bytes of every tensor (``op:output``) for batches like the recorded.

    Raises
    ------
    LoadError
        If the step cannot take such batches.
    """
    graph = tf.Graph()
    try:
        with graph.as_default():
            import_graph_def(with_recorded_sizes(step.graph_def, step), name="")
    except ValueError as error:
        reason = first_line(error)
        raise LoadError(f"{step.name}: it cannot take its batches: {reason}") from None
    return shapes_in(graph)


def with_recorded_sizes(graph_def: GraphDef, step: Step) -> GraphDef:
    """Write the sizes of the recorded batches into the ops of a step's graph that fetch them."""
    graph_def = deepcopy(graph_def)
    for node in graph_def.node:
        _fix_shapes(node, step)
    return graph_def


def shapes_of_function(
    function: ConcreteFunction,
    flat: FlatGraph,
    graph_def: GraphDef,
    given: Mapping[str, Sequence[int]] | None = None,
) -> dict[str, TensorShape]:
    """Find shape, type and bytes of every tensor in a graph that gets a traced function's inputs.

    Parameters
    ----------
    given : mapping of str to sequence of int, optional
        Shapes of inputs (``op:0``), or of what an iterator brings, that the trace leaves open.
    """
    if given:
        graph_def = _with_batches(graph_def, given)
    graph = FuncGraph("shapes")
    fed = {}
    with graph.as_default():
        with tf.name_scope("enplace_fed"):
            # Further captures than the function's own are placeholders with shapes.
            names = (*flat.arguments, *flat.captures)
            for old, name in zip(function.inputs, names, strict=False):
                shape = (given or {}).get(f"{name}:0", old.shape)
                fed[f"{name}:0"] = new = tf.compat.v1.placeholder(old.dtype, shape)
                copy_handle_data(old, new)
        import_graph_def(graph_def, input_map=fed, name="")
    return shapes_in(graph)


def _with_batches(graph_def: GraphDef, given: Mapping[str, Sequence[int]]) -> GraphDef:
    """Write the shapes of batches into the ops that fetch them."""
    graph_def = deepcopy(graph_def)
    for node in graph_def.node:
        if node.op in GET_NEXT:
            shapes = node.attr["output_shapes"].list.shape
            for i, shape in enumerate(shapes):
                if (known := given.get(f"{node.name}:{i}")) is not None:
                    shape.CopyFrom(tf.TensorShape(known).as_proto())
    return graph_def


def sizes_in(shapes: Mapping[str, TensorShape]) -> dict[str, list[int]]:
    """Return the bytes of the tensors of each op, for ops of which all are known."""
    found: dict[str, list[int | None]] = {}
    for tensor, known in shapes.items():
        found.setdefault(tensor.rpartition(":")[0], []).append(known.n_bytes)
    return {
        name: [each for each in sizes if each is not None]
        for name, sizes in found.items()
        if None not in sizes
    }


def shapes_in(graph: tf.Graph) -> dict[str, TensorShape]:
    """Read shape, type and bytes of each of a graph's tensors (``op:output``)."""
    return {
        f"{op.name}:{i}": _tensor_shape(tensor)
        for op in graph.get_operations()
        for i, tensor in enumerate(op.outputs)
    }


def _fix_shapes(node: NodeDef, step: Step) -> None:
    """Write the sizes of the recorded batches into the ops that fetch them."""
    if node.name in step.inputs:
        shape = _common_shape(step, step.inputs.index(node.name))
        node.attr["shape"].shape.CopyFrom(shape.as_proto())
    elif step.iterator and node.op in GET_NEXT and node.input[0] == step.iterator:
        first, n_parts = len(step.inputs), len(step.batches[0])
        shapes = [_common_shape(step, i) for i in range(first, n_parts)]
        del node.attr["output_shapes"].list.shape[:]
        node.attr["output_shapes"].list.shape.extend(shape.as_proto() for shape in shapes)


def _common_shape(step: Step, part: int) -> tf.TensorShape:
    """Return the shape that all batches share."""
    shape = tf.TensorShape(step.batches[0][part].shape)
    for batch in step.batches:
        shape = shape.most_specific_common_supertype([tf.TensorShape(batch[part].shape)])
    return shape


def _tensor_shape(tensor: tf.Tensor) -> TensorShape:
    dtype = tensor.dtype.base_dtype
    shape = None if tensor.shape.rank is None else tuple(tensor.shape.as_list())
    n_values = tensor.shape.num_elements()
    sized = n_values is not None and dtype not in (tf.string, tf.resource, tf.variant)
    n_bytes = n_values * dtype.size if sized else None
    return TensorShape(shape, dtype, n_bytes, tensor.dtype._is_ref_dtype)
