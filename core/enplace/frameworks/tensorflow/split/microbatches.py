"""Cut the graph of a step by samples into micro-batches, and add up their gradients.

Every op that treats samples one by one becomes as many parts as there are micro-batches. A part
reads what the part of the same micro-batch made, so nothing is joined on the way. What sums over
samples, such as a weight's gradient, is added up part by part: at any time there is one sum and one
part's share. All other ops stay whole. So variables change once, and the result is that of the
whole step up to the order of sums.

Samples depend on each other where a layer computes statistics of the batch. If asked to, each
micro-batch then takes its own instead, as GPipe does, as if the batch were many copies of it: a
mean is that of its samples, and a sum that of its samples times the number of micro-batches. So
numbers of samples in the graph stay right, all gradients are exact for these statistics, and what
is not cut, such as an optimiser, gets the mean over the micro-batches.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef
from tensorflow.python.framework.importer import import_graph_def

from enplace.errors import PipelineError
from enplace.frameworks.tensorflow.graph import (
    consumers_of,
    data_of,
    has_effect,
    make_constant,
    make_node,
    node_of,
    numbered,
    producers_of,
    reached,
    slot_of,
    with_inputs,
    with_nodes,
)
from enplace.frameworks.tensorflow.rewrite import VARIABLES, sort_nodes
from enplace.frameworks.tensorflow.shapes import TensorShape
from enplace.frameworks.tensorflow.split.sample_axes import (
    AVERAGED,
    FLOATS,
    OWN,
    SUMMED,
    Cut,
    OpView,
    find_cut,
)
from enplace.frameworks.tensorflow.step import plain_config
from enplace.names.passes import is_in_backward_scope
from enplace.text import count, listed, listed_ops
from enplace.values.splits import part_names
from enplace.values.splits.graph import join_name

Shapes = Mapping[str, TensorShape]

_SHAPES = ("Rank", "Shape", "ShapeN", "Size")
_OF_SHAPES = "BroadcastGradientArgs"
"""Computes a few axes, whose number TensorFlow does not know before."""

_REPEATING = ("BroadcastTo", "Tile")
"""Repeat a tensor as often as the second input says."""

_FUSED = "FusedBatchNorm"
"""Begins the types of ops some of whose outputs have a shape that TensorFlow does not know."""

_LOOPS = ("StatelessWhile", "TensorList", "While")
"""Begin the types of loops, and of the ops that hand them what they loop over."""

_MOST_NUMBERS = 64
"""Most entries of a shape, a permutation or the like."""


@dataclass(frozen=True)
class Origin:
    """Where a node of the new graph comes from.

    Attributes
    ----------
    op : str
        The op of the step, or that whose output this node cuts, joins or adds up.
    part : int or None
        Number of the micro-batch; None if the node is for all of them.
    is_copy : bool
        Whether the node does what the op does, on its samples.
    """

    op: str
    part: int | None = None
    is_copy: bool = False


@dataclass(frozen=True, eq=False)
class CutGraph:
    """A graph of micro-batches.

    Attributes
    ----------
    graph_def : GraphDef
    origin : mapping of str to Origin
        By node of the new graph.
    renamed : mapping of str to str
        Tensors of the old graph that have another name.
    parts : int
        Number of micro-batches.
    n_cut : int
        Number of ops that were cut.
    mixing : tuple of str
        Ops that need all micro-batches before the next op can begin with the first.
    loops : bool
        Whether one of these belongs to a loop.
    own : tuple of str
        Ops whose mean or sum is that of each micro-batch.
    """

    graph_def: GraphDef
    origin: Mapping[str, Origin]
    renamed: Mapping[str, str]
    parts: int
    n_cut: int
    mixing: tuple[str, ...]
    loops: bool = False
    own: tuple[str, ...] = ()


def cut_graph(
    graph_def: GraphDef,
    shapes: Shapes,
    batch: Mapping[str, Sequence[int]],
    parts: int,
    wanted: Iterable[str],
    *,
    own_statistics: bool = False,
) -> CutGraph:
    """Cut a flat graph into micro-batches.

    Parameters
    ----------
    shapes : mapping
        Of every tensor, for batches of the given shapes.
    batch : mapping of str to sequence of int
        The tensors of a batch, and their shapes.
    parts : int
        Number of micro-batches.
    wanted : iterable of str
        Tensors that must be there as a whole.
    own_statistics : bool
        Whether each micro-batch takes its own means and sums where samples depend on each other.

    Raises
    ------
    PipelineError
        If the batch has no such number of equal parts.
    """
    samples = _count_samples(batch, parts)
    wanted, own = tuple(wanted), frozenset[str]()
    while True:
        found = _Cutting(graph_def, shapes, batch, samples, parts, own).run(wanted)
        if not own_statistics or own.issuperset(found.mixing):
            return found
        own |= set(found.mixing)  # those whose statistics need statistics come to light one by one


def check_pipeline(cut: CutGraph) -> None:
    """Refuse a graph in which an op has to wait for all micro-batches.

    Raises
    ------
    PipelineError
        The message names these ops.
    """
    if not cut.n_cut:
        raise PipelineError("no op of the model works on the samples one by one; run it whole")
    if not cut.mixing:
        return
    so = "so micro-batches cannot follow each other through the devices; run without --pipeline, or"
    names = listed_ops(cut.mixing)
    if cut.loops:
        raise PipelineError(
            f"a loop, such as that of a recurrent layer, takes the whole batch at once ({names}), "
            f"{so} unroll it (in Keras, unroll=True)"
        )
    hint = "; if they are batch normalisation, --own-statistics lets each micro-batch use its own"
    raise PipelineError(
        f"samples of a batch depend on each other in {names}, {so} take such layers out of the "
        f"model{'' if cut.own else f'{hint}, which changes the result'}"
    )


def _count_samples(batch: Mapping[str, Sequence[int]], parts: int) -> int:
    lengths = [shape[0] for shape in batch.values() if len(shape)]
    if not lengths:
        raise PipelineError("the step has no batch to cut into micro-batches; run it whole")
    samples = max(set(lengths), key=lengths.count)
    if samples % parts:
        fitting = [str(n) for n in range(2, samples + 1) if samples % n == 0]
        raise PipelineError(
            f"a batch of {count(samples, 'sample')} cannot be cut into {parts} equal "
            f"micro-batches; choose one of {listed(fitting)}, or another batch size"
        )
    return samples


class _Cutting:
    """The new graph in the making; nodes are cut in topological order."""

    def __init__(
        self,
        graph_def: GraphDef,
        shapes: Shapes,
        batch: Mapping[str, Sequence[int]],
        samples: int,
        parts: int,
        own: frozenset[str],
    ) -> None:
        self._old, self._shapes, self._parts, self._samples = graph_def, shapes, parts, samples
        self._nodes = {node.name: node for node in graph_def.node}
        self._producers = producers_of(graph_def)
        self._consumers = consumers_of(graph_def)
        self._values = _known_values(graph_def, shapes)
        self._axis: dict[str, int] = {}
        """Axis of the samples of each tensor that has them along one."""
        self._wants_own = own
        self._own: dict[str, list[str]] = {}
        """The tensors of the parts, where each goes on with its own."""
        self._summed: dict[tuple[int, ...], int] = {}
        """Axis of the samples, by the shape of what a statistic is computed from."""
        self._copied: set[str] = set()
        """Ops that may become one copy for each part to go on with its own."""
        self._cuts: dict[str, Cut] = {}
        self._new: dict[str, NodeDef] = {}
        self._origin: dict[str, Origin] = {}
        self._instead: dict[str, str] = {}
        """Whole tensors that replace those of the old graph."""
        self._joined: list[tuple[str, str]] = []
        """Tensors that had to be joined, or added up, and the op that needed it."""
        self._iterators = {node_of(t) for b in batch for t in self._nodes[node_of(b)].input}
        """What batches are drawn from; captured as variables are."""
        for tensor, shape in batch.items():
            self._check_shape(tensor, shape)

    def run(self, wanted: Sequence[str]) -> CutGraph:
        self._copied = self._find_copied(map(node_of, wanted))
        for name in sort_nodes(self._old):
            node = self._nodes[name]
            if node.op in _SHAPES and self._become_constant(node):
                continue
            cut = self._find_cut(node)
            if cut is None:
                self._keep(node)
            else:
                self._cut(node, cut)
        renamed = {tensor: self._whole(tensor, "") for tensor in wanted}
        new = with_nodes(self._old, self._new.values())
        mixing = self._mixing()
        loops = any(self._nodes[name].op.startswith(_LOOPS) for name in mixing)
        own = tuple(name for name in self._cuts if name in self._wants_own)
        return CutGraph(
            new, self._origin, renamed, self._parts, len(self._cuts), mixing, loops, own
        )

    def _find_copied(self, wanted: Iterable[str]) -> set[str]:
        """Find the ops of both passes, and those of the loss and the like.

        The optimiser takes the mean of all gradients, and moving averages that of all statistics.
        """
        backward = [name for name in self._nodes if is_in_backward_scope(name)]
        after = reached(backward, self._consumers.__getitem__)
        before = reached(backward, self._producers.__getitem__)
        return before | (reached(wanted, self._producers.__getitem__) - after)

    def _check_shape(self, tensor: str, shape: Sequence[int]) -> None:
        """Let no batch of another shape pass: shapes of parts are fixed."""
        op, name = node_of(tensor), f"{join_name(node_of(tensor), slot_of(tensor))}/checked"
        kind, wanted = self._shapes[tensor].dtype, tf.TensorShape(shape)
        self._add(make_node(name, "EnsureShape", [tensor], T=kind, shape=wanted), Origin(op))
        self._instead[tensor] = f"{name}:0"
        if len(shape) and shape[0] == self._samples:
            self._axis[tensor] = 0

    def _become_constant(self, node: NodeDef) -> bool:
        """Replace an op that reads the shape of samples by what it reads."""
        data = data_of(node)
        if not any(tensor in self._axis or tensor in self._own for tensor in data):
            return False
        made = [f"{node.name}:{i}" for i in range(len(data))]
        for tensor in filter(self._values.__contains__, made):
            name = node.name if node.op != "ShapeN" else join_name(node.name, slot_of(tensor))
            value = self._values[tensor]
            self._add(make_constant(name, value, tf.as_dtype(value.dtype)), Origin(node.name))
            self._instead[tensor] = f"{name}:0"
        return made[0] in self._values  # all are, or none is

    def _find_cut(self, node: NodeDef) -> Cut | None:
        data = data_of(node)
        if not any(tensor in self._axis for tensor in data):
            return self._copy_for_own(node)
        made = outputs_of(node.name, self._shapes)
        known = {tensor: self._shape(tensor) for tensor in (*data, *made)}
        if not node.op.startswith(_FUSED) and any(shape is None for shape in known.values()):
            return None
        view = OpView(
            node,
            tuple(map(self._axis.get, data)),
            [known[tensor] or () for tensor in data],
            [known[tensor] or () for tensor in made],
            [self._values.get(tensor) for tensor in data],
            self._parts,
            node.name in self._wants_own,
        )
        cut = find_cut(view)
        if cut is None or any(view.values[i] is None for i in cut.sizes):
            return None
        lengths = [
            view.shapes[i][axis] for i, axis in enumerate(cut.inputs) if axis is not None
        ] + [view.made[i][axis] for i, axis in enumerate(cut.outputs) if axis >= 0]
        if any(length % self._parts for length in lengths):
            return None
        if node.name in self._wants_own:
            self._summed |= {
                shape: axis
                for shape, axis in zip(view.shapes, cut.inputs, strict=True)
                if axis is not None
            }
        return cut

    def _copy_for_own(self, node: NodeDef) -> Cut | None:
        """Let each part do what follows from its own statistics, up to the variables' gradients."""
        data, made = data_of(node), outputs_of(node.name, self._shapes)
        follows = any(tensor in self._own for tensor in data) and node.name in self._copied
        if not follows or not self._has_floats(node) or has_effect(node.op):
            return None
        axis = self._repeated_axis(data, made[0]) if node.op in _REPEATING else None
        if axis is not None:
            return Cut((None, None), (axis,), {1: axis})
        return Cut((None,) * len(data), (OWN,) * len(made))

    def _repeated_axis(self, data: Sequence[str], made: str) -> int | None:
        """Return the axis along which the gradient of a statistic is repeated for each sample."""
        one, many = self._shape(data[0]), self._shape(made)
        if one is None or many is None or data[1] not in self._values:
            return None
        axis = self._summed.get(many)
        if axis is None or axis + len(one) < len(many):
            return axis
        return axis if one[axis + len(one) - len(many)] == 1 else None

    def _shape(self, tensor: str) -> tuple[int, ...] | None:
        known = self._values.get(tensor)
        return self._shapes[tensor].sizes if known is None else known.shape

    def _keep(self, node: NodeDef) -> None:
        """Keep an op whole; if its output has a row for each sample, consumers may be cut."""
        given = [tensor for tensor in node.input if tensor[0] != "^"]
        whole = [self._whole(tensor, node.name) for tensor in given]
        self._add(with_inputs(node, [*whole, *self._waits(node)]), Origin(node.name))
        if any(map(self._axis.__contains__, data_of(node))):
            for tensor in outputs_of(node.name, self._shapes):
                shape = self._shapes[tensor].shape
                if shape and shape[0] == self._samples:
                    self._axis[tensor] = 0

    def _cut(self, node: NodeDef, cut: Cut) -> None:
        self._cuts[node.name] = cut
        shares = [
            self._sizes(node, i, cut.sizes[i])
            if i in cut.sizes
            else self._shares(node.name, tensor, axis)
            for i, (tensor, axis) in enumerate(zip(data_of(node), cut.inputs, strict=True))
        ]
        for part, name in enumerate(self._names(node.name)):
            given = [share[part] for share in shares]
            new = with_inputs(node, [*given, *self._waits(node, part)], name)
            new.attr.pop("_class", None)
            new.attr.pop("_output_shapes", None)
            self._add(new, Origin(node.name, part, is_copy=True))
        for output, axis in enumerate(cut.outputs):
            if axis >= 0:
                self._axis[f"{node.name}:{output}"] = axis
            elif axis == OWN or node.name in self._wants_own:
                self._keep_own(node.name, output, axis)

    def _has_floats(self, node: NodeDef) -> bool:
        """Whether an op makes floats only, whose mean is of the same type."""
        made = outputs_of(node.name, self._shapes)
        return all(self._shapes[tensor].dtype.as_datatype_enum in FLOATS for tensor in made)

    def _keep_own(self, op: str, output: int, axis: int) -> None:
        """Let each part go on with what it made; a sum counts for all parts."""
        tensor = f"{op}:{output}"
        kind = self._shapes[tensor].dtype
        made = [f"{name}:{output}" for name in self._names(op)]
        if axis == SUMMED:
            times = f"{join_name(op, output)}/parts"
            for part, share in enumerate(made):
                by = self._constant(times, self._parts, kind, op)
                scaled = make_node(f"{times}_{part}", "Mul", [share, by], T=kind)
                self._add(scaled, Origin(op, part))
                made[part] = f"{scaled.name}:0"
        self._own[tensor] = made

    def _names(self, op: str) -> list[str]:
        return part_names(op, self._parts)

    def _waits(self, node: NodeDef, part: int | None = None) -> list[str]:
        """Return control inputs: a whole op waits for all parts, a part for that of its number.

        A gradient's constants wait for the ops near them; such waits would hold up all parts.
        """
        waits = []
        for name in (node_of(tensor) for tensor in node.input if tensor[0] == "^"):
            if name not in self._cuts:
                waits += [name] if name in self._new else []  # ops that read shapes are gone
            elif part is not None:
                waits.append(self._names(name)[part])
            elif node.op != "Const":
                self._joined.append((f"{name}:0", node.name))
                waits += self._names(name)
        return [f"^{name}" for name in waits]

    def _shares(self, op: str, tensor: str, axis: int | None) -> list[str]:
        """Return the share of a tensor that each part of an op takes."""
        if axis is None:
            return self._own.get(tensor) or [self._whole(tensor, op)] * self._parts
        source = node_of(tensor)
        if source in self._cuts and self._axis.get(tensor) == axis:
            return [f"{name}:{slot_of(tensor)}" for name in self._names(source)]
        name = f"{join_name(source, slot_of(tensor))}/cut_{axis}"
        if name not in self._new:
            at = self._constant(f"{name}/axis", axis, tf.int32, source)
            given, kind = [at, self._whole(tensor, op)], self._shapes[tensor].dtype
            split = make_node(name, "Split", given, T=kind, num_split=self._parts)
            self._add(split, Origin(source))
        return [f"{name}:{i}" for i in range(self._parts)]

    def _sizes(self, node: NodeDef, at: int, entry: int) -> list[str]:
        """Return the shape that is an input of all parts."""
        tensor = data_of(node)[at]
        value = np.array(self._values[tensor])
        value[entry] = value[entry] // self._parts if value[entry] > 0 else value[entry]
        name = f"{join_name(node.name, 0)}/sizes_{at}"
        kind = self._shapes[tensor].dtype
        return [self._constant(name, value, kind, node.name)] * self._parts

    def _whole(self, tensor: str, needed_by: str) -> str:
        """Return the whole tensor; join or add up what the parts of its op made."""
        op, full = node_of(tensor), numbered(tensor)
        if op not in self._cuts:
            return self._instead.get(full, tensor)
        self._joined.append((full, needed_by))
        name, last = join_name(op, slot_of(tensor)), Origin(op, self._parts - 1)
        if name not in self._new:
            axis = self._cuts[op].outputs[slot_of(tensor)]
            kind = self._shapes[full].dtype
            own = self._own.get(full) if kind.as_datatype_enum in FLOATS else None
            made = own or [f"{part}:{slot_of(tensor)}" for part in self._names(op)]
            if axis >= 0:
                given = [*made, self._constant(f"{name}/axis", axis, tf.int32, op)]
                join = make_node(name, "ConcatV2", given, N=len(made), T=kind, Tidx=tf.int32)
            else:
                join = self._added_up(name, op, made, kind, bool(own) or axis == AVERAGED)
            self._add(join, last)
        return f"{name}:0"

    def _added_up(
        self, name: str, op: str, made: Sequence[str], kind: tf.DType, averaged: bool
    ) -> NodeDef:
        """Add up the parts' shares one by one; return the last node."""
        total = made[0]
        for part, share in enumerate(made[1:], 1):
            last = part == len(made) - 1 and not averaged
            called = name if last else f"{name}/sum_{part}"
            add = make_node(called, "AddV2", [total, share], T=kind)
            if last:
                return add
            self._add(add, Origin(op, part))
            total = f"{add.name}:0"
        by = self._constant(f"{name}/share", 1 / len(made), kind, op)
        return make_node(name, "Mul", [total, by], T=kind)

    def _constant(self, name: str, value: object, kind: tf.DType, op: str) -> str:
        """Add a constant for what is made of an op; it begins no micro-batch, so it has no part."""
        if name not in self._new:
            self._add(make_constant(name, value, kind), Origin(op))
        return f"{name}:0"

    def _add(self, node: NodeDef, origin: Origin) -> None:
        self._new[node.name], self._origin[node.name] = node, origin

    def _mixing(self) -> tuple[str, ...]:
        """Find ops that need the work of all micro-batches before that of any can go on.

        What depends on the batch but on no variable is ready before the pipeline begins, and no
        backward pass waits for what only metrics need. But a micro-batch's own mean of tokens that
        are not masked, for example, needs their number in the micro-batch.
        """
        free = {name for name, node in self._nodes.items() if node.op in (*_SHAPES, "Const")}

        def before(op: str) -> list[str]:
            return [] if op in free else self._producers[op]

        variables = filter(self._is_variable, self._nodes)
        learned = reached(variables, lambda op: set(self._consumers[op]) - free)
        backward = [name for name in self._cuts if is_in_backward_scope(name)]
        before_cut = reached(backward or self._cuts, before)
        copies = {
            name for name, cut in self._cuts.items() if all(axis is None for axis in cut.inputs)
        }
        before_copies = reached(
            copies, lambda op: [] if op in self._cuts and op not in copies else before(op)
        )
        found = [
            node_of(tensor) if self._is_sum(tensor) else op
            for tensor, op in self._joined
            if (node_of(tensor) in learned and op in before_cut)
            or (op in before_copies and self._is_sum(tensor))
        ]
        return tuple(dict.fromkeys(found))

    def _is_variable(self, name: str) -> bool:
        """Whether a node is a variable; in the graph of a traced function, it is captured."""
        node = self._nodes[name]
        if name in self._iterators:
            return False
        if node.op != "Placeholder":  # to ask another op for this attribute would add it
            return node.op in VARIABLES
        return bool(node.attr["dtype"].type == tf.resource.as_datatype_enum)

    def _is_sum(self, tensor: str) -> bool:
        return self._cuts[node_of(tensor)].outputs[slot_of(tensor)] < 0


