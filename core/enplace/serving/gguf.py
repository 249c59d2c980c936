"""The header of a GGUF file, as ggml's ``docs/gguf.md`` describes it, versions 2 and 3."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any, BinaryIO

from enplace.errors import FileError, file_error
from enplace.files.reading import open_to_read
from enplace.serving.tensor import MOST_DIMENSIONS, Tensor, make_tensor
from enplace.text import size

MOST_TENSORS, MOST_KEYS, MOST_TEXT_BYTES = 1_000_000, 100_000, 16 << 20
MOST_HEADER_BYTES = 64 << 20
MOST_KEPT = 100_000
"""Longest array that is kept; the words of a vocabulary are only counted."""

TYPES: dict[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    9: ("Q8_1", 32, 36),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1),
    25: ("I16", 1, 2),
    26: ("I32", 1, 4),
    27: ("I64", 1, 8),
    28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
    40: ("NVFP4", 64, 36),
}
"""Name, numbers in a block and bytes of a block, by the number in the file: the ``block_...``
structures of ggml's ``ggml-common.h``."""

_SCALARS = {
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f",
    7: "<?", 10: "<Q", 11: "<q", 12: "<d",
}  # fmt: skip
_STRING, _ARRAY = 8, 9


def read_gguf(path: Path) -> tuple[list[Tensor], dict[str, Any]]:
    """Read the tensors and the metadata of a file; of a long array, only its length.

    Raises
    ------
    FileError
        With the byte at which it cannot be used, and the mend.
    """
    try:
        with open_to_read(path) as file:
            return _Reader(file, os.fstat(file.fileno()).st_size).read()
    except OSError as error:
        raise file_error(error, f"{path}") from None


class _Reader:
    """Reads forward, and refuses all that leads beyond the file."""

    def __init__(self, file: BinaryIO, n_bytes: int) -> None:
        self._file, self._n_bytes, self._at = file, n_bytes, 0

    def read(self) -> tuple[list[Tensor], dict[str, Any]]:
        if self._take(4) != b"GGUF":
            raise FileError("byte 0: this is no GGUF file; check the path")
        version = self._scalar("<I")
        if version not in (2, 3):
            raise FileError(
                f"byte 4: GGUF of version {version}, and versions 2 and 3 are read; convert it "
                f"with a new llama.cpp"
            )
        n_tensors = self._count("tensors", MOST_TENSORS)
        n_keys = self._count("keys", MOST_KEYS)
        metadata: dict[str, Any] = {}
        for _ in range(n_keys):
            key = self._text()
            if key in metadata:
                raise FileError(f"byte {self._at:,}: the key '{key}' is there twice; keep one")
            metadata[key] = self._value(self._scalar("<I"), key)
        tensors, ends = [], [0]
        for _ in range(n_tensors):
            tensor, offset = self._tensor()
            tensors.append(tensor)
            ends.append(offset + tensor.n_bytes)
        self._check_data(metadata, max(ends))
        return tensors, metadata

    def _check_data(self, metadata: dict[str, Any], end: int) -> None:
        """Refuse a file that ends before its last tensor does."""
        alignment = metadata.get("general.alignment", 32)
        if type(alignment) is not int or not 0 < alignment <= 1 << 20:
            raise FileError("general.alignment: is no usable number; convert the file again")
        start = -(-self._at // alignment) * alignment
        if end and start + end > self._n_bytes:
            raise FileError(
                f"its tensors end at byte {start + end:,}, but the file has {self._n_bytes:,}; "
                f"download it again"
            )

    def _tensor(self) -> tuple[Tensor, int]:
        name, n = self._text(), self._scalar("<I")
        if n > MOST_DIMENSIONS:
            raise FileError(
                f"byte {self._at:,}: tensor '{name}' has {n:,} dimensions; download it again"
            )
        # The file begins with the fastest dimension; a shape, with the slowest.
        shape = [self._scalar("<Q") for _ in range(n)][::-1]
        if 0 in shape:
            raise FileError(
                f"byte {self._at:,}: tensor '{name}' has a dimension of 0; download it again"
            )
        number, offset = self._scalar("<I"), self._scalar("<Q")
        if number not in TYPES:
            raise FileError(
                f"byte {self._at:,}: tensor '{name}' is of type {number}, which is not known; "
                f"convert the file to a usual type, such as Q4_K"
            )
        dtype, block, block_bytes = TYPES[number]
        return make_tensor(name, dtype, shape, block_bytes / block, block), offset

    def _value(self, kind: int, key: str) -> Any:
        if kind == _STRING:
            return self._text()
        if kind != _ARRAY:
            return self._scalar(self._form(kind, key))
        inner, n = self._scalar("<I"), self._scalar("<Q")
        if inner == _STRING:
            self._check_room(8 * n)
            for _ in range(n):
                self._take(self._scalar("<Q"))
            return n
        form = self._form(inner, key)
        content = self._take(n * struct.calcsize(form))
        if n > MOST_KEPT:
            return n
        return [each[0] for each in struct.iter_unpack(form, content)]

    def _form(self, kind: int, key: str) -> str:
        if kind not in _SCALARS:
            raise FileError(
                f"byte {self._at:,}: the value of '{key}' is of type {kind}, which is not known; "
                f"download the file again"
            )
        return _SCALARS[kind]

    def _text(self) -> str:
        length = self._scalar("<Q")
        if length > MOST_TEXT_BYTES:
            raise FileError(f"byte {self._at:,}: a text of {size(length)}; download the file again")
        return self._take(length).decode(errors="replace")

    def _count(self, noun: str, most: int) -> int:
        found = self._scalar("<Q")
        if found > most:
            raise FileError(
                f"byte {self._at - 8}: {found:,} {noun}, unlike any real file; download it again"
            )
        return int(found)

    def _scalar(self, form: str) -> Any:
        return struct.unpack(form, self._take(struct.calcsize(form)))[0]

    def _take(self, n: int) -> bytes:
        self._check_room(n)
        self._at += n
        return self._file.read(n)

    def _check_room(self, n: int) -> None:
        if self._at + n > min(self._n_bytes, MOST_HEADER_BYTES):
            raise FileError(
                f"byte {self._at:,}: its header goes on beyond the {self._n_bytes:,} bytes of the "
                f"file, or beyond {size(MOST_HEADER_BYTES)}; download it again"
            )
