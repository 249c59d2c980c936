"""Readers: make a profile from any file with a graph and costs. One module per format.

The file's content decides which reader takes it, never its name.
"""

from __future__ import annotations

import importlib
import os
import pkgutil

from enplace.errors import FileError
from enplace.files.fields import shown
from enplace.files.reading import MAX_ARCHIVE_BYTES, MAX_FILE_BYTES, naming, read_bytes
from enplace.names.guessed_passes import with_guessed_passes
from enplace.readers.archive import Project, read_project
from enplace.readers.constraints import constrain, read_constraints
from enplace.readers.plans import (
    PlanFile,
    complete_plan,
    read_plan,
    read_plan_alone,
    read_plan_cluster,
)
from enplace.readers.recorded import recorded_plan, with_costs_of
from enplace.readers.registry import Content, Reader, make_content, registered
from enplace.values.profile import Profile

__all__ = [
    "PlanFile",
    "Project",
    "Reader",
    "complete_plan",
    "constrain",
    "read_constraints",
    "read_plan",
    "read_plan_alone",
    "read_plan_cluster",
    "read_profile",
    "read_project",
    "readers",
    "recorded_plan",
    "with_costs_of",
]


def readers() -> dict[str, Reader]:
    """Return all readers by name, in alphabetical order."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return dict(sorted(registered.items()))


def read_profile(path: str | os.PathLike[str]) -> Profile:
    """Read a profile from a file of any format that has a reader; gzip is unpacked first.

    Raises
    ------
    FileError, ProfileError
        One line with the file, the place in it and the fix.

    Warns
    -----
    EnplaceWarning
        If the file is readable but the user should know something about it.
    """
    with naming(path):
        content = make_content(
            read_bytes(path, MAX_FILE_BYTES, MAX_ARCHIVE_BYTES), os.path.basename(path)
        )
        found = [reader for reader in readers().values() if reader.matches(content)]
        if len(found) > 1:
            names = " and ".join(reader.name for reader in found)
            raise FileError(f"could be of the formats {names}; report this fault of Enplace")
        if not found:
            raise content.fault or _no_graph(content)
        profile = found[0].read(content)
        if not isinstance(profile, Profile):
            raise FileError(
                f"the reader '{found[0].name}' returned {profile!r}, which is not a profile; "
                f"correct the reader"
            )
        return with_guessed_passes(profile)


def _no_graph(content: Content) -> FileError:
    if "traceEvents" in content.fields:
        return FileError(
            "a timeline to look at, which has no graph; measure the model itself: enplace profile"
        )
    declared = content.fields.get("schema", content.fields.get("format"))
    found = "" if declared is None else f" (its format is {shown(declared)})"
    return FileError(
        f"holds no graph{found}; choose a profile: an object with 'ops' or 'nodes', and 'edges'"
    )
