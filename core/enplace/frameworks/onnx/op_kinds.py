"""What ONNX ops do, in the words of :mod:`enplace.values.op_kinds`, and how they can be split."""

from __future__ import annotations

import math
from collections.abc import Container

from onnx import NodeProto, defs

from enplace.frameworks.onnx.graph import Graph
from enplace.frameworks.onnx.tensors import Tensor
from enplace.frameworks.onnx.work import Op, is_counted
from enplace.values.op_kinds import OpKind
from enplace.values.splits.rules import BATCH, RULES, SUM, WHOLE

_TYPES = {
    OpKind.MATMUL: """
        FusedGemm FusedMatMul Gemm MatMul MatMulInteger MatMulNBits QGemm QLinearMatMul
    """,
    OpKind.CONV: "Conv ConvInteger ConvTranspose FusedConv QLinearConv",
    OpKind.BIAS: "BatchNormalization PRelu",
    OpKind.ELEMENTWISE: """
        Abs Acos Acosh Add And Asin Asinh Atan Atanh BitShift BitwiseAnd BitwiseNot BitwiseOr
        BitwiseXor Cast CastLike Ceil Celu Clip Cos Cosh DequantizeLinear Div Dropout Elu Equal Erf
        Exp FastGelu Floor Gelu Greater GreaterOrEqual HardSigmoid HardSwish Identity IsInf IsNaN
        LeakyRelu Less LessOrEqual Log Max Mean Min Mish Mod Mul Neg Not Or Pow QLinearAdd
        QLinearMul QuantizeLinear QuickGelu Reciprocal Relu Round Selu Sigmoid Sign Sin Sinh
        Softplus Softsign Sqrt Sub Sum Swish Tan Tanh ThresholdedRelu Where Xor
    """,
    OpKind.POOL: """
        AveragePool GlobalAveragePool GlobalLpPool GlobalMaxPool LpPool MaxPool QLinearAveragePool
        QLinearGlobalAveragePool
    """,
    OpKind.ROWS: """
        Attention GroupNormalization GroupQueryAttention Hardmax InstanceNormalization LRN
        LayerNormalization LogSoftmax MultiHeadAttention RMSNormalization
        SimplifiedLayerNormalization SkipLayerNormalization Softmax
    """,
    OpKind.RESHAPE: "Flatten Reshape Squeeze Transpose Unsqueeze",
    OpKind.GATHER: "Gather",
    OpKind.REDUCE: """
        ArgMax ArgMin ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin
        ReduceProd ReduceSum ReduceSumSquare
    """,
    OpKind.SHAPE: "Shape Size",
    OpKind.REPEAT: "ConstantOfShape Expand Tile",
    OpKind.RANDOM: "Bernoulli RandomNormal RandomNormalLike RandomUniform RandomUniformLike",
    OpKind.CONSTANT: "Constant",
}
_KINDS = {each: kind for kind, types in _TYPES.items() for each in types.split()}


def is_unknown(node: NodeProto) -> bool:
    """Whether nothing is known of what a node does: only the bytes of its tensors count."""
    domain = "" if node.domain == "ai.onnx" else node.domain
    return not (node.op_type in _KINDS or is_counted(node) or defs.has(node.op_type, domain))


def kind_of(node: NodeProto, graph: Graph, known: Container[str]) -> str:
    """Tell the kind of a node.

    Parameters
    ----------
    known : container of str
        Tensors that do not depend on the input, such as weights.
    """
    kind, op = _KINDS.get(node.op_type, OpKind.OTHER), Op(node, graph)
    if kind == OpKind.MATMUL and not any(name in known for name in node.input):
        return OpKind.BATCH_MATMUL
    if kind == OpKind.CONV and op.attribute("group", 1) > 1:
        return OpKind.GROUPED_CONV
    by_rows = not op.attribute("axis", 0) and any(name in known for name in node.input[:1])
    if kind == OpKind.GATHER and not by_rows:
        return OpKind.OTHER
    if kind == OpKind.REDUCE and op.output.lengths[:1] == op.input(0).lengths[:1] != ():
        return OpKind.ROWS  # the first axis stays: each sample is reduced alone
    if node.op_type == "Transpose" and op.attribute("perm", [-1])[:1] != [0]:
        return OpKind.OTHER
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
            lengths += [
                _length(tensor, rule.data, kind)
                for tensor in data
                if tensor.shape
                and (kind == OpKind.RESHAPE or len(tensor.lengths) == len(op.output.lengths))
            ]
        longer = [length for length in lengths if length > 1]  # others are broadcast
        found[dimension] = math.gcd(*longer) if lengths[0] > 1 else 1
    return found


def _length(tensor: Tensor, axis: str, kind: str) -> int:
    """Return the length of an axis: samples are on the first one, an image's channels next."""
    lengths = tensor.lengths
    if axis == BATCH:
        return lengths[0]
    image = kind in (OpKind.BIAS, OpKind.CONV, OpKind.POOL)
    on_second = len(lengths) > 3 or (image and len(lengths) > 1)
    return lengths[1 if on_second else -1]
