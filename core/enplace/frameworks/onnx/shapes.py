"""Shapes of all tensors: what the ONNX library infers from the graph, and what it leaves out.

It leaves out much. Before opset 14 it does not see the values from which a reshape takes its shape,
and it stops at an op that it does not know, such as those that ONNX Runtime fuses. So what is left
is inferred op by op, with the values of small tensors.
"""

from __future__ import annotations

import math
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto, TypeProto, defs
from onnx.helper import make_tensor_type_proto, tensor_dtype_to_np_dtype
from onnx.numpy_helper import from_array, to_array
from onnx.shape_inference import infer_node_outputs, infer_shapes

from enplace.frameworks.onnx.external import MOST_NUMBERS, is_external
from enplace.frameworks.onnx.functions import bodies_of
from enplace.frameworks.onnx.limits import MOST_TURNS

Array = npt.NDArray[Any]
Shape = tuple[int, ...]
Types = ChainMap[str, TypeProto]
Values = ChainMap[str, Array]

_MOST_ROUNDS = 3
"""How often all is inferred: bodies of loops may need what was found around them."""

_MOST_KINDS = 1000
"""Kinds of ops to remember."""

_NUMBERS = (TensorProto.BOOL, TensorProto.FLOAT, TensorProto.INT32, TensorProto.INT64)
"""Types of the values that shapes are computed from."""

_OWN_DOMAINS = ("", "ai.onnx")


def infer(model: ModelProto, guessed: set[str]) -> ModelProto:
    """Return the model with the shape of every tensor for which there is one.

    Adds to ``guessed`` the tensors whose shape is a guess; after a reshape, its size is sure.
    """
    model = _inferred_twice(model, None)
    if _complete(model.graph, model.opset_import, ChainMap(), ChainMap(), guessed):
        model = _inferred_twice(model, guessed)
    return model


def _inferred_twice(model: ModelProto, guessed: set[str] | None) -> ModelProto:
    """Infer shapes from all that is known, as a whole and op by op, until nothing new is found."""
    for _ in range(_MOST_ROUNDS):
        with suppress(Exception):  # of many kinds; then each op is inferred alone
            model = infer_shapes(model, data_prop=True)
        if not _complete(model.graph, model.opset_import, ChainMap(), ChainMap(), guessed):
            break
    return model


def _complete(
    graph: GraphProto,
    opsets: Sequence[OperatorSetIdProto],
    outer: Types,
    outer_values: Values,
    guessed: set[str] | None,
) -> bool:
    """Add the shapes of a graph and its bodies; return whether any was found.

    Parameters
    ----------
    guessed : set of str or None
        Takes the tensors whose shapes are guessed; None to guess none.
    """
    infos = {info.name: info for info in (*graph.input, *graph.output, *graph.value_info)}
    types = outer.new_child({name: info.type for name, info in infos.items()})
    for weight in graph.initializer:
        types[weight.name] = make_tensor_type_proto(weight.data_type, weight.dims)
    values = outer_values.new_child(_known_values(graph.initializer))
    found, readers = False, _find_readers(graph) if guessed is not None else {}
    absent = {each.name for each in _tensors_in(graph) if is_external(each)}
    for node in graph.node:
        bodies = list(bodies_of(node))
        for body in bodies:
            found |= _complete(body, opsets, types, values, guessed)
        if not all(_is_known(types.get(name)) for name in node.output if name):
            outputs = _outputs(node, bodies, opsets, types, values)
            is_open = not outputs or not all(map(_is_known, outputs.values()))
            if is_open and guessed is not None and node.op_type in SAME_SIZE:
                partly = next(iter(outputs.values()), types.get(node.output[0]))
                outputs = _reshaped(node, readers, types, partly)
                guessed.update(outputs)
            elif is_open and guessed is not None and not absent.isdisjoint(node.input):
                outputs = _as_like_input(node, types) or outputs
                guessed.update(outputs)
            for name, made in outputs.items():
                if name and made.tensor_type.HasField("shape") and not _is_known(types.get(name)):
                    if name not in infos:
                        infos[name] = graph.value_info.add(name=name)
                    infos[name].type.CopyFrom(made)
                    types[name] = made
                    found |= _is_known(made)
        if (value := _value(node, types, values)) is not None:
            values[node.output[0]] = value
    return found


def _is_known(found: TypeProto | None) -> bool:
    """Whether nothing more can be found: all lengths are known, or it is no tensor."""
    if found is None or not found.WhichOneof("value"):
        return False
    return not found.HasField("tensor_type") or _shape(found) is not None


