"""Programs of ``torch.export`` (``.pt2``) as plain values: a graph with the size of each tensor.

The file is a zip. Its JSON holds the graph; weights, constants and sample inputs lie beside it and
are never read. PyTorch's own loader is not used, because it evaluates sizes as Python and unpickles
sample inputs. Nothing here needs PyTorch.
"""

from __future__ import annotations

import re
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from enplace.errors import FileError
from enplace.files.fields import is_object, shown, take, whole
from enplace.files.json_text import parse_json
from enplace.files.reading import MAX_FILE_BYTES, gather, most_unpacked_bytes, naming, open_to_read

MAX_NODES, MAX_DEPTH, MAX_MEMBERS = 200_000, 20, 1_000_000
"""Most ops, those of graphs within graphs included; most such graphs within each other; most files
in the archive."""

MOST = 1 << 40
"""Most numbers along a dimension."""

SCHEMA = 8
"""The schema's version, of PyTorch 2.5 and newer."""

_EXPORT = "save the program again by torch.export.save"

_MODEL = re.compile(r"(?:[^/]+/)?models/[^/]+\.json|serialized_exported_program\.json")
_WEIGHTS = re.compile(r"(?:[^/]+/)?data/weights/[^/]+_config\.json")
_COMPILED = re.compile(r"(?:[^/]+/)?data/aotinductor/.*")

_SYMBOL = re.compile(r"(?:Symbol\('(\w+)'[^()]*\)|([A-Za-z_]\w*))")
_MODULE = re.compile(r"[\w.]{0,1000}")


@dataclass(frozen=True)
class Size:
    """A size that the file leaves open.

    Attributes
    ----------
    symbol : str
        Empty if it is computed from symbols.
    hint : int or None
        What it was as the program was exported.
    """

    symbol: str
    hint: int | None


@dataclass(frozen=True)
class TensorMeta:
    """The number that the schema has for a tensor's type, its sizes, and its strides if known."""

    dtype: int
    sizes: tuple[int | Size, ...]
    strides: tuple[int, ...] | None


@dataclass(frozen=True)
class Ref:
    """A value that an input or an op gave this name."""

    name: str


@dataclass(frozen=True)
class Code:
    """The number that the schema has for a type, a layout or a memory format; 0 for a device."""

    kind: str
    number: int


@dataclass(frozen=True)
class Node:
    """An op: its target, such as ``torch.ops.aten.relu.default``, and the module it belongs to.

    Attributes
    ----------
    arguments : tuple of (str, value)
        Plain values, lists of them, :class:`Ref`, :class:`Code` and :class:`Graph`.
    results : tuple
        Names of what it returns, without lists and tuples; None for what is none.
    """

    name: str
    target: str
    module: str
    arguments: tuple[tuple[str, Any], ...]
    results: tuple[str | None, ...]


@dataclass(frozen=True)
class Graph:
    """Ops in their order; ``inputs`` names what it is called with, ``outputs`` what it returns."""

    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    nodes: tuple[Node, ...]


@dataclass(frozen=True)
class Input:
    """An input of the program.

    Attributes
    ----------
    role : str
        ``parameter``, ``buffer``, ``tensor_constant``, ``user_input`` or ``constant_input``.
    owner : str
        The path of a parameter, buffer or constant in the model.
    meta : TensorMeta or None
        None if it is no tensor; then ``value`` is what the program was exported with.
    """

    name: str
    role: str
    owner: str = ""
    meta: TensorMeta | None = None
    value: Any = None


