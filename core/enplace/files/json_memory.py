"""Refuse JSON that would fill the memory, before it is parsed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from enplace.errors import FileError
from enplace.files.fields import MAX_TEXT_LENGTH
from enplace.text import size

MAX_MEMORY_BYTES, LITTLE_MEMORY_BYTES = 1200 << 20, 380 << 20
MAX_GROWTH, MAX_VALUE_GROWTH, MAX_PACKED_GROWTH = 24, 14, 20
"""Most memory that JSON may take, with its text and the arrays beside it. Above a little, also how
many times the size of the text, how many times that without characters, and how many times the
packed file. Plans need most: 20 times, where a character may take four bytes, and 13. Large
archives need 15 times."""

MAX_WIDE_BYTES = 256 << 20
"""Most memory for the characters of JSON that takes more than a byte for each."""

_OBJECT_BYTES, _LIST_BYTES, _TEXT_BYTES, _NUMBER_BYTES, _SLOT_BYTES = 240, 90, 56, 32, 8
_KEYS_OF_OBJECT, _KEY_BYTES = 16, 150
"""An object has room for so many keys; each further one takes this much more."""


def check_memory(
    *texts: bytes,
    array_bytes: int = 0,
    packed_bytes: int | None = None,
    most_bytes: int = MAX_MEMORY_BYTES,
    fix: str = "do not trust it",
) -> None:
    """Refuse JSON that would fill the memory, before it is parsed.

    Parameters
    ----------
    texts : bytes
        All JSON of a file.
    array_bytes : int
        What its arrays take in memory.
    packed_bytes : int, optional
        The size of the file, if it is compressed.
    most_bytes : int
        For a format of small files.
    fix : str
        What to do, for the message.

    Raises
    ------
    FileError
        If it takes more memory than any real profile.
    """
    n_bytes = sum(map(len, texts))
    growth = (MAX_VALUE_GROWTH * n_bytes, MAX_GROWTH * n_bytes)
    if packed_bytes is not None:
        growth = (MAX_PACKED_GROWTH * packed_bytes,) * 2
    most = [min(most_bytes, max(LITTLE_MEMORY_BYTES, each)) for each in growth]
    widths = list(map(_width, texts))
    found = np.full(2, array_bytes, dtype=np.int64)
    for text, width in zip(texts, widths, strict=True):
        found += _memory_bytes(len(text), width, _count_roughly(text))
    has_long = any(_may_have_long_texts(text) for text in texts)
    if (found <= most).all() and not has_long and _wide_bytes(found, widths) <= MAX_WIDE_BYTES:
        return
    found = more = np.full(2, array_bytes, dtype=np.int64)
    for text, width in zip(texts, widths, strict=True):
        for count in _counts(text):
            more = found + _memory_bytes(len(text), width, count)
            if (more > most).any() or _wide_bytes(more, widths) > MAX_WIDE_BYTES:
                raise FileError(
                    f"would take over {size(int(more[1]))} of memory, far more than a real file "
                    f"of this size; {fix}"
                )
        found = more


def _may_have_long_texts(text: bytes) -> bool:
    """Whether a text may be too long: quotes are far apart, or may be part of a text."""
    is_large = len(text) > _MOST_TEXT_BYTES
    return is_large and (b'\\"' in text or _LONG_GAP.search(text) is not None)


def _wide_bytes(found: NDArray[np.int64], widths: Sequence[int]) -> int:
    """Return how much memory the characters take if some of them take more than a byte."""
    values_bytes, all_bytes = found.tolist()
    return all_bytes - values_bytes if max(widths, default=1) > 1 else 0


class _Count(NamedTuple):
    """How much of what a JSON text holds: marks outside of its texts, texts, and bytes in these."""

    objects: int
    lists: int
    commas: int
    keys: int
    texts: int
    text_bytes: int


def _count_roughly(text: bytes) -> _Count:
    """Count from above: marks in texts as well, and every byte as part of a text."""
    return _Count(*_count_marks(text), text.count(b'"') // 2, len(text))


def _counts(text: bytes) -> Iterator[_Count]:
    """Count what makes up a JSON text, without a copy of it; yield what is found so far."""
    view, at, totals = memoryview(text), 0, np.zeros(len(_Count._fields), dtype=np.int64)
    yield _Count(*totals.tolist())
    while at < len(text):
        piece = _PIECE.match(text, at)
        if piece is None:
            raise FileError("not valid JSON (a text never ends); export the file again")
        part = view[at : piece.end()]
        if len(part) > _MOST_TEXT_BYTES and any(
            found.end() - found.start() > _MOST_TEXT_BYTES for found in _TEXT.finditer(part)
        ):
            raise FileError(f"a text of over {MAX_TEXT_LENGTH:,} characters; shorten it")
        bare, n_texts = _TEXT.subn(b'"', part)
        totals += [*_count_marks(bare), n_texts, piece.end() - at - len(bare)]
        at = piece.end()
        yield _Count(*totals.tolist())


def _count_marks(text: bytes) -> tuple[int, int, int, int]:
    return text.count(b"{"), text.count(b"["), text.count(b","), text.count(b":")


_MOST_TEXT_BYTES = 6 * MAX_TEXT_LENGTH
"""A character takes up to six bytes: ``\\u20ac``."""

_LONG_GAP = re.compile(rb'"[^"]{%d}' % _MOST_TEXT_BYTES)
_TEXT = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
_PIECE = re.compile(rb'(?:[^"]{1,4096}+|"(?:[^"\\]++|\\.)*+"){1,4096}+', re.DOTALL)
"""Some texts and what stands between them."""


def _memory_bytes(n_bytes: int, width: int, count: _Count) -> tuple[int, int]:
    """Estimate from above how much memory JSON takes while it is parsed: its values, and all.

    Its characters are there three times: as bytes, as a text and in values. ``width`` is how many
    bytes each takes in the latter two.
    """
    n_containers = count.objects + count.lists
    n_numbers = max(0, count.commas + n_containers - (count.texts - count.keys))
    values_bytes = (
        _OBJECT_BYTES * count.objects
        + _LIST_BYTES * count.lists
        + _TEXT_BYTES * count.texts
        + _NUMBER_BYTES * n_numbers
        + _SLOT_BYTES * (count.commas + n_containers)
        + _KEY_BYTES * max(0, count.keys - _KEYS_OF_OBJECT * count.objects)
    )
    return values_bytes, values_bytes + n_bytes + width * (n_bytes + count.text_bytes)


def _width(text: bytes) -> int:
    """Return how many bytes each character of a text takes, if all are in one text with it."""
    if text.isascii() and b"\\u" not in text:
        return 1
    return next((width for width, needs in _WIDTHS if needs.search(text)), 1)


_WIDTHS = (
    (4, re.compile(rb"[\xf0-\xff]|\\u[dD][89abAB]")),
    (2, re.compile(rb"[\xc4-\xef]|\\u")),
)
