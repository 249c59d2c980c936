"""The interface of a framework, such as TensorFlow.

A framework is a package in this folder with a module ``framework`` that holds a :class:`Framework`
under the name ``FRAMEWORK``. That module must not import the framework itself: a framework runs
only in workers.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from enplace.processes.worker import Program
from enplace.writers.registry import Exporter


@dataclass(frozen=True)
class Framework:
    """A framework, as the rest of Enplace sees it.

    Attributes
    ----------
    name : str
        Its name on screen.
    module : str
        A module that exists wherever it is installed.
    extra : str
        The extra of Enplace that installs it.
    worker : Program
        Does the jobs of :mod:`enplace.frameworks.jobs`.
    server : Program
        Serves one task of a cluster of several hosts.
    kinds : tuple of str
        The kinds of model that it opens; see :class:`enplace.frameworks.source.Source`.
    recorded_kinds : tuple of str
        Kinds that hold only measurements, so that opening one runs no code.
    suffixes : tuple of str
        Endings of the names of its models' files.
    recognise : callable
        Takes a path that exists; returns the path of the model, and its kind. Raises
        :class:`enplace.errors.FileError` if it is not a model of this framework.
    exporters : tuple of Exporter
        Write a plan as code of this framework.
    """

    name: str
    module: str
    extra: str
    worker: Program
    server: Program
    kinds: tuple[str, ...]
    recorded_kinds: tuple[str, ...]
    suffixes: tuple[str, ...]
    recognise: Callable[[Path], tuple[Path, str]]
    exporters: tuple[Exporter, ...]

    @property
    def is_installed(self) -> bool:
        """Whether it is installed here; looks for it without importing it."""
        return importlib.util.find_spec(self.module) is not None

    @property
    def install_command(self) -> str:
        """The command that installs it."""
        return f"pip install 'enplace[{self.extra}]'"