@dataclass(frozen=True)
class Program:
    """An exported program.

    Attributes
    ----------
    title : str
        The class of its model; empty if the file does not say.
    ranges : mapping
        By symbol, the least and the largest size that it may be.
    tied : mapping of str to str
        Parameters and buffers that share their weights with another, and that one.
    knows_ties : bool
        Whether the file tells which weights are shared.
    """

    title: str
    graph: Graph
    inputs: tuple[Input, ...]
    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    tied: Mapping[str, str] = field(default_factory=dict)
    knows_ties: bool = True

    def symbols(self) -> dict[str, tuple[str, int, int]]:
        """Return the first tensor and dimension of each open size, and what it was at first."""
        found: dict[str, tuple[str, int, int]] = {}
        for each in self.inputs:
            sizes = each.meta.sizes if each.meta and each.role == "user_input" else ()
            for dimension, size in enumerate(sizes):
                if isinstance(size, Size) and size.symbol:
                    found.setdefault(size.symbol, (each.name, dimension, self._usual(size)))
        return found

    def _usual(self, size: Size) -> int:
        least, _ = self.ranges.get(size.symbol, (1, MOST))
        return max(least, 1) if size.hint is None else size.hint

    def chosen(self, batch_size: int, sizes: Mapping[str, int]) -> dict[str, int]:
        """Return the size of each symbol, as it was exported or as it is asked for.

        Raises
        ------
        FileError
            If a size cannot be chosen, or not this one.
        """
        known = self.symbols()
        for name in sizes:
            if name not in known:
                free = f"it leaves {', '.join(known)} open" if known else "it leaves none open"
                raise FileError(f"no size is called '{name}'; {free}")
        wanted = dict(sizes)
        if batch_size:
            batch = next((name for name, (_, at, _) in known.items() if at == 0), None)
            if batch is None:
                raise FileError(
                    "its batch size is fixed; leave it out, or export the model again with "
                    "dynamic_shapes"
                )
            wanted[batch] = batch_size
        for name, value in wanted.items():
            low, high = self.ranges.get(name, (0, MOST))
            if not low <= value <= high:
                what = name if name in sizes else f"the batch size ({name})"
                raise FileError(f"{what} can be {low:,} to {high:,}, not {value:,}")
        return {name: usual for name, (_, _, usual) in known.items()} | wanted

    def shape(self, meta: TensorMeta, chosen: Mapping[str, int]) -> tuple[int, ...]:
        """Return the sizes of an input with the symbols' sizes filled in.

        Raises
        ------
        FileError
            If one is computed from sizes that are not as exported.
        """
        usual = {name: size for name, (_, _, size) in self.symbols().items()}
        found = []
        for size in meta.sizes:
            if isinstance(size, int):
                found.append(size)
            elif size.symbol:
                found.append(chosen[size.symbol])
            elif size.hint is None or dict(chosen) != usual:
                raise FileError(
                    "the size of an input is computed from another; leave out --batch-size and "
                    "--size, and export the model with the sizes that you want"
                )
            else:
                found.append(size.hint)
        return tuple(found)


def read_program(path: str) -> Program:
    """Read the graph of a program.

    Raises
    ------
    FileError
        With the file, the place in it and the mend.
    """
    with naming(path), _opened(path) as (archive, packed_bytes):
        names = [info.filename for info in archive.infolist()]
        models = [name for name in names if _MODEL.fullmatch(name)]
        if not models:
            if any(map(_COMPILED.fullmatch, names)):
                raise FileError(f"holds compiled code, and no graph; {_EXPORT}")
            raise FileError(f"has no 'models/model.json': it is no program; {_EXPORT}")
        if len(models) > 1:
            raise FileError(f"holds {len(models)} programs; save each by torch.export.save")
        weights = [name for name in names if _WEIGHTS.fullmatch(name)]
        with naming(models[0]):
            model = is_object(parse_json(_member(archive, models[0], packed_bytes)), "")
            config: dict[str, Any] = {}
        if len(weights) == 1:
            with naming(weights[0]):
                config = is_object(parse_json(_member(archive, weights[0], packed_bytes)), "")
        with naming(models[0]):
            return _Reader().program(model, config)


