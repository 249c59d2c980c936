"""What is known of a tensor: its type and shape."""

from __future__ import annotations

import math
from dataclasses import dataclass

from onnx import TensorProto

from enplace.errors import FileError
from enplace.files.fields import shown
from enplace.values.limits import MAX_BYTES

MOST_AXES = 64

_BITS = {
    **dict.fromkeys(("BOOL", "INT8", "UINT8"), 8),
    **dict.fromkeys(("FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ"), 8),
    "FLOAT8E8M0": 8,
    **dict.fromkeys(("FLOAT16", "BFLOAT16", "INT16", "UINT16"), 16),
    **dict.fromkeys(("FLOAT", "INT32", "UINT32"), 32),
    **dict.fromkeys(("DOUBLE", "INT64", "UINT64", "COMPLEX64"), 64),
    **dict.fromkeys(("INT4", "UINT4", "FLOAT4E2M1"), 4),
    **dict.fromkeys(("INT2", "UINT2"), 2),
    "COMPLEX128": 128,
}
"""Bits of a value by the name of its type; texts have no fixed size."""


@dataclass(frozen=True)
class Tensor:
    """What is known of a tensor.

    Attributes
    ----------
    dtype : str
        The name of its type in ``TensorProto``; empty if unknown.
    shape : tuple of (int or None), or None
        None for what is known only when the model runs.
    """

    dtype: str = ""
    shape: tuple[int | None, ...] | None = None

    @property
    def lengths(self) -> tuple[int, ...]:
        """The shape, with 1 for every unknown length; empty without a shape."""
        return tuple(1 if length is None else length for length in self.shape or ())

    @property
    def is_sized(self) -> bool:
        """Whether its bytes are known."""
        return self.shape is not None and None not in self.shape and self.dtype in _BITS

    @property
    def n_values(self) -> int:
        """Number of values, with 1 for every unknown length; 0 without a shape."""
        return 0 if self.shape is None else math.prod(self.lengths)

    @property
    def n_bytes(self) -> int:
        """Bytes, with 1 for every unknown length; 0 without shape or type."""
        return (self.n_values * _BITS.get(self.dtype, 0) + 7) // 8


UNKNOWN = Tensor()


def length(value: int) -> int | None:
    """Return a length of a shape; None for the negative numbers that stand for unknown ones."""
    return value if value >= 0 else None


def tensor_of(tensor: TensorProto) -> Tensor:
    """Return what is known of a tensor that lies in the file."""
    return sized(tensor.name, tensor.data_type, tuple(map(length, tensor.dims)))


def sized(name: str, dtype: int, shape: tuple[int | None, ...] | None) -> Tensor:
    """Return a tensor of a type, by its number, and a shape.

    Raises
    ------
    FileError
        If no tensor can be that large.
    """
    names = TensorProto.DataType.values()
    kind = TensorProto.DataType.Name(dtype) if dtype in names and dtype else ""
    tensor = Tensor(kind, shape)
    if len(tensor.lengths) > MOST_AXES:
        raise FileError(f"tensor {shown(name)}: has over {MOST_AXES} axes; export the model again")
    if tensor.n_bytes > MAX_BYTES:
        raise FileError(f"tensor {shown(name)}: its shape has more bytes than any machine holds")
    return tensor
