"""Write a whole file, or leave the old one."""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from enplace.errors import FIXES, FileError, ReaderGoneError
from enplace.files.folders import find_files
from enplace.files.locks import taken
from enplace.system import lock

_MOST_LINKS = 40
_TEMPORARY = ".tmp"
_TEMPORARY_NAME = re.compile(r"\..+\.(?P<process>\d+)\.[0-9a-f]{12}\.tmp", re.DOTALL)
_STREAMS = re.compile(r"/proc/(?P<process>\d+)(/task/\d+)?/fd")


def write_atomically(path: str | os.PathLike[str], data: bytes | str) -> None:
    """Write a whole file or leave the old one: temporary file, fsync, rename.

    Anything that is not a regular file, such as a pipe or ``/dev/null``, is written to directly.
    So is an open stream, such as ``/dev/stdout``. An old file keeps its permissions.

    Raises
    ------
    FileError
        If the folder cannot be written; :class:`ReaderGoneError` if it is a pipe without a reader.
    """
    content = data.encode() if isinstance(data, str) else data
    try:
        target = Path(path).resolve()
        if (found := _open_stream(Path(path))) is not None:
            with found as stream:
                stream.write(content)
        elif target.exists() and not target.is_file():
            with open(path, "ab") as stream:
                stream.write(content)
        else:
            _replace(target, content)
    except BrokenPipeError:
        raise ReaderGoneError(f"{path}: its reader has ended; write to a file") from None
    except (OSError, RuntimeError) as error:
        code = error.errno if isinstance(error, OSError) else errno.ELOOP
        fix = FIXES.get(code or 0, "choose a folder you may write to")
        raise FileError(f"{path}: cannot write: {os.strerror(code or 0)}; {fix}") from None


def is_open_stream(path: str | os.PathLike[str]) -> bool:
    """Whether a path such as ``/dev/stdout`` names a stream, to which writing adds."""
    found = _open_stream(Path(path))
    if found is not None:
        found.close()
    return found is not None


def _open_stream(path: Path) -> BinaryIO | None:
    """Open again the stream that a path such as ``/dev/stdout`` names; None if it names none."""
    path = path.absolute()
    for _ in range(_MOST_LINKS):
        folder = _STREAMS.fullmatch(os.path.realpath(path.parent))
        if folder is not None and path.name.isdecimal():
            is_own = int(folder["process"]) == os.getpid()
            # A second handle of an own stream goes on where the stream is.
            return open(os.dup(int(path.name)) if is_own else path, "wb" if is_own else "ab")
        if not path.is_symlink():
            return None
        path = path.parent / path.readlink()
    return None


def _replace(target: Path, content: bytes) -> None:
    if target.exists() and not target.stat().st_mode & 0o222:
        raise OSError(errno.EACCES, "")  # renaming would replace it all the same
    remove_abandoned_files(target.parent)
    temporary = target.with_name(temporary_name(target.name))
    try:
        is_private = not target.parent.stat().st_mode & 0o077
        with open(temporary, "xb") as file:
            with suppress(OSError):  # not every file system has locks
                lock(file)
            if is_private:
                os.fchmod(file.fileno(), 0o600)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if target.exists():
            shutil.copymode(target, temporary)
        os.replace(temporary, target)
        _sync(target.parent)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def temporary_name(name: str) -> str:
    """Name a file until it is whole; :func:`remove_abandoned_files` knows such names."""
    start = f".{shortened_name(name)}.{os.getpid()}"
    return f"{start}.{secrets.token_hex(6)}{_TEMPORARY}"


def shortened_name(name: str) -> str:
    """Cut a file's name so that something can be added: names have at most 255 bytes."""
    return name.encode(errors="surrogateescape")[:100].decode(errors="ignore")


def _sync(folder: Path) -> None:
    """Bring a folder's entries to the disk; not every file system can."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def remove_abandoned_files(folder: Path) -> None:
    """Remove the temporary files in a folder that killed processes have left.

    A living process holds a lock on its file: it may be one of another container, whose number
    says nothing here.
    """
    for path in find_files(folder, f".*{_TEMPORARY}"):
        name = _TEMPORARY_NAME.fullmatch(path.name)
        if name is None or Path("/proc", name["process"]).exists():
            continue
        with suppress(OSError), taken(path):
            path.unlink(missing_ok=True)