@contextmanager
def _opened(path: str) -> Iterator[tuple[zipfile.ZipFile, int]]:
    """Open the archive; what cannot be read in it is a fault of the file."""
    try:
        with open_to_read(path) as file, zipfile.ZipFile(file) as archive:
            if len(archive.infolist()) > MAX_MEMBERS:
                raise FileError(f"holds more than {MAX_MEMBERS:,} files; do not trust it")
            yield archive, file.seek(0, 2)
    except (zipfile.BadZipFile, zlib.error, EOFError, ValueError, NotImplementedError):
        raise FileError(
            f"not a zip, as torch.export writes, or a damaged one; copy it again, or {_EXPORT}"
        ) from None
    except OSError as error:
        raise FileError(f"cannot read: {error.strerror}; check the path") from None


def _member(archive: zipfile.ZipFile, name: str, packed_bytes: int) -> bytes:
    info = archive.getinfo(name)
    if info.flag_bits & 1:
        raise FileError(f"{name}: is encrypted; {_EXPORT}")
    most = min(MAX_FILE_BYTES, most_unpacked_bytes(packed_bytes))
    if info.file_size > most:
        raise FileError(f"{name}: unpacks to {info.file_size:,} bytes; do not trust it")
    with archive.open(info) as member:
        return gather(member, info.file_size)


_CODES = {"as_scalar_type": "type", "as_memory_format": "memory format", "as_layout": "layout"}
_NAMES = ("as_tensor", "as_sym_int", "as_sym_bool", "as_sym_float", "as_optional_tensor")
_LISTS = (
    *("as_tensors", "as_optional_tensors", "as_nested_tensors"),
    *("as_sym_ints", "as_sym_bools", "as_sym_floats"),
)
_PLAIN: dict[str, Any] = {
    "as_int": int,
    "as_float": float,
    "as_bool": bool,
    "as_string": str,
}
_PLAIN_LISTS = {f"{key}s": kind for key, kind in _PLAIN.items()}


