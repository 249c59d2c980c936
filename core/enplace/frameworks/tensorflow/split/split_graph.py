"""Write a plan's splits into a graph: ``Split``, the copies of each op, and ``ConcatV2``.

What a plan computes again or keeps on the host is written by
:mod:`enplace.frameworks.tensorflow.split.again`.

Nodes have the names that :mod:`enplace.values.splits` gives them in the profile of the split graph,
so a plan for that profile finds them. Where the graph knows better than the profile, such as the
axis of the samples after a transposition, the graph has an additional node. Results never change.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tensorflow as tf
from numpy.typing import NDArray
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef
from tensorflow.python.eager.polymorphic_function.concrete_function import ConcreteFunction

from enplace.errors import SplitError
from enplace.frameworks.tensorflow.graph import (
    FlatGraph,
    data_of,
    make_constant,
    make_node,
    node_of,
    numbered,
    slot_of,
    with_inputs,
    with_nodes,
)
from enplace.frameworks.tensorflow.shapes import TensorShape, shapes_of_function, tensor_shapes
from enplace.frameworks.tensorflow.split.again import add_copies
from enplace.frameworks.tensorflow.step import Step
from enplace.values.op_kinds import TYPES_OF_KIND, OpKind, kind_of_type
from enplace.values.splits import Split, find_rule, part_names
from enplace.values.splits.graph import cut_name, join_name
from enplace.values.splits.rules import (
    BATCH,
    CHANNEL,
    CHANNELS_IN,
    DATA,
    GRADIENT,
    RULES,
    SIZES,
    SUM,
    WEIGHTS,
    WHOLE,
)

Shapes = Mapping[str, TensorShape]
Axes = tuple[int | None, ...]
"""Axis along which each input is cut; None for inputs that every part gets whole."""

_SUMMED = -1
"""Stands for the output's axis if the parts' outputs are added up."""

_OPERANDS = {
    "AvgPoolGrad": (SIZES, DATA),
    "BiasAdd": (DATA, WEIGHTS),
    "Conv2D": (DATA, WEIGHTS),
    "Conv2DBackpropFilter": (DATA, SIZES, GRADIENT),
    "Conv2DBackpropInput": (SIZES, WEIGHTS, DATA),
    "DepthwiseConv2dNative": (DATA, WEIGHTS),
    "DepthwiseConv2dNativeBackpropFilter": (DATA, SIZES, GRADIENT),
    "DepthwiseConv2dNativeBackpropInput": (SIZES, WEIGHTS, DATA),
    "GatherV2": (WEIGHTS, DATA, SIZES),
    "Reshape": (DATA, SIZES),
    "Transpose": (DATA, SIZES),
}
"""Operands in the order of an op's inputs; ops not listed have only data."""

_CONVOLUTIONS = {
    "Conv2D": (0, 1),
    "Conv2DBackpropFilter": (0, -1),
    "Conv2DBackpropInput": (-1, 1),
}
"""Numbers of a convolution's inputs that are the image and the filters; -1 is its output."""

_LEAST_RANK = {"BatchMatMul": 3, "BatchMatMulV2": 3, "LogSoftmax": 2, "Softmax": 2}
"""Least number of axes for the first one to be the batch."""

_BROADCASTING = TYPES_OF_KIND[OpKind.ELEMENTWISE] | {"BatchMatMul", "BatchMatMulV2"}
_GIVEN_SHAPE = frozenset(_OPERANDS) - {"GatherV2", "Transpose"}
"""Ops whose ``sizes`` input, if any, is the shape of their output."""


def split_step(step: Step, splits: Sequence[Split]) -> Step:
    """Split ops of a step.

    Raises
    ------
    SplitError
        If the graph does not have an op, or does not allow a split.
    """
    if not splits:
        return step
    graph_def, renamed = _split_graph(
        step.graph_def,
        splits,
        lambda graph_def: tensor_shapes(replace(step, graph_def=graph_def)),
        step.outputs,
    )
    return step.with_graph(graph_def, renamed)


def split_flat(function: ConcreteFunction, flat: FlatGraph, splits: Sequence[Split]) -> FlatGraph:
    """Split ops in the graph of a traced function; see :func:`split_step`."""
    if not splits:
        return flat
    graph_def, renamed = _split_graph(
        flat.graph_def,
        splits,
        lambda graph_def: shapes_of_function(function, flat, graph_def),
        flat.outputs,
    )
    return flat.with_graph(graph_def, renamed)


