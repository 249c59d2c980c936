"""Readers of file formats, and how they are registered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from enplace.errors import FileError
from enplace.files.json_text import parse_json
from enplace.values.profile import Profile


@dataclass(frozen=True, eq=False)
class Content:
    """A file in memory.

    Attributes
    ----------
    data : bytes
        The file's bytes, unpacked if they were gzip.
    stem : str
        The file's name without folder and suffixes.
    fields : dict
        The object that the file holds if it is JSON; empty if it is anything else.
    fault : FileError or None
        Why the file is not JSON.
    """

    data: bytes
    stem: str
    fields: dict[str, Any]
    fault: FileError | None = None

    @property
    def declared_format(self) -> str:
        """Name of the format that the JSON itself declares; empty if it declares none."""
        declared = self.fields.get("schema", self.fields.get("format", ""))
        return declared.partition("/")[0] if isinstance(declared, str) else ""


def make_content(data: bytes, filename: str) -> Content:
    """Parse a file's bytes as far as possible without knowing the format."""
    stem = filename.removesuffix(".gz").removesuffix(".json")
    try:
        value = parse_json(data)
    except FileError as fault:
        return Content(data, stem, {}, fault)
    return Content(data, stem, value if isinstance(value, dict) else {})


Read = Callable[[Content], Profile]
Matches = Callable[[Content], bool]


@dataclass(frozen=True)
class Reader:
    """A file format that Enplace reads.

    Attributes
    ----------
    name, title : str
        The names for programs, and for people in a file dialog.
    suffixes : tuple of str
        The usual endings of such files' names.
    matches : callable
        Returns whether a file has this format; true for at most one reader per file.
    read : callable
        Makes the profile; raises FileError or ProfileError with the place in the file.
    """

    name: str
    title: str
    suffixes: tuple[str, ...]
    matches: Matches
    read: Read


registered: dict[str, Reader] = {}


def reader(
    name: str, *, title: str, suffixes: tuple[str, ...], matches: Matches
) -> Callable[[Read], Read]:
    """Register a function as a reader; its module must be in this package to be found.

    Raises
    ------
    ValueError
        If another reader has the name, or a suffix has no dot; the message is for the developer.
    """
    if not isinstance(suffixes, tuple) or not all(each.startswith(".") for each in suffixes):
        raise ValueError(f"reader '{name}': its suffixes must be a tuple, each with its dot")
    if name in registered:
        raise ValueError(f"reader '{name}': another reader has this name; choose another one")

    def register(read: Read) -> Read:
        registered[name] = Reader(name, title, suffixes, matches, read)
        return read

    return register
