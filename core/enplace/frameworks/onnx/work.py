"""What ONNX ops have to do: arithmetic, and bytes read and written.

The families that take most of a model's time are counted exactly; of all others we assume one
operation for each value, so that their bytes decide. A product and a sum count as two operations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import reduce
from operator import add
from typing import Any

from onnx import AttributeProto, NodeProto

from enplace.frameworks.onnx.functions import bodies_of
from enplace.frameworks.onnx.graph import Graph
from enplace.frameworks.onnx.limits import MOST_TURNS
from enplace.frameworks.onnx.tensors import Tensor
from enplace.frameworks.roofline import F8, F16, F32, F64, I8, Work

_PRECISIONS = {
    "DOUBLE": F64,
    **dict.fromkeys(("FLOAT16", "BFLOAT16"), F16),
    **dict.fromkeys(("FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ"), F8),
    **dict.fromkeys(("INT8", "UINT8", "INT4", "UINT4"), I8),
}

_MOST_FLOPS, _MOST_AXES = 10**30, 8
"""Most operations of an op, and axes of a window, that count."""


def _value(attribute: AttributeProto) -> Any:
    """Return the value of an attribute: a number, text or list of numbers; None for others."""
    if attribute.type == AttributeProto.INT:
        return attribute.i
    if attribute.type == AttributeProto.STRING:
        return attribute.s
    return list(attribute.ints[:_MOST_AXES]) if attribute.type == AttributeProto.INTS else None


class Op:
    """A node with its tensors.

    Attributes
    ----------
    kind : str
        Its type, without that it is quantised or fused.
    inputs, outputs : list of Tensor
        Inputs that are left out are unknown tensors.
    """

    def __init__(self, node: NodeProto, graph: Graph) -> None:
        self.node, self.graph = node, graph
        self.kind = node.op_type
        self.inputs = [graph.tensor(name) for name in node.input]
        self.outputs = [graph.tensor(name) for name in node.output]

    def input(self, number: int) -> Tensor:
        return self.inputs[number] if number < len(self.inputs) else Tensor()

    @property
    def output(self) -> Tensor:
        return self.outputs[0] if self.outputs else Tensor()

    def attribute(self, name: str, default: Any) -> Any:
        """Return the value of an attribute; the default if it is missing, or of another type."""
        for each in self.node.attribute:
            if each.name == name:
                value = _value(each)
                return value if isinstance(value, type(default)) else default
        return default

    @property
    def n_bytes(self) -> int:
        """Bytes of all inputs and outputs."""
        return sum(tensor.n_bytes for tensor in (*self.inputs, *self.outputs))


def is_counted(node: NodeProto) -> bool:
    """Whether there is a rule for what a node of this type has to do."""
    return any(node.op_type in types for types in (_MATRIX, _PARTIAL, _PLAIN, _VIEWS))


def is_view(node: NodeProto) -> bool:
    """Whether runtimes give a node's first input as its output, and never copy it."""
    return node.op_type in _ALIASES


def work_of(node: NodeProto, graph: Graph) -> Work:
    """Count what a node has to do, with the bodies of a loop or branch."""
    op = Op(node, graph)
    if any(True for _ in bodies_of(node)):
        return _control_flow(op)
    if node.op_type in _VIEWS:
        return Work(kernels=0)
    if node.op_type in _PARTIAL:
        return Work(op.output.n_values, 0.0, 2 * op.output.n_bytes)
    matrix = _MATRIX.get(node.op_type)
    if matrix is None:
        flops = _PLAIN.get(node.op_type, _each_value)(op)
        return Work(float(min(flops, _MOST_FLOPS)), 0.0, op.n_bytes)
    products = float(min(matrix(op), _MOST_FLOPS))
    on_tensor_cores, kernels = not _is_depthwise(op), _steps(op)
    precision = _PRECISIONS.get(op.input(0).dtype, F32)
    on_them = products if on_tensor_cores else 0.0
    return Work(products, on_them, op.n_bytes, kernels, precision)


# Products


def _convolution(op: Op) -> int:
    return 2 * op.output.n_values * math.prod(_filter(op).lengths[1:])


def _transposed(op: Op) -> int:
    return 2 * op.input(0).n_values * math.prod(_filter(op).lengths[1:])


def _filter(op: Op) -> Tensor:
    return op.input(3 if op.kind == "QLinearConv" else 1)


def _is_depthwise(op: Op) -> bool:
    """Whether each channel has a filter of its own, which tensor cores do not help."""
    return op.kind in _CONVOLUTIONS and op.attribute("group", 1) > 1 == _nth(_filter(op), 1)


def _gemm(op: Op) -> int:
    return 2 * op.output.n_values * _nth(op.input(0), 0 if op.attribute("transA", 0) else -1)


def _product(op: Op) -> int:
    return 2 * op.output.n_values * _nth(op.input(0), -1)


def _einsum(op: Op) -> int:
    """Count the product of all lengths: each letter once, and the axes that dots stand for."""
    terms = op.attribute("equation", b"").decode(errors="replace").replace(" ", "")
    lengths: dict[str, int] = {}
    for term, tensor in zip(terms.partition("->")[0].split(","), op.inputs, strict=False):
        before, dots, after = term.partition("...")
        n_dots = len(tensor.lengths) - len(before) - len(after) if dots else 0
        names = [*before, *(f".{n_dots - i}" for i in range(n_dots)), *after]
        for name, length in zip(names, tensor.lengths, strict=False):
            lengths[name] = max(length, lengths.get(name, 1))
    return max(1, len(op.inputs)) * math.prod(lengths.values())