class _Reader:
    """Reads the JSON of a program."""

    def __init__(self) -> None:
        self._n_nodes = 0

    def program(self, model: dict[str, Any], config: dict[str, Any]) -> Program:
        self._check_version(model)
        module = take(model, "graph_module", dict, "")
        raw: dict[str, Any] = take(module, "graph", dict, "graph_module")
        graph = self.graph(raw, "graph", 0)
        metas = {
            name: _meta(is_object(each, name), f"tensor_values.{name}")
            for name, each in take(raw, "tensor_values", dict, "graph").items()
        }
        signature = take(module, "signature", dict, "graph_module")
        specs = take(signature, "input_specs", list, "signature")
        places = [f"input_specs[{i}]" for i in range(len(specs))]
        numbers = take(raw, "sym_int_values", dict, "graph", {})
        inputs = tuple(
            _input(is_object(spec, place), metas, numbers, place)
            for spec, place in zip(specs, places, strict=True)
        )
        payloads = config.get("config", config)
        tied = _tied(payloads if isinstance(payloads, dict) else {}, inputs)
        ranges = take(model, "range_constraints", dict, "", {})
        return Program(
            _title(raw), graph, inputs, {key: _range(each) for key, each in ranges.items()}, tied,
            knows_ties=bool(payloads),
        )  # fmt: skip

    def _check_version(self, model: dict[str, Any]) -> None:
        version = take(model, "schema_version", dict, "")
        major = whole(version, "major", "schema_version")
        if major != SCHEMA:
            raise FileError(
                f"has version {major} of the schema, and Enplace reads {SCHEMA}; export the model "
                f"with another PyTorch"
            )

    def graph(self, raw: dict[str, Any], where: str, depth: int) -> Graph:
        if depth > MAX_DEPTH:
            raise FileError(f"{where}: graphs lie more than {MAX_DEPTH} deep; do not trust it")
        nodes = take(raw, "nodes", list, where)
        self._n_nodes += len(nodes)
        if self._n_nodes > MAX_NODES:
            raise FileError(f"has over {MAX_NODES:,} ops, unlike any real model; do not trust it")
        return Graph(
            self._list(raw, "inputs", where, depth),
            self._list(raw, "outputs", where, depth),
            tuple(
                self._node(is_object(node, f"{where}.nodes[{i}]"), f"{where}.nodes[{i}]", depth)
                for i, node in enumerate(nodes)
            ),
        )

    def _list(self, raw: dict[str, Any], key: str, where: str, depth: int) -> tuple[Any, ...]:
        each = enumerate(take(raw, key, list, where))
        return tuple(self.argument(value, f"{where}.{key}[{i}]", depth) for i, value in each)

    def _node(self, raw: dict[str, Any], where: str, depth: int) -> Node:
        arguments = []
        for i, each in enumerate(take(raw, "inputs", list, where)):
            place = f"{where}.inputs[{i}]"
            given = is_object(each, place)
            value = self.argument(given.get("arg"), place, depth)
            arguments.append((take(given, "name", str, place, ""), value))
        results = tuple(_flat(self._list(raw, "outputs", where, depth)))
        name = take(raw, "name", str, where, "") or next(filter(None, results), "")
        about = take(raw, "metadata", dict, where, {})
        module = _module(about.get("nn_module_stack"))
        return Node(name, take(raw, "target", str, where), module, tuple(arguments), results)

    def argument(self, raw: Any, where: str, depth: int) -> Any:
        """Read a value: an object with one key, which tells its type."""
        raw = is_object(raw, where)
        key = next((key for key, value in raw.items() if value is not None), "")
        if key == "as_none" or (key == "as_name" and len(raw) == 1):
            return None if key == "as_none" else Ref(take(raw, "as_name", str, where))
        if key == "name":
            return Ref(take(raw, "name", str, where))
        if key in _NAMES:
            return self.argument(raw[key], where, depth)
        if key in _LISTS:
            return self._each(raw[key], where, depth)
        if key in _PLAIN:
            return _plain(raw[key], _PLAIN[key], where)
        if key in _PLAIN_LISTS and isinstance(raw[key], list):
            return [_plain(each, _PLAIN_LISTS[key], where) for each in raw[key]]
        if key in _CODES:
            return Code(_CODES[key], whole(raw, key, where, high=99))
        if key == "as_device":
            return Code("device", 0)
        if key == "as_graph":
            inner = is_object(raw[key], where)
            return self.graph(take(inner, "graph", dict, where), where, depth + 1)
        if key == "as_complex":
            parts = is_object(raw[key], where)
            return complex(*(_plain(parts.get(each), float, where) for each in ("real", "imag")))
        raise FileError(
            f"{where}: a value of the kind {shown(key)} is none that Enplace reads; profile a "
            f"script that calls the model"
        )

    def _each(self, values: Any, where: str, depth: int) -> list[Any]:
        if not isinstance(values, list):
            raise FileError(f"{where}: must be a list, not {shown(values)}; {_EXPORT}")
        return [
            self._each(value, where, depth + 1)
            if isinstance(value, list) and depth < MAX_DEPTH
            else self.argument(value, where, depth)
            for value in values
        ]


