"""Files of tensors without content: nothing is saved, and what is loaded has shapes alone."""

from __future__ import annotations

import os
from functools import wraps
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


def save_to(saved: dict[str, Any]) -> Any:
    """Save no tensors, for they have no content; but keep what would have been saved."""

    def save(thing: Any, file: Any, *_: Any, **__: Any) -> None:
        if (name := _name_of(file)) is not None:
            saved[name] = thing

    return save


def load_from(saved: dict[str, Any], usual: Any) -> Any:
    """Load what would have been saved, and other files as usual."""

    @wraps(usual)
    def load(file: Any, *args: Any, **kwargs: Any) -> Any:
        name = _name_of(file)
        return saved[name] if name in saved else usual(file, *args, **kwargs)

    return load


def _name_of(file: Any) -> str | None:
    name = getattr(file, "name", file)
    return os.path.realpath(name) if isinstance(name, str | os.PathLike) else None
