"""Draw the batches of a traced function before each call, so that their shapes are known in time.

A pipeline is for batches of one shape. A function with an iterator learns the shape of a batch only
when it cannot go back: the batch is gone. So its batches come as further captured tensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import tensorflow as tf
from tensorflow.core.framework.node_def_pb2 import NodeDef

from enplace.frameworks.tensorflow.capture import brought_by, is_plain
from enplace.frameworks.tensorflow.graph import FlatGraph, make_node, node_of, with_nodes

_DRAWS = ("IteratorGetNext", "IteratorGetNextSync")


@dataclass(frozen=True, eq=False)
class Drawing:
    """A flat function that gets its batches as inputs.

    Attributes
    ----------
    flat : FlatGraph
        Its last captures are what the iterators bring. An op that drew a batch passes it on.
    sources : tuple
        For each iterator its number among the function's inputs, captured ones included, and the
        types and shapes that it brings.
    tensors : tuple of str
        The tensors of the flat graph that the iterators bring.
    """

    flat: FlatGraph
    sources: tuple[tuple[int, list[tf.DType], list[tf.TensorShape]], ...]
    tensors: tuple[str, ...]

    def draw(self, inputs: Sequence[Any]) -> list[tf.Tensor]:
        """Draw the next batch, with the arguments and captured tensors of a call.

        Raises
        ------
        tf.errors.OutOfRangeError
            At the end of the data.
        """
        found: list[tf.Tensor] = []
        for number, types, shapes in self.sources:
            found += tf.raw_ops.IteratorGetNext(
                iterator=inputs[number], output_types=types, output_shapes=shapes
            )
        return found

    def zeros(self, batch: Sequence[tuple[str, Sequence[int]]]) -> list[tf.Tensor]:
        """Return zeros like what the iterators bring for a batch of these shapes."""
        kinds, shapes = [kind for _, types, _ in self.sources for kind in types], dict(batch)
        return [tf.zeros(shapes[t], k) for t, k in zip(self.tensors, kinds, strict=True)]

    def for_batch(self, shapes: Mapping[str, Sequence[int]]) -> FlatGraph:
        """Return the flat graph with the shapes of its batches."""
        graph_def = deepcopy(self.flat.graph_def)
        inputs = self.flat.captures[len(self.flat.captures) - len(self.tensors) :]
        given = {n: shapes[t] for n, t in zip(inputs, self.tensors, strict=True)}
        for node in graph_def.node:
            if node.name in given:
                node.attr["shape"].shape.CopyFrom(tf.TensorShape(given[node.name]).as_proto())
        return replace(self.flat, graph_def=graph_def)

    def batch(self, inputs: Sequence[Any], drawn: Sequence[tf.Tensor]) -> dict[str, list[int]]:
        """Return the shapes of the batch of a call, by tensor of the flat graph."""
        arguments = zip(self.flat.arguments, inputs, strict=False)
        tensors = {f"{name}:0": tensor for name, tensor in arguments if is_plain(tensor)}
        tensors |= zip(self.tensors, drawn, strict=True)
        return {name: tensor.shape.as_list() for name, tensor in tensors.items()}


def drawing_of(flat: FlatGraph) -> Drawing:
    """Let a function get its batches as inputs."""
    inputs = (*flat.arguments, *flat.captures)
    nodes, captures, tensors, sources = list[NodeDef](), [*flat.captures], list[str](), []
    for node in flat.graph_def.node:
        if node.op not in _DRAWS or node_of(node.input[0]) not in inputs:
            nodes.append(node)
            continue
        types, shapes = brought_by(node)
        sources.append((inputs.index(node_of(node.input[0])), types, shapes))
        names = [f"{node.name}/drawn_{i}" for i in range(len(types))]
        for name, kind, shape in zip(names, types, shapes, strict=True):
            nodes.append(make_node(name, "Placeholder", dtype=kind, shape=shape))
        nodes.append(make_node(node.name, "IdentityN", [*names, *node.input[1:]]))
        nodes[-1].attr["T"].list.type.extend(kind.as_datatype_enum for kind in types)
        captures += names
        tensors += [f"{node.name}:{i}" for i in range(len(names))]
    graph_def = with_nodes(flat.graph_def, nodes)
    new = replace(flat, graph_def=graph_def, captures=tuple(captures))
    return Drawing(new, tuple(sources), tuple(tensors))
