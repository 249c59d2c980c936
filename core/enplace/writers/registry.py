"""An exporter of schedules to one file format, and how it is registered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from enplace.values.schedule import Schedule

Write = Callable[[Schedule], str]


@dataclass(frozen=True)
class Exporter:
    """A file format that a schedule can be exported to.

    Attributes
    ----------
    name, title : str
        What ``enplace export --format`` calls it, and what a person reads.
    suffix : str
        How the name of such a file ends.
    write : callable
        A schedule in, the text of the file out.
    """

    name: str
    title: str
    suffix: str
    write: Write


registered: dict[str, Exporter] = {}


def exporter(name: str, *, title: str, suffix: str) -> Callable[[Write], Write]:
    """Register a function as an exporter; its module must be in this package to be found."""

    def register(write: Write) -> Write:
        registered[name] = Exporter(name, title, suffix, write)
        return write

    return register
