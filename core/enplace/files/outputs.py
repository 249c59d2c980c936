"""The files that are to be written: checked before the work, and kept when they are replaced.

A file of the kind that is written is replaced, and what it held is kept beside it. Any other file
may be somebody's work, so it is not replaced, unless that is asked for.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from enplace.errors import FileError, file_error

LOOKED_AT_BYTES = 1 << 16
"""How much of the beginning and of the end of a file is looked at."""

PROJECT = "project.json"
"""What an archive of a project has, and that of a profile has not."""


@dataclass(frozen=True)
class Kind:
    """A kind of file that commands write.

    Attributes
    ----------
    noun : str
    mark : str
        A regular expression for what such a file has near its beginning or its end.
    """

    noun: str
    mark: str

    def is_of(self, path: str) -> bool:
        """Whether a file is of this kind, or empty."""
        with open(path, "rb") as file:
            head = file.read(LOOKED_AT_BYTES)
            file.seek(max(0, os.path.getsize(path) - LOOKED_AT_BYTES))
            tail = file.read()
        return not head or any(re.search(self.mark.encode(), each) for each in (head, tail))


def _json_kind(noun: str, name: str) -> Kind:
    return Kind(noun, rf'^\s*\{{\s*"format": "enplace-{name}/')


class _Profile(Kind):
    def is_of(self, path: str) -> bool:
        members = _members(path)
        if not members:
            return super().is_of(path)
        return "profile.json" in members and PROJECT not in members


PROFILE = _Profile("profile", _json_kind("", "profile").mark)
PLAN, CLUSTER = _json_kind("plan", "plan"), _json_kind("cluster", "cluster")
SCHEDULE = Kind("schedule", r'^\{"makespan_us":')
VERIFICATION = Kind("report", "<title>Enplace on this machine</title>")


def make_room(path: str | os.PathLike[str], kind: Kind, *, force: bool) -> None:
    """Check the file that a function of Python is to write, and keep what it replaces.

    Raises
    ------
    FileError
        With the file and the fix.
    """
    output = os.fspath(path)
    check_outputs([(kind, output)], force=force, fix="pass force=True")
    keep_replaced(output)


def check_outputs(
    outputs: Sequence[tuple[Kind, str | None]],
    *inputs: str | None,
    force: bool = False,
    fix: str = "add --force",
) -> None:
    """Refuse, before the work, a file that cannot be written, is an input, or is named twice.

    So is one that would replace a file of another kind, unless ``force`` is true, which ``fix``
    says how to ask for.

    Raises
    ------
    FileError
        With the file and the fix.
    """
    given = [output for _, output in outputs if output is not None]
    for number, (kind, output) in enumerate(
        (kind, each) for kind, each in outputs if each is not None
    ):
        _check_output(output, [i for i in inputs if i is not None])
        if not force and _is_replaced(output):
            _check_kind(kind, output, fix)
        again = os.path.realpath(output) in map(os.path.realpath, given[:number])
        if again and (os.path.isfile(output) or not os.path.exists(output)):
            raise FileError(f"{output}: is named for two outputs; write them to two files")


def check_folder(output: str) -> None:
    """Refuse, before the work, a folder that cannot be made, or that has other files in it.

    Raises
    ------
    FileError
        With the folder and the fix.
    """
    parent = os.path.dirname(os.path.abspath(output))
    if not output or not os.path.isdir(parent):
        raise FileError(f"{output}: there is no folder '{parent}'; create it first")
    if os.path.isdir(output) and not os.path.islink(output) and not os.listdir(output):
        return
    if os.path.lexists(output):
        raise FileError(f"{output}: is there already; name a new folder, or an empty one")
    if not os.access(parent, os.W_OK):
        raise FileError(f"{output}: cannot write there; choose a folder you may write to")


def _check_output(output: str, inputs: Sequence[str]) -> None:
    if output in ("", "-"):
        raise FileError(f"'{output}' is not a file; name one, or /dev/stdout for the terminal")
    folder = os.path.dirname(output) or "."
    if not os.path.isdir(folder):
        raise FileError(f"{output}: there is no folder '{folder}'; create it first")
    if os.path.isdir(output):
        raise FileError(f"{output}: is a folder; name a file in it")
    if not os.access(folder, os.W_OK):
        raise FileError(f"{output}: cannot write there; choose a folder you may write to")
    try:
        found = os.stat(output)
    except FileNotFoundError:
        return
    except OSError as error:
        raise file_error(error) from None
    if any(os.path.exists(i) and os.path.samefile(output, i) for i in inputs):
        raise FileError(f"{output}: is also an input; write to another file")
    if stat.S_ISREG(found.st_mode) and not found.st_mode & 0o222:
        raise FileError(f"{output}: is read-only; change its permissions, or choose another file")


def may_be_replaced(output: str) -> bool:
    """Whether an output is a plain file, or will be one, and not a stream or a device."""
    return not os.path.lexists(output) or _is_replaced(output)


def _is_replaced(output: str) -> bool:
    """Whether there is a file that will be another one, and not longer or written into."""
    from enplace.files.writing import is_open_stream

    return os.path.isfile(output) and not is_open_stream(output)


def _check_kind(kind: Kind, output: str, fix: str) -> None:
    try:
        if kind.is_of(output):
            return
    except OSError as error:
        raise file_error(error) from None
    is_project = PROJECT in _members(output)
    found = "a project of the studio" if is_project else f"no {kind.noun} that Enplace wrote"
    raise FileError(f"{output}: is {found}, and would be replaced; name another file, or {fix}")


def _members(path: str) -> Sequence[str]:
    import zipfile

    with suppress(zipfile.BadZipFile, OSError), zipfile.ZipFile(path) as archive:
        return archive.namelist()
    return ()


def keep_replaced(*outputs: str | None) -> None:
    """Keep what will be replaced in a file of the same name with a tilde.

    Raises
    ------
    FileError
        If it cannot be written.
    """
    for output in outputs:
        if output is not None and _is_replaced(output) and os.path.getsize(output):
            old = Path(output).resolve()
            try:
                _copy(old, old.with_name(f"{old.name}~"))
            except OSError as error:
                raise file_error(error) from None


def _copy(old: Path, kept: Path) -> None:
    """Link the file, as its replacement will be another one; copy it where there are no links."""
    import shutil

    from enplace.files.writing import temporary_name

    temporary = old.with_name(temporary_name(old.name))
    try:
        os.link(old, temporary)
    except OSError:
        shutil.copy2(old, temporary)
    os.replace(temporary, kept)
