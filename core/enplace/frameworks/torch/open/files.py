"""Files of tensors without content: what is saved, and what is loaded, has shapes alone."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import wraps
from pathlib import Path
from typing import Any

import torch


def map_nothing(usual: Any) -> Any:
    """Make a tensor of a file without its content: safetensors maps files so."""

    @wraps(usual)
    def as_array(given: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(given, torch.UntypedStorage):
            return torch.empty(given.nbytes(), dtype=torch.uint8)
        return usual(given, *args, **kwargs)

    return as_array


def save_to(saved: dict[Any, Any]) -> Any:
    """Save an empty file, for tensors have no content; but keep what would have been saved."""

    def save(thing: Any, file: Any, *_: Any, **__: Any) -> None:
        saved[name := _name_of(file)] = thing
        if isinstance(name, str):
            Path(name).touch()  # scripts and libraries ask whether it is there

    return save


def save_shapes(types: Mapping[str, torch.dtype]) -> Any:
    """Save a file of safetensors, by its names of types; behind its header it takes no room."""
    names = {kind: name for name, kind in types.items()}

    def save(tensors: Mapping[str, torch.Tensor], filename: Any, metadata: Any = None) -> None:
        header: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
        end = 0
        for name, each in tensors.items():
            begin, end = end, end + each.nbytes
            offsets = {"shape": [*each.shape], "data_offsets": [begin, end]}
            header[name] = {"dtype": names[each.dtype], **offsets}
        text = json.dumps(header).encode()
        with open(filename, "wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            file.truncate(file.tell() + end)

    return save


def load_from(saved: dict[Any, Any], usual: Any) -> Any:
    """Load what would have been saved, and other files as usual."""

    @wraps(usual)
    def load(file: Any, *args: Any, **kwargs: Any) -> Any:
        name = _name_of(file)
        return saved[name] if name in saved else usual(file, *args, **kwargs)

    return load


def _name_of(file: Any) -> Any:
    """Return the path of a file, or a file in memory itself."""
    name = getattr(file, "name", file)
    return os.path.realpath(name) if isinstance(name, str | os.PathLike) else file
