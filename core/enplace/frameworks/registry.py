"""The frameworks that Enplace supports: each folder here is one."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

from enplace import frameworks as package
from enplace import writers
from enplace.frameworks.framework import Framework
from enplace.writers.registry import Exporter


def frameworks() -> dict[str, Framework]:
    """Return every framework, by the name of its folder."""
    folders = (module.name for module in pkgutil.iter_modules(package.__path__) if module.ispkg)
    return {name: _import(name).FRAMEWORK for name in folders}


def _import(folder: str) -> Any:
    return importlib.import_module(f"{package.__name__}.{folder}.framework")


def framework_of_kind(kind: str) -> Framework:
    """Return the framework that opens a kind of model."""
    return next(each for each in frameworks().values() if kind in each.kinds)


def kinds() -> tuple[str, ...]:
    """Return every kind of model that some framework opens."""
    return tuple(kind for framework in frameworks().values() for kind in framework.kinds)


def exporters() -> dict[str, Exporter]:
    """Return the exporters of all formats, those of frameworks among them, by name."""
    of_frameworks = (each for framework in frameworks().values() for each in framework.exporters)
    return dict(sorted({**writers.exporters(), **{e.name: e for e in of_frameworks}}.items()))
