"""Read the bytes of a file, unpacked, within limits; every fault is one line.

Whether a file exists is asked with ``os.path``: ``Path`` raises where a folder may not be entered
or a name is too long.
"""

from __future__ import annotations

import gzip
import io
import os
import stat
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from enplace.errors import EnplaceError, FileError

MAX_FILE_BYTES, MAX_ARCHIVE_BYTES = 256 << 20, 512 << 20
"""Largest text and largest archive, measured after unpacking."""

MAX_RATIO, SMALL_BYTES, LARGE_RATIO = 100, 32 << 20, 20
"""How many times its packed size an input may have. Small ones may have more, because a constant
column packs a thousandfold; an archive of more than :data:`MAX_FILE_BYTES` may have less."""

GZIP_MAGIC, ZIP_MAGIC = b"\x1f\x8b", b"PK"
_CHUNK_BYTES = 1 << 20


def open_to_read(path: str | os.PathLike[str]) -> io.BufferedReader:
    """Open a file, but no named pipe: nobody may ever write to that.

    Raises
    ------
    OSError
        If it cannot be opened.
    FileError
        If it is a named pipe.
    """
    refuse_pipe(path)
    return open(path, "rb")


def refuse_pipe(path: str | os.PathLike[str]) -> None:
    """Refuse a named pipe: whoever opens it may wait for ever for somebody at its other end.

    Raises
    ------
    FileError
        If it is a named pipe.
    """
    try:
        is_pipe = stat.S_ISFIFO(os.stat(path).st_mode)
    except OSError:  # whoever opens it reports the fault
        return
    # A pipe that a shell names, as for <(zcat p.json.gz), leads to no file.
    if is_pipe and os.path.exists(os.path.realpath(path)):
        raise FileError(f"{path}: this is a named pipe; use a file instead")


def read_bytes(
    path: str | os.PathLike[str], most_bytes: int = MAX_FILE_BYTES, most_zip_bytes: int = 0
) -> bytes:
    """Read a file, and unpack it if it is gzip.

    Raises
    ------
    FileError
        If it cannot be read, or is larger than ``most_bytes`` and no zip of at most
        ``most_zip_bytes``; names the file.
    """
    with naming(path):
        try:
            with open_to_read(path) as file:
                n_bytes = os.fstat(file.fileno()).st_size or most_bytes  # a pipe has none
                if most_bytes < n_bytes <= most_zip_bytes and zipfile.is_zipfile(file):
                    most_bytes = most_zip_bytes
                    file.seek(0)
                # It takes that much memory at once.
                content = b"" if n_bytes > most_bytes else file.read(n_bytes + 1)
        except OSError as error:
            raise FileError(f"cannot read: {error.strerror}; check the path") from None
        if content.startswith(GZIP_MAGIC):
            content = _gunzip(content, most_bytes)
        if max(len(content), n_bytes) > most_bytes:
            raise FileError(
                f"larger than {most_bytes >> 20} MiB, unlike any real one; check the path"
            )
        return content


def _gunzip(packed: bytes, most_bytes: int) -> bytes:
    most = min(most_bytes, most_unpacked_bytes(len(packed)))
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(packed)) as unpacked:
            content = gather(unpacked, most)
    except EOFError:
        raise FileError("the gzip data stops early; copy the file again") from None
    except (zlib.error, gzip.BadGzipFile):
        raise FileError("damaged gzip data; copy the file again") from None
    if len(content) > most:
        raise FileError(f"unpacks from {len(packed)} to over {most} bytes; do not trust it")
    return content


def gather(stream: gzip.GzipFile | IO[bytes], most_bytes: int) -> bytes:
    """Read a stream to its end, or until it is longer than ``most_bytes``.

    Unlike ``read()``, this needs no memory beside the result.
    """
    found = io.BytesIO()
    while found.tell() <= most_bytes and (chunk := stream.read(_CHUNK_BYTES)):
        found.write(chunk)
    return found.getvalue()


def most_unpacked_bytes(packed_bytes: int) -> int:
    """Return how many bytes an honest file of this size unpacks to at most."""
    usual = min(MAX_FILE_BYTES, max(SMALL_BYTES, MAX_RATIO * packed_bytes))
    return max(usual, min(MAX_ARCHIVE_BYTES, LARGE_RATIO * packed_bytes))


@contextmanager
def naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """Put the file's name before the message of every error raised inside, unless it is there."""
    try:
        yield
    except EnplaceError as error:
        if str(error).startswith(f"{path}: "):
            raise
        named = type(error)(f"{path}: {error}")
        named.__dict__.update(error.__dict__)  # such as the last lines of a worker
        raise named from None
