"""PyTorch's entry in the registry of frameworks; does not import ``torch``."""

from __future__ import annotations

import os
from pathlib import Path

from enplace.errors import FileError
from enplace.frameworks.framework import Framework, ModelKind, explain_script_end
from enplace.frameworks.roofline import GPUS
from enplace.frameworks.torch.device_map import find_blocks, find_modules, why_no_map, write_map
from enplace.frameworks.torch.exports import EXPORTERS
from enplace.frameworks.wishes import PROGRAM
from enplace.option import SWITCH, Option
from enplace.processes.worker import scratch_program
from enplace.values.problem import THROUGHPUT
from enplace.writers.registry import Exporter

_WEIGHTS = (".pt", ".pth", ".bin")
_MODELS = "a PyTorch training script (.py)"

_ESTIMATE = Option(
    "estimate",
    tuple(GPUS),
    "",
    "Of a PyTorch script: run it on tensors without content, and estimate op times for this GPU. "
    "It needs neither the GPU nor the memory. [default: measure on the devices of this machine]",
    titled="Estimate for a GPU",
)
_FORWARD = Option(
    "forward",
    SWITCH,
    False,
    "Of a PyTorch script: record a forward pass of its model, and end the script then. A script "
    "that makes no step of an optimiser gives a forward pass anyway, once it has ended.",
    titled="A forward pass alone",
)
_NO_RUN = (
    "Enplace does not run plans of PyTorch models. Make one of whole blocks and export it as a "
    "device map, which accelerate and transformers take."
)
_RUNS = (
    "It runs, unchanged, until steps of its optimiser are recorded and timed; a script without any "
    "gives a forward pass."
)

_KINDS = (
    ModelKind(
        "script", f"A training script. {_RUNS}", (*PROGRAM, _ESTIMATE, _FORWARD), why_no_run=_NO_RUN
    ),
    ModelKind(
        "module", f"A training module. {_RUNS}", (*PROGRAM, _ESTIMATE, _FORWARD), why_no_run=_NO_RUN
    ),
)


def recognise(path: Path) -> tuple[Path, str]:
    """Return the path of a model, and its kind.

    Raises
    ------
    FileError
        If PyTorch cannot open it.
    """
    suffix = path.suffix.lower()
    if suffix in _WEIGHTS:
        raise FileError(
            f"{path}: weights without the code of their model (and opening them may run code); "
            f"open the script that trains it"
        )
    if suffix == ".pt2":
        raise FileError(
            f"{path}: a program of torch.export; open a script that calls its model, which gives a "
            f"forward pass, or export it by torch.onnx.export and import the .onnx file"
        )
    if suffix != ".py" or os.path.isdir(path):
        raise FileError(f"{path}: not a model; choose {_MODELS}")
    if not os.path.getsize(path):
        raise FileError(f"{path}: the file is empty; save it again")
    return path, "script"


def explain_end(code: int, last_lines: str) -> str:
    """Explain why a worker ended without an answer, if PyTorch is known to end so."""
    less_memory = "use a smaller batch, or estimate the model with --estimate"
    return explain_script_end("PyTorch", code, less_memory)


FRAMEWORK = Framework(
    name="PyTorch",
    module="torch",
    extra="torch",
    worker=scratch_program("enplace.frameworks.torch.worker:work", "PyTorch", explain_end),
    kinds=_KINDS,
    models=_MODELS,
    suffixes=(".py", *_WEIGHTS, ".pt2"),
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
    usual_grains={THROUGHPUT: "block"},
    exporters=(
        Exporter(
            "device-map",
            "Device map of accelerate",
            ".json",
            write_map,
            why_not=why_no_map,
            mark=r'^\{\s*"[^"]*": (\d+|"cpu")[,\s]',
        ),
        *EXPORTERS,
    ),
)
