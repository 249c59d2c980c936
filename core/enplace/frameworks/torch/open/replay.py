"""Exported programs, run on tensors without content: their ops are recorded as those of a script.

Only ops of PyTorch's own run, and only their rules for sizes: no weight is read, and nothing that
the file says becomes Python.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from enplace.errors import EnplaceError, FileError
from enplace.frameworks.source import Source
from enplace.frameworks.torch.error_text import first_line
from enplace.frameworks.torch.open.exported import (
    Code,
    Graph,
    Input,
    Node,
    Program,
    Ref,
    TensorMeta,
)
from enplace.frameworks.torch.open.fake import OF_FAKES, fake_tensors
from enplace.frameworks.torch.record.recorder import Recorder, check_hooks
from enplace.frameworks.torch.record.recording import Recorded
from enplace.frameworks.torch.record.timing import Clock
from enplace.frameworks.torch.step import BUFFER, PARAMETER, Timing
from enplace.processes.worker import Report
from enplace.text import count, listed

_ELSE = "profile a script that calls the model"

_DTYPES = {
    1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "float16", 7: "float32",
    8: "float64", 9: "complex32", 10: "complex64", 11: "complex128", 12: "bool", 13: "bfloat16",
    28: "uint16", 29: "float8_e4m3fn", 30: "float8_e5m2", 31: "float8_e4m3fnuz",
    32: "float8_e5m2fnuz", 33: "float8_e8m0fnu", 34: "uint32", 35: "uint64",
}  # fmt: skip
"""Types of numbers by their numbers in the schema."""

_FORMATS = {
    1: torch.contiguous_format,
    2: torch.channels_last,
    3: torch.channels_last_3d,
    4: torch.preserve_format,
}
_STRIDED = 7

_ROLES = {"parameter": PARAMETER, "buffer": BUFFER, "tensor_constant": BUFFER}


def record_program(program: Program, source: Source, report: Report) -> Recorded:
    """Record a forward pass of a program.

    Raises
    ------
    EnplaceError
        If it has an op that this version of PyTorch does not know, or one that does not suit its
        tensors.
    """
    check_hooks(*OF_FAKES)
    chosen = program.chosen(source.batch_size, dict(source.options.get("sizes", ())))
    run = _Run(program, chosen, report)
    with fake_tensors(), torch.no_grad():
        run.make_inputs()
        recorder = Recorder(run, Clock())
        with recorder:
            run.all()
        step = recorder.finish(program.title, ())
    return Recorded(step, Timing(), about=(*_about(program, chosen), *run.about()))


def _about(program: Program, chosen: Mapping[str, int]) -> Iterator[str]:
    """Say which sizes could be others, and what the file does not tell."""
    if known := program.symbols():
        sizes = (
            f"{name} (dimension {at} of {of}) is {chosen[name]:,}"
            for name, (of, at, _) in known.items()
        )
        last = [*known][-1]
        yield (
            f"The program leaves {count(len(known), 'size')} open: {listed([*sizes])}. "
            f"--batch-size, or --size {last}=N of 'enplace import', chooses another."
        )
    if not program.knows_ties:
        yield (
            "Files of this PyTorch do not say which weights are tied, so each counts; those of "
            "newer versions do."
        )


class _Run:
    """A run of a program; the recorder asks it, in place of modules, what is running."""

    def __init__(self, program: Program, chosen: Mapping[str, int], report: Report) -> None:
        self._program, self._chosen, self._report = program, chosen, report
        self._made: dict[str, Any] = {}
        self._tensors: dict[str, torch.Tensor] = {}
        self._module = ""
        self._n_done = 0
        self._branches = 0
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        self._shapes: list[tuple[int, ...]] = []
        self._given: list[Any] = []

    # For the recorder

    n_models = 1

    def current(self) -> str:
        """Return the path of the module of the op that is running."""
        return self._module

    def owner(self, parameter: torch.Tensor) -> str:
        """Return the name of a parameter; only optimisers ask for it, and here there are none."""
        return next(name for name, each in self._tensors.items() if each is parameter)

    def tensors(self) -> Iterator[tuple[str, torch.Tensor, str]]:
        """Iterate over parameters and buffers, with their names and roles."""
        for each in self._program.inputs:
            if each.owner and each.owner not in self._program.tied:
                yield each.owner, self._tensors[each.owner], _ROLES[each.role]

    def batch_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Return the shapes of the tensors that the program is called with."""
        return tuple(self._shapes)

    def tied(self) -> Iterator[tuple[str, str]]:
        """Iterate over the further names of shared parameters, with the first ones."""
        yield from self._program.tied.items()

    def spell(self, path: str) -> str:
        """Return a path as it is."""
        return path

    # The run

    def about(self) -> Iterator[str]:
        """Say what an estimate left out."""
        if self._branches:
            yield (
                f"For {count(self._branches, 'condition')} (torch.cond), the true branch was taken."
            )

    def make_inputs(self) -> None:
        """Make all inputs of the program, without content."""
        for each in self._program.inputs:
            self._made[each.name] = (
                each.value if each.meta is None else self._input(each, each.meta)
            )
        self._given = [*self._made.values()]  # as the caller of a model does

    def _input(self, given: Input, meta: TensorMeta) -> torch.Tensor:
        first = self._program.tied.get(given.owner)
        if first is not None:
            self._tensors[given.owner] = self._tensors[first]
            return self._tensors[first]
        shape = self._program.shape(meta, self._chosen)
        place = {"dtype": _dtype(meta.dtype, given.name), "device": self._device}
        try:
            if meta.strides is None:
                made = torch.empty(shape, **place)
            else:
                made = torch.empty_strided(shape, meta.strides, **place)
        except RuntimeError as error:
            raise FileError(f"input '{given.name}': {first_line(error)}; export it again") from None
        if given.owner:
            self._tensors[given.owner] = made
        else:
            self._shapes.append(shape)
        return made

    def all(self) -> None:
        """Run all ops."""
        self._graph(self._program.graph, self._made)

    def _graph(self, graph: Graph, made: dict[str, Any]) -> list[Any]:
        """Run a graph's ops; what nothing reads any more is freed, as in a plain run."""
        last = _last_uses(graph)
        for number, node in enumerate(graph.nodes):
            self._n_done += 1
            if self._n_done % _OPS_AT_ONCE == 0:
                self._report(f"Reading op {self._n_done:,}", None)
            self._module = node.module or self._module * (graph is not self._program.graph)
            results = self._node(node, made)
            names = node.results
            if len(names) > len(results):
                raise _fault(node, f"returns {len(results)} values, not {len(names)}")
            made |= {name: each for name, each in zip(names, results, strict=False) if name}
            del results
            for name in last.get(number, ()):
                made.pop(name, None)
        return [made.get(each.name) if isinstance(each, Ref) else each for each in graph.outputs]

    def _node(self, node: Node, made: Mapping[str, Any]) -> list[Any]:
        space, _, name = node.target.removeprefix("torch.ops.").partition(".")
        arguments = [(key, self._value(value, made, node)) for key, value in node.arguments]
        if space == "higher_order":
            return self._higher(node, name, [value for _, value in arguments])
        if any(isinstance(value, Graph) for _, value in arguments):
            raise _fault(node, f"takes a graph, which Enplace does not read; {_ELSE}")
        if not node.target.startswith("torch.ops."):
            return [_compute(node, [value for _, value in arguments])]
        if space == "aten" and name.startswith(_CHECKS):
            return [None] * len(node.results)
        try:
            return [*_flat(_call(node, space, name, arguments))]
        except EnplaceError:
            raise
        except MemoryError:
            raise
        except Exception as error:  # whatever its rules for sizes raise
            raise _fault(node, f"does not suit its tensors ({first_line(error)})") from None

    def _higher(self, node: Node, name: str, given: list[Any]) -> list[Any]:
        """Run an op that takes graphs: modes that a model sets, and conditions."""
        graphs = [each for each in given if isinstance(each, Graph)]
        at = next((i for i, each in enumerate(given) if isinstance(each, Graph)), 0)
        if name in _WRAPPERS and len(graphs) == 1:
            return self._inner(node, graphs[0], given[at + 1 :])
        if name == "cond" and len(graphs) == 2 and isinstance(given[-1], list):
            self._branches += 1
            return self._inner(node, graphs[0], given[-1])
        raise _fault(node, f"is an op that Enplace does not read; {_ELSE}")

    def _inner(self, node: Node, graph: Graph, given: Sequence[Any]) -> list[Any]:
        names = [each.name for each in graph.inputs if isinstance(each, Ref)]
        if len(names) != len(graph.inputs) or len(names) != len(given):
            raise _fault(node, f"gives its graph {len(given)} values, not {len(graph.inputs)}")
        inside, module = dict(zip(names, given, strict=True)), self._module
        found = self._graph(graph, inside)
        self._module = module
        return [*_flat(found)]

    def _value(self, value: Any, made: Mapping[str, Any], node: Node) -> Any:
        """Return what an argument stands for."""
        if isinstance(value, list):
            return [self._value(each, made, node) for each in value]
        if isinstance(value, Ref):
            if value.name not in made:
                raise _fault(node, f"reads '{value.name}', which nothing made; export it again")
            return made[value.name]
        if not isinstance(value, Code):
            return value
        if value.kind == "device":
            return torch.device(self._device)
        if value.kind == "type":
            return _dtype(value.number, node.name)
        if value.kind == "layout" and value.number == _STRIDED:
            return torch.strided
        if value.kind == "memory format" and value.number in _FORMATS:
            return _FORMATS[value.number]
        raise _fault(node, f"has {value.kind} {value.number}, which Enplace does not know; {_ELSE}")


