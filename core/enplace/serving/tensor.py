"""A tensor of a file, and all of a model's."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from enplace.errors import FileError
from enplace.files.fields import shown
from enplace.text import UNPRINTABLE
from enplace.values.limits import MAX_BYTES, MAX_NAME

MOST_DIMENSIONS = 16


@dataclass(frozen=True)
class Tensor:
    """The name, type and shape of a tensor, and what these come to.

    Attributes
    ----------
    n_bytes : int
        What it takes in the file, and on a card.
    elements : int
        Numbers stored; a packed type holds several weights in each.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    n_bytes: int

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class Weights:
    """What a file says of a model.

    Attributes
    ----------
    path : str
        The file, for messages.
    config : mapping
        What ``config.json`` says, or the metadata of a GGUF file.
    """

    path: str
    name: str
    tensors: tuple[Tensor, ...]
    config: Mapping[str, Any]
    is_gguf: bool = False


def make_tensor(
    name: str, dtype: str, shape: Sequence[Any], bytes_each: float, block: int = 1
) -> Tensor:
    """Make a tensor from a description; ``block`` numbers, stored together, are in one row.

    Raises
    ------
    FileError
        If the name or the shape cannot be used, or its bytes overflow.
    """
    if not 0 < len(name) <= MAX_NAME or UNPRINTABLE.search(name):
        raise FileError(f"a tensor is called {shown(name)}; give it a printable name")
    usable = len(shape) <= MOST_DIMENSIONS and all(
        type(each) is int and 0 <= each <= MAX_BYTES for each in shape
    )
    if not usable:
        raise FileError(
            f"{name}.shape: must be up to {MOST_DIMENSIONS} whole numbers from 0 to 2^62; "
            f"download the file again"
        )
    elements = math.prod(shape)
    if elements * bytes_each > MAX_BYTES:
        raise FileError(f"{name}: its shape means over 2^62 bytes; download the file again")
    if block > 1 and (not shape or shape[-1] % block):
        raise FileError(
            f"{name}: {dtype} stores {block} numbers together, and its rows have "
            f"{shape[-1] if shape else 1:,}; download the file again"
        )
    return Tensor(name, dtype, tuple(shape), math.ceil(elements * bytes_each))
