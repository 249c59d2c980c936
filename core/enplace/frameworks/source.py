"""The model that the user chose: a script, a module, a saved model, a graph."""

from __future__ import annotations

import ast
import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from importlib.machinery import PathFinder
from pathlib import Path
from sys import path as module_path
from typing import Any

from enplace.errors import EnplaceError, FileError
from enplace.files.fields import is_object, only, shown, take, whole
from enplace.files.reading import read_bytes
from enplace.frameworks.framework import Framework
from enplace.frameworks.registry import (
    framework_of_kind,
    frameworks,
    kinds,
    suffixes,
    usual_framework,
)
from enplace.text import instead

_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")

MAX_BATCH = MAX_SIZE = 1 << 24
BATCH = "{batch}"
"""Stands for the batch size in a script's arguments."""

_SAY_WHERE = f"Write {BATCH} among its arguments, such as '--batch {BATCH}'"


@dataclass(frozen=True)
class Source:
    """A model and its arguments.

    Attributes
    ----------
    path : str
        An absolute path without links, or a module's dotted name.
    kind : str
        ``script``, ``module``, or another kind that a framework opens.
    arguments : tuple of str
        The command line of a script or module.
    loss, optimizer : str
        Loss and optimiser for training a saved model, by the framework's names.
    batch_size : int
        Batch size for a saved model, and the value of :data:`BATCH` in a script's arguments;
        0 leaves it to the model.
    signature : str
        Which function of a saved model; empty for its only or its default one.
    sizes : tuple of (str, int)
        Sizes of its inputs, besides the batch, that the model leaves open: name and number.
    gpu : str
        The GPU whose op times are estimated; empty for the usual one.
    framework_name : str
        The folder of the framework that opens it; empty for the usual one that opens this kind.
    """

    path: str
    kind: str
    arguments: tuple[str, ...] = ()
    loss: str = ""
    optimizer: str = ""
    batch_size: int = 0
    signature: str = ""
    sizes: tuple[tuple[str, int], ...] = ()
    gpu: str = ""
    framework_name: str = ""

    @property
    def framework(self) -> Framework:
        """The framework that opens the model."""
        if self.framework_name:
            return frameworks()[self.framework_name]
        return framework_of_kind(self.kind)

    @property
    def is_recorded(self) -> bool:
        """Whether opening it runs no code: it holds measurements, or only a graph."""
        return self.framework.kind(self.kind).is_recorded

    @property
    def name(self) -> str:
        """The model's name for people."""
        return self.path if self.kind == "module" else Path(self.path).stem

    @property
    def words(self) -> list[str]:
        """The arguments with the batch size filled in."""
        return [word.replace(BATCH, str(self.batch_size)) for word in self.arguments]

    @property
    def command(self) -> str:
        """The command line in a shell that runs the script or module."""
        first = ["-m", self.path] if self.kind == "module" else [Path(self.path).name]
        return shlex.join([*first, *self.words])

    def to_json(self) -> dict[str, Any]:
        """Write the source as plain data."""
        values = asdict(self) | {"arguments": list(self.arguments)}
        sizes = {"sizes": list(map(list, self.sizes))} if self.sizes else {}
        unset = {name for name in ("sizes", "gpu") if not values[name]}
        return {name: value for name, value in values.items() if name not in unset} | sizes


def source_from_json(data: Any) -> Source:
    """Read the result of :meth:`Source.to_json`.

    Raises
    ------
    FileError
        With the place in the data.
    """
    source = is_object(data, "source")
    only(source, set(Source.__dataclass_fields__), "source")
    kind: Any = take(source, "kind", str, "source")
    name: str = take(source, "framework_name", str, "source", "")
    if name and name not in frameworks():
        raise FileError(f"source: no framework is called '{name}'; update Enplace")
    known = [each.name for each in frameworks()[name].kinds] if name else list(kinds())
    if kind not in known:
        raise FileError(f"source: 'kind' must be one of {', '.join(known)}, not '{kind}'")
    arguments = take(source, "arguments", list, "source")
    if wrong := [value for value in arguments if not isinstance(value, str)]:
        raise FileError(f"source: 'arguments' must hold texts, not {wrong[0]!r}")
    path: str = take(source, "path", str, "source")
    return Source(
        path=path if kind == "module" else os.path.realpath(path),
        kind=kind,
        arguments=tuple(arguments),
        loss=take(source, "loss", str, "source"),
        optimizer=take(source, "optimizer", str, "source"),
        batch_size=whole(source, "batch_size", "source", high=MAX_BATCH),
        signature=take(source, "signature", str, "source"),
        sizes=_sizes(take(source, "sizes", list, "source", [])),
        gpu=_gpu(take(source, "gpu", str, "source", "")),
        framework_name=name,
    )


def _sizes(values: list[Any]) -> tuple[tuple[str, int], ...]:
    for pair in values:
        is_pair = isinstance(pair, list) and list(map(type, pair)) == [str, int]
        if not is_pair or not 0 < pair[1] <= MAX_SIZE:
            raise FileError(f"source: 'sizes' must hold a name and a number, not {shown(pair)}")
    return tuple((name, number) for name, number in values)


