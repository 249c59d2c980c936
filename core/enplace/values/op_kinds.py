"""Kinds and passes of ops: what they do, and when, whatever a framework calls them.

A framework says the kind of each op in the column ``op_kinds``. Profiles that do not say it, such
as those of older files, name op types of TensorFlow, which :func:`kind_of_type` knows.
"""

from __future__ import annotations

import re
from enum import StrEnum
from functools import lru_cache


class OpKind(StrEnum):
    """What an op does."""

    MATMUL = "matmul"
    """A product of samples and a matrix of weights, or of samples and samples: a gradient."""
    BATCH_MATMUL = "batch matmul"
    """A product of matrices of which each sample has some."""
    CONV = "conv"
    CONV_IMAGE_GRADIENT = "conv image gradient"
    CONV_FILTER_GRADIENT = "conv filter gradient"
    GROUPED_CONV = "grouped conv"
    """A convolution whose filters see only some of the channels each."""
    GROUPED_CONV_IMAGE_GRADIENT = "grouped conv image gradient"
    GROUPED_CONV_FILTER_GRADIENT = "grouped conv filter gradient"
    BIAS = "bias"
    """An op with a number, or a few, for each channel."""
    BIAS_GRADIENT = "bias gradient"
    ELEMENTWISE = "elementwise"
    POOL = "pool"
    ROWS = "rows"
    """An op that works on each sample alone, such as a softmax or a layer normalisation."""
    RESHAPE = "reshape"
    """The same values in another shape, samples first."""
    GATHER = "gather"
    """Rows of a table."""
    REDUCE = "reduce"
    """Sums over samples, and the like."""
    SHAPE = "shape"
    """An op whose output depends on the shape of a tensor and not on its content."""
    REPEAT = "repeat"
    """An op whose output has as many rows as an input says, such as the number of samples."""
    RANDOM = "random"
    """Random numbers, such as those that drop activations."""
    CONSTANT = "constant"
    VARIABLE = "variable"
    INPUT = "input"
    UPDATE = "update"
    """An op that writes a variable."""
    OTHER = "other"


class OpPass(StrEnum):
    """A pass of a training step."""

    FORWARD = "forward"
    BACKWARD = "backward"
    UPDATE = "update"


_TYPES = {
    OpKind.MATMUL: "MatMul",
    OpKind.BATCH_MATMUL: "BatchMatMul BatchMatMulV2",
    OpKind.CONV: "Conv2D",
    OpKind.CONV_IMAGE_GRADIENT: "Conv2DBackpropInput",
    OpKind.CONV_FILTER_GRADIENT: "Conv2DBackpropFilter",
    OpKind.GROUPED_CONV: "DepthwiseConv2dNative",
    OpKind.GROUPED_CONV_IMAGE_GRADIENT: "DepthwiseConv2dNativeBackpropInput",
    OpKind.GROUPED_CONV_FILTER_GRADIENT: "DepthwiseConv2dNativeBackpropFilter",
    OpKind.BIAS: "BiasAdd",
    OpKind.BIAS_GRADIENT: "BiasAddGrad",
    OpKind.ELEMENTWISE: """
        Abs Add AddN AddV2 Cast Div Elu EluGrad Equal Exp Gelu GeluGrad Greater GreaterEqual
        Identity LeakyRelu LeakyReluGrad Less LessEqual Log LogicalAnd LogicalNot LogicalOr Maximum
        Minimum Mul Neg NotEqual Pow RealDiv Relu Relu6 Relu6Grad ReluGrad Rsqrt RsqrtGrad Selu
        SeluGrad SelectV2 Sigmoid SigmoidGrad Sign Softplus SoftplusGrad Sqrt SqrtGrad Square
        SquaredDifference StopGradient Sub Tanh TanhGrad ZerosLike
    """,
    OpKind.POOL: "AvgPool AvgPoolGrad MaxPool MaxPoolGrad",
    OpKind.ROWS: """
        LogSoftmax Softmax SoftmaxCrossEntropyWithLogits SparseSoftmaxCrossEntropyWithLogits
    """,
    OpKind.RESHAPE: "Reshape Transpose",
    OpKind.GATHER: "Embedding Gather GatherV2",
    OpKind.REDUCE: "L2Loss Max Mean Min Sum UnsortedSegmentSum",
    OpKind.SHAPE: "Rank Shape ShapeN Size",
    OpKind.REPEAT: "BroadcastTo Fill Tile",
    OpKind.RANDOM: """
        RandomStandardNormal RandomUniform StatelessRandomNormalV2 StatelessRandomUniformV2
        TruncatedNormal
    """,
    OpKind.CONSTANT: "Const NoOp",
    OpKind.VARIABLE: "VarHandleOp Variable VariableV2",
}
TYPES_OF_KIND = {kind: frozenset(types.split()) for kind, types in _TYPES.items()}
"""Well-known op types by kind."""

_VIEWS = (
    *("Bitcast", "CheckNumerics", "EnsureShape", "ExpandDims", "GuaranteeConst", "Identity"),
    *("PlaceholderWithDefault", "PreventGradient", "Reshape", "Squeeze", "StopGradient"),
)
"""TensorFlow's kernels that return their input as their output, on CPUs and GPUs."""

_KIND_OF_TYPE = {each: kind for kind, types in TYPES_OF_KIND.items() for each in types}
_INPUT = re.compile(r"Iterator|Placeholder|OneShotIterator|_Arg|Input")
_UPDATE = re.compile(r"(Resource)?(Sparse)?(Apply|Assign|Scatter(?!Nd$)|StridedSliceAssign)")


def kind_of_type(op_type: str) -> str:
    """Tell the kind of an op from a well-known type; empty for others.

    >>> kind_of_type("ResourceApplyAdam")
    'update'
    """
    if op_type in _KIND_OF_TYPE:
        return _KIND_OF_TYPE[op_type]
    begins = ((_UPDATE, OpKind.UPDATE), (_INPUT, OpKind.INPUT))
    return next((kind for pattern, kind in begins if pattern.match(op_type)), "")


def is_read_type(op_type: str) -> bool:
    """Return whether ops of a type only pass on what they read, such as a variable's content."""
    return op_type in ("Identity", "ReadVariableOp")


def is_view_type(op_type: str) -> bool:
    """Return whether ops of a type pass on the memory of their first input, and never copy it."""
    return op_type in _VIEWS


def is_update_type(op_type: str) -> bool:
    """Return whether ops of a type change a variable.

    >>> is_update_type("ResourceSparseApplyAdagrad"), is_update_type("ScatterNd")
    (True, False)
    """
    return _UPDATE.match(op_type) is not None


@lru_cache(maxsize=4)
def kinds_of(said: tuple[str, ...], op_types: tuple[str, ...]) -> tuple[str, ...]:
    """Find the kind of each op: what the profile says, or else what its type tells."""
    known = {op_type: kind_of_type(op_type) for op_type in set(op_types)}
    return tuple(kind or known[op_type] for kind, op_type in zip(said, op_types, strict=True))
