"""What a person points at: a script, a saved model, a graph; told apart without TensorFlow."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from importlib.machinery import PathFinder
from pathlib import Path
from sys import path as module_path
from typing import Any, Literal, get_args

from enplace.disk import is_object, only, take, whole
from enplace.errors import FileError

Kind = Literal["script", "module", "keras", "saved-model", "tf1", "trace"]

_SUFFIXES: dict[str, Kind] = {
    ".py": "script",
    ".keras": "keras",
    ".h5": "keras",
    ".hdf5": "keras",
    ".meta": "tf1",
    ".pb": "tf1",
    ".pbtxt": "tf1",
}
_SAVED_MODEL = ("saved_model.pb", "saved_model.pbtxt")
_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")

# RunMetadata begins with its step statistics, these with a device, this with its name.
_FIELD = rb"\x0a[\x80-\xff]*[\x00-\x7f]"
_TRACE = re.compile(
    rb"\A(" + _FIELD * 3 + rb"/(job|device|host|replica|task):|\s*step_stats\s*[{:])"
)

ADD_TENSORFLOW = "pip install 'enplace[tensorflow]'"
MAX_BATCH = 1 << 24
BATCH = "{batch}"
"""In the arguments of a script, its batch size."""

_SAY_WHERE = f"Write {BATCH} among its arguments, such as '--batch {BATCH}'"


@dataclass(frozen=True)
class Source:
    """A model and how to call it.

    Attributes
    ----------
    path : str
        An absolute path, or a module's dotted name.
    kind : str
        ``script``, ``module``, ``keras``, ``saved-model``, ``tf1`` or ``trace``.
    arguments : tuple of str
        The command line of a script or module.
    loss, optimizer : str
        What to train a saved model with, by the names that Keras knows.
    batch_size : int
        Of made-up batches, and what :data:`BATCH` in a script's arguments stands for; 0 leaves it
        to the model.
    signature : str
        Which one of a SavedModel; empty for its only or its default one.
    """

    path: str
    kind: Kind
    arguments: tuple[str, ...] = ()
    loss: str = ""
    optimizer: str = ""
    batch_size: int = 0
    signature: str = ""

    @property
    def name(self) -> str:
        """What a person calls the model."""
        return self.path if self.kind == "module" else Path(self.path).stem

    @property
    def words(self) -> list[str]:
        """The arguments with the batch size filled in."""
        return [word.replace(BATCH, str(self.batch_size)) for word in self.arguments]

    @property
    def command(self) -> str:
        """The script as it is called in a shell."""
        return shlex.join([Path(self.path).name, *self.words])

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self) | {"arguments": list(self.arguments)}


def source_from_json(data: Any) -> Source:
    """Read what :meth:`Source.to_json` made.

    Raises
    ------
    FileError
        Names the place in the data.
    """
    source = is_object(data, "source")
    only(source, set(Source.__dataclass_fields__), "source")
    kind: Any = take(source, "kind", str, "source")
    if kind not in get_args(Kind):
        raise FileError(f"source: 'kind' must be one of {', '.join(get_args(Kind))}, not '{kind}'")
    arguments = take(source, "arguments", list, "source")
    if wrong := [value for value in arguments if not isinstance(value, str)]:
        raise FileError(f"source: 'arguments' must hold texts, not {wrong[0]!r}")
    return Source(
        path=take(source, "path", str, "source"),
        kind=kind,
        arguments=tuple(arguments),
        loss=take(source, "loss", str, "source"),
        optimizer=take(source, "optimizer", str, "source"),
        batch_size=whole(source, "batch_size", "source", high=MAX_BATCH),
        signature=take(source, "signature", str, "source"),
    )


def source_of(path: str, **options: Any) -> Source:
    """Tell what kind of model is at a path, or what module has this name.

    Parameters
    ----------
    path : str
        A script, a model's file or folder, or a dotted module name.
    **options
        Other fields of :class:`Source`.

    Raises
    ------
    FileError
        If there is nothing, or nothing that is a model.
    """
    place = Path(path).expanduser()
    if place.name in _SAVED_MODEL and place.exists():
        place = place.parent
    if place.exists():
        source = Source(str(place.absolute()), _kind_of(place))
    elif _is_module(path):
        source = Source(path, "module")
    else:
        raise FileError(f"{path}: there is no such file, folder or Python module; check the path")
    return _with(source, options)


def _kind_of(place: Path) -> Kind:
    if place.is_dir():
        if any((place / name).exists() for name in _SAVED_MODEL):
            return "saved-model"
        raise FileError(
            f"{place}: this folder holds no saved_model.pb, so it is no SavedModel; "
            f"choose the folder that does, or a file"
        )
    try:
        with open(place, "rb") as file:
            head = file.read(256)
    except OSError as error:
        raise FileError(f"{place}: cannot read: {error.strerror}") from None
    if _TRACE.match(head):
        return "trace"
    if place.suffix.lower() not in _SUFFIXES:
        raise FileError(
            f"{place}: not a model; choose a training script (.py), a Keras model (.keras, .h5), "
            f"a SavedModel's folder, a TensorFlow 1 graph (.meta, .pb, .pbtxt) or a recorded trace"
        )
    if not head:
        raise FileError(f"{place}: the file is empty; save it again")
    return _SUFFIXES[place.suffix.lower()]


def _is_module(name: str) -> bool:
    """Whether Python could import it; looks for its first part only, and runs nothing."""
    if not _MODULE.fullmatch(name) or Path(name).suffix in _SUFFIXES:
        return False
    return PathFinder.find_spec(name.partition(".")[0], ["", *module_path]) is not None


def _with(source: Source, options: dict[str, Any]) -> Source:
    """The options taken in, if they go together."""
    if "arguments" in options:
        options["arguments"] = tuple(options["arguments"])
    source = replace(source, **options)
    if bool(source.loss) != bool(source.optimizer):
        given, lacking = ("loss", "optimizer") if source.loss else ("optimizer", "loss")
        raise FileError(f"{source.path}: there is a {given} but no {lacking}; give both or neither")
    if source.batch_size and _is_script(source) and not _takes_batch(source):
        raise FileError(
            f"{source.path}: where does it take its batch size? {_SAY_WHERE}, or leave the batch "
            f"size out"
        )
    if _takes_batch(source) and not source.batch_size:
        raise FileError(f"{source.path}: {BATCH} among its arguments needs a batch size; give one")
    return source


def _is_script(source: Source) -> bool:
    return source.kind in ("script", "module")


def _takes_batch(source: Source) -> bool:
    return any(BATCH in word for word in source.arguments)


def check_batch_sizes(source: Source, sizes: Sequence[int]) -> None:
    """Refuse what a batch cannot be estimated from.

    Raises
    ------
    FileError
        Says what is missing.
    """
    if _is_script(source) and not _takes_batch(source):
        raise FileError(
            f"{source.path}: where does it take its batch size? {_SAY_WHERE}, so that it can be "
            f"run with several"
        )
    if len(sizes) < 2 or not source.batch_size > max(sizes):
        raise FileError(
            f"{source.path}: a batch is estimated from at least two smaller ones; give its own "
            f"batch size, and others below that"
        )
