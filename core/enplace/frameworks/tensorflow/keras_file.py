"""Checks of a saved Keras model before Keras unpacks it. Nothing here imports TensorFlow."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import BinaryIO

from enplace.errors import FileError
from enplace.files.json_text import LITTLE_MEMORY_BYTES, parse_json
from enplace.files.reading import LARGE_RATIO, SMALL_BYTES, gather, naming

SUFFIX = ".keras"
MAX_CONFIG_BYTES = 64 << 20

_ENTRY, _MOST_MEMBERS, _LIST_BYTES = b"PK\x01\x02", 10_000, 8 << 20
"""What begins an entry in the list at a zip's end; the most entries, and more than they take."""


def check_keras_file(path: Path) -> None:
    """Refuse a Keras model that is damaged, or that unpacks to far more than it holds.

    Raises
    ------
    FileError
        One line with the file and the fix.
    """
    if path.suffix.lower() != SUFFIX:
        return  # HDF5
    with naming(path):
        try:
            with open(path, "rb") as file:
                _check_count(file, path.stat().st_size)
                with zipfile.ZipFile(file) as archive:
                    _check_members(archive, path.stat().st_size)
        except (OSError, EOFError, ValueError, NotImplementedError, RuntimeError) as error:
            raise FileError(f"cannot read: {error}; save it again") from None
        except (zipfile.BadZipFile, zlib.error):
            raise FileError("damaged or not a Keras model; save or copy it again") from None


def _check_count(file: BinaryIO, n_bytes: int) -> None:
    """Refuse more members than any model has: each takes ten times the memory of its entry."""
    file.seek(max(0, n_bytes - _LIST_BYTES))
    if file.read().count(_ENTRY) > _MOST_MEMBERS:
        raise FileError(f"holds more than {_MOST_MEMBERS:,} files; do not trust it")


def _check_members(archive: zipfile.ZipFile, packed_bytes: int) -> None:
    members = archive.infolist()
    most_bytes = max(SMALL_BYTES, LARGE_RATIO * packed_bytes)
    if sum(each.file_size for each in members) > most_bytes:
        raise FileError(f"unpacks from {packed_bytes} to over {most_bytes} bytes; do not trust it")
    for each in members:
        if each.filename.endswith(".json"):
            with archive.open(each) as file:
                text = gather(file, MAX_CONFIG_BYTES)
            if len(text) > MAX_CONFIG_BYTES:
                raise FileError(f"{each.filename}: larger than any real one; do not trust it")
            with naming(each.filename):
                parse_json(text, LITTLE_MEMORY_BYTES)
