"""The frameworks that Enplace knows: each folder here is one."""

from __future__ import annotations

import functools
import importlib
import pkgutil

from enplace import frameworks as package
from enplace.frameworks.framework import Framework


@functools.cache
def _modules() -> dict[str, str]:
    found = (module for module in pkgutil.iter_modules(package.__path__) if module.ispkg)
    return {module.name: f"{package.__name__}.{module.name}.framework" for module in found}


def frameworks() -> dict[str, Framework]:
    """Return every framework, by the name of its folder."""
    return {name: importlib.import_module(path).FRAMEWORK for name, path in _modules().items()}


def framework_of_kind(kind: str) -> Framework:
    """Return the framework that opens a kind of model."""
    return next(each for each in frameworks().values() if kind in each.kinds)


def kinds() -> tuple[str, ...]:
    """Return every kind of model that some framework opens."""
    return tuple(kind for framework in frameworks().values() for kind in framework.kinds)
