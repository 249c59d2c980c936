"""Placers: problem in, plan out. One module per family; each registers itself with ``@placer``."""

import importlib
import pkgutil

from enplace.placers.registry import PlaceOptions, Placer, Progress, place, placers

DEFAULT_METHOD = "enplace"

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = ["DEFAULT_METHOD", "PlaceOptions", "Placer", "Progress", "place", "placers"]
