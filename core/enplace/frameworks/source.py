"""The model that the user chose: a script, a module, a saved model, a graph."""

from __future__ import annotations

import ast
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.machinery import PathFinder
from pathlib import Path
from sys import path as module_path
from typing import Any

from enplace.errors import EnplaceError, FileError
from enplace.files.fields import is_object, only, take, whole
from enplace.files.reading import read_bytes
from enplace.frameworks.framework import Framework, ModelKind
from enplace.frameworks.registry import (
    framework_of_kind,
    frameworks,
    kinds,
    suffixes,
    usual_framework,
)
from enplace.frameworks.wishes import BATCH
from enplace.option import MAX_SIZE, merge, read_values

_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")

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
    batch_size : int
        Batch size for a saved model, and the value of :data:`BATCH` in a script's arguments;
        0 leaves it to the model.
    framework_name : str
        The folder of the framework that opens it; empty for the usual one that opens this kind.
    options : mapping
        What else the user says of a model of this kind, by the keys of the kind's fields.
    """

    path: str
    kind: str
    arguments: tuple[str, ...] = ()
    batch_size: int = 0
    framework_name: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def framework(self) -> Framework:
        """The framework that opens the model."""
        if self.framework_name:
            return frameworks()[self.framework_name]
        return framework_of_kind(self.kind)

    @property
    def model_kind(self) -> ModelKind:
        """The kind, as the framework declares it; another may declare one of this name."""
        return self.framework.kind(self.kind)

    @property
    def is_recorded(self) -> bool:
        """Whether opening it runs no code: it holds measurements, or only a graph."""
        return self.model_kind.is_recorded

    def text(self, key: str) -> str:
        """Return one of the options that are texts; empty if it is not set."""
        return str(self.options.get(key, ""))

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
        return {
            "path": self.path,
            "kind": self.kind,
            "arguments": list(self.arguments),
            "batch_size": self.batch_size,
            "framework_name": self.framework_name,
            **{key: _listed(value) for key, value in self.options.items()},
        }


_OWN = ("path", "kind", "arguments", "batch_size", "framework_name")


def _listed(value: Any) -> Any:
    """Turn tuples into lists, as JSON does."""
    return [*map(_listed, value)] if isinstance(value, tuple) else value


def source_from_json(data: Any) -> Source:
    """Read the result of :meth:`Source.to_json`.

    Raises
    ------
    FileError
        With the place in the data.
    """
    source = is_object(data, "source")
    fields = merge(*(kind.fields for kind in kinds()))
    only(source, {*_OWN, *fields}, "source")
    kind: Any = take(source, "kind", str, "source")
    name: str = take(source, "framework_name", str, "source", "")
    if name and name not in frameworks():
        raise FileError(f"source: no framework is called '{name}'; update Enplace")
    opened = frameworks()[name].kinds if name else kinds()
    known = list(dict.fromkeys(each.name for each in opened))
    if kind not in known:
        raise FileError(f"source: 'kind' must be one of {', '.join(known)}, not '{kind}'")
    arguments = take(source, "arguments", list, "source")
    if wrong := [value for value in arguments if not isinstance(value, str)]:
        raise FileError(f"source: 'arguments' must hold texts, not {wrong[0]!r}")
    path: str = take(source, "path", str, "source")
    found = Source(
        path=path if kind == "module" else os.path.realpath(path),
        kind=kind,
        arguments=tuple(arguments),
        batch_size=whole(source, "batch_size", "source", high=MAX_SIZE),
        framework_name=name,
    )
    # Older files name the options of every kind, most of them empty.
    keys = {field.key for field in found.model_kind.fields}.difference(_OWN)
    given = {key: source[key] for key in keys & source.keys()}
    return replace(found, options=_read(found, given, "source"))


def _read(source: Source, given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Read what is said of a model of some kind; refuse what it does not take."""
    fields = source.model_kind.fields
    said = {key: value for key, value in given.items() if value not in (0, (), [])}
    try:
        return read_values(fields, said, f"a model of kind '{source.kind}'")
    except EnplaceError as error:
        raise FileError(f"{where}: {error}") from None


def source_of(path: str, **options: Any) -> Source:
    """Find the kind of the model at a path, or the module of this name.

    Parameters
    ----------
    path : str
        A script, a model's file or folder, or a dotted module name.
    **options
        ``arguments``, ``batch_size`` and ``framework_name`` of :class:`Source`, and what else the
        kind of model takes.

    Raises
    ------
    FileError
        If there is no model, or it takes no such option.
    """
    place = Path(os.path.expanduser(path))
    name = options.pop("framework_name", "")
    if os.path.exists(place):
        found, program = _recognise(place, name), place
    elif (module := find_module(path)) is not None:
        program, _ = module
        found = {n: (path, "module") for n, each in frameworks().items() if each.opens("module")}
    else:
        raise FileError(f"{path}: there is no such file, folder or Python module; check the path")
    name = name or _choose(list(found), program)
    if name not in found:
        raise FileError(f"{path}: {frameworks()[name].name} does not open this; choose another")
    model, kind = found[name]
    return _with(Source(model, kind, framework_name=name), options)


def _recognise(place: Path, wanted: str) -> dict[str, tuple[str, str]]:
    """Return the path of a model and its kind for each framework that opens it.

    Raises
    ------
    FileError
        If none does: what the wanted framework says, or else one that has such files.
    """
    found, reasons = {}, []
    for name, framework in frameworks().items():
        try:
            model, kind = framework.recognise(place)
        except FileError as error:
            is_own = name == wanted if wanted else place.suffix.lower() in framework.suffixes
            reasons.append((is_own, error))
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
    """Set further fields, if the model takes them and they go together."""
    values = _read(source, options, source.path)
    for keys in source.model_kind.together:
        missing = [key for key in keys if key not in values]
        if missing and len(missing) < len(keys):
            given_one = next(key for key in keys if key in values)
            raise FileError(
                f"{source.path}: there is a {given_one} but no {missing[0]}; give both or neither"
            )
    own = {key: values.pop(key) for key in ("arguments", "batch_size") if key in values}
    source = replace(source, **own, options=values)
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
    return source.model_kind.is_program


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