def _gpu(name: str) -> str:
    known = {gpu for framework in frameworks().values() for gpu in framework.gpus}
    if name and name.lower() not in known:
        raise FileError(f"no GPU is called {shown(name)}; {instead(name.lower(), sorted(known))}")
    return name.lower()


def source_of(path: str, **options: Any) -> Source:
    """Find the kind of the model at a path, or the module of this name.

    Parameters
    ----------
    path : str
        A script, a model's file or folder, or a dotted module name.
    **options
        Other fields of :class:`Source`.

    Raises
    ------
    FileError
        If there is no model.
    """
    place = Path(os.path.expanduser(path))
    if os.path.exists(place):
        found, program = _recognise(place), place
    elif (module := find_module(path)) is not None:
        program, _ = module
        found = {n: (path, "module") for n, each in frameworks().items() if each.opens("module")}
    else:
        raise FileError(f"{path}: there is no such file, folder or Python module; check the path")
    name = options.pop("framework_name", "") or _choose(list(found), program)
    if name not in found:
        raise FileError(f"{path}: {frameworks()[name].name} does not open this; choose another")
    model, kind = found[name]
    return _with(Source(model, kind, framework_name=name), options)


def _recognise(place: Path) -> dict[str, tuple[str, str]]:
    """Return the path of a model and its kind for each framework that opens it.

    Raises
    ------
    FileError
        If none does.
    """
    found, reasons = {}, []
    for name, framework in frameworks().items():
        try:
            model, kind = framework.recognise(place)
        except FileError as error:
            reasons.append((place.suffix.lower() in framework.suffixes, error))
        else:
            found[name] = os.path.realpath(model), kind
    if not found:
        own = [error for is_own, error in reasons if is_own]
        raise own[0] if own else reasons[0][1]
    return found


def _choose(names: list[str], program: Path) -> str:
    """Choose a framework: of those that open a model, one that the program imports.

    If it imports none of them or several, the usual framework goes first.
    """
    if len(names) > 1 and program.suffix == ".py":
        imported = imported_by(program)
        names = [name for name in names if imported & {*frameworks()[name].imports}] or names
    return next((name for name in names if frameworks()[name] is usual_framework()), names[0])


def imported_by(program: Path) -> set[str]:
    """Return the packages that a program's text imports; none if it is not a program."""
    try:
        tree = ast.parse(read_bytes(program))
    except (EnplaceError, SyntaxError, ValueError, RecursionError, MemoryError):
        return set()
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.append(node.module)
    return {name.partition(".")[0] for name in names}


def find_module(name: str) -> tuple[Path, Path] | None:
    """Return the file of a Python module or its package, and the folder to import it from.

    Looks up the parts of the name one by one, as an import does, but runs nothing: a package that
    lies in several folders is found where the module is. None if Python could not import even the
    first part.
    """
    if not _MODULE.fullmatch(name) or Path(name).suffix in suffixes():
        return None
    folders: Sequence[str] = ["", *module_path]
    file, depth = None, -1
    for part in name.split("."):
        spec = PathFinder.find_spec(part, folders)
        if spec is None:
            break
        depth += 1
        folders = list(spec.submodule_search_locations or ())
        file = Path(os.path.realpath(folders[0] if folders else spec.origin or ""))
    if file is None:
        return None
    inside = (file / "__main__.py", file / "__init__.py")
    main = next((each for each in inside if os.path.exists(each)), file)
    return main, file.parents[depth]


def _with(source: Source, options: dict[str, Any]) -> Source:
    """Set further fields, if they go together."""
    if "arguments" in options:
        options["arguments"] = tuple(options["arguments"])
    source = replace(source, **options)
    _gpu(source.gpu)
    if bool(source.loss) != bool(source.optimizer):
        given, missing = ("loss", "optimizer") if source.loss else ("optimizer", "loss")
        raise FileError(f"{source.path}: there is a {given} but no {missing}; give both or neither")
    if source.batch_size and is_program(source) and not _takes_batch(source):
        raise FileError(
            f"{source.path}: where does it take its batch size? {_SAY_WHERE}, or leave the batch "
            f"size out"
        )
    if _takes_batch(source) and not source.batch_size:
        raise FileError(f"{source.path}: {BATCH} among its arguments needs a batch size; give one")
    return source


def is_program(source: Source) -> bool:
    """Return whether a model is a program with arguments: a script or a module."""
    return "arguments" in source.framework.kind(source.kind).fields


def _takes_batch(source: Source) -> bool:
    return any(BATCH in word for word in source.arguments)


def check_batch_sizes(source: Source, sizes: Sequence[int]) -> None:
    """Refuse batch sizes that allow no estimate.

    Raises
    ------
    FileError
        With what is missing.
    """
    if is_program(source) and not _takes_batch(source):
        raise FileError(
            f"{source.path}: where does it take its batch size? {_SAY_WHERE}, so that it can be "
            f"run with several"
        )
    if len(sizes) < 2 or not source.batch_size > max(sizes):
        raise FileError(
            f"{source.path}: a batch is estimated from at least two smaller ones; give its own "
            f"batch size, and others below that"
        )
