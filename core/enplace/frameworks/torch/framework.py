"""PyTorch's entry in the registry of frameworks; does not import ``torch``."""

from __future__ import annotations

import os
from pathlib import Path

from enplace.errors import FileError
from enplace.frameworks.framework import Framework, ModelKind
from enplace.frameworks.roofline import GPUS
from enplace.frameworks.torch.device_map import find_blocks, why_no_map, write_map
from enplace.frameworks.wishes import PROGRAM
from enplace.names.passes import split_pass
from enplace.names.scopes import INPUT
from enplace.option import Option
from enplace.processes.worker import CRASHES, scratch_program, signal_name
from enplace.values.profile import Profile
from enplace.writers.registry import Exporter

_MODELS = "a PyTorch training script (.py)"

_ESTIMATE = Option(
    "estimate",
    tuple(GPUS),
    "",
    "Of a PyTorch script: run it on tensors without content, and estimate op times for this GPU. "
    "It needs neither the GPU nor the memory. [default: measure on the devices of this machine]",
    titled="Estimate for a GPU",
)
_NO_RUN = (
    "Enplace does not run plans of PyTorch models. Make one of whole blocks and export it as a "
    "device map, which accelerate and transformers take."
)
_RUNS = "It runs, unchanged, until steps of its optimiser are recorded and timed."

_KINDS = (
    ModelKind("script", f"A training script. {_RUNS}", (*PROGRAM, _ESTIMATE), why_no_run=_NO_RUN),
    ModelKind("module", f"A training module. {_RUNS}", (*PROGRAM, _ESTIMATE), why_no_run=_NO_RUN),
)


def recognise(path: Path) -> tuple[Path, str]:
    """Return the path of a model, and its kind.

    Raises
    ------
    FileError
        If PyTorch cannot open it.
    """
    suffix = path.suffix.lower()
    if suffix in (".pt", ".pth"):
        raise FileError(
            f"{path}: weights without the code of their model (and opening them may run code); "
            f"open the script that trains it"
        )
    if suffix != ".py" or os.path.isdir(path):
        raise FileError(f"{path}: not a model; choose {_MODELS}")
    if not os.path.getsize(path):
        raise FileError(f"{path}: the file is empty; save it again")
    return path, "script"


def explain_end(code: int, last_lines: str) -> str:
    """Explain why a worker ended without an answer, if PyTorch is known to end so."""
    ended_by = signal_name(code)
    if ended_by == "SIGKILL":
        return (
            "the PyTorch process was killed (signal 9); if nobody ended it, this machine most "
            "likely ran out of memory: use a smaller batch, or estimate the model with --estimate"
        )
    if ended_by in CRASHES:
        return f"PyTorch crashed ({ended_by}); its last lines may say why"
    if code == 0:
        return (
            "the PyTorch process ended without a result (exit status 0); a script must not end "
            "its process itself"
        )
    return ""


def find_modules(profile: Profile) -> list[list[int]]:
    """Return the ops of each module, with their gradients and updates."""
    modules: dict[str, list[int]] = {}
    for op, scope in enumerate(profile.scopes):
        _, module = split_pass(scope)
        if module and module != INPUT:
            modules.setdefault(module, []).append(op)
    return [*modules.values()]


FRAMEWORK = Framework(
    name="PyTorch",
    module="torch",
    extra="torch",
    worker=scratch_program("enplace.frameworks.torch.worker:work", "PyTorch", explain_end),
    kinds=_KINDS,
    models=_MODELS,
    suffixes=(".py", ".pt", ".pth"),
    imports=(
        "torch",
        "torchvision",
        "transformers",
        "accelerate",
        "lightning",
        "pytorch_lightning",
        "timm",
        "diffusers",
        "peft",
        "trl",
    ),
    recognise=recognise,
    about_compiled="The script compiles its model by torch.compile. Enplace measures it op by op, "
    "so the script's own step is shorter.",
    grains={"module": find_modules, "block": find_blocks},
    exporters=(
        Exporter("device-map", "Device map of accelerate", ".json", write_map, why_not=why_no_map),
    ),
)
