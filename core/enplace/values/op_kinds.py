"""Kinds and passes of ops: what they do, and when, whatever a framework calls them.

A framework says the kind of each op in the column ``op_kinds``. Profiles that do not say it, such
as those of older files, name op types of TensorFlow, which :func:`kind_of_type` knows.
"""

from __future__ import annotations

import re
from functools import lru_cache

MATMUL, BATCH_MATMUL = "matmul", "batch matmul"
"""Products of samples and a matrix of weights, or of matrices of which each sample has some."""

CONV, GROUPED_CONV = "conv", "grouped conv"
"""Convolutions; the filters of a grouped one see only some of the channels each."""

CONV_IMAGE_GRADIENT, CONV_FILTER_GRADIENT = "conv image gradient", "conv filter gradient"
GROUPED_CONV_IMAGE_GRADIENT = "grouped conv image gradient"
GROUPED_CONV_FILTER_GRADIENT = "grouped conv filter gradient"
BIAS, BIAS_GRADIENT = "bias", "bias gradient"
"""Ops with a number, or a few, for each channel; and the sum over all else."""

ELEMENTWISE, POOL = "elementwise", "pool"
ROWS = "rows"
"""Ops that work on each sample alone, such as a softmax or a layer normalisation."""

RESHAPE, GATHER, REDUCE = "reshape", "gather", "reduce"
"""The same values in another shape, samples first; rows of a table; sums over samples."""

SHAPE, REPEAT, RANDOM = "shape", "repeat", "random"
"""Ops whose outputs depend on a tensor's shape alone; as many rows as an input says; random
numbers, such as a mask that drops activations."""

CONSTANT, VARIABLE, INPUT = "constant", "variable", "input"
UPDATE = "update"
"""Ops that write a variable."""

OTHER = "other"
"""None of these."""

OP_KINDS = (
    *(MATMUL, BATCH_MATMUL, CONV, GROUPED_CONV, CONV_IMAGE_GRADIENT, GROUPED_CONV_IMAGE_GRADIENT),
    *(CONV_FILTER_GRADIENT, GROUPED_CONV_FILTER_GRADIENT, BIAS, BIAS_GRADIENT, ELEMENTWISE, POOL),
    *(ROWS, RESHAPE, GATHER, REDUCE, SHAPE, REPEAT, RANDOM, CONSTANT, VARIABLE, INPUT, UPDATE),
    OTHER,
)

FORWARD, BACKWARD = "forward", "backward"
OP_PASSES = (FORWARD, BACKWARD, UPDATE)
"""Passes of a training step."""

_TYPES = {
    MATMUL: "MatMul",
    BATCH_MATMUL: "BatchMatMul BatchMatMulV2",
    CONV: "Conv2D",
    CONV_IMAGE_GRADIENT: "Conv2DBackpropInput",
    CONV_FILTER_GRADIENT: "Conv2DBackpropFilter",
    GROUPED_CONV: "DepthwiseConv2dNative",
    GROUPED_CONV_IMAGE_GRADIENT: "DepthwiseConv2dNativeBackpropInput",
    GROUPED_CONV_FILTER_GRADIENT: "DepthwiseConv2dNativeBackpropFilter",
    BIAS: "BiasAdd",
    BIAS_GRADIENT: "BiasAddGrad",
    ELEMENTWISE: """
        Abs Add AddN AddV2 Cast Div Elu EluGrad Equal Exp Gelu GeluGrad Greater GreaterEqual
        Identity LeakyRelu LeakyReluGrad Less LessEqual Log LogicalAnd LogicalNot LogicalOr Maximum
        Minimum Mul Neg NotEqual Pow RealDiv Relu Relu6 Relu6Grad ReluGrad Rsqrt RsqrtGrad Selu
        SeluGrad SelectV2 Sigmoid SigmoidGrad Sign Softplus SoftplusGrad Sqrt SqrtGrad Square
        SquaredDifference StopGradient Sub Tanh TanhGrad ZerosLike
    """,
    POOL: "AvgPool AvgPoolGrad MaxPool MaxPoolGrad",
    ROWS: "LogSoftmax Softmax SoftmaxCrossEntropyWithLogits SparseSoftmaxCrossEntropyWithLogits",
    RESHAPE: "Reshape Transpose",
    GATHER: "GatherV2",
    REDUCE: "L2Loss Max Mean Min Sum UnsortedSegmentSum",
    SHAPE: "Rank Shape ShapeN Size",
    REPEAT: "BroadcastTo Fill Tile",
    RANDOM: """
        RandomStandardNormal RandomUniform StatelessRandomNormalV2 StatelessRandomUniformV2
        TruncatedNormal
    """,
    CONSTANT: "Const NoOp",
    VARIABLE: "VarHandleOp Variable VariableV2",
}
TYPES_OF_KIND = {kind: frozenset(types.split()) for kind, types in _TYPES.items()}
"""Well-known op types by kind."""

_KIND_OF_TYPE = {each: kind for kind, types in TYPES_OF_KIND.items() for each in types}
_INPUT = re.compile(r"Iterator|Placeholder|OneShotIterator|_Arg|Input")
_UPDATE = re.compile(r"(Resource|Sparse)?(Apply|Assign|Scatter)")


def kind_of_type(op_type: str) -> str:
    """Tell the kind of an op from a well-known type; empty for others.

    >>> kind_of_type("ResourceApplyAdam")
    'update'
    """
    if op_type in _KIND_OF_TYPE:
        return _KIND_OF_TYPE[op_type]
    return UPDATE if _UPDATE.match(op_type) else INPUT if _INPUT.match(op_type) else ""


@lru_cache(maxsize=4)
def kinds_of(said: tuple[str, ...], op_types: tuple[str, ...]) -> tuple[str, ...]:
    """Find the kind of each op: what the profile says, or else what its type tells."""
    known = {op_type: kind_of_type(op_type) for op_type in set(op_types)}
    return tuple(kind or known[op_type] for kind, op_type in zip(said, op_types, strict=True))
