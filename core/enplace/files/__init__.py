"""The files Enplace writes: profiles, projects, plans; and the one way it writes a file."""

from __future__ import annotations

import os
from pathlib import Path

from enplace.disk import dump_json, write_atomically
from enplace.files.archive import Project, read_project, write_archive, write_project
from enplace.files.plans import (
    PlanFile,
    complete_plan,
    read_plan,
    read_plan_alone,
    read_plan_cluster,
    write_plan,
)
from enplace.files.text_form import profile_to_json
from enplace.profile import Profile

__all__ = [
    "PlanFile",
    "Project",
    "complete_plan",
    "read_plan",
    "read_plan_alone",
    "read_plan_cluster",
    "read_project",
    "write_atomically",
    "write_plan",
    "write_profile",
    "write_project",
]


def write_profile(path: str | os.PathLike[str], profile: Profile) -> None:
    """Write a profile: the open text form if the name ends in ``.json``, else ``.enplace``.

    Raises
    ------
    FileError
        If the file cannot be written.
    """
    if Path(path).suffix.lower() == ".json":
        write_atomically(path, dump_json(profile_to_json(profile), indent=1) + "\n")
    else:
        write_archive(path, profile)