def _plain(value: Any, kind: Any, where: str) -> Any:
    if kind is float and isinstance(value, int | float | str) and not isinstance(value, bool):
        if isinstance(value, str) and value not in ("Infinity", "-Infinity", "NaN"):
            raise FileError(f"{where}: must be a number, not {shown(value)}; {_EXPORT}")
        return float(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        what = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
        raise FileError(f"{where}: must be {what[kind]}, not {shown(value)}; {_EXPORT}")
    if kind is int and abs(value) >= 1 << 63:
        raise FileError(f"{where}: must be a number of 64 bits; {_EXPORT}")
    return value


def _flat(values: Any) -> Iterator[str | None]:
    """Iterate over the names in lists of results."""
    for each in values:
        if isinstance(each, list):
            yield from _flat(each)
        else:
            yield each.name if isinstance(each, Ref) else None


def _meta(raw: dict[str, Any], where: str) -> TensorMeta:
    sizes = take(raw, "sizes", list, where)
    strides = take(raw, "strides", list, where, [])
    found = tuple(_size(is_object(each, where), where) for each in sizes)
    steps = tuple(_size(is_object(each, where), where) for each in strides)
    known = tuple(each for each in steps if isinstance(each, int))
    is_known = len(known) == len(found) and all(isinstance(each, int) for each in found)
    return TensorMeta(whole(raw, "dtype", where, high=99), found, known if is_known else None)


def _size(raw: dict[str, Any], where: str) -> int | Size:
    if raw.get("as_int") is not None:
        return whole(raw, "as_int", where, high=MOST)
    inner: dict[str, Any] = take(raw, "as_expr", dict, where)
    found = _SYMBOL.fullmatch(take(inner, "expr_str", str, where))
    hint = take(inner, "hint", dict, where, {})
    known = None if hint.get("as_int") is None else whole(hint, "as_int", where, high=MOST)
    return Size((found[1] or found[2]) if found else "", known)


def _range(raw: Any) -> tuple[int, int]:
    limits = is_object(raw, "range_constraints")
    low, high = limits.get("min_val"), limits.get("max_val")
    return (
        low if isinstance(low, int) else 0,
        min(high, MOST) if isinstance(high, int) else MOST,
    )


_OWNERS = {
    "parameter": "parameter_name",
    "buffer": "buffer_name",
    "tensor_constant": "tensor_constant_name",
}


def _input(
    spec: dict[str, Any], metas: Mapping[str, TensorMeta], numbers: dict[str, Any], where: str
) -> Input:
    role = next(iter(spec), "")
    inner = is_object(spec.get(role), where)
    if role == "constant_input":
        value = is_object(inner.get("value", {}), where)
        return Input(take(inner, "name", str, where), role, value=next(iter(value.values()), None))
    if role not in (*_OWNERS, "user_input"):
        raise FileError(
            f"{where}: an input of the kind {shown(role)} is none that Enplace reads; profile a "
            f"script that calls the model"
        )
    given = is_object(inner.get("arg"), where)
    value = _Reader().argument(given, where, 0)
    if not isinstance(value, Ref):
        return Input("", role, value=value)
    if value.name in metas:
        owner = take(inner, _OWNERS[role], str, where) if role in _OWNERS else ""
        return Input(value.name, role, owner, metas[value.name])
    if value.name in numbers:
        size = _size(is_object(numbers[value.name], where), where)
        known = size.hint if isinstance(size, Size) else size
        return Input(value.name, role, value=1 if known is None else known)
    raise FileError(f"{where}: 'tensor_values' has no {shown(value.name)}; {_EXPORT}")


def _tied(payloads: dict[str, Any], inputs: tuple[Input, ...]) -> dict[str, str]:
    """Find what shares its weights: the file names the same bytes for both."""
    first: dict[Any, Input] = {}
    found = {}
    for each in inputs:
        payload = payloads.get(each.owner) if each.owner else None
        path = payload.get("path_name") if isinstance(payload, dict) else None
        if not isinstance(path, str):
            continue
        known = first.setdefault((path, each.meta), each)
        if known is not each:
            found[each.owner] = known.owner
    return found


def _module(stack: Any) -> str:
    """Return the path of the innermost module, as ``KEY,PATH,CLASS;...`` names it.

    >>> _module("L__self__,,Net;L__self__layers.0,layers.0,torch.nn.modules.linear.Linear")
    'layers.0'
    """
    last = _parts(stack)[-1]
    path = last[1].partition("@")[0] if len(last) == 3 and last[0] != last[1] else ""
    return path if _MODULE.fullmatch(path) else ""


def _title(graph: dict[str, Any]) -> str:
    """Return the class of the outermost module."""
    for node in graph["nodes"]:
        first = _parts((node.get("metadata") or {}).get("nn_module_stack"))[0]
        if len(first) == 3 and first[0] != first[1]:
            name = first[2].rpartition(".")[2]
            return name if _MODULE.fullmatch(name) else ""
    return ""


def _parts(stack: Any) -> list[list[str]]:
    text = stack if isinstance(stack, str) else ""
    return [each.rsplit(",", 2) for each in text.split(";")]