def split_lengths(graph_def: GraphDef, shapes: Shapes) -> dict[str, dict[str, int]]:
    """Find the most equal parts into which each op with rules can be split, by dimension.

    Returns
    -------
    dict of dict
        For each such op its dimensions, each with the greatest common divisor of the lengths of all
        axes that are cut. Dimensions that cannot be split or have an unknown length are left out.
    """
    work = _Splitting(graph_def, {}, shapes)
    return {
        node.name: work.lengths(node) for node in graph_def.node if kind_of_type(node.op) in RULES
    }


def _split_graph(
    graph_def: GraphDef,
    splits: Sequence[Split],
    shapes_of: Callable[[GraphDef], Shapes],
    outputs: Sequence[str],
) -> tuple[GraphDef, dict[str, str]]:
    """Split ops in the profile's rounds; return the graph and the new names of its outputs."""
    again = [split for split in splits if not split.is_cut]
    left = [split for split in splits if split.is_cut]
    renamed = {name: name for name in outputs}
    while left:
        names = {node.name for node in graph_def.node}
        now = {split.op: split for split in left if split.op in names}
        if not now:
            raise SplitError(
                f"op '{left[0].op}' is to be split, but the model has no such op; profile the "
                f"model again and make a new plan"
            )
        work = _Splitting(graph_def, now, shapes_of(graph_def))
        graph_def = work.run()
        renamed = {old: work.whole(name) for old, name in renamed.items()}
        graph_def.node.extend(work.take_made())
        left = [split for split in left if split.op not in now]
    if again:
        graph_def = add_copies(graph_def, again, shapes_of(graph_def))
    return graph_def, renamed


@dataclass(frozen=True)
class _Cut:
    """A cut through an op: axes of its inputs and outputs, and the input with the sizes."""

    inputs: Axes
    output: int
    sizes: int | None = None


