"""Trust in code: the user is asked once for each place whether its code may run, as in editors.

Two things are remembered: places, and commands that have run. A file from someone else may name a
program of the user's own and bring the arguments, so such a command is asked about once, too.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from enplace.errors import EnplaceError
from enplace.files.fields import check_format, is_object, take
from enplace.files.folders import make_private_folder
from enplace.files.json_text import dump_json, parse_json
from enplace.files.reading import read_bytes
from enplace.files.writing import write_atomically
from enplace.frameworks.source import Source, find_module, is_program

NAME, VERSION = "enplace-trust", 1
MOST_COMMANDS = 500
MOST_CHARACTERS = 4000
"""Longest command that a file may bring: the user reads it before it runs."""


class TrustError(EnplaceError):
    """The user has not allowed this code to run. Its message is shown whole."""

    is_whole = True


def place_of(source: Source) -> Path:
    """Return the real place of the code that opening a model runs.

    For a program, this is the folder that it imports from; otherwise it is the model itself.

    Raises
    ------
    TrustError
        If there is no such module: trusting the current folder would allow every script in it.
    """
    if source.kind == "module":
        module = find_module(source.path)
        if module is None:
            raise TrustError(f"{source.path}: there is no such Python module; check its name")
        return module[1]
    path = Path(os.path.realpath(source.path))
    return path.parent if is_program(source) else path


def may_run(source: Source, *, brought: bool) -> bool:
    """Return whether opening a model runs no code, or only code that the user has allowed.

    Parameters
    ----------
    brought : bool
        Whether a file brought the command, so that the user has not seen it.

    Raises
    ------
    TrustError
        If a file brought a command that is too long to be read before it runs, or names a module
        that does not exist.
    """
    if brought and len(source.command) > MOST_CHARACTERS:
        raise TrustError(
            f"{source.path}: the profile brings a command of {len(source.command):,} characters, "
            f"too long to read; profile the model again with your own arguments"
        )
    # Even a saved graph can write files.
    return source.is_recorded or (
        is_trusted(source) and (not brought or _command(source) in _read("commands"))
    )


def is_trusted(source: Source) -> bool:
    """Return whether the user trusts the place of a model's code, or a folder around it.

    A trusted model that is a folder vouches for no program in it.
    """
    place, places = place_of(source), _read("places")
    if not is_program(source) and str(place) in _read("models"):
        return True
    return any(str(each) in places for each in (place, *place.parents))


def trust(source: Source) -> None:
    """Remember that the user trusts the place of a model's code, and its command.

    Raises
    ------
    FileError
        If the user's settings cannot be written.
    """
    commands, command = _read("commands"), _command(source)
    if is_trusted(source) and command in commands:
        return
    known = {key: {*_read(key)} for key in ("places", "models")}
    known["places" if is_program(source) else "models"].add(str(place_of(source)))
    content = {
        "format": f"{NAME}/{VERSION}",
        **{key: sorted(places) for key, places in known.items()},
        "commands": [*(each for each in commands if each != command), command][-MOST_COMMANDS:],
    }
    make_private_folder(_file().parent)
    write_atomically(_file(), f"{dump_json(content, indent=2)}\n")


def _command(source: Source) -> str:
    """Return the whole command as one text that no other command gives."""
    return dump_json([source.kind, str(place_of(source)), source.path, *source.words])


def _file() -> Path:
    import platformdirs  # only who is asked needs it, no worker

    return Path(platformdirs.user_config_dir("enplace")) / "trusted.json"


def _read(key: str) -> list[str]:
    """Read what is remembered; nothing if the file is missing or damaged."""
    with suppress(EnplaceError):
        data = is_object(parse_json(read_bytes(_file())), "")
        check_format(data, NAME, VERSION)
        return [each for each in take(data, key, list, "") if isinstance(each, str)]
    return []
