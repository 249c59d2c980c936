"""PyTorch's errors in one line, and what to do about those that are known."""

from __future__ import annotations

import re
import sys
import traceback
from textwrap import shorten

from enplace.processes.redirect import why_refused
from enplace.text import UNPRINTABLE

OUT_OF_MEMORY = ("CUDA out of memory", "OutOfMemoryError", "can't allocate memory", "MemoryError")

_ALLOCATE = re.compile(r"Tried to allocate ([\d.]+ \w+)")


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, and one that it announces, as plain text."""
    if refused := why_refused(error):
        return refused
    first, *more = [*filter(None, map(str.strip, str(error).splitlines()))] or [""]
    if first.endswith(":") and more:  # such as names of weights that are missing
        first = f"{first} {shorten(more[0], 200, placeholder=' …')}"
    return UNPRINTABLE.sub(" ", first)


TRIED = "2.6, 2.11, 2.13 and 2.14"
"""Versions of PyTorch; `make test-torch` tries them."""


def lacking(version: str, what: str) -> str:
    """Say that a version of PyTorch lacks something that Enplace needs, and which do not."""
    return f"PyTorch {version} has no {what}; use another version: {TRIED} were tried"


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that memory is full."""
    text = f"{type(error).__name__}: {error}"
    return any(each in text for each in OUT_OF_MEMORY)


def describe_out_of_memory(text: str) -> str:
    """Say that the model does not fit, and what it asked for last."""
    asked = _ALLOCATE.search(text)
    last = f"; the last tensor wanted {asked[1]}" if asked else ""
    return (
        f"the model does not fit the device that it was profiled on{last}; use a smaller batch, or "
        f"estimate it without a device: --estimate h100"
    )


_NO_GPU = (
    "it wants a GPU of its own, and there is none here; let it take "
    "torch.device('cuda' if torch.cuda.is_available() else 'cpu'), and call torch.cuda only if so"
)

_KNOWN = (
    (
        ("DataDependentOutputException", "DynamicOutputShapeException", "UnsupportedFakeTensor",
         "GuardOnDataDependentSymNode"),
        "it asks for the value of a tensor, which has none in an estimate; profile it on a device "
        "without --estimate",
    ),
    (
        ("Cannot access data pointer of Tensor", ".numpy() is not supported",
         "Not available for 'meta' device type"),
        "this reads the memory of a tensor past PyTorch's dispatcher, and in an estimate a tensor "
        "has none; profile it on a device without --estimate",
    ),
    (
        ("environment variable RANK expected", "KeyError: 'RANK'", "KeyError: 'LOCAL_RANK'",
         "KeyError: 'WORLD_SIZE'", "environment variable WORLD_SIZE expected"),
        "it wants to be one of several processes, as torchrun starts them; set RANK=0 LOCAL_RANK=0 "
        "WORLD_SIZE=1 MASTER_ADDR=localhost MASTER_PORT=29500, so that it runs as one",
    ),
    (
        ("FlexAttention does not support backward on CPU",),
        "PyTorch's FlexAttention has no backward pass without CUDA; profile it on a GPU, or with "
        "another attention here, such as scaled_dot_product_attention",
    ),
    (
        ("not compiled with CUDA enabled", "Found no NVIDIA driver", "No CUDA GPUs are available",
         "Cannot get CUDA generator"),
        _NO_GPU,
    ),
)  # fmt: skip


def explain(error: BaseException) -> str:
    """Explain an error that is known; empty for others."""
    text = f"{type(error).__name__}: {error}"
    known = next((why for marks, why in _KNOWN if any(each in text for each in marks)), "")
    return known or (_NO_GPU if _wants_gpu(error) else "")


def _wants_gpu(error: BaseException) -> bool:
    """Return whether an error comes from PyTorch's own functions for GPUs, and there is none."""
    frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    names = (frame.f_globals.get("__name__", "") for frame in frames)
    is_of_gpu = any(f"{each}.".startswith("torch.cuda.") for each in names)
    return is_of_gpu and not sys.modules["torch"].cuda.is_available()
