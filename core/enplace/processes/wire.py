"""Frames of messages between processes: a JSON head and numpy arrays, never pickle.

A message is the lengths of its two parts (8 bytes each, little endian), the head, and an npz file.
Whatever a worker sends before, the last message of its job is :data:`DONE` or :data:`FAILED`:

- ``progress`` has ``message`` and ``fraction`` (null if unknown);
- ``done`` has the result;
- ``failed`` has ``why``, and ``kind``, the name of an error of :mod:`enplace.errors`.
"""

from __future__ import annotations

import io
import json
import struct
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from enplace.errors import EnplaceError
from enplace.files.json_text import dump_json

PROGRESS, DONE, FAILED = "progress", "done", "failed"

_LENGTHS = struct.Struct("<QQ")
_MAX_BYTES = 1 << 33
"""Longest part of a message. Eight letters of text, read as a length, are always more."""

_PIECE_BYTES = 1 << 24
"""How much is read at once, because a wrong length must not take memory."""

_BROKEN = (
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    NotImplementedError,
    OSError,
    RecursionError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
    zipfile.BadZipFile,
    zlib.error,
)
"""What numpy and zipfile raise for bytes that are not what they should be."""

Arrays = Mapping[str, NDArray[Any]]


class WireError(EnplaceError):
    """The other process sent something that is not a message."""


@dataclass(frozen=True)
class Message:
    """One message: ``do`` names its kind, ``details`` is plain data."""

    do: str
    details: dict[str, Any] = field(default_factory=dict)
    arrays: Arrays = field(default_factory=dict)


def encode(message: Message) -> bytes:
    """Return the bytes of a message."""
    # A lone surrogate, as in a path that is not UTF-8, becomes the escape that JSON has for it.
    head = dump_json({"do": message.do, **message.details}).encode(errors="backslashreplace")
    packed = io.BytesIO()
    if message.arrays:
        np.savez(packed, **message.arrays)  # type: ignore[arg-type]
    blob = packed.getvalue()
    return _LENGTHS.pack(len(head), len(blob)) + head + blob


def take(buffer: bytearray) -> Message | None:
    """Take the first whole message out of a buffer; None while part of it is missing.

    Raises
    ------
    WireError
        If the buffer begins with anything but a message.
    """
    if len(buffer) < _LENGTHS.size:
        return None
    n_head, n_blob = _lengths(buffer)
    end = _LENGTHS.size + n_head + n_blob
    if len(buffer) < end:
        return None
    head = bytes(buffer[_LENGTHS.size : _LENGTHS.size + n_head])
    blob = bytes(buffer[_LENGTHS.size + n_head : end])
    del buffer[:end]
    return _decode(head, blob)


def read(stream: BinaryIO) -> Message | None:
    """Wait for the next message of a stream; None at its end, even if that cuts a message short.

    Raises
    ------
    WireError
        If the stream goes on with anything but a message.
    """
    lengths = stream.read(_LENGTHS.size)
    if len(lengths) < _LENGTHS.size:
        return None
    n_head, n_blob = _lengths(lengths)
    head, blob = _read_bytes(stream, n_head), _read_bytes(stream, n_blob)
    return _decode(head, blob) if len(blob) == n_blob and len(head) == n_head else None


def _read_bytes(stream: BinaryIO, count: int) -> bytes:
    """Read so many bytes, or all that there are."""
    found = bytearray()
    while piece := stream.read(min(count - len(found), _PIECE_BYTES)):
        found += piece
    return bytes(found)


def _lengths(start: bytes | bytearray) -> tuple[int, int]:
    n_head, n_blob = _LENGTHS.unpack_from(start)
    if max(n_head, n_blob) > _MAX_BYTES:
        raise WireError(f"not a message but {bytes(start[:40])!r}")
    return n_head, n_blob


def _decode(head: bytes, blob: bytes) -> Message:
    arrays: dict[str, NDArray[Any]] = {}
    try:
        details = json.loads(head)
        do = details.pop("do")
        if blob:
            with np.load(io.BytesIO(blob), allow_pickle=False) as packed:
                # savez does not compress, so what is larger than its message is no array of ours.
                if sum(each.file_size for each in packed.zip.infolist()) > len(blob):
                    raise WireError(f"arrays that do not fit their {len(blob)} bytes")
                arrays = dict(packed)
    except _BROKEN:
        raise WireError(f"not a message but {head[:40]!r}") from None
    return Message(do, details, arrays)
