"""Trust in code: the user is asked once for each folder whether it may run, as in editors."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import platformdirs

from enplace.disk import (
    check_format,
    dump_json,
    is_object,
    parse_json,
    read_bytes,
    take,
    write_atomically,
)
from enplace.errors import EnplaceError
from enplace.frameworks.source import Source

NAME, VERSION = "enplace-trust", 1


class TrustError(EnplaceError):
    """The user has not allowed this code to run."""


def needs_trust(source: Source) -> bool:
    """Return whether opening a model runs its code: even a saved graph can write files."""
    return not source.is_recorded


def folder_of(source: Source) -> Path:
    """Return the folder to trust; for a module, the current one."""
    return Path(source.path).resolve().parent


def is_trusted(path: str | os.PathLike[str]) -> bool:
    """Return whether the user trusts a folder that contains the path, at any depth."""
    trusted = _folders()
    return any(str(folder) in trusted for folder in Path(path).resolve().parents)


def trust(folder: str | os.PathLike[str]) -> None:
    """Remember that the user trusts a folder and everything in it.

    Raises
    ------
    FileError
        If the user's settings cannot be written.
    """
    folders = sorted({*_folders(), str(Path(folder).resolve())})
    text = dump_json({"format": f"{NAME}/{VERSION}", "folders": folders}, indent=2)
    with suppress(OSError):  # writing reports the fault
        _file().parent.mkdir(parents=True, exist_ok=True)
    write_atomically(_file(), f"{text}\n")


def _file() -> Path:
    return Path(platformdirs.user_config_dir("enplace")) / "trusted.json"


def _folders() -> set[str]:
    """Read the trusted folders; empty if the file that lists them is missing or damaged."""
    try:
        data = is_object(parse_json(read_bytes(_file())), "")
        check_format(data, NAME, VERSION)
        return {folder for folder in take(data, "folders", list, "") if isinstance(folder, str)}
    except EnplaceError:
        return set()
