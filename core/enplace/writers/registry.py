"""Exporters of plans to file formats, and how they are registered."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from enplace.errors import FileError
from enplace.files.writing import write_atomically
from enplace.text import WORDS
from enplace.values.result import Result

Write = Callable[[Result], str]
Save = Callable[[Result, str], Sequence[str]]


def _fits(result: Result) -> str:
    return ""


def _nothing(_: Result) -> Sequence[str]:
    return ()


NOWHERE = r"(?!)"
"""A mark that no file has."""


@dataclass(frozen=True)
class Exporter:
    """A file format that a plan can be exported to.

    Attributes
    ----------
    name, title : str
        The name for ``enplace export --format``, and the one for people.
    suffix : str
        The ending of such a file's name.
    write : callable or None
        Takes a result, and returns the text of the file.
    save : callable or None
        Writes what is no text: takes a result and a path, and returns lines for people.
    is_folder : bool
        Whether ``save`` makes a folder.
    shows_bound, shows_references : bool
        Whether the file shows the result's bound and its references, which take time to find.
    why_not : callable
        Takes a result, and says why the format cannot hold it; empty if it can.
    mark : str
        A regular expression for what such a file has near its beginning or its end, and a file of
        another program has not. Only a file with it is replaced without being asked.
    about : callable
        Takes a result, and returns lines for people about the file that was written.
    """

    name: str
    title: str
    suffix: str
    write: Write | None = None
    shows_bound: bool = False
    shows_references: bool = False
    why_not: Callable[[Result], str] = _fits
    save: Save | None = None
    is_folder: bool = False
    mark: str = NOWHERE
    about: Callable[[Result], Sequence[str]] = _nothing

    def write_to(self, path: str | os.PathLike[str], result: Result) -> Sequence[str]:
        """Write the file or the folder; return lines for people.

        Raises
        ------
        FileError
            If it cannot be written.
        """
        if self.save is not None:
            return self.save(result, os.fspath(path))
        write_atomically(path, self.text(result))
        return self.about(result)

    def text(self, result: Result) -> str:
        """Return the text of the file.

        Raises
        ------
        FileError
            If the exporter returns anything but text; the message is for its developer.
        """
        found: object = self.write and self.write(result)
        if not isinstance(found, str):
            raise FileError(
                f"the exporter '{self.name}' returned {found!r:.60}, which is not text; correct it"
            )
        return found


registered: dict[str, Exporter] = {}


def exporter(
    name: str,
    *,
    title: str,
    suffix: str,
    shows_bound: bool = False,
    shows_references: bool = False,
    why_not: Callable[[Result], str] = _fits,
    mark: str = NOWHERE,
) -> Callable[[Write], Write]:
    """Register a function as an exporter; its module must be in this package to be found.

    Raises
    ------
    ValueError
        If another exporter has the name, or it cannot be typed; the message is for the developer.
    """
    if not re.fullmatch(WORDS, name):
        raise ValueError(f"exporter '{name}': use lower-case words joined by hyphens as its name")
    if not suffix.startswith("."):
        raise ValueError(f"exporter '{name}': its suffix must begin with a dot")
    if name in registered:
        raise ValueError(f"exporter '{name}': another exporter has this name; choose another one")

    def register(write: Write) -> Write:
        shown = (shows_bound, shows_references)
        registered[name] = Exporter(name, title, suffix, write, *shown, why_not, mark=mark)
        return write

    return register
