"""Write plans, schedules and profiles for other people and programs. One module per format."""

from __future__ import annotations

import importlib
import pkgutil
from functools import lru_cache

from enplace.writers.archive import write_project
from enplace.writers.constraints import constraints_by_name, write_constraints
from enplace.writers.pipeline_json import pipeline_document, pipelines_document
from enplace.writers.plans import write_plan
from enplace.writers.profile_file import write_profile
from enplace.writers.registry import Exporter, registered
from enplace.writers.schedule_json import schedule_json
from enplace.writers.trace import chrome_trace

__all__ = [
    "Exporter",
    "chrome_trace",
    "constraints_by_name",
    "exporters",
    "pipeline_document",
    "pipelines_document",
    "schedule_json",
    "write_constraints",
    "write_plan",
    "write_profile",
    "write_project",
]


def exporters() -> dict[str, Exporter]:
    """Return all exporters by name, in alphabetical order."""
    for name in _modules(tuple(__path__)):
        importlib.import_module(f"{__name__}.{name}")
    return dict(sorted(registered.items()))


@lru_cache(maxsize=2)  # the studio's menus ask at every edit
def _modules(paths: tuple[str, ...]) -> list[str]:
    return [module.name for module in pkgutil.iter_modules(paths)]
