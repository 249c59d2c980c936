"""Make folders, private or temporary, and remove what killed processes have left in them."""

from __future__ import annotations

import glob
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from enplace.errors import FileError
from enplace.files.locks import taken
from enplace.system import lock

_PREFIX, _LOCK = "enplace-", ".lock"
"""Of temporary folders; a process holds the lock of its folder for as long as it lives."""

_MARK = b"a temporary folder of Enplace; it may be removed: %d\n"
"""What the lock holds, with the folder's number on this disk, or else the folder is somebody's own:
one that was unpacked from an archive may look like ours."""


def find_files(folder: Path, pattern: str) -> list[Path]:
    """Return the files of a folder whose names match; none if it cannot be read."""
    return [folder / name for name in glob.glob(pattern, root_dir=folder)]


def make_private_folder(folder: Path) -> None:
    """Make a folder that only this user may enter; so may any file that is written there.

    Raises
    ------
    FileError
        If it cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        folder.chmod(0o700)
    except OSError as error:
        raise FileError(f"{folder}: cannot make this folder: {error.strerror}") from None


@contextmanager
def temporary_folder(parent: Path | None = None) -> Iterator[Path]:
    """Make a folder that is removed at the end or, if this process is killed, by a later one.

    It is in ``parent``, or in the usual place.
    """
    for path in find_files(parent or Path(tempfile.gettempdir()), f"{_PREFIX}*"):
        with suppress(OSError), taken(path / _LOCK) as file:  # ours
            mark = _mark_of(path)
            if file.read(len(mark) + 1) == mark:
                _remove(path)
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
    try:
        with open(folder / _LOCK, "xb") as file:
            lock(file)
            file.write(_mark_of(folder))
            file.flush()
            yield folder
    finally:
        _remove(folder)


def starts_of_temporary(parents: Sequence[Path] = ()) -> list[str]:
    """Return how the paths of such folders begin, in the usual place and in others."""
    return [str(parent / _PREFIX) for parent in (Path(tempfile.gettempdir()), *parents)]


def _remove(folder: Path) -> None:
    """Remove a folder, with what cannot be entered: the kernel keeps such folders in an overlay."""
    for inner, names, _ in os.walk(folder):
        for path in (os.path.join(inner, name) for name in names):
            if not (os.path.islink(path) or os.access(path, os.R_OK | os.W_OK | os.X_OK)):
                with suppress(OSError):
                    os.chmod(path, 0o700)
    shutil.rmtree(folder, ignore_errors=True)


def _mark_of(folder: Path) -> bytes:
    return _MARK % folder.stat().st_ino
