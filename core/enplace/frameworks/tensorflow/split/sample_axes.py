"""Along which axis an op's tensors hold the samples of a batch, and so how the op can be cut.

A cut op becomes parts, each of which works on some of the samples. The rules here are exact: the
parts' outputs, put one after another or added up, are the output of the whole op up to the order of
sums. An op without a rule, or whose samples depend on each other, stays whole.

Unlike :mod:`enplace.values.splits.rules`, which has to guess from bytes, these rules know the
shapes, and the axis of the samples may be any.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tensorflow.core.framework import types_pb2
from tensorflow.core.framework.node_def_pb2 import NodeDef

from enplace.values.op_kinds import TYPES_OF_KIND, OpKind

Shape = tuple[int, ...]
Axes = tuple[int | None, ...]

FLOATS = (types_pb2.DT_HALF, types_pb2.DT_BFLOAT16, types_pb2.DT_FLOAT, types_pb2.DT_DOUBLE)

SUMMED, AVERAGED, OWN = -1, -2, -3
"""Stand for an output's axis: the parts' outputs are added up, or their mean is taken, or each part
goes on with its own, and only what is not cut takes their mean."""


@dataclass(frozen=True)
class Cut:
    """How an op is cut by samples.

    Attributes
    ----------
    inputs : tuple of (int or None)
        Axis along which each input is cut; None for inputs that every part gets whole.
    outputs : tuple of int
        Axis along which each output is cut, or :data:`SUMMED`, :data:`AVERAGED` or :data:`OWN`.
    sizes : mapping of int to int
        Inputs that are a shape, by number, and the entry that counts samples: a part gets its share
        of it.
    """

    inputs: Axes
    outputs: tuple[int, ...]
    sizes: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class OpView:
    """What a rule sees of an op.

    Attributes
    ----------
    node : NodeDef
    axes : tuple of (int or None)
        Axis of the samples in each input; None for inputs that do not depend on samples, or whose
        samples lie apart.
    shapes, made : sequences of tuples of int
        Shapes of the inputs and of the outputs.
    values : sequence of (array or None)
        Inputs whose numbers are known before the step runs.
    parts : int
        Number of parts to cut the op into.
    own_statistics : bool
        Whether each part takes the mean and variance of its own samples.
    """

    node: NodeDef
    axes: Axes
    shapes: Sequence[Shape]
    made: Sequence[Shape]
    values: Sequence[NDArray[Any] | None]
    parts: int
    own_statistics: bool = False

    @property
    def n_inputs(self) -> int:
        return len(self.axes)

    def number(self, attribute: str) -> int:
        return int(self.node.attr[attribute].i)

    def flag(self, attribute: str) -> bool:
        return bool(self.node.attr[attribute].b)

    def axis_of(self, at: int, rank: int) -> int | None:
        """Return an axis that an input says, counted from the first; None if it is not known."""
        value = self.values[at]
        return None if value is None else int(value) % max(rank, 1)

    def axes_in(self, at: int) -> set[int] | None:
        """Return the axes of the first input that another one says; None if it is not known."""
        value, rank = self.values[at], len(self.shapes[0])
        return None if value is None else {int(each) % rank for each in np.ravel(value)}

    def only(self, *inputs: int) -> bool:
        """Whether no other input depends on samples."""
        return all(axis is None for i, axis in enumerate(self.axes) if i not in inputs)

    def same_axis(self, inputs: Iterable[int]) -> int | None:
        """Return the axis that these inputs share, ignoring those without samples."""
        found = {self.axes[i] for i in inputs} - {None}
        return found.pop() if len(found) == 1 else None


Rule = Callable[[OpView], Cut | None]


def find_cut(op: OpView) -> Cut | None:
    """Find how to cut an op whose inputs hold samples along some axes; None if it stays whole."""
    rule = _RULES.get(op.node.op)
    if rule is None or all(axis is None for axis in op.axes):
        return None
    return rule(op)


def _elementwise(op: OpView) -> Cut | None:
    rank = len(op.made[0])
    found = {rank - len(op.shapes[i]) + axis for i, axis in enumerate(op.axes) if axis is not None}
    if len(found) != 1:
        return None
    axis = found.pop()
    inputs = tuple(_aligned(shape, rank, axis) for shape in op.shapes)
    if any(own is not None and own != ours for own, ours in zip(op.axes, inputs, strict=True)):
        return None
    return Cut(inputs, (axis,) * len(op.made))


def _aligned(shape: Shape, rank: int, axis: int) -> int | None:
    """Return an input's axis that broadcasting aligns with an output's; None if it is repeated."""
    own = axis - (rank - len(shape))
    return None if own < 0 or shape[own] == 1 else own


def _first(rule: Callable[[OpView, int], int | None], sizes: int | None = None) -> Rule:
    """Make the rule of an op whose first input alone holds samples.

    Parameters
    ----------
    rule : callable
        Gets the axis of the samples and returns that in all outputs; None if the op stays whole.
    sizes : int, optional
        Number of the input that is the shape of the output.
    """

    def first(op: OpView) -> Cut | None:
        axis = op.axes[0]
        made = None if axis is None or not op.only(0) else rule(op, axis)
        if made is None:
            return None
        inputs = (axis, *(None,) * (op.n_inputs - 1))
        return Cut(inputs, (made,) * len(op.made), {} if sizes is None else {sizes: made})

    return first


def _along(*inputs: int | None) -> Rule:
    """Make the rule of an op that treats the samples along the first axis one by one.

    Parameters
    ----------
    inputs : int or None
        Axis of each input: 0, or None if all parts get it whole.
    """

    def rule(op: OpView) -> Cut | None:
        known = [own in (None, wanted) for own, wanted in zip(op.axes, inputs, strict=False)]
        if len(inputs) != op.n_inputs or not all(known):
            return None
        return Cut(inputs, (0,) * len(op.made))

    return rule


def _image_gradient(op: OpView) -> Cut | None:
    """Cut an op whose first input is the shape of its output and whose last is the gradient."""
    last = op.n_inputs - 1
    if op.axes[last] != 0 or not op.only(last):
        return None
    return Cut((*(None,) * last, 0), (0,), {0: 0})


def _filter_gradient(op: OpView) -> Cut | None:
    if op.axes[0] not in (None, 0) or op.axes[2] not in (None, 0) or not op.only(0, 2):
        return None
    return Cut((0, None, 0), (SUMMED,))


def _bias(op: OpView, axis: int) -> int | None:
    return None if axis == _channels(op) else axis


def _bias_gradient(op: OpView, axis: int) -> int | None:
    return None if axis == _channels(op) else SUMMED


def _channels(op: OpView) -> int:
    return 1 if op.node.attr["data_format"].s == b"NCHW" else len(op.shapes[0]) - 1


def _matmul(op: OpView) -> Cut | None:
    first, second = op.flag("transpose_a"), op.flag("transpose_b")
    return _product(op, (int(first), 1 - first), (1 - second, int(second)))


def _batch_matmul(op: OpView) -> Cut | None:
    ranks = [len(shape) for shape in op.shapes]
    if any(own is not None and own < rank - 2 for own, rank in zip(op.axes, ranks, strict=True)):
        return _elementwise(op)
    first, second = op.flag("adj_x"), op.flag("adj_y")
    a, b = ranks[0] - 2, ranks[1] - 2
    return _product(op, (a + first, a + 1 - first), (b + 1 - second, b + second))


def _product(op: OpView, left: tuple[int, int], right: tuple[int, int]) -> Cut | None:
    """Cut a product, given the axis of the result and the one summed over of each factor."""
    rank, (a, b) = len(op.made[0]), op.axes
    if a in (None, left[1]) and b in (None, right[1]):
        return Cut((left[1], right[1]), (SUMMED,))
    if b is None and a == left[0]:
        return Cut((a, None), (rank - 2,))
    if a is None and b == right[0]:
        return Cut((None, b), (rank - 1,))
    return None


def _einsum(op: OpView) -> Cut | None:
    given, _, wanted = op.node.attr["equation"].s.decode().partition("->")
    labels = given.split(",")
    if "." in given or any(len(set(word)) < len(word) for word in labels):
        return None
    found = {word[axis] for word, axis in zip(labels, op.axes, strict=True) if axis is not None}
    if len(found) != 1:
        return None
    label = found.pop()
    inputs = tuple(word.index(label) if label in word else None for word in labels)
    return Cut(inputs, (wanted.index(label) if label in wanted else SUMMED,))


def _reduce(over_samples: int | None) -> Rule:
    """Make the rule of a reduction; ``over_samples`` says what it does if it includes them."""

    def rule(op: OpView, axis: int) -> int | None:
        gone = op.axes_in(1)
        if gone is not None and axis in gone:
            whole_numbers = over_samples == AVERAGED and op.node.attr["T"].type not in FLOATS
            return None if whole_numbers else over_samples
        return None if gone is None else axis if op.flag("keep_dims") else _left(axis, gone)

    return _first(rule)


def _left(axis: int, gone: Iterable[int]) -> int:
    """Return the number of an axis where others are gone."""
    return axis - sum(each < axis for each in gone)


def _bitcast(op: OpView) -> Cut | None:
    return _elementwise(op) if op.shapes[0] == op.made[0] else None


def _except_last(op: OpView, axis: int) -> int | None:
    return None if axis == len(op.shapes[0]) - 1 else axis


def _soft_cross_entropy(op: OpView) -> Cut | None:
    return _along(0, 0)(op) if op.shapes[0] == op.shapes[1] else None


def _except_along(op: OpView, axis: int) -> int | None:
    """Cut an op that mixes what lies along one axis, or some, which its second input says."""
    mixed = op.axes_in(1)
    return None if mixed is None or axis in mixed else axis


def _arg_max(op: OpView, axis: int) -> int | None:
    gone = op.axes_in(1)
    return None if gone is None or axis in gone else _left(axis, gone)


def _reshape(op: OpView, axis: int) -> int | None:
    before = math.prod(op.shapes[0][:axis])
    for new, length in enumerate(op.made[0]):
        # Equal parts of both axes then hold the same numbers.
        if math.prod(op.made[0][:new]) == before and length % op.parts == 0:
            return new
    return None


def _transpose(op: OpView, axis: int) -> int | None:
    order = op.values[1]
    return None if order is None else int(order.tolist().index(axis))


def _expand(op: OpView, axis: int) -> int | None:
    new = op.axis_of(1, len(op.made[0]))
    return None if new is None else axis + (new <= axis)


def _squeeze(op: OpView, axis: int) -> int | None:
    shape = op.shapes[0]
    asked = {int(each) % len(shape) for each in op.node.attr["squeeze_dims"].list.i}
    gone = asked or {i for i, size in enumerate(shape) if size == 1}
    return None if axis in gone else _left(axis, gone)


def _tile(op: OpView, axis: int) -> int | None:
    times = op.values[1]
    return None if times is None or int(times[axis]) != 1 else axis


def _broadcast(op: OpView, axis: int) -> int | None:
    more = len(op.made[0]) - len(op.shapes[0])
    return None if op.shapes[0][axis] == 1 else axis + more


def _concat(op: OpView) -> Cut | None:
    n = op.n_inputs - 1
    axis, along = op.same_axis(range(n)), op.axis_of(n, len(op.made[0]))
    if axis is None or along is None or axis == along:
        return None
    return Cut((*(axis,) * n, None), (axis,))


def _pack(op: OpView) -> Cut | None:
    axis, new = op.same_axis(range(op.n_inputs)), op.number("axis") % len(op.made[0])
    return None if axis is None else Cut((axis,) * op.n_inputs, (axis + (new <= axis),))


def _unpack(op: OpView, axis: int) -> int | None:
    gone = op.number("axis") % len(op.shapes[0])
    return None if axis == gone else _left(axis, [gone])


def _split(at: int, which: int) -> Rule:
    """Make the rule of an op that splits its input number ``at`` along the axis ``which`` says."""

    def rule(op: OpView) -> Cut | None:
        axis, along = op.axes[at], op.axis_of(which, len(op.shapes[at]))
        if axis is None or along is None or axis == along:
            return None
        inputs = tuple(axis if i == at else None for i in range(op.n_inputs))
        return Cut(inputs, (axis,) * len(op.made))

    return rule


def _strided_slice(op: OpView, axis: int) -> int | None:
    return _kept_axes(op, op.shapes[0]).get(axis)


def _strided_slice_gradient(op: OpView) -> Cut | None:
    if op.axes[4] is None or not op.only(4):
        return None
    axes = [old for old, new in _kept_axes(op, op.made[0]).items() if new == op.axes[4]]
    if not axes:
        return None
    return Cut((None, None, None, None, op.axes[4]), (axes[0],), {0: axes[0]})


def _kept_axes(op: OpView, shape: Shape) -> dict[int, int]:
    """Map each axis that a strided slice keeps in full to its number in the result."""
    begin, end, stride = op.values[1:4]
    if begin is None or end is None or stride is None:
        return {}

    def has(mask: str, bit: int) -> bool:
        return bool(op.number(mask) >> bit & 1)

    spec = range(len(begin))
    consumed = sum(not has("new_axis_mask", i) and not has("ellipsis_mask", i) for i in spec)
    kept: dict[int, int] = {}
    old = new = 0
    for i in spec:
        if has("ellipsis_mask", i):
            for _ in range(len(shape) - consumed):
                kept[old] = new
                old, new = old + 1, new + 1
        elif has("new_axis_mask", i):
            new += 1
        elif has("shrink_axis_mask", i):
            old += 1
        else:
            starts = has("begin_mask", i) or begin[i] == 0
            ends = has("end_mask", i) or end[i] >= shape[old]
            if starts and ends and stride[i] == 1:
                kept[old] = new
            old, new = old + 1, new + 1
    for rest in range(old, len(shape)):
        kept[rest] = new + rest - old
    return kept


def _slice(op: OpView, axis: int) -> int | None:
    begin, size = op.values[1], op.values[2]
    if begin is None or size is None or begin[axis] != 0:
        return None
    return axis if size[axis] in (-1, op.shapes[0][axis]) else None


def _pad(op: OpView, axis: int) -> int | None:
    more = op.values[1]
    return None if more is None or np.any(more[axis]) else axis


def _gather(op: OpView) -> Cut | None:
    rows, numbers = op.axes[0], op.axes[1]
    at, in_batch = op.axis_of(2, len(op.shapes[0])), op.number("batch_dims")
    if at is None:
        return None
    if in_batch:
        axis = op.same_axis((0, 1))
        return None if axis is None or axis >= in_batch else Cut((axis, axis, None), (axis,))
    if rows is None and numbers is not None:
        return Cut((None, numbers, None), (at + numbers,))
    if numbers is not None or rows is None or rows == at:
        return None
    return Cut((rows, None, None), (rows if rows < at else rows - 1 + len(op.shapes[1]),))


def _resource_gather(op: OpView) -> Cut | None:
    axis = op.axes[1]
    return None if axis is None or op.number("batch_dims") else Cut((None, axis), (axis,))


def _gather_points(op: OpView) -> Cut | None:
    axis = op.axes[1]
    if axis is None or axis == len(op.shapes[1]) - 1 or not op.only(1):
        return None
    return Cut((None, axis), (axis,))


def _segment_sum(op: OpView) -> Cut | None:
    axis = op.same_axis((0, 1))
    if axis is None or axis >= len(op.shapes[1]) or not op.only(0, 1):
        return None
    return Cut((axis, axis, None), (SUMMED,))


def _one_hot(op: OpView, axis: int) -> int | None:
    return axis + (op.number("axis") % len(op.made[0]) <= axis)


def _normalise(op: OpView) -> Cut | None:
    """Cut a fused batch normalisation, whose last outputs only its gradient reads."""
    if op.axes[0] != 0 or not op.only(0) or (op.flag("is_training") and not op.own_statistics):
        return None
    return Cut((0, None, None, None, None), (0, *(OWN,) * (len(op.made) - 1)))


def _normalise_gradient(op: OpView) -> Cut | None:
    if op.axes[:2] != (0, 0) or (op.flag("is_training") and not op.own_statistics):
        return None
    inputs = (0, 0, *(None,) * (op.n_inputs - 2))
    return Cut(inputs, (0, SUMMED, SUMMED, *(OWN,) * (len(op.made) - 3)))


_MORE_ELEMENTWISE = """
    Acos Acosh Asin Asinh Atan Atan2 Atanh BitwiseAnd BitwiseOr BitwiseXor Ceil CheckNumerics
    ClipByValue Cos Cosh DivNoNan Erf Erfc Erfinv Expm1 Floor FloorDiv FloorMod Inv InvGrad
    IsFinite IsInf IsNan Lgamma Log1p LogicalXor Mod MulNoNan OnesLike PreventGradient Reciprocal
    ReciprocalGrad Rint Round Sin Sinh Snapshot Softsign SoftsignGrad Tan TruncateDiv TruncateMod
    Xdivy Xlog1py Xlogy
