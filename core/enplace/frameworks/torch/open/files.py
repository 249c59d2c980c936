"""Files in an estimate: what is saved has its size, and content where that is known.

What is loaded has shapes, and the content of small tensors, as the state of a generator.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Mapping
from contextlib import nullcontext
from contextvars import ContextVar
from functools import wraps
from typing import IO, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.serialization import skip_data

from enplace.frameworks.torch.open.values import KnownValues
from enplace.frameworks.torch.record.recorder import elsewhere


def map_nothing(usual: Any) -> Any:
    """Make a tensor of a file without its content: safetensors maps files so."""

    @wraps(usual)
    def as_array(given: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(given, torch.UntypedStorage):
            with elsewhere():  # it is mapped, not allocated
                return torch.empty(given.nbytes(), dtype=torch.uint8)
        return usual(given, *args, **kwargs)

    return as_array


def save_with_size(usual: Any) -> Any:
    """Save in the format that takes no room for what has no content."""

    @wraps(usual)
    def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
        is_path = isinstance(f, str | os.PathLike)
        if not is_path and not getattr(f, "seekable", bool)():
            f = _Filled(f)
        usual(obj, f, *args, **{**kwargs, "_use_new_zipfile_serialization": True})

    return save


class _Filled:
    """A file that only grows, as one in which a writer may skip bytes: they are zeros."""

    def __init__(self, file: IO[bytes]) -> None:
        self.write = file.write
        self.flush = file.flush

    def seek(self, n_bytes: int, _: int) -> None:
        """Skip bytes."""
        for begin in range(0, n_bytes, _AT_ONCE):
            self.write(bytes(min(_AT_ONCE, n_bytes - begin)))


_AT_ONCE = 1 << 20


def keep_on_host(usual: Any) -> Any:
    """Leave a memory without content as it is: PyTorch would copy it to write it."""

    @wraps(usual)
    def cpu(self: torch.UntypedStorage) -> Any:
        return self if self.device.type == "meta" else usual(self)

    return cpu


def pickle_with_size(usual: Any, known: KnownValues) -> Any:
    """Pickle a fake tensor as a real one of its size, and with its content if that is known."""

    @wraps(usual)
    def reduce(self: torch.Tensor, protocol: int) -> Any:
        if not isinstance(self, FakeTensor):
            return usual(self, protocol)
        if (content := known.find(self)) is not None:
            return usual(content.requires_grad_(self.requires_grad), protocol)
        with skip_data(materialize_fake_tensors=True):
            return self._reduce_ex_internal(protocol)

    return reduce


_FILE: ContextVar[IO[bytes] | None] = ContextVar("file", default=None)
"""What is being loaded."""


def load_small(usual: Any) -> Any:
    """Load a file, and let :func:`read_small` read in it."""

    @wraps(usual)
    def load(f: Any, *args: Any, **kwargs: Any) -> Any:
        with nullcontext(f) if hasattr(f, "read") else open(f, "rb") as file:
            token = _FILE.set(file)
            try:
                return usual(f, *args, **kwargs)
            finally:
                _FILE.reset(token)

    return load


def read_small(usual: Any, known: KnownValues) -> Any:
    """Make a tensor of a file, and read its content if it is small; bytes become a real tensor.

    They may be the state of a generator, which PyTorch reads by itself.
    """

    @wraps(usual)
    def rebuild(storage: Any, *layout: Any) -> Any:
        made, own = usual(storage, *layout), storage._untyped_storage
        file, n_bytes = _FILE.get(), own.nbytes()
        at = getattr(own, "_checkpoint_offset", None)  # PyTorch 2.6 does not tell
        if file is None or at is None or own._fake_device is None or n_bytes == 0:
            return made
        if known.may_know(made) and known.find(made) is None:
            file.seek(at)
            read = bytearray(file.read(n_bytes + 8))
            content, check = read[:n_bytes], read[n_bytes + 4 :]
            if zlib.crc32(content) == int.from_bytes(check, "little"):  # else an estimate's own
                known.set_bytes(made, content)
        found = known.find(made) if made.dtype == torch.uint8 else None
        return made if found is None else found

    return rebuild


def save_shapes(types: Mapping[str, torch.dtype]) -> Any:
    """Save a file of safetensors, by its names of types; behind its header it takes no room."""

    def save(tensors: Mapping[str, torch.Tensor], filename: Any, metadata: Any = None) -> None:
        header, n_bytes = _header(types, tensors, metadata)
        with open(filename, "wb") as file:
            file.write(header)
            file.truncate(len(header) + n_bytes)

    return save


def make_shapes(types: Mapping[str, torch.dtype]) -> Any:
    """Make the bytes of such a file."""

    def make(tensors: Mapping[str, torch.Tensor], metadata: Any = None) -> bytes:
        header, n_bytes = _header(types, tensors, metadata)
        return header + bytes(n_bytes)

    return make


def _header(
    types: Mapping[str, torch.dtype], tensors: Mapping[str, torch.Tensor], metadata: Any
) -> tuple[bytes, int]:
    """Make the header of such a file, and count the bytes behind it."""
    names = {kind: name for name, kind in types.items()}
    header: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    end = 0
    for name, each in tensors.items():
        begin, end = end, end + each.nbytes
        offsets = {"shape": [*each.shape], "data_offsets": [begin, end]}
        header[name] = {"dtype": names[each.dtype], **offsets}
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text, end
