"""PyTorch's entry in the registry of frameworks; does not import ``torch``."""

from __future__ import annotations

import os
import zipfile
from dataclasses import replace
from importlib.resources import files as resource_files
from pathlib import Path

from enplace.errors import FileError
from enplace.frameworks.framework import Framework, ModelKind, NarrowStates, explain_script_end
from enplace.frameworks.roofline import DEFAULT_GPU, GPUS
from enplace.frameworks.torch.device_map import (
    about_map,
    find_blocks,
    find_modules,
    why_no_map,
    write_map,
)
from enplace.frameworks.torch.exports import EXPORTERS
from enplace.frameworks.torch.hosts import host_lines
from enplace.frameworks.wishes import (
    CUT_BATCH,
    GRAPH_BATCH_SIZE,
    GRAPH_SIZES,
    MICROBATCHES,
    PIPELINE,
    PROGRAM,
)
from enplace.option import SWITCH, Option
from enplace.processes.worker import scratch_program, signal_name
from enplace.values.problem import THROUGHPUT
from enplace.writers.registry import Exporter

_PICKLED = (".pt", ".pth", ".bin", ".ckpt")
_WEIGHTS = (*_PICKLED, ".safetensors")
EXPORTED = ".pt2"
_MODELS = "a PyTorch training script (.py) or a program of torch.export (.pt2)"

_ESTIMATE = Option(
    "estimate",
    tuple(GPUS),
    "",
    "Of a PyTorch script: run it on tensors without content, and estimate op times for this GPU. "
    "It needs neither the GPU nor the memory. [default: measure on the devices of this machine]",
    titled="Estimate for a GPU",
)
_ESTIMATE_EXPORTED = replace(
    _ESTIMATE,
    help="Of a .pt2: the GPU to estimate op times for. Nothing in the file runs. "
    f"[default: {DEFAULT_GPU}]",
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
    "A program of torch.export has no steps to run. Make a plan of whole blocks and export it as a "
    "device map, or profile the script that calls its model."
)
_RUNS = (
    "It runs, unchanged, until steps of its optimiser are recorded and timed; a script without any "
    "gives a forward pass."
)

_KINDS = (
    ModelKind("script", f"A training script. {_RUNS}", (*PROGRAM, _ESTIMATE, _FORWARD, CUT_BATCH)),
    ModelKind("module", f"A training module. {_RUNS}", (*PROGRAM, _ESTIMATE, _FORWARD, CUT_BATCH)),
    ModelKind(
        "pt2",
        "A program of torch.export: the graph of an inference. Nothing in it runs, and no weight "
        "is read; op times are estimated from a roofline of the GPU.",
        (GRAPH_BATCH_SIZE, GRAPH_SIZES, _ESTIMATE_EXPORTED),
        is_recorded=True,
        why_no_run=_NO_RUN,
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
        mend = "open the script that trains the model, or save it by torch.export (.pt2)"
        if _has_code(path):
            raise FileError(f"{path}: a TorchScript model, which has no training step; {mend}")
        risk = " (and loading them may run code)" * (suffix in _PICKLED)
        raise FileError(f"{path}: weights without the code of their model{risk}; {mend}")
    if suffix not in (".py", EXPORTED) or os.path.isdir(path):
        raise FileError(f"{path}: not a model; choose {_MODELS}")
    if not os.path.getsize(path):
        raise FileError(f"{path}: the file is empty; save it again")
    return path, "pt2" if suffix == EXPORTED else "script"


def _has_code(path: Path) -> bool:
    """Return whether a file is an archive of ``torch.jit.save``; loads nothing."""
    try:
        with zipfile.ZipFile(path) as archive:
            return any("/code/" in name for name in archive.namelist())
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError):
        return False


def explain_end(code: int, last_lines: str) -> str:
    """Explain why a worker ended without an answer, if PyTorch is known to end so."""
    if signal_name(code) == "SIGXCPU":
        return (
            "it takes minutes, unlike any real .pt2, or longer than the limit of this shell "
            "(ulimit -t)"
        )
    less_memory = "use a smaller batch or, unless it was an estimate already, --estimate"
    return explain_script_end("PyTorch", code, less_memory)


FRAMEWORK = Framework(
    name="PyTorch",
    module="torch",
    extra="torch",
    worker=scratch_program("enplace.frameworks.torch.worker:work", "PyTorch", explain_end),
    runs=True,
    host_lines=host_lines,
    has_labels=True,
    recomputes=True,
    applier="enplace.frameworks.torch.pipelines.apply:apply",
    apply_options=(PIPELINE, MICROBATCHES),
    run_options=(PIPELINE, MICROBATCHES),
    tune_options=(PIPELINE, MICROBATCHES),
    plain_apart=True,
    kinds=_KINDS,
    models=_MODELS,
    suffixes=(".py", EXPORTED, *_WEIGHTS),
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
    bundled=tuple(
        Path(str(resource_files("enplace_resources"))) / "verify" / "torch" / f"{name}.py"
        for name in ("mlp", "convolutions", "attention")
    ),
    data_parallel="DDP",
    # Blocks of 256 numbers share one of 32 bits, and smaller tensors than 4,096 stay as they are.
    narrow_states=NarrowStates(
        8,
        "In PyTorch, replace torch.optim.{0} by bitsandbytes.optim.{0}8bit.",
        ("Adagrad", "Adam", "AdamW", "RMSprop", "SGD"),
        overhead=4 / 256,
        least_numbers=2 * 4096,
    ),
    alternatives="enplace.frameworks.torch.alternatives:find_torch_alternatives",
    exporters=(
        Exporter(
            "device-map",
            "device map of accelerate",
            ".json",
            write_map,
            why_not=why_no_map,
            about=about_map,
            mark=r'^\{\s*"[^"]*": (\d+|"cpu")[,\s]',
        ),
        *EXPORTERS,
    ),
)