"""

_RULES: dict[str, Rule] = {
    **dict.fromkeys(
        sorted(TYPES_OF_KIND[OpKind.ELEMENTWISE] | {*_MORE_ELEMENTWISE.split()}), _elementwise
    ),
    **dict.fromkeys(("All", "Any", "Max", "Min", "Prod"), _reduce(None)),
    **dict.fromkeys(("ArgMax", "ArgMin"), _first(_arg_max)),
    **dict.fromkeys(("BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"), _batch_matmul),
    **dict.fromkeys(("Conv2D", "Conv3D", "DepthwiseConv2dNative"), _along(0, None)),
    **dict.fromkeys(
        (
            "Conv2DBackpropFilter",
            "Conv3DBackpropFilterV2",
            "DepthwiseConv2dNativeBackpropFilter",
        ),
        _filter_gradient,
    ),
    **dict.fromkeys(
        (
            "AvgPool3DGrad",
            "AvgPoolGrad",
            "Conv2DBackpropInput",
            "Conv3DBackpropInputV2",
            "DepthwiseConv2dNativeBackpropInput",
        ),
        _image_gradient,
    ),
    **dict.fromkeys(("AvgPool", "AvgPool3D", "LRN", "MaxPool", "MaxPool3D"), _along(0)),
    **dict.fromkeys(("MaxPool3DGrad", "MaxPoolGrad"), _along(0, 0, 0)),
    **dict.fromkeys(("Cumprod", "Cumsum", "ReverseV2"), _first(_except_along)),
    **dict.fromkeys(("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3"), _normalise),
    **dict.fromkeys(
        ("FusedBatchNormGrad", "FusedBatchNormGradV2", "FusedBatchNormGradV3"),
        _normalise_gradient,
    ),
    **dict.fromkeys(("LogSoftmax", "Softmax"), _first(_except_last)),
    **dict.fromkeys(("MirrorPad", "Pad", "PadV2"), _first(_pad)),
    **dict.fromkeys(("ResizeBicubic", "ResizeBilinear", "ResizeNearestNeighbor"), _along(0, None)),
    "BiasAdd": _first(_bias),
    "BiasAddGrad": _first(_bias_gradient),
    "Bitcast": _bitcast,
    "BroadcastTo": _first(_broadcast, 1),
    "ConcatV2": _concat,
    "Einsum": _einsum,
    "ExpandDims": _first(_expand),
    "GatherNd": _gather_points,
    "GatherV2": _gather,
    "InTopKV2": _along(0, 0, None),
    "L2Loss": _first(lambda *_: SUMMED),
    "MatMul": _matmul,
    "Mean": _reduce(AVERAGED),
    "OneHot": _first(_one_hot),
    "Pack": _pack,
    "Reshape": _first(_reshape, 1),
    "ResizeBilinearGrad": _along(0, 0),
    "ResizeNearestNeighborGrad": _along(0, None),
    "ResourceGather": _resource_gather,
    "Slice": _first(_slice, 2),
    "SoftmaxCrossEntropyWithLogits": _soft_cross_entropy,
    "SparseSoftmaxCrossEntropyWithLogits": _along(0, 0),
    "Split": _split(1, 0),
    "SplitV": _split(0, 2),
    "Squeeze": _first(_squeeze),
    "StridedSlice": _first(_strided_slice),
    "StridedSliceGrad": _strided_slice_gradient,
    "Sum": _reduce(SUMMED),
    "Tile": _first(_tile),
    "TopKV2": _first(_except_last),
    "Transpose": _first(_transpose),
    "Unpack": _first(_unpack),
    "UnsortedSegmentSum": _segment_sum,
}
