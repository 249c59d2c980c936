"""The clusters that ship with Enplace, and choosing a cluster by its name."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from importlib.resources import files as resource_files
from typing import Any

from enplace.errors import ClusterError
from enplace.files.json_text import LITTLE_MEMORY_BYTES, parse_json
from enplace.files.reading import naming, read_bytes
from enplace.readers.cluster_json import cluster_from_json
from enplace.text import instead
from enplace.values.cluster import Cluster
from enplace.values.profile import Profile

ClusterChoice = str | os.PathLike[str] | Mapping[str, Any] | Cluster
"""How a person or a program names a cluster."""


@cache
def presets() -> dict[str, Cluster]:
    """Return the clusters that ship with Enplace, by name, the papers' testbeds first."""
    folder = resource_files("enplace_resources") / "clusters"
    found = [
        cluster_from_json(parse_json(entry.read_bytes()), entry.name)
        for entry in folder.iterdir()
        if entry.name.endswith(".json")
    ]
    papers = ("pesto", "celeritas", "fastt", "fastt-2x8", "baechi")
    found.sort(key=lambda c: (papers.index(c.name) if c.name in papers else len(papers), c.name))
    return {cluster.name: cluster for cluster in found}


def cluster_from(choice: ClusterChoice, profile: Profile) -> Cluster:
    """Choose a cluster as ``--cluster`` does.

    Parameters
    ----------
    choice : str, path, mapping or Cluster
        A preset's name, a JSON file in the custom format, ``local`` (the devices the profile was
        measured on) or ``from-file`` (the devices that a Tarnawski input carries). Programs may
        also give what such a file holds, or a cluster.

    Raises
    ------
    FileError, ClusterError
        If there is no such cluster, or its file cannot be used.
    """
    if isinstance(choice, Cluster):
        return choice
    if isinstance(choice, Mapping):
        return cluster_from_json(dict(choice))
    text = os.fspath(choice)
    if text in ("local", "from-file"):
        return _carried(text, profile)
    if text in presets():
        return presets()[text]
    if text.endswith(".json") or os.sep in text or not isinstance(choice, str):
        return read_cluster(text)
    raise ClusterError(
        f"there is no cluster '{text}', nor is that a .json file; {instead(text, presets())}"
    )


def read_cluster(path: str | os.PathLike[str]) -> Cluster:
    """Read a cluster in the custom JSON format.

    Raises
    ------
    FileError, ClusterError
        One line with the file, the place in it and the fix.
    """
    with naming(path):
        return cluster_from_json(parse_json(read_bytes(path), most_bytes=LITTLE_MEMORY_BYTES))


def _carried(text: str, profile: Profile) -> Cluster:
    if profile.measured.cluster is None:
        raise ClusterError(
            f"profile '{profile.name}' does not say which devices it was measured on, so '{text}' "
            f"means nothing; choose a preset or a file (see 'enplace clusters')"
        )
    return profile.measured.cluster
