"""Placers turn a problem into a plan. One module per family; ``@placer`` registers each placer."""

import importlib
import pkgutil

from enplace.option import Option
from enplace.placing.options import PlaceOptions, Progress
from enplace.placing.registry import Placer, all_options, placers
from enplace.placing.run import place, place_with_each
from enplace.placing.stop import Stop
from enplace.values.problem import LATENCY, STEP_TIME, THROUGHPUT

DEFAULT_METHOD = "enplace"
DEFAULT_METHODS = {STEP_TIME: DEFAULT_METHOD, THROUGHPUT: "max-load-dp", LATENCY: "latency-ip"}
"""The method for each objective if none is named."""


def load_modules() -> None:
    """Import every module of this package; each registers the placers that it holds."""
    for module in pkgutil.walk_packages(__path__, f"{__name__}."):
        importlib.import_module(module.name)


load_modules()

__all__ = [
    "DEFAULT_METHOD",
    "DEFAULT_METHODS",
    "LATENCY",
    "STEP_TIME",
    "THROUGHPUT",
    "Option",
    "PlaceOptions",
    "Placer",
    "Progress",
    "Stop",
    "all_options",
    "load_modules",
    "place",
    "place_with_each",
    "placers",
]