def _shape(found: TypeProto | None) -> Shape | None:
    """Return the lengths of a tensor; None if any is unknown."""
    if found is None or not found.tensor_type.HasField("shape"):
        return None
    dims = found.tensor_type.shape.dim
    is_known = all(dim.HasField("dim_value") and dim.dim_value >= 0 for dim in dims)
    return tuple(dim.dim_value for dim in dims) if is_known else None


# Types of what an op puts out


def _outputs(
    node: NodeProto,
    bodies: Sequence[GraphProto],
    opsets: Sequence[OperatorSetIdProto],
    types: Types,
    values: Values,
) -> Mapping[str, TypeProto]:
    if bodies:
        made = [info.type for info in bodies[0].output]
        made = _after_loop(node, made, values) if node.op_type == "Loop" else made
        return dict(zip(node.output, made, strict=False)) if node.op_type != "Scan" else {}
    if schema := _schema(node, opsets):
        return _inferred(schema, node, opsets, types, values)
    return _guessed(node, opsets, types, values)


def _after_loop(node: NodeProto, made: list[TypeProto], values: Values) -> list[TypeProto]:
    """Return the types of a loop's outputs: its state, and lists with an entry for each turn."""
    n_inputs = len(node.input)  # two more than the state has parts; a body returns one more
    found = values.get(node.input[0]) if node.input else None
    is_known = found is not None and found.dtype.kind == "i" and found.size == 1
    turns = int(found.item()) if found is not None and is_known else -1
    lists = []
    for each in made[n_inputs - 1 :]:
        shape = _shape(each) if 0 <= turns <= MOST_TURNS else None
        longer = None if shape is None else (turns, *shape)
        lists.append(make_tensor_type_proto(each.tensor_type.elem_type, longer))
    return [*made[1 : n_inputs - 1], *lists]


def _schema(node: NodeProto, opsets: Iterable[OperatorSetIdProto]) -> defs.OpSchema | None:
    domain = "" if node.domain in _OWN_DOMAINS else node.domain
    same = _OWN_DOMAINS if not domain else (domain,)
    version = next((each.version for each in opsets if each.domain in same), 0)
    return _known_schema(node.op_type, version or defs.onnx_opset_version(), domain)


@lru_cache(_MOST_KINDS)
def _known_schema(kind: str, version: int, domain: str) -> defs.OpSchema | None:
    try:
        return defs.get_schema(kind, version, domain)
    except (defs.SchemaError, TypeError):  # a version may be any number
        return None


def _inferred(
    schema: defs.OpSchema,
    node: NodeProto,
    opsets: Sequence[OperatorSetIdProto],
    types: Mapping[str, TypeProto],
    values: Values,
) -> Mapping[str, TypeProto]:
    """Ask the ONNX library about one op, if all of its inputs are known."""
    given = {name: types.get(name) or TypeProto() for name in node.input if name}
    if not all(map(_is_known, given.values())):
        return {}
    data = {name: from_array(values[name], name) for name in given if name in values}
    try:
        return infer_node_outputs(schema, node, given, data, opset_imports=list(opsets))
    except Exception:  # it raises many kinds
        return {}


# Ops that keep the number of values, in a shape that only a run tells


Readers = Mapping[str, Sequence[NodeProto]]


def _find_readers(graph: GraphProto) -> Readers:
    found: dict[str, list[NodeProto]] = {}
    for node in graph.node:
        for name in node.input:
            found.setdefault(name, []).append(node)
    return found


