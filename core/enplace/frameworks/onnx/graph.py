"""An ONNX file as a graph whose tensors have sizes: functions inlined, open sizes chosen."""

from __future__ import annotations

import math
import re
from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TypeVar

from google.protobuf.message import DecodeError
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

from enplace.errors import FileError
from enplace.files.fields import shown
from enplace.files.reading import naming, read_bytes
from enplace.frameworks.onnx.functions import bodies_of, inline_functions
from enplace.frameworks.onnx.limits import MAX_FILE_BYTES, check_nodes
from enplace.frameworks.onnx.shapes import infer
from enplace.frameworks.onnx.texts import check_texts
from enplace.text import instead
from enplace.values.limits import MAX_BYTES

BATCH = "batch"
"""Name of the first size of each input, if the file leaves it open."""

USUAL_SIZE, USUAL_PIXELS = 128, 224
"""Stand for sizes that the file leaves open and nobody chose: of sequences, and of images."""

_MOST_AXES = 64

_LEAST_IR = 4
"""From this version of the format on, initialisers need not be inputs too."""

_SMALL_BYTES = 1 << 14
"""Values of larger initialisers are dropped: no shape depends on them."""

_BITS = {
    **dict.fromkeys(("BOOL", "INT8", "UINT8"), 8),
    **dict.fromkeys(("FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ"), 8),
    "FLOAT8E8M0": 8,
    **dict.fromkeys(("FLOAT16", "BFLOAT16", "INT16", "UINT16"), 16),
    **dict.fromkeys(("FLOAT", "INT32", "UINT32"), 32),
    **dict.fromkeys(("DOUBLE", "INT64", "UINT64", "COMPLEX64"), 64),
    **dict.fromkeys(("INT4", "UINT4", "FLOAT4E2M1"), 4),
    **dict.fromkeys(("INT2", "UINT2"), 2),
    "COMPLEX128": 128,
}
"""Bits of a value by the name of its type; texts have no fixed size."""


@dataclass(frozen=True)
class Tensor:
    """What is known of a tensor.

    Attributes
    ----------
    dtype : str
        The name of its type in ``TensorProto``; empty if unknown.
    shape : tuple of (int or None), or None
        None for what is known only when the model runs.
    """

    dtype: str = ""
    shape: tuple[int | None, ...] | None = None

    @property
    def lengths(self) -> tuple[int, ...]:
        """The shape, with 1 for every unknown length; empty without a shape."""
        return tuple(1 if length is None else length for length in self.shape or ())

    @property
    def is_sized(self) -> bool:
        """Whether its bytes are known."""
        return self.shape is not None and None not in self.shape and self.dtype in _BITS

    @property
    def n_values(self) -> int:
        """Number of values, with 1 for every unknown length; 0 without a shape."""
        return 0 if self.shape is None else math.prod(self.lengths)

    @property
    def n_bytes(self) -> int:
        """Bytes, with 1 for every unknown length; 0 without shape or type."""
        return (self.n_values * _BITS.get(self.dtype, 0) + 7) // 8


UNKNOWN = Tensor()

_T = TypeVar("_T")


@dataclass(frozen=True, eq=False)
class Graph:
    """A model's graph, or the body of a loop or branch.

    Attributes
    ----------
    name : str
    nodes : sequence of NodeProto
    inputs : mapping of str to Tensor
        What is fed.
    weights : mapping of str to Tensor
        The initialisers, as they lie in the file.
    tensors : mapping of str to Tensor
        Everything that is known by name, inputs and weights too.
    constants : mapping of str to int
        Whole numbers that are known, such as the turns of a loop.
    sizes : mapping of str to int
        The sizes that the file leaves open, as they were chosen.
    facts : mapping of str to str
        Who exported it.
    """

    name: str
    nodes: Sequence[NodeProto]
    inputs: Mapping[str, Tensor]
    weights: Mapping[str, Tensor]
    tensors: Mapping[str, Tensor]
    constants: Mapping[str, int] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)
    facts: Mapping[str, str] = field(default_factory=dict)

    def tensor(self, name: str) -> Tensor:
        """Return what is known of a tensor."""
        return self.tensors.get(name, UNKNOWN)

    def body(self, graph: GraphProto) -> Graph:
        """Return a body in this graph; it sees this graph's tensors."""
        return _graph(graph, self.tensors, self.constants)