def _known_values(graph_def: GraphDef, shapes: Shapes) -> dict[str, NDArray[Any]]:
    """Compute the shapes, permutations and the like that are known before the step runs."""
    nodes = {node.name: node for node in graph_def.node}
    known: dict[str, NDArray[Any]] = {}
    later: list[NodeDef] = []
    pure: set[str] = set()
    for name in sort_nodes(graph_def):
        node = nodes[name]
        if node.op in _SHAPES:
            found = [_shape_read(node.op, shapes[tensor]) for tensor in data_of(node)]
            if all(each is not None for each in found):
                is_long = node.op != "Rank" and node.attr["out_type"].type == tf.int64
                kind = tf.int64 if is_long else tf.int32
                known |= {
                    f"{name}:{i}": np.array(each, kind.as_numpy_dtype)
                    for i, each in enumerate(found)
                }
                pure.add(name)
        elif node.op == "Const" and _is_small(shapes[f"{name}:0"]):
            known[f"{name}:0"] = tf.make_ndarray(node.attr["value"].tensor)
            pure.add(name)
        elif _is_pure(node, shapes) and all(node_of(t) in pure for t in data_of(node)):
            later.append(node)
            pure.add(name)
    return known | _computed(later, known, shapes)


def _is_pure(node: NodeDef, shapes: Shapes) -> bool:
    """Whether an op computes a few whole numbers from its inputs alone."""
    if not data_of(node) or has_effect(node.op):
        return False
    made = outputs_of(node.name, shapes)
    return node.op == _OF_SHAPES or all(_is_small(shapes[tensor]) for tensor in made)