def _recurrent(op: Op) -> int:
    weights = op.input(1).n_values + op.input(2).n_values
    return 2 * math.prod(op.input(0).lengths[:2]) * weights


def _attention(op: Op) -> int:
    """Count the products of queries and keys, and of their scores and the values.

    ONNX Runtime's ops may take queries, keys and values as one input.
    """
    query, key, past = op.input(0), op.input(1), op.input(_PAST[op.kind])
    if key.shape is None:
        query, n_keys = op.output, _nth(query, 1)
    else:
        n_keys = _nth(key, 2 if len(key.lengths) == 4 else 1)
    if len(past.lengths) == 4:
        n_keys += past.lengths[2]
    return 2 * n_keys * (query.n_values + op.output.n_values)


def _attention_with_projection(op: Op) -> int:
    """Count the same for queries, keys and values that the op makes (``com.microsoft``)."""
    projected = 2 * op.input(0).n_values * _nth(op.input(1), -1)
    return projected + 4 * _nth(op.input(0), 1) * op.output.n_values


def _any_attention(op: Op) -> int:
    return (_attention_with_projection if op.node.domain == "com.microsoft" else _attention)(op)


def _steps(op: Op) -> int:
    """Count the kernels that run one after another: one for each step of a recurrent op."""
    if op.kind not in _RECURRENT:
        return 1
    return min(_nth(op.input(0), 1 if op.attribute("layout", 0) else 0), MOST_TURNS)


def _nth(tensor: Tensor, axis: int) -> int:
    lengths = tensor.lengths
    return lengths[axis] if -len(lengths) <= axis < len(lengths) else 1


_CONVOLUTIONS = ("Conv", "ConvInteger", "DeformConv", "FusedConv", "QLinearConv")
_RECURRENT = ("GRU", "LSTM", "RNN")
_PAST = {"Attention": 4, "GroupQueryAttention": 3, "MultiHeadAttention": 6}
"""Attention, and which input holds the keys of earlier calls."""
_MATRIX: Mapping[str, Callable[[Op], int]] = {
    **dict.fromkeys(_CONVOLUTIONS, _convolution),
    "ConvTranspose": _transposed,
    **dict.fromkeys(("FusedGemm", "Gemm"), _gemm),
    **dict.fromkeys(
        ("FusedMatMul", "MatMul", "MatMulInteger", "MatMulNBits", "QGemm", "QLinearMatMul"),
        _product,
    ),
    "Einsum": _einsum,
    **dict.fromkeys(_RECURRENT, _recurrent),
    "Attention": _any_attention,
    **dict.fromkeys(("GroupQueryAttention", "MultiHeadAttention"), _attention),
}

# Everything else


def _each_value(op: Op) -> int:
    return max(op.output.n_values, op.input(0).n_values)


def _of_input(factor: int) -> Callable[[Op], int]:
    return lambda op: factor * op.input(0).n_values


def _window(op: Op) -> int:
    kernel: list[int] = op.attribute("kernel_shape", [])
    return op.output.n_values * math.prod(length for length in kernel if length > 0)


_ALIASES = ("Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze")
_VIEWS = (*_ALIASES, "Constant", "Dropout", "Shape", "Size")
"""Ops that launch no kernel in an inference."""

_PARTIAL = (
    "Compress", "EyeLike", "Gather", "GatherElements", "GatherND", "Slice",
)  # fmt: skip
"""Ops that read only what they put out."""

_PLAIN: Mapping[str, Callable[[Op], int]] = {
    **dict.fromkeys(("AveragePool", "LpPool", "MaxPool", "QLinearAveragePool"), _window),
    **dict.fromkeys(("LogSoftmax", "Softmax"), _of_input(5)),
    **dict.fromkeys(
        (
            "BatchNormalization", "GroupNormalization", "InstanceNormalization",
            "LayerNormalization", "LRN", "RMSNormalization", "SimplifiedLayerNormalization",
            "SkipLayerNormalization",
        ),
        _of_input(8),
    ),
}  # fmt: skip

# Loops and branches


def _control_flow(op: Op) -> Work:
    """Count the longest branch, or all turns of a loop as far as their number is known."""
    bodies = [_body(op.graph.body(body)) for body in bodies_of(op.node)]
    if op.kind == "If":
        return max(bodies, key=lambda work: (work.matrix_flops, work.n_bytes, work.kernels))
    return reduce(add, bodies).repeated(_turns(op))


def _body(graph: Graph) -> Work:
    return reduce(add, (work_of(node, graph) for node in graph.nodes), Work(kernels=0))


def _turns(op: Op) -> int:
    """Find the turns of a loop: a constant number, or the length of what it scans; else 1."""
    if op.kind == "Scan":
        n_scanned = op.attribute("num_scan_inputs", 0)
        return min(_nth(op.input(len(op.inputs) - n_scanned), 0), MOST_TURNS) if n_scanned else 1
    turns = op.graph.constants.get(op.node.input[0], 1) if op.node.input else 1
    return turns if 1 <= turns <= MOST_TURNS else 1
