"""Refuses models of which a process has only a part."""

from __future__ import annotations

from collections.abc import Iterable

from enplace.frameworks.programs import current_line
from enplace.frameworks.source import Source
from enplace.frameworks.torch.record.recording import LoadError

_DIVIDED_BY = {
    "torch.distributed.fsdp": "FSDP",
    "torch.distributed._composable.fsdp": "FSDP",
    "torch.distributed.tensor": "FSDP or tensor parallelism",
    "deepspeed": "DeepSpeed",
    "megatron": "Megatron",
}
"""Modules whose classes divide a model among processes, each of which sees only its part."""

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
        if name := what_divides(kind.__module__):
            raise LoadError(
                f"{current_line(source)}: the model is divided by {name} ({kind.__name__}), and "
                f"this process has only its part; {_MEND}"
            )


def why_missing(error: BaseException) -> str:
    """Say what to do if an error means that what divides a model is not installed; else nothing."""
    name = what_divides(error.name or "") if isinstance(error, ModuleNotFoundError) else ""
    if not name:
        return ""
    return f"it divides its model by {name}, and each process sees only its part; {_MEND}"