def _is_small(shape: TensorShape) -> bool:
    few = shape.sizes is not None and math.prod(shape.sizes) <= _MOST_NUMBERS
    return few and shape.dtype in (tf.int32, tf.int64)


def _computed(
    nodes: Sequence[NodeDef], known: Mapping[str, NDArray[Any]], shapes: Shapes
) -> dict[str, NDArray[Any]]:
    """Run ops on known numbers."""
    if not nodes:
        return {}
    graph = tf.Graph()
    wanted = [tensor for node in nodes for tensor in outputs_of(node.name, shapes)]
    own = {node.name for node in nodes}
    with graph.as_default(), tf.device("/CPU:0"):
        read = {t for node in nodes for t in data_of(node) if node_of(t) not in own}
        fed = {tensor: tf.constant(known[tensor]) for tensor in read}
        graph_def = GraphDef()
        for node in nodes:
            new = with_inputs(node, data_of(node))
            new.device = ""
            new.attr.pop("_class", None)
            graph_def.node.append(new)
        import_graph_def(graph_def, input_map=fed, name="")
    with tf.compat.v1.Session(graph=graph, config=plain_config({"CPU": 1, "GPU": 0})) as session:
        return dict(zip(wanted, map(np.asarray, session.run(wanted)), strict=True))


def _shape_read(kind: str, shape: TensorShape) -> list[int] | int | None:
    """Return what an op reads of a shape; None if that is known only when the step runs."""
    if kind == "Rank":
        return None if shape.shape is None else len(shape.shape)
    if shape.sizes is None:
        return None
    return math.prod(shape.sizes) if kind == "Size" else list(shape.sizes)


def outputs_of(op: str, shapes: Shapes) -> list[str]:
    """List the outputs of an op."""
    found: list[str] = []
    while (tensor := f"{op}:{len(found)}") in shapes:
        found.append(tensor)
    return found
