"""An ONNX file as a graph whose tensors have sizes: functions inlined, open sizes chosen."""

from __future__ import annotations

import math
import os
import re
from collections import ChainMap
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

from google.protobuf.message import DecodeError
from onnx import (
    DeviceConfigurationProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    ValueInfoProto,
)

from enplace.errors import FileError
from enplace.files.fields import shown
from enplace.files.reading import naming, read_bytes
from enplace.frameworks.onnx.branches import Opened, open_branches
from enplace.frameworks.onnx.external import read_constants
from enplace.frameworks.onnx.functions import bodies_of, inline_functions
from enplace.frameworks.onnx.limits import MAX_FILE_BYTES, check_nodes
from enplace.frameworks.onnx.shapes import AS_LARGE, SAME_SIZE, SPLIT, infer
from enplace.frameworks.onnx.tensors import MOST_AXES, UNKNOWN, Tensor, length, sized, tensor_of
from enplace.frameworks.onnx.texts import check_texts
from enplace.text import instead, listed

BATCH = "batch"
"""Name of the first size of each input, if the file leaves it open."""

USUAL_SIZE, USUAL_PIXELS = 128, 224
"""Stand for sizes that the file leaves open and nobody chose: of sequences, and of images."""

_LEAST_IR = 4
"""From this version of the format on, initialisers need not be inputs too."""

_SMALL_BYTES = 1 << 14
"""Values of larger initialisers are dropped: no shape depends on them."""

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
    notes : sequence of str
        What people should know of how it was read, a line each.
    configurations : sequence of DeviceConfigurationProto
        The devices that its nodes may be assigned to.
    """

    name: str
    nodes: Sequence[NodeProto]
    inputs: Mapping[str, Tensor]
    weights: Mapping[str, Tensor]
    tensors: Mapping[str, Tensor]
    constants: Mapping[str, int] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)
    facts: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()
    configurations: Sequence[DeviceConfigurationProto] = ()

    def tensor(self, name: str) -> Tensor:
        """Return what is known of a tensor."""
        return self.tensors.get(name, UNKNOWN)

    def body(self, graph: GraphProto) -> Graph:
        """Return a body in this graph; it sees this graph's tensors."""
        return _graph(graph, self.tensors, self.constants)


def read_graph(
    path: str, batch_size: int = 0, sizes: Mapping[str, int] | None = None, branch: str = ""
) -> Graph:
    """Read a file, and of the data files beside it the few numbers from which shapes follow.

    Parameters
    ----------
    batch_size : int
        Size of the batch; 0 for the file's own, or 1 if it leaves that open.
    sizes : mapping of str to int
        Other sizes that the file leaves open, by their names in it.
    branch : str
        Which branches to open; see :func:`~enplace.frameworks.onnx.branches.open_branches`.

    Raises
    ------
    FileError
        If it is no ONNX model, or not one of these sizes, or has no such branch.
    """
    with naming(path):
        model, opened, missing = read_bare(path, branch)
        notes = [f"{each.what} {each.other}" for each in opened]
        chosen = _choose_sizes(model.graph, batch_size, dict(sizes or {}))
        if chosen:
            sizes_text = listed([f"{name} = {number}" for name, number in chosen.items()])
            notes.append(f"Sizes that the file leaves open: {sizes_text}.")
        guessed = set[str]()
        graph = _graph(infer(model, guessed).graph)
        notes += _describe_guesses(graph, guessed, missing, Path(path).parent)
    opsets = (f"{each.domain or 'ai.onnx'} {each.version}" for each in model.opset_import)
    facts = {
        "producer": " ".join(filter(None, (model.producer_name, model.producer_version))),
        "opset": ", ".join(opsets),
    }
    configurations = tuple(model.configuration)
    return replace(graph, sizes=chosen, facts=facts, notes=notes, configurations=configurations)


def open_model(path: str, branch: str = "") -> tuple[ModelProto, list[Opened]]:
    """Read a file; its functions are inlined, and its large branches opened, which are returned.

    Raises
    ------
    FileError
        If it is no ONNX model, or has no such branch.
    """
    return _opened(_inlined(path), branch)


def read_bare(path: str, branch: str = "") -> tuple[ModelProto, list[Opened], dict[str, str]]:
    """Read a file without the values of its weights.

    Also returns the branches that were opened, and the small tensors whose files are missing, with
    the names of these.

    Raises
    ------
    FileError
        If it is no ONNX model, or has no such branch.
    """
    model = _inlined(path)
    missing = read_constants(model.graph, Path(path).parent)
    _drop_values(model.graph)
    return *_opened(model, branch), missing


def _inlined(path: str) -> ModelProto:
    model = _parse(read_bytes(path, MAX_FILE_BYTES))
    model.ir_version = max(model.ir_version, _LEAST_IR)
    check_nodes(model.graph)
    inline_functions(model)
    return model


