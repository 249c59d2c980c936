"""ONNX's entry in the registry of frameworks; does not import ``onnx``."""

from __future__ import annotations

import os
from pathlib import Path

from enplace.errors import FileError
from enplace.frameworks.framework import Framework, ModelKind
from enplace.frameworks.onnx.exports import EXPORTERS
from enplace.frameworks.roofline import DEFAULT_GPU, GPUS
from enplace.frameworks.wishes import GRAPH_BATCH_SIZE, GRAPH_SIZES
from enplace.names.scopes import INPUT
from enplace.option import TEXT, Option
from enplace.processes.worker import CRASHES, handler_program, signal_name
from enplace.values.profile import Profile

SUFFIX = ".onnx"
_MODELS = "a graph that any framework exports (.onnx)"
_KINDS = (
    ModelKind(
        "onnx",
        "An ONNX model: the graph of an inference. Nothing runs; op times are estimated from a "
        "roofline of the GPU, until they are measured.",
        (
            GRAPH_BATCH_SIZE,
            GRAPH_SIZES,
            Option(
                "branch",
                TEXT,
                "",
                "Of an ONNX model: which branch of a large If op to open: then, else, or the name "
                "of a branch's graph. [default: the one that reads the past]",
                suggested=("then", "else"),
                titled="Branch of an If",
            ),
            Option(
                "gpu",
                tuple(GPUS),
                "",
                "Of an ONNX model: the GPU to estimate op times for. On the bundled clusters with "
                f"this GPU, ops take what its roofline says. [default: {DEFAULT_GPU}]",
                titled="Times of a GPU",
                flag="device",
            ),
        ),
        is_recorded=True,
        why_no_run="This profile is of an ONNX model, which Enplace does not run: op times are "
        "estimated. Export the plan (--format onnx-stages, for example), and run it elsewhere.",
    ),
)


def recognise(path: Path) -> tuple[Path, str]:
    """Return the path of a model, and its kind.

    Raises
    ------
    FileError
        If it is not an ONNX model.
    """
    if path.suffix.lower() != SUFFIX or os.path.isdir(path):
        raise FileError(f"{path}: not a model; choose {_MODELS}")
    if os.path.isfile(path) and not os.path.getsize(path):
        raise FileError(f"{path}: the file is empty; export it again")
    return path, "onnx"


def explain_end(code: int, last_lines: str) -> str:
    """Explain why a worker ended without an answer, if hostile files end it so."""
    if signal_name(code) == "SIGXCPU":
        return (
            "reading it takes minutes, or longer than the limit of this shell (ulimit -t), unlike "
            "any real model; do not trust it"
        )
    if signal_name(code) in CRASHES:
        return "the ONNX library crashed on it; export the model again, or do not trust it"
    return ""


def find_modules(profile: Profile) -> list[list[int]]:
    """Return the ops of each module that the exporting framework noted."""
    modules: dict[str, list[int]] = {}
    for op, scope in enumerate(profile.scopes):
        if scope and scope != INPUT:
            modules.setdefault(scope, []).append(op)
    return [*modules.values()]


FRAMEWORK = Framework(
    name="ONNX",
    module="onnx",
    extra="onnx",
    worker=handler_program("enplace.frameworks.onnx.worker:work", "ONNX", explain_end),
    kinds=_KINDS,
    models=_MODELS,
    suffixes=(SUFFIX,),
    recognise=recognise,
    grains={"module": find_modules},
    exporters=EXPORTERS,
)
