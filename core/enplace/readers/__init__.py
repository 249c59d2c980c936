"""Readers: any file that holds a graph with costs, to a profile.

The format is told from the content, never from the name.
"""

from __future__ import annotations

import os
from typing import Any

from enplace.disk import naming, parse_json, read_bytes, shown
from enplace.errors import FileError
from enplace.readers.archive import Project, profile_from_archive, read_project
from enplace.readers.dnn_partitioning import profile_from_dnn_partitioning
from enplace.readers.gpu_profile import profile_from_tf
from enplace.readers.plans import (
    PlanFile,
    complete_plan,
    read_plan,
    read_plan_alone,
    read_plan_cluster,
)
from enplace.readers.recorded import recorded_plan, with_costs_of
from enplace.readers.text_form import profile_from_json
from enplace.values.profile import Profile

__all__ = [
    "PlanFile",
    "Project",
    "complete_plan",
    "read_plan",
    "read_plan_alone",
    "read_plan_cluster",
    "read_profile",
    "read_project",
    "recorded_plan",
    "with_costs_of",
]

ZIP_MAGIC = b"PK"


def read_profile(path: str | os.PathLike[str]) -> Profile:
    """Read a profile from any readable file.

    Readable are ``.enplace`` files, the open text form, inputs of Tarnawski et al. 2020, and GPU
    profiles of TensorFlow steps (``tf-op-profile/1``); JSON may be packed with gzip.

    Raises
    ------
    FileError, ProfileError
        One line with the file, the place in it and the mend.

    Warns
    -----
    EnplaceWarning
        If the file is readable but a person should know something about it.
    """
    with naming(path):
        content = read_bytes(path)
        if content.startswith(ZIP_MAGIC):
            return profile_from_archive(content)
        return _profile_from_json(parse_json(content), os.path.basename(path))


def _profile_from_json(data: Any, filename: str) -> Profile:
    if not isinstance(data, dict):
        raise FileError(
            "holds no graph; choose a profile: an object with 'ops' or 'nodes', and 'edges'"
        )
    schema = data.get("schema", data.get("format", ""))
    if isinstance(schema, str) and schema.startswith("tf-op-profile/"):
        return profile_from_tf(data)
    if "ops" in data and not str(schema).startswith("enplace-plan/"):
        return profile_from_json(data)
    if "nodes" in data and "edges" in data:
        return profile_from_dnn_partitioning(data, _stem(filename))
    raise FileError(
        f"holds no graph (its format is {shown(schema)}); "
        f"choose a profile: it has 'ops' or 'nodes', and 'edges'"
    )


def _stem(filename: str) -> str:
    return filename.removesuffix(".gz").removesuffix(".json")