class _Splitting:
    """One round of splits of ops of one graph."""

    def __init__(self, graph_def: GraphDef, splits: Mapping[str, Split], shapes: Shapes) -> None:
        self._graph_def, self._splits, self._shapes = graph_def, splits, shapes
        self._nodes = {node.name: node for node in graph_def.node}
        self._cuts = {op: self._find_cut(self._nodes[op], s) for op, s in splits.items()}
        self._made: dict[str, NodeDef] = {}

    def run(self) -> GraphDef:
        """Return the new graph, without nodes that :meth:`whole` makes later."""
        nodes: list[NodeDef] = []
        for node in self._graph_def.node:
            nodes += self._parts(node) if node.name in self._splits else [self._rewired(node)]
        return with_nodes(self._graph_def, [*nodes, *self.take_made()])

    def lengths(self, node: NodeDef) -> dict[str, int]:
        """Return the dimensions of an op with rules; see :func:`split_lengths`."""
        found: dict[str, int] = {}
        cuts: list[_Cut] = []
        for dimension in RULES[kind_of_type(node.op)]:
            try:
                cut = self._cut_along(node, dimension)
            except SplitError:
                continue
            axes = self._cut_lengths(node, cut)
            known = [length for length in axes if length is not None]
            # A vector's only axis is both the samples' and the channels': one dimension.
            if len(known) == len(axes) and cut not in cuts and math.gcd(*known) > 1:
                found[dimension] = math.gcd(*known)
                cuts.append(cut)
        return found

    def take_made(self) -> list[NodeDef]:
        """Return the nodes made since the last call."""
        made = [node for node in self._made.values() if node.name not in self._nodes]
        self._nodes |= {node.name: node for node in made}
        return made

    def whole(self, tensor: str) -> str:
        """Return the tensor of an op's output; concatenate it if the op is split."""
        op, output = node_of(tensor), slot_of(tensor)
        if op not in self._splits:
            return tensor
        cut, name = self._cuts[op], join_name(op, output)
        if name not in self._made:
            parts = [f"{part}:{output}" for part in self._names(op)]
            dtype = self._shapes[f"{op}:{output}"].dtype
            if cut.output == _SUMMED:
                self._add(name, "AddN", parts, T=dtype, N=len(parts))
            else:
                axis = self._constant(f"{name}/axis", cut.output, tf.int32)
                self._add(name, "ConcatV2", [*parts, axis], T=dtype, N=len(parts), Tidx=tf.int32)
        return f"{name}:0"

    def _names(self, op: str) -> list[str]:
        return part_names(op, self._splits[op].parts)

    def _parts(self, node: NodeDef) -> list[NodeDef]:
        cut, names = self._cuts[node.name], self._names(node.name)
        data = data_of(node)
        shares = [
            self._shares(node.name, tensor, axis)
            for tensor, axis in zip(data, cut.inputs, strict=True)
        ]
        if cut.sizes is not None and cut.output != _SUMMED:
            shares[cut.sizes] = self._sizes(node.name, data[cut.sizes], cut.output)
        parts = []
        for i, name in enumerate(names):
            given = [share[i] for share in shares]
            part = with_inputs(node, [*given, *self._waits(node)], name)
            part.attr.pop("_class", None)
            part.attr.pop("_output_shapes", None)
            parts.append(part)
        return parts

    def _rewired(self, node: NodeDef) -> NodeDef:
        """Return an unsplit node, connected to the parts of what it consumed."""
        data = [tensor for tensor in node.input if tensor[0] != "^"]
        if node.op == "Shape" and node_of(data[0]) in self._splits:
            shape = self._shapes[numbered(data[0])].sizes
            if shape is not None:
                return make_constant(node.name, shape, tf.as_dtype(node.attr["out_type"].type))
        return with_inputs(node, [*map(self.whole, data), *self._waits(node)])

    def _waits(self, node: NodeDef) -> list[str]:
        """Return control inputs; a node that waited for an op waits for all of its parts."""
        waits = [tensor[1:] for tensor in node.input if tensor[0] == "^"]
        return [
            f"^{name}"
            for wait in waits
            for name in (self._names(wait) if wait in self._splits else [wait])
        ]

    def _shares(self, op: str, tensor: str, axis: int | None) -> list[str]:
        """Return the share of an input that each part takes."""
        parts = self._splits[op].parts
        if axis is None:
            return [self.whole(tensor)] * parts
        source, output = node_of(tensor), slot_of(tensor)
        before = self._splits.get(source)
        if before and before.parts == parts and self._cuts[source].output == axis:
            return [f"{name}:{output}" for name in self._names(source)]
        name = cut_name(op, source, output)
        while name in self._made and self._axis_of(name) != axis:
            name = f"{name}_{axis}"
        if name not in self._made:
            at = self._constant(f"{name}/axis", axis, tf.int32)
            dtype = self._shapes[numbered(tensor)].dtype
            self._add(name, "Split", [at, self.whole(tensor)], T=dtype, num_split=parts)
        return [f"{name}:{i}" for i in range(parts)]

    def _axis_of(self, name: str) -> int:
        return int(tf.make_ndarray(self._made[f"{name}/axis"].attr["value"].tensor))

    def _sizes(self, op: str, tensor: str, axis: int) -> list[str]:
        """Return the shape given to each part: the op's, with its share of one axis."""
        parts, rank = self._splits[op].parts, len(self._shape(f"{op}:0") or ())
        dtype = self._shapes[numbered(tensor)].dtype
        share = [parts if i == axis else 1 for i in range(rank)]
        name = f"{join_name(op, 0)}/sizes"
        by = self._constant(f"{name}/by", share, dtype)
        self._add(name, "FloorDiv", [self.whole(tensor), by], T=dtype)
        return [f"{name}:0"] * parts

    def _add(self, name: str, kind: str, inputs: Sequence[str], **attributes: object) -> None:
        self._made[name] = make_node(name, kind, inputs, **attributes)

    def _constant(self, name: str, value: object, dtype: tf.DType) -> str:
        self._made[name] = make_constant(name, value, dtype)
        return f"{name}:0"

    def _shape(self, tensor: str) -> tuple[int | None, ...] | None:
        return self._shapes[numbered(tensor)].shape

    def _find_cut(self, node: NodeDef, split: Split) -> _Cut:
        """Find the axes of a split, and check them against the shapes.

        Raises
        ------
        SplitError
            If the dimension has no equal parts, or the graph does not show that it has.
        """
        cut = self._cut_along(node, split.dimension)
        for length in self._cut_lengths(node, cut):
            if length is not None and length % split.parts:
                raise SplitError(
                    f"op '{node.name}' cannot be split along '{split.dimension}': {length} is not "
                    f"a multiple of {split.parts}; make a new plan, or change the batch size"
                )
        return cut

    def _cut_lengths(self, node: NodeDef, cut: _Cut) -> list[int | None]:
        """Return the lengths of all axes that a cut cuts; None for those only known at run time."""
        axes = list(zip(data_of(node), cut.inputs, strict=True))
        if cut.output != _SUMMED:
            axes += [(f"{node.name}:0", cut.output)]
        shapes = [(self._shape(tensor), axis) for tensor, axis in axes if axis is not None]
        return [None if shape is None else shape[axis] for shape, axis in shapes]

    def _cut_along(self, node: NodeDef, dimension: str) -> _Cut:
        rule = find_rule(kind_of_type(node.op), dimension, node.op)
        if node.op == "MatMul":
            return _matmul_cut(node, dimension)
        data = data_of(node)
        operands = _OPERANDS.get(node.op, (DATA,) * len(data))
        layout = node.attr["data_format"].s if "data_format" in node.attr else b""
        shape = self._shape(f"{node.name}:0")
        if not shape:
            raise _refused(
                node,
                "its output is a single number, or has a shape that is not known before it runs",
            )
        if node.op in _CONVOLUTIONS and dimension == "channel":
            self._check_ungrouped(node, data, layout)
        self._check_samples_apart(node, len(shape))
        output = _SUMMED if rule.output == SUM else _axis(rule.output, len(shape), layout)
        inputs = [
            None
            if rule.cut(operand) == WHOLE
            else self._input_axis(node, tensor, rule.cut(operand), output, layout)
            for operand, tensor in zip(operands, data, strict=True)
        ]
        has_sizes = node.op in _GIVEN_SHAPE and SIZES in operands
        return _Cut(tuple(inputs), output, operands.index(SIZES) if has_sizes else None)

    def _check_ungrouped(self, node: NodeDef, data: Sequence[str], layout: bytes) -> None:
        """Refuse a convolution whose filters see only some of the channels each."""
        image, filters = (
            self._shape([*data, f"{node.name}:0"][at]) for at in _CONVOLUTIONS[node.op]
        )
        if image and filters:
            channels = image[_axis(CHANNEL, len(image), layout)]
            if channels == filters[_axis(CHANNELS_IN, len(filters), layout)] is not None:
                return
        raise SplitError(
            f"op '{node.name}' cannot be split along 'channel': it is a grouped convolution, or "
            f"its channels are not known before it runs; profile the model and make a new plan"
        )

    def _check_samples_apart(self, node: NodeDef, rank: int) -> None:
        """Refuse an op unless it treats the samples along its first axis one by one."""
        if rank < _LEAST_RANK.get(node.op, 1):
            why = "its first axis does not hold samples"
        elif node.op == "GatherV2" and (
            node.attr["batch_dims"].i or self._constant_of(node.input[2]) != 0
        ):
            why = "it does not gather rows"
        else:
            return
        raise SplitError(f"op '{node.name}' cannot be split: {why}; make a new plan")

    def _constant_of(self, tensor: str) -> NDArray[Any] | None:
        """Return the numbers of a constant; None if they are known only at run time."""
        source = self._nodes[node_of(tensor)]
        return tf.make_ndarray(source.attr["value"].tensor) if source.op == "Const" else None

    def _input_axis(
        self, node: NodeDef, tensor: str, label: str, output: int, layout: bytes
    ) -> int | None:
        """Find the axis of an input that is cut with the op's; None if the input is broadcast."""
        shape, whole = self._shape(tensor), self._shape(f"{node.name}:0")
        if shape is None or whole is None:
            raise _refused(node, f"the shape of its input '{tensor}' is not known before it runs")
        if node.op == "Transpose":
            return self._permutation(node)[output]
        if node.op not in _BROADCASTING:
            if not shape:
                raise _refused(node, f"its input '{tensor}' is a single number")
            return _axis(label, len(shape), layout)
        axis = output - (len(whole) - len(shape))
        return None if axis < 0 or (shape[axis] == 1 and whole[output] != 1) else axis

    def _permutation(self, node: NodeDef) -> list[int]:
        found = self._constant_of(node.input[1])
        if found is None:
            raise _refused(node, "its permutation is not known before it runs")
        return [int(axis) for axis in found]


def _refused(node: NodeDef, why: str) -> SplitError:
    return SplitError(f"op '{node.name}' cannot be split: {why}; pin this op and make a new plan")


def _matmul_cut(node: NodeDef, dimension: str) -> _Cut:
    """Split a product by the left's rows, the right's columns, or the axis that both share."""
    left, right = (int(node.attr[key].b) for key in ("transpose_a", "transpose_b"))
    if dimension == "rows":
        return _Cut((left, None), 0)
    if dimension == "columns":
        return _Cut((None, 1 - right), 1)
    return _Cut((1 - left, right), _SUMMED)


def _axis(label: str, rank: int, layout: bytes) -> int:
    if label == BATCH:
        return 0
    if label == CHANNEL:
        return 1 if layout == b"NCHW" else rank - 1
    return rank - 2 if label == CHANNELS_IN else rank - 1