_OPS_AT_ONCE = 500
"""After so many ops, progress is reported."""

_WRAPPERS = ("wrap_with_set_grad_enabled", "wrap_with_autocast", "invoke_subgraph", "wrap",
             "tag_activation_checkpoint")  # fmt: skip
"""Run a graph as it is, in some mode."""

_CHECKS = ("_assert_", "sym_constrain_range", "_check")
"""Begin the names of what only checks values."""

_ON_NUMBERS = {
    **{f"_operator.{name}": getattr(operator, name) for name in (
        "eq", "ne", "le", "ge", "lt", "gt", "neg", "pos", "and_", "or_", "mul", "add", "sub",
        "floordiv", "mod", "truediv",
    )},
    **{f"math.{name}": getattr(math, name) for name in ("ceil", "floor", "trunc")},
    "torch.sym_max": max, "torch.sym_min": min, "torch.sym_int": int, "torch.sym_float": float,
    "torch.sym_not": operator.not_,
    "torch.sym_ite": lambda condition, one, other: one if condition else other,
}  # fmt: skip
"""What computes sizes."""


def _compute(node: Node, given: list[Any]) -> Any:
    compute: Callable[..., Any] | None = _ON_NUMBERS.get(node.target)
    if compute is None:
        raise _fault(node, f"is an op that Enplace does not know; {_ELSE}")
    try:
        if all(isinstance(each, int | float) for each in given):
            return compute(*given)
    except (ArithmeticError, TypeError, ValueError):
        pass
    raise _fault(node, "does not suit its numbers; export it again")


