"""What ONNX ops do, in the words of :mod:`enplace.values.op_kinds`, and how they can be split."""

from __future__ import annotations

import math
from collections.abc import Container

from onnx import NodeProto

from enplace.frameworks.onnx.graph import Graph, Tensor
from enplace.frameworks.onnx.work import Op
from enplace.values.op_kinds import (
    BATCH_MATMUL,
    BIAS,
    CONSTANT,
    CONV,
    ELEMENTWISE,
    GATHER,
    GROUPED_CONV,
    MATMUL,
    OTHER,
    POOL,
    RANDOM,
    REDUCE,
    REPEAT,
    RESHAPE,
    ROWS,
    SHAPE,
)
from enplace.values.splits.rules import BATCH, RULES, SUM, WHOLE

_TYPES = {
    MATMUL: "FusedGemm FusedMatMul Gemm MatMul MatMulInteger MatMulNBits QGemm QLinearMatMul",
    CONV: "Conv ConvInteger ConvTranspose FusedConv QLinearConv",
    BIAS: "BatchNormalization PRelu",
    ELEMENTWISE: """
        Abs Acos Acosh Add And Asin Asinh Atan Atanh BitShift BitwiseAnd BitwiseNot BitwiseOr
        BitwiseXor Cast CastLike Ceil Celu Clip Cos Cosh DequantizeLinear Div Dropout Elu Equal Erf
        Exp FastGelu Floor Gelu Greater GreaterOrEqual HardSigmoid HardSwish Identity IsInf IsNaN
        LeakyRelu Less LessOrEqual Log Max Mean Min Mish Mod Mul Neg Not Or Pow QLinearAdd
        QLinearMul QuantizeLinear QuickGelu Reciprocal Relu Round Selu Sigmoid Sign Sin Sinh
        Softplus Softsign Sqrt Sub Sum Swish Tan Tanh ThresholdedRelu Where Xor
    """,
    POOL: """
        AveragePool GlobalAveragePool GlobalLpPool GlobalMaxPool LpPool MaxPool QLinearAveragePool
        QLinearGlobalAveragePool
    """,
    ROWS: """
        Attention GroupNormalization GroupQueryAttention Hardmax InstanceNormalization LRN
        LayerNormalization LogSoftmax MultiHeadAttention RMSNormalization
        SimplifiedLayerNormalization SkipLayerNormalization Softmax
    """,
    RESHAPE: "Flatten Reshape Squeeze Transpose Unsqueeze",
    GATHER: "Gather",
    REDUCE: """
        ArgMax ArgMin ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin
        ReduceProd ReduceSum ReduceSumSquare
    """,
    SHAPE: "Shape Size",
    REPEAT: "ConstantOfShape Expand Tile",
    RANDOM: "Bernoulli RandomNormal RandomNormalLike RandomUniform RandomUniformLike",
    CONSTANT: "Constant",
}
_KINDS = {each: kind for kind, types in _TYPES.items() for each in types.split()}


def kind_of(node: NodeProto, graph: Graph, known: Container[str]) -> str:
    """Tell the kind of a node.

    Parameters
    ----------
    known : container of str
        Tensors that do not depend on the input, such as weights.
    """
    kind, op = _KINDS.get(node.op_type, OTHER), Op(node, graph)
    if kind == MATMUL and not any(name in known for name in node.input):
        return BATCH_MATMUL
    if kind == CONV and op.attribute("group", 1) > 1:
        return GROUPED_CONV
    if kind == GATHER and (op.attribute("axis", 0) or not any(n in known for n in node.input[:1])):
        return OTHER
    if kind == REDUCE and op.output.lengths[:1] == op.input(0).lengths[:1] != ():
        return ROWS  # the first axis stays: each sample is reduced alone
    if node.op_type == "Transpose" and op.attribute("perm", [-1])[:1] != [0]:
        return OTHER
    return kind


def split_lengths(
    node: NodeProto, kind: str, graph: Graph, known: Container[str]
) -> dict[str, int]:
    """Find the most equal parts into which a node can be split, by dimension."""
    op = Op(node, graph)
    named = zip(node.input, op.inputs, strict=True)
    data = [tensor for name, tensor in named if name and name not in known]
    found = {}
    for dimension, rule in RULES.get(kind, {}).items():
        if rule.output == SUM or not op.output.shape:
            continue
        lengths = [_length(op.output, rule.output, kind)]
        if rule.data != WHOLE:
            alike = (t for t in data if kind == RESHAPE or len(t.lengths) == len(op.output.lengths))
            lengths += [_length(tensor, rule.data, kind) for tensor in alike if tensor.shape]
        longer = [length for length in lengths if length > 1]  # others are broadcast
        found[dimension] = math.gcd(*longer) if lengths[0] > 1 else 1
    return found


def _length(tensor: Tensor, axis: str, kind: str) -> int:
    """Return the length of an axis: samples are on the first one, an image's channels next."""
    lengths = tensor.lengths
    if axis == BATCH:
        return lengths[0]
    on_second = len(lengths) > 3 or (kind in (BIAS, CONV, POOL) and len(lengths) > 1)
    return lengths[1 if on_second else -1]