def _opened(model: ModelProto, branch: str) -> tuple[ModelProto, list[Opened]]:
    opened = open_branches(model.graph, branch)
    check_nodes(model.graph)
    return model, opened


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


def _describe_guesses(
    graph: Graph, guessed: Collection[str], missing: Mapping[str, str], folder: Path
) -> list[str]:
    """Say which files would tell the shapes that are guessed, or unknown, and what was assumed."""
    maker = {name: node for node in graph.nodes if missing for name in node.output}
    found, kinds = list[set[str]](), set[str]()
    for node in graph.nodes if missing else ():
        name = next(filter(None, node.output), "")
        if name in guessed:
            files = _files_behind(node.input[1:], maker, missing)
        else:
            is_open = name and not graph.tensor(name).is_sized
            files = {missing[each] for each in node.input if is_open and each in missing}
        if files:
            found.append(files)
            kinds.add(node.op_type if name in guessed else "")
    if not found:
        return []
    takes = "op takes its shape" if len(found) == 1 else "ops take their shapes"
    names = sorted(set[str]().union(*found))
    are = "is" if len(names) == 1 else "are"
    links = [shown(name) for name in names if os.path.islink(folder / name)]
    mend = "Put the data there"
    if links:
        mend = f"{listed(links)} {'are links' if len(links) > 1 else 'is a link'} to another folder"
        mend += ", where Enplace reads nothing: put the data itself there"
    return [
        f"{len(found)} {takes} from {listed([*map(shown, names)])}, which {are} not beside the "
        f"model: {'; '.join(_assumptions(kinds))}. {mend}, and import the model again."
    ]


def _assumptions(kinds: Set[str]) -> list[str]:
    """Say what was assumed of ops whose sizes are missing; an empty kind is for all others."""
    as_large = sorted(kind for kind in kinds if kind in AS_LARGE)
    is_reshaped = not kinds.isdisjoint(SAME_SIZE)
    return [
        *["a reshape keeps the number of its values, in a shape that is a guess"] * is_reshaped,
        *["a split counts as one into equal parts"] * (SPLIT in kinds),
        *[f"what {listed(as_large)} makes counts as large as what it takes"] * bool(as_large),
        *["what else they make counts as small"] * ("" in kinds),
    ]


def _files_behind(
    names: Iterable[str], maker: Mapping[str, NodeProto], missing: Mapping[str, str]
) -> set[str]:
    """Return the missing files from which numbers are computed; shapes of tensors are known."""
    found, seen, waiting = set[str](), set[str](), list(names)
    while waiting:
        name = waiting.pop()
        if name in missing:
            found.add(missing[name])
        elif name in maker and name not in seen and maker[name].op_type != "Shape":
            seen.add(name)
            waiting.extend(maker[name].input)
    return found


# Weights


def _drop_values(graph: GraphProto) -> None:
    """Drop the values of all large tensors, so that they are not copied."""
    for each in (graph, *_bodies(graph)):
        tensors = [*each.initializer, *(sparse.values for sparse in each.sparse_initializer)]
        tensors += [a.t for node in each.node for a in node.attribute if a.HasField("t")]
        for tensor in tensors:
            if tensor_of(tensor).n_bytes > _SMALL_BYTES:
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
    weights = {weight.name: tensor_of(weight) for weight in graph.initializer}
    weights |= {sparse.values.name: tensor_of(sparse.values) for sparse in graph.sparse_initializer}
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
    own = {**given, **{name: tensor_of(each) for name, each in constants.items()}, **weights}
    tensors, known = _within(own, outer), _within(numbers, outer_constants)
    return Graph(graph.name, graph.node, inputs, weights, tensors, known)


def _within(own: dict[str, _T], outer: Mapping[str, _T]) -> Mapping[str, _T]:
    """Add what a graph around this one knows, without a copy of it."""
    return ChainMap(own, *outer.maps) if isinstance(outer, ChainMap) else ChainMap(own)


def _number(tensor: TensorProto) -> int | None:
    """Return the value of a tensor that holds one whole number."""
    if tensor.data_type != TensorProto.INT64 or math.prod(tensor.dims[:MOST_AXES]) != 1:
        return None
    if len(tensor.int64_data) == 1:
        return int(tensor.int64_data[0])
    return int.from_bytes(tensor.raw_data, "little", signed=True) if tensor.raw_data else None


def _described(info: ValueInfoProto) -> Tensor:
    kind = info.type.tensor_type
    lengths = (length(d.dim_value) if d.HasField("dim_value") else None for d in kind.shape.dim)
    return sized(info.name, kind.elem_type, tuple(lengths) if kind.HasField("shape") else None)