def read_graph(path: str, batch_size: int = 0, sizes: Mapping[str, int] | None = None) -> Graph:
    """Read a file. Other files that it names are left alone: their sizes are in this one.

    Parameters
    ----------
    batch_size : int
        Size of the batch; 0 for the file's own, or 1 if it leaves that open.
    sizes : mapping of str to int
        Other sizes that the file leaves open, by their names in it.

    Raises
    ------
    FileError
        If it is no ONNX model, or not one of these sizes.
    """
    with naming(path):
        model = _parse(read_bytes(path, MAX_FILE_BYTES))
        model.ir_version = max(model.ir_version, _LEAST_IR)
        check_nodes(model.graph)
        inline_functions(model)
        _drop_values(model.graph)
        chosen = _choose_sizes(model.graph, batch_size, dict(sizes or {}))
        graph = _graph(infer(model).graph)
    opsets = (f"{each.domain or 'ai.onnx'} {each.version}" for each in model.opset_import)
    facts = {
        "producer": " ".join(filter(None, (model.producer_name, model.producer_version))),
        "opset": ", ".join(opsets),
    }
    return replace(graph, sizes=chosen, facts=facts)


def _parse(content: bytes) -> ModelProto:
    model = ModelProto()
    try:
        model.ParseFromString(content)
    except (DecodeError, RecursionError, UnicodeDecodeError):
        raise FileError("damaged or not an ONNX model; export or copy it again") from None
    if not model.graph.node:
        raise FileError("holds no graph; export the model again")
    check_texts(model)
    return model


# Weights


def _drop_values(graph: GraphProto) -> None:
    """Drop the values of all large tensors, so that they are not copied."""
    for each in (graph, *_bodies(graph)):
        tensors = [*each.initializer, *(sparse.values for sparse in each.sparse_initializer)]
        tensors += [a.t for node in each.node for a in node.attribute if a.HasField("t")]
        for tensor in tensors:
            if _tensor(tensor).n_bytes > _SMALL_BYTES:
                _clear(tensor)


def _clear(tensor: TensorProto) -> None:
    for name in ("raw_data", "float_data", "int32_data", "int64_data", "double_data"):
        tensor.ClearField(name)
    for name in ("uint64_data", "string_data", "external_data", "data_location"):
        tensor.ClearField(name)


def _bodies(graph: GraphProto) -> Iterator[GraphProto]:
    """Iterate over the bodies of all loops and branches in a graph, at any depth."""
    for node in graph.node:
        for body in bodies_of(node):
            yield body
            yield from _bodies(body)


# Sizes that a file leaves open


def _choose_sizes(graph: GraphProto, batch_size: int, wanted: dict[str, int]) -> dict[str, int]:
    """Write a number for every size that inputs leave open; return them by name.

    Sizes of one name are equal. Some exporters write an open size as -1.
    """
    for info in _infos(graph):
        for dim in info.type.tensor_type.shape.dim:
            if dim.dim_value < 0:
                dim.ClearField("dim_value")
    open_sizes = _open_sizes(graph)
    if batch_size and BATCH not in {kind for kind, _ in open_sizes.values()}:
        raise FileError(
            f"its inputs have a fixed batch; export it with an open one, or leave out the batch "
            f"size {batch_size}"
        )
    for name in wanted:
        if name not in open_sizes:
            fix = instead(name, open_sizes) if open_sizes else "it leaves none open"
            raise FileError(f"no input has a size called {shown(name)}; {fix}")
    chosen = {
        name: wanted.get(name) or (batch_size or 1 if kind == BATCH else usual)
        for name, (kind, usual) in open_sizes.items()
    }
    for info in _infos(graph):
        for axis, dim in enumerate(info.type.tensor_type.shape.dim):
            name = _size_name(info, axis)
            size = chosen.get(name) or _sum(name, chosen)
            if not dim.HasField("dim_value") and size is not None:
                dim.dim_value = size
    return chosen


def _open_sizes(graph: GraphProto) -> dict[str, tuple[str, int]]:
    """Find the sizes that inputs leave open: kind and usual value of each name."""
    weights = {weight.name for weight in graph.initializer}
    found: dict[str, tuple[str, int]] = {}
    for info in graph.input:
        dims = info.type.tensor_type.shape.dim
        is_image = len(dims) == 4 and not any(dim.HasField("dim_value") for dim in dims[2:])
        has_batch = any(_BATCH_NAME.search(dim.dim_param) for dim in dims)
        for axis, dim in enumerate(dims):
            if info.name not in weights and not dim.HasField("dim_value"):
                is_length = bool(_LENGTH_NAME.search(dim.dim_param))
                is_first = axis == 0 and not has_batch and not is_length
                kind = BATCH if is_first or _BATCH_NAME.search(dim.dim_param) else ""
                usual = USUAL_PIXELS if is_image and not is_length else USUAL_SIZE
                found.setdefault(_size_name(info, axis), (kind, usual))
    any_sizes = dict.fromkeys(found, 1)
    return {name: each for name, each in found.items() if _sum(name, any_sizes) is None}


