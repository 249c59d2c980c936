"""Packages that only some people need, each in an extra of our own."""

from __future__ import annotations

import importlib
from typing import Any

from enplace.errors import EnplaceError


def import_extra(module: str, extra: str) -> Any:
    """Import a module that an extra installs.

    Raises
    ------
    EnplaceError
        If it is not installed; the line says how to install it.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        if error.name not in (package, module):
            raise
        raise EnplaceError(
            f"{package} is not installed; run: pip install 'enplace[{extra}]'"
        ) from None
