"""Draw the batches of a traced function before each call, so that their shapes are known in time.

A pipeline is for batches of one shape. A function with an iterator learns the shape of a batch only
when it cannot go back: the batch is gone. So its batches come as further captured tensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tensorflow as tf
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.python.eager.polymorphic_function.concrete_function import ConcreteFunction

from enplace.frameworks.tensorflow.graph import FlatGraph, node_of

_DRAWS = ("IteratorGetNext", "IteratorGetNextSync")


@dataclass(frozen=True, eq=False)
class Drawing:
    """A flat function that gets its batches as inputs.

    Attributes
    ----------
    flat : FlatGraph
        Its last captures are what the iterators bring. An op that drew a batch passes it on.
    iterators : tuple of int
        Numbers of the iterators among the function's inputs, captured ones included.
    arguments : tuple of int
        Numbers of the arguments that are part of a batch.
    tensors : tuple of str
        The tensors of the flat graph that the iterators bring.
    """

    flat: FlatGraph
    iterators: tuple[int, ...]
    arguments: tuple[int, ...]
    tensors: tuple[str, ...]
    _types: tuple[tuple[tf.DType, ...], ...]
    _shapes: tuple[tuple[tf.TensorShape, ...], ...]

    def draw(self, inputs: Sequence[Any]) -> list[tf.Tensor]:
        """Draw the next batch, with the arguments and captured tensors of a call.

        Raises
        ------
        tf.errors.OutOfRangeError
            At the end of the data.
        """
        found: list[tf.Tensor] = []
        for number, types, shapes in zip(self.iterators, self._types, self._shapes, strict=True):
            found += tf.raw_ops.IteratorGetNext(
                iterator=inputs[number], output_types=types, output_shapes=shapes
            )
        return found

    def zeros(self, batch: Sequence[tuple[str, Sequence[int]]]) -> list[tf.Tensor]:
        """Return zeros like what the iterators bring for a batch of these shapes."""
        types = [kind for kinds in self._types for kind in kinds]
        shapes = dict(batch)
        return [tf.zeros(shapes[t], k) for t, k in zip(self.tensors, types, strict=True)]

    def for_batch(self, shapes: Mapping[str, Sequence[int]]) -> FlatGraph:
        """Return the flat graph with the shapes of its batches."""
        graph_def = GraphDef()
        graph_def.CopyFrom(self.flat.graph_def)
        inputs = self.flat.captures[len(self.flat.captures) - len(self.tensors) :]
        given = {n: shapes[t] for n, t in zip(inputs, self.tensors, strict=True)}
        for node in graph_def.node:
            if node.name in given:
                node.attr["shape"].shape.CopyFrom(tf.TensorShape(given[node.name]).as_proto())
        return replace(self.flat, graph_def=graph_def)

    def batch(self, inputs: Sequence[Any], drawn: Sequence[tf.Tensor]) -> dict[str, list[int]]:
        """Return the shapes of the batch of a call, by tensor of the flat graph."""
        found = {f"{self.flat.arguments[i]}:0": inputs[i].shape.as_list() for i in self.arguments}
        shapes = (tensor.shape.as_list() for tensor in drawn)
        return found | dict(zip(self.tensors, shapes, strict=True))


def drawing_of(function: ConcreteFunction, flat: FlatGraph) -> Drawing:
    """Let a function get its batches as inputs."""
    inputs = (*flat.arguments, *flat.captures)
    graph_def = GraphDef()
    graph_def.CopyFrom(flat.graph_def)
    captures, tensors = [*flat.captures], list[str]()
    iterators, types, shapes = list[int](), list[Any](), list[Any]()
    for node in [*graph_def.node]:
        if node.op not in _DRAWS or node_of(node.input[0]) not in inputs:
            continue
        iterators.append(inputs.index(node_of(node.input[0])))
        types.append(tuple(map(tf.as_dtype, node.attr["output_types"].list.type)))
        shapes.append(tuple(map(tf.TensorShape, node.attr["output_shapes"].list.shape)))
        names = [f"{node.name}/drawn_{i}" for i in range(len(types[-1]))]
        for name, kind, shape in zip(names, types[-1], shapes[-1], strict=True):
            new = graph_def.node.add(name=name, op="Placeholder")
            new.attr["dtype"].type = kind.as_datatype_enum
            new.attr["shape"].shape.CopyFrom(shape.as_proto())
        captures += names
        tensors += [f"{node.name}:{i}" for i in range(len(names))]
        waits = node.input[1:]
        passing = graph_def.node.add(name=node.name, op="IdentityN", input=[*names, *waits])
        passing.attr["T"].list.type.extend(kind.as_datatype_enum for kind in types[-1])
        graph_def.node.remove(node)
    arguments = [
        i
        for i in range(len(flat.arguments))
        if function.inputs[i].dtype not in (tf.resource, tf.variant)
    ]
    new_flat = replace(flat, graph_def=graph_def, captures=tuple(captures))
    return Drawing(
        new_flat,
        tuple(iterators),
        tuple(arguments),
        tuple(tensors),
        tuple(types),
        tuple(shapes),
    )
