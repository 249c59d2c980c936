"""Files of tensors without content: what is saved, and what is loaded, has shapes alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import wraps
from typing import Any

import torch
from torch.serialization import skip_data


def map_nothing(usual: Any) -> Any:
    """Make a tensor of a file without its content: safetensors maps files so."""

    @wraps(usual)
    def as_array(given: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(given, torch.UntypedStorage):
            return torch.empty(given.nbytes(), dtype=torch.uint8)
        return usual(given, *args, **kwargs)

    return as_array


def save_without_content(usual: Any) -> Any:
    """Save a file that has shapes, and takes no room for tensors: they have no content."""

    @wraps(usual)
    def save(*args: Any, **kwargs: Any) -> None:
        with skip_data(materialize_fake_tensors=True):
            usual(*args, **kwargs)

    return save


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
