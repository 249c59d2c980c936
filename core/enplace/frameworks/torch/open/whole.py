"""Refuses models of which a process has only a part."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from unittest.mock import patch

import torch

from enplace.frameworks.programs import current_line
from enplace.frameworks.source import Source
from enplace.frameworks.torch.record.recording import LoadError

_DIVIDED_BY = {
    "torch.distributed.fsdp": "FSDP",
    "torch.distributed._composable.fsdp": "FSDP",
    "torch.distributed.tensor.parallel": "tensor parallelism",
    "torch.dtensor": "tensor parallelism",
    "torch.distributed.tensor": "FSDP or tensor parallelism",
    "deepspeed": "DeepSpeed",
    "megatron": "Megatron",
}
"""What divides a model among processes, each of which sees only its part: modules of classes, and
names that PyTorch logs when it divides one."""

_MEND = "profile the script without it, on one device"


def what_divides(module: str) -> str:
    """Return what a Python module divides models for; empty if it does not."""
    return next((name for start, name in _DIVIDED_BY.items() if module.startswith(start)), "")


def check_whole(source: Source, parts: Iterable[object]) -> None:
    """Refuse modules and parameters of a divided model.

    Raises
    ------
    LoadError
        With what divides it.
    """
    for kind in dict.fromkeys(map(type, parts)):
        _refuse(source, kind.__module__, kind.__name__)


@contextmanager
def refuse_division(source: Source) -> Iterator[None]:
    """Refuse to divide a model within the block, by what PyTorch logs of it."""
    usual = torch._C._log_api_usage_once

    def log(what: str) -> None:
        _refuse(source, what, what.rpartition(".")[2])
        usual(what)

    with patch.object(torch._C, "_log_api_usage_once", log):
        yield


def _refuse(source: Source, module: str, by: str) -> None:
    if name := what_divides(module):
        raise LoadError(
            f"{current_line(source)}: the model is divided by {name} ({by}), and this process has "
            f"only its part; {_MEND}"
        )


_MISSING = re.compile(r"\b(deepspeed|megatron)\b.*\bnot (?:installed|found)\b", re.I)
"""How transformers and accelerate say so."""


def why_missing(error: BaseException) -> str:
    """Say what to do if an error means that what divides a model is not installed; else nothing."""
    if not isinstance(error, ImportError):
        return ""
    said = _MISSING.search(str(error))
    name = what_divides(said[1].lower() if said else error.name or "")
    if not name:
        return ""
    return f"it divides its model by {name}, and each process sees only its part; {_MEND}"
