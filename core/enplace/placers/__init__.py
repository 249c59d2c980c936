"""Placers: problem in, plan out. One module per family; each registers itself with ``@placer``."""

import importlib
import pkgutil

from enplace.placers.registry import FAMILIES, PlaceOptions, Placer, Progress, place, placers
from enplace.problem import LATENCY, STEP_TIME, THROUGHPUT

DEFAULT_METHOD = "enplace"
DEFAULT_METHODS = {STEP_TIME: DEFAULT_METHOD, THROUGHPUT: "max-load-dp", LATENCY: "latency-ip"}
"""The method for each objective if a person names none."""

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = [
    "DEFAULT_METHOD",
    "DEFAULT_METHODS",
    "FAMILIES",
    "LATENCY",
    "STEP_TIME",
    "THROUGHPUT",
    "PlaceOptions",
    "Placer",
    "Progress",
    "place",
    "placers",
]
