"""The profiles that ship with Enplace."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files as resource_files
from pathlib import Path

from enplace.files.json_text import parse_json

FOLDER = Path(str(resource_files("enplace_resources"))) / "samples"


@dataclass(frozen=True)
class Thumbnail:
    """What a sample is like, without reading its profile; `scripts/make_thumbnails.py` makes it.

    Attributes
    ----------
    ops, one_gpu_bytes : int
        The number of ops, and the peak memory of a step on one GPU.
    boxes : tuple of (left, top, width, height, device)
        The groups of the graph under the expert's plan; places and sizes are thousandths.
    """

    ops: int
    one_gpu_bytes: int
    boxes: tuple[tuple[int, int, int, int, int], ...]


@dataclass(frozen=True)
class Sample:
    """A bundled profile, and the cluster that it opens with; it can stand for its file's path."""

    name: str
    title: str
    description: str
    path: Path
    cluster: str

    def __fspath__(self) -> str:
        return str(self.path)


def samples() -> list[Sample]:
    """Return the bundled samples in the order in which they are shown."""
    entries = parse_json((FOLDER / "samples.json").read_bytes())
    return [Sample(path=FOLDER / f"{entry['name']}.enplace", **entry) for entry in entries]


def thumbnails() -> dict[str, Thumbnail]:
    """Return the thumbnail of each sample by its name."""
    found = parse_json((FOLDER / "thumbnails.json").read_bytes())
    return {
        name: Thumbnail(each["ops"], each["one_gpu_bytes"], tuple(map(tuple, each["boxes"])))
        for name, each in found.items()
    }