_BATCH_NAME = re.compile(r"batch|^(n|b|bs)$", re.IGNORECASE)
"""Names of the batch; where no axis of an input has one, its first axis is the batch."""

_LENGTH_NAME = re.compile(r"seq|len|time|step|past", re.IGNORECASE)
"""Names of the lengths of sequences."""


def _sum(name: str, sizes: Mapping[str, int]) -> int | None:
    """Return a size that is named as a sum of others, such as ``past_length + 1``; or None."""
    terms = [term.strip() for term in name.split("+")]
    values = [int(t) if re.fullmatch(r"[0-9]{1,9}", t) else sizes.get(t, -1) for t in terms]
    return sum(values) if len(values) > 1 and min(values) >= 0 else None


def _size_name(info: ValueInfoProto, axis: int) -> str:
    """Name a size as the file does, or after its input."""
    named = info.type.tensor_type.shape.dim[axis].dim_param
    return named or f"{info.name}[{axis}]"


def _infos(graph: GraphProto) -> Iterator[ValueInfoProto]:
    for each in (graph, *_bodies(graph)):
        yield from each.input
        yield from each.output
        yield from each.value_info


# The graph


def _graph(
    graph: GraphProto,
    outer: Mapping[str, Tensor] = MappingProxyType({}),
    outer_constants: Mapping[str, int] = MappingProxyType({}),
) -> Graph:
    weights = {weight.name: _tensor(weight) for weight in graph.initializer}
    weights |= {sparse.values.name: _tensor(sparse.values) for sparse in graph.sparse_initializer}
    given = {
        info.name: _described(info)
        for info in (*graph.input, *graph.output, *graph.value_info)
        if info.name
    }
    constants = {
        node.output[0]: attribute.t
        for node in graph.node
        for attribute in node.attribute
        if node.op_type == "Constant" and node.output and attribute.HasField("t")
    }
    numbers = {weight.name: weight for weight in graph.initializer} | constants
    numbers = {name: number for name, t in numbers.items() if (number := _number(t)) is not None}
    fed = (info.name for info in graph.input if info.name and info.name not in weights)
    inputs = {name: given[name] for name in fed}
    own = {**given, **{name: _tensor(each) for name, each in constants.items()}, **weights}
    tensors, known = _within(own, outer), _within(numbers, outer_constants)
    return Graph(graph.name, graph.node, inputs, weights, tensors, known)


def _within(own: dict[str, _T], outer: Mapping[str, _T]) -> Mapping[str, _T]:
    """Add what a graph around this one knows, without a copy of it."""
    return ChainMap(own, *outer.maps) if isinstance(outer, ChainMap) else ChainMap(own)


def _number(tensor: TensorProto) -> int | None:
    """Return the value of a tensor that holds one whole number."""
    if tensor.data_type != TensorProto.INT64 or math.prod(tensor.dims[:_MOST_AXES]) != 1:
        return None
    if len(tensor.int64_data) == 1:
        return int(tensor.int64_data[0])
    return int.from_bytes(tensor.raw_data, "little", signed=True) if tensor.raw_data else None


def _described(info: ValueInfoProto) -> Tensor:
    kind = info.type.tensor_type
    lengths = (_length(d.dim_value) if d.HasField("dim_value") else None for d in kind.shape.dim)
    return _sized(info.name, kind.elem_type, tuple(lengths) if kind.HasField("shape") else None)


def _length(value: int) -> int | None:
    return value if value >= 0 else None


def _tensor(tensor: TensorProto) -> Tensor:
    return _sized(tensor.name, tensor.data_type, tuple(map(_length, tensor.dims)))


def _sized(name: str, dtype: int, shape: tuple[int | None, ...] | None) -> Tensor:
    names = TensorProto.DataType.values()
    kind = TensorProto.DataType.Name(dtype) if dtype in names and dtype else ""
    tensor = Tensor(kind, shape)
    if len(tensor.lengths) > _MOST_AXES:
        raise FileError(f"tensor {shown(name)}: has over {_MOST_AXES} axes; export the model again")
    if tensor.n_bytes > MAX_BYTES:
        raise FileError(f"tensor {shown(name)}: its shape has more bytes than any machine holds")
    return tensor