def _call(node: Node, space: str, name: str, arguments: list[tuple[str, Any]]) -> Any:
    """Run an op of PyTorch."""
    op = _find_op(node, space, name)
    declared = op._schema.arguments
    by_name = dict(arguments)
    if "" in by_name or len(by_name) < len(arguments):
        raise _fault(node, "has arguments without names, or several with one name; export it again")
    if name.startswith("sym_size."):
        return by_name["self"].size(by_name["dim"])
    if op is torch.ops.aten.scaled_dot_product_attention.default:
        return torch.nn.functional.scaled_dot_product_attention(**by_name)
    if op is torch.ops.aten.dropout.default:
        given = by_name["input"], by_name["p"], by_name["train"]
        return torch.nn.functional.dropout(*given)
    plain = [each for each in declared if not each.kwarg_only]
    positional = []
    for each in plain:
        if each.name not in by_name:
            break
        positional.append(by_name.pop(each.name))
    return op(*positional, **by_name)


def _find_op(node: Node, space: str, name: str) -> torch._ops.OpOverload:
    """Return an op, if it is one that only computes tensors from tensors."""
    found: Any = None
    if space in _SPACES:
        found = getattr(torch.ops, space)
        for part in name.split("."):
            found = getattr(found, part, None)
    if not isinstance(found, torch._ops.OpOverload):
        raise _fault(
            node,
            f"is an op that PyTorch {torch.__version__} does not have: it is of another version or "
            f"library; {_ELSE}",
        )
    if any("file" in each.name for each in found._schema.arguments):
        raise _fault(node, "reads or writes a file; do not trust it")
    return found


_SPACES = ("aten", "prims")
"""Namespaces of PyTorch's own ops on tensors."""


def _fault(node: Node, what: str) -> FileError:
    target = node.target.removeprefix("torch.ops.")
    named = repr(node.name[:_SHOWN])
    return FileError(f"op {named} ({target[:_SHOWN]!r}) {what}")


_SHOWN = 60


def _dtype(number: int, name: str) -> torch.dtype:
    found = getattr(torch, _DTYPES.get(number, ""), None)
    if not isinstance(found, torch.dtype):
        raise FileError(
            f"{name[:_SHOWN]!r}: PyTorch {torch.__version__} has no type with the number {number}; "
            f"export it again"
        )
    return found


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, list | tuple):
        for each in value:
            yield from _flat(each)
    else:
        yield value


def _refs(value: Any) -> Iterator[str]:
    if isinstance(value, list | tuple):
        for each in value:
            yield from _refs(each)
    elif isinstance(value, Ref):
        yield value.name


def _last_uses(graph: Graph) -> dict[int, list[str]]:
    """Return the values that each op is the last to read, or makes and nothing reads."""
    last: dict[str, int] = {}
    for number, node in enumerate(graph.nodes):
        last |= {name: number for name in node.results if name}
        last |= {name: number for _, value in node.arguments for name in _refs(value)}
    for name in _refs(graph.outputs):
        last.pop(name, None)
    found: dict[int, list[str]] = {}
    for name, number in last.items():
        found.setdefault(number, []).append(name)
    return found
