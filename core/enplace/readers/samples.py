"""The profiles that ship with Enplace."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files as resource_files
from pathlib import Path

from enplace.disk import parse_json


@dataclass(frozen=True)
class Sample:
    """A bundled profile, and the preset cluster that it opens with."""

    name: str
    title: str
    description: str
    path: Path
    cluster: str


def samples() -> list[Sample]:
    """Return the bundled samples in the order in which they are shown."""
    folder = Path(str(resource_files("enplace_resources"))) / "samples"
    entries = parse_json((folder / "samples.json").read_bytes())
    return [Sample(path=folder / f"{entry['name']}.enplace", **entry) for entry in entries]