def _reshaped(
    node: NodeProto, readers: Readers, types: Types, partly: TypeProto | None
) -> Mapping[str, TypeProto]:
    """Guess the shape of what an op puts out from its input's and from what is known of its own.

    The first axes stay as far as possible, as samples do, and the last one is as long as the op
    behind it needs.
    """
    source = types.get(node.input[0]) if node.input else None
    shape = _shape(source)
    if source is None or shape is None:
        return {}
    target = _shape(types.get(node.input[1])) if len(node.input) > 1 else None
    axes = partly.tensor_type.shape.dim if partly is not None else []
    n_axes = len(axes) or (target[0] if target else len(shape))
    lengths = [dim.dim_value if dim.HasField("dim_value") else 0 for dim in axes]
    if lengths.count(0) == 1 and (known := math.prod(filter(None, lengths))) > 0:
        made = tuple(length or math.prod(shape) // known for length in lengths)
    elif node.op_type == "Reshape":
        made = _fill_axes(shape, n_axes, _last_length(node.output[0], readers, types))
    elif node.op_type == "Unsqueeze":
        made = (*shape[:1], *[1] * (target[0] if target else 0), *shape[1:])
    else:
        made = _without_ones(shape, target[0] if target else len(shape))
    return {node.output[0]: make_tensor_type_proto(source.tensor_type.elem_type, made)}


def _tensors_in(graph: GraphProto) -> Iterator[TensorProto]:
    """Iterate over a graph's tensors; those of constants go by the name of what is made of them."""
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute if node.op_type == "Constant" else ():
            if attribute.HasField("t"):
                yield TensorProto(
                    name=node.output[0] if node.output else "",
                    data_location=attribute.t.data_location,
                )


def _as_like_input(node: NodeProto, types: Types) -> Mapping[str, TypeProto]:
    """Guess the shapes of what an op puts out whose sizes lie in a file that is missing."""
    source = types.get(node.input[0])
    shape = _shape(source)
    if source is None or shape is None or node.op_type not in (SPLIT, *AS_LARGE):
        return {}
    axis = _integer(node, "axis") if node.op_type == SPLIT else 0
    if node.op_type == SPLIT and -len(shape) <= axis < len(shape):
        lengths = [*shape]
        lengths[axis] = max(lengths[axis] // len(node.output), 1)
        shape = tuple(lengths)
    made = make_tensor_type_proto(source.tensor_type.elem_type, shape)
    return dict.fromkeys(filter(None, node.output), made)


def _without_ones(shape: Shape, number: int) -> Shape:
    """Drop the last axes of length 1, at most so many."""
    for _ in range(min(number, shape.count(1))):
        at = max(axis for axis, length in enumerate(shape) if length == 1)
        shape = (*shape[:at], *shape[at + 1 :])
    return shape


def _fill_axes(shape: Shape, n_axes: int, last: int) -> Shape:
    """Distribute the values of a shape over some axes, the last of a given length or 0."""
    n_values = math.prod(shape)
    if n_axes < 1 or n_axes > _MOST_GUESSED_AXES or not n_values:
        return shape
    if not last or n_values % last:
        lead = shape[: min(n_axes, len(shape)) - 1]
        return (*lead, *[1] * (n_axes - 1 - len(lead)), n_values // math.prod(lead))
    left, lead = n_values // last, tuple[int, ...]()
    for length in shape[: n_axes - 2]:
        if left % length:
            break
        lead, left = (*lead, length), left // length
    if n_axes == 1:
        return (n_values,)
    return (*lead, *[1] * (n_axes - 2 - len(lead)), left, last)


def _last_length(name: str, readers: Readers, types: Types) -> int:
    """Return how long the last axis of a tensor is, by what is done to it; 0 if nothing tells."""
    for node in readers.get(name, ()):
        for number, other in enumerate(map(types.get, node.input)):
            shape = _shape(other)
            if not shape or node.input[number] == name:
                continue
            if node.op_type in ("MatMul", "FusedMatMul", "Gemm") and number == 1 < len(shape):
                return shape[-1 if _integer(node, "transB") else -2]
            if node.op_type in _ALONG_LAST and len(shape) == 1 < shape[0]:
                return shape[0]
    return 0


_MOST_GUESSED_AXES = 16

SAME_SIZE = ("Reshape", "Squeeze", "Unsqueeze")

SPLIT, AS_LARGE = "Split", ("Expand", "Pad", "Resize", "Slice", "Tile")
"""Ops whose sizes may lie in another file. What is made of the last is taken to be as large."""

_ALONG_LAST = ("Add", "Div", "LayerNormalization", "Mul", "RMSNormalization", "Sub")
"""Ops whose other input, if it has one axis, lies along the last."""


# Ops that the library does not know, most of them ONNX Runtime's own


def _guessed(
    node: NodeProto, opsets: Sequence[OperatorSetIdProto], types: Types, values: Values
) -> Mapping[str, TypeProto]:
    """Guess the first output's type: by a rule, as of a like op, or else as the first input's.

    The others, such as masks and statistics, are smaller, except for a sum that goes on.
    """
    if not node.input or node.input[0] not in types:
        return {}
    given = [types.get(name) for name in node.input]
    made = TypeProto()
    made.CopyFrom(types[node.input[0]])
    if node.op_type in _RULES:
        shape = _RULES[node.op_type](node, [_shape(each) for each in given])
        made = make_tensor_type_proto(made.tensor_type.elem_type, shape)
    elif node.op_type in _LIKE:
        made = _as_like_op(node, opsets, types, values)
    typed = _TYPED.get(node.op_type, 0)
    if typed < len(given) and (source := given[typed]) is not None:
        made.tensor_type.elem_type = source.tensor_type.elem_type
    going_on = {node.output[3]: made} if node.op_type in _SUMS and len(node.output) > 3 else {}
    return {**dict.fromkeys(node.output[:1], made), **going_on}


def _as_like_op(
    node: NodeProto, opsets: Sequence[OperatorSetIdProto], types: Types, values: Values
) -> TypeProto:
    """Infer the type as that of an op which the library knows, for numbers of its own type."""
    kind, taken = _LIKE[node.op_type]
    like = NodeProto(op_type=kind, input=node.input[taken], output=["y"])
    if (schema := _schema(like, opsets)) is None:
        return TypeProto()
    like.attribute.extend(each for each in node.attribute if each.name in schema.attributes)
    as_floats = {}
    for name in like.input:
        as_floats[name] = TypeProto()
        as_floats[name].CopyFrom(types.get(name, TypeProto()))
        as_floats[name].tensor_type.elem_type = TensorProto.FLOAT
    return _inferred(schema, like, opsets, as_floats, values).get("y", TypeProto())


Shapes = Sequence[Shape | None]
Rule = Callable[[NodeProto, Shapes], Shape | None]


def _nth(shapes: Shapes, number: int) -> Shape:
    """Return the shape of an input; empty if it is unknown or left out."""
    return (shapes[number] if number < len(shapes) else None) or ()


def _product(left: int, right: int) -> Rule:
    """Multiply two of the inputs, each of which may be transposed first."""

    def shape(node: NodeProto, shapes: Shapes) -> Shape | None:
        a, b = _nth(shapes, left), _nth(shapes, right)
        if len(a) < 2 or len(b) < 2:
            return None
        rows = a[-1] if _integer(node, "transA") else a[-2]
        return (*a[:-2], rows, b[-2] if _integer(node, "transB") else b[-1])

    return shape


def _quantised_product(node: NodeProto, shapes: Shapes) -> Shape | None:
    """Multiply with a weight whose shape is an attribute."""
    x = _nth(shapes, 0)
    return (*x[:-1], max(0, _integer(node, "N"))) if x else None


def _grouped_attention(node: NodeProto, shapes: Shapes) -> Shape | None:
    """Attend with queries, which may hold the keys and values too."""
    x = _nth(shapes, 0)
    if not x or (len(node.input) > 1 and node.input[1]):
        return x or None
    n_heads, n_keys = (max(0, _integer(node, f"{each}num_heads")) for each in ("", "kv_"))
    return (*x[:-1], x[-1] * n_heads // max(1, n_heads + 2 * n_keys))


def _attention(_: NodeProto, shapes: Shapes) -> Shape | None:
    """Attend; the queries may hold the keys and values too, as an axis of three."""
    x = _nth(shapes, 0)
    return (*x[:2], x[2] * x[4]) if len(x) == 5 else x or None


def _embedding(_: NodeProto, shapes: Shapes) -> Shape | None:
    """Look up words."""
    ids, words = _nth(shapes, 0), _nth(shapes, 2)
    return (*ids, words[-1]) if ids and words else None


def _integer(node: NodeProto, name: str, default: int = 0) -> int:
    return next((each.i for each in node.attribute if each.name == name), default)


_RULES: Mapping[str, Rule] = {
    **dict.fromkeys(("MatMulBnb4", "MatMulNBits"), _quantised_product),
    **dict.fromkeys(
        ("DynamicQuantizeMatMul", "FusedGemm", "FusedMatMul", "MatMulIntegerToFloat"),
        _product(0, 1),
    ),
    "QGemm": _product(0, 3),
    "EmbedLayerNormalization": _embedding,
    "GroupQueryAttention": _grouped_attention,
    "MultiHeadAttention": _attention,
}

_LIKE = {
    "FusedConv": ("Conv", slice(0, 3)),
    "QLinearAveragePool": ("AveragePool", slice(0, 1)),
    "QLinearConcat": ("Concat", slice(2, None, 3)),
    "QLinearGlobalAveragePool": ("GlobalAveragePool", slice(0, 1)),
}
"""An op of the library, and which inputs it would take."""

_TYPED = {
    "DequantizeLinear": 1,
    "EmbedLayerNormalization": 2,
    "MatMulIntegerToFloat": 2,
    "QLinearConcat": 2,
    "QuantizeLinear": 2,
}
"""The input whose type the output has, if it is not the first."""

_SUMS = ("SkipLayerNormalization", "SkipSimplifiedLayerNormalization")
"""Ops whose fourth output is as large as the first."""


# Values of small tensors


def _known_values(tensors: Iterable[TensorProto]) -> dict[str, Array]:
    pairs = ((tensor.name, _read(tensor)) for tensor in tensors)
    return {name: value for name, value in pairs if value is not None}


def _read(tensor: TensorProto) -> Array | None:
    """Return the values of a small tensor with at most one axis; None for another."""
    is_small = len(tensor.dims) <= 1 and 0 <= math.prod(tensor.dims) <= MOST_NUMBERS
    if not (is_small and not is_external(tensor) and tensor.data_type in _NUMBERS):
        return None
    try:
        return to_array(tensor)
    except (TypeError, ValueError):  # it holds another number of values than it says
        return None


def _value(node: NodeProto, types: Types, values: Values) -> Array | None:
    """Compute what an op puts out, if that is small and its inputs are known."""
    if len(node.output) != 1 or node.domain not in _OWN_DOMAINS:
        return None
    if node.op_type == "Constant":
        return next(filter(lambda each: each is not None, map(_constant, node.attribute)), None)
    if node.op_type == "Shape" and len(node.input) == 1:
        shape = _shape(types.get(node.input[0]))
        ends = {each.name: each.i for each in node.attribute}
        part = slice(ends.get("start"), ends.get("end"))
        return None if shape is None else np.array(shape[part], np.int64)
    compute, taken = _COMPUTED.get(node.op_type), list(filter(None, node.input))
    if compute is None or not all(name in values for name in taken):
        return None
    try:
        with np.errstate(all="ignore"):
            made = np.asarray(compute(node, *(values[name] for name in taken)))
    except (ArithmeticError, LookupError, TypeError, ValueError):  # it would fail in a run, too
        return None
    if made.ndim > 1 or made.size > MOST_NUMBERS:
        return None
    return made.astype(np.float32) if made.dtype.kind == "f" else made


def _constant(attribute: Any) -> Array | None:
    if attribute.name == "value":
        return _read(attribute.t)
    if attribute.name == "value_int":
        return np.array(attribute.i, np.int64)
    if attribute.name == "value_ints" and len(attribute.ints) <= MOST_NUMBERS:
        return np.array(attribute.ints, np.int64)
    return None


def _cast(node: NodeProto, x: Array) -> Array:
    to = _integer(node, "to")
    if to not in _NUMBERS:
        raise ValueError(to)
    return x.astype(tensor_dtype_to_np_dtype(to))


def _divide(_: NodeProto, x: Array, y: Array) -> Array:
    return x // y if x.dtype.kind == "i" else x / y


def _slice(node: NodeProto, x: Array, *ends: Array) -> Array:
    """Take a part of a list; until opset 9, its ends are attributes."""
    named = {each.name: list(each.ints[:2]) for each in node.attribute}
    start, end, *more = ends or (named["starts"], named["ends"], named.get("axes", [0]))
    axes, steps = [*more, [0], [1]][:2] if len(more) < 2 else more
    (begin,), (stop,), (axis,), (step,) = start, end, axes, steps
    if axis not in (0, -1):
        raise IndexError(axis)
    return x[int(begin) : int(stop) : int(step)]


def _filled(node: NodeProto, lengths: Array) -> Array:
    if lengths.size != 1 or not 0 <= int(lengths[0]) <= MOST_NUMBERS:
        raise ValueError(lengths)
    value = next((_constant(each) for each in node.attribute), None)
    return np.full(int(lengths[0]), np.float32(0) if value is None else value.reshape(()))


def _function(function: Callable[..., Array]) -> Callable[..., Array]:
    """Leave out the node."""
    return lambda _, *inputs: function(*inputs)


_COMPUTED: Mapping[str, Callable[..., Array]] = {
    "Add": _function(np.add),
    "Cast": _cast,
    "Ceil": _function(np.ceil),
    "Concat": _function(lambda *inputs: np.concatenate(inputs)),
    "ConstantOfShape": _filled,
    "Div": _divide,
    "Equal": _function(np.equal),
    "Floor": _function(np.floor),
    "Gather": _function(lambda x, at: np.take(x, at, axis=0)),
    "Identity": _function(lambda x: x),
    "Max": _function(np.maximum),
    "Min": _function(np.minimum),
    "Mul": _function(np.multiply),
    "Neg": _function(np.negative),
    "ReduceProd": lambda node, x, *_: np.prod(x, keepdims=_integer(node, "keepdims", 1) != 0),
    "Reshape": _function(lambda x, shape: x.reshape(tuple(shape.tolist()))),
    "Slice": _slice,
    "Squeeze": _function(lambda x, *_: x.reshape(())),
    "Sub": _function(np.subtract),
    "Unsqueeze": _function(lambda x, *_: x.reshape(1)),
    "Where": _function(np.where),
}
"""Ops that shapes are computed with, on lists and single numbers."""
