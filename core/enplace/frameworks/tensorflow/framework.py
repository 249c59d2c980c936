"""TensorFlow's entry in the registry of frameworks; does not import TensorFlow."""

from __future__ import annotations

import os
import re
import zlib
from dataclasses import replace
from importlib.resources import files as resource_files
from pathlib import Path

from enplace.errors import FileError
from enplace.files.reading import open_to_read
from enplace.frameworks.framework import Framework, ModelKind, NarrowStates, explain_script_end
from enplace.frameworks.tensorflow.error_text import OUT_OF_MEMORY, describe_out_of_memory
from enplace.frameworks.tensorflow.keras_file import check_keras_file
from enplace.frameworks.tensorflow.saved_model_format import (
    why_no_saved_model,
    write_saved_model,
)
from enplace.frameworks.tensorflow.snippet import python_snippet, why_no_snippet
from enplace.frameworks.wishes import (
    BATCH_SIZE,
    KEEP_DEVICE_SCOPES,
    ORDER,
    PIPELINE_OPTIONS,
    PROGRAM,
)
from enplace.option import TEXT, Option
from enplace.processes.worker import scratch_program, signal_name
from enplace.writers.registry import Exporter

_SUFFIXES = {
    ".py": "script",
    ".keras": "keras",
    ".h5": "keras",
    ".hdf5": "keras",
    ".meta": "tf1",
    ".pb": "tf1",
    ".pbtxt": "tf1",
}
_SAVED_MODEL = ("saved_model.pb", "saved_model.pbtxt")

# RunMetadata begins with its step statistics, these with a device, and a device with its name.
_FIELD = rb"\x0a[\x80-\xff]*[\x00-\x7f]"
_TRACE = re.compile(
    rb"\A(" + _FIELD * 3 + rb"/(job|device|host|replica|task):|\s*step_stats\s*[{:])"
)

# What TensorFlow's profiler and timeline write for people to look at.
_PLANE = re.compile(
    rb"\A" + _FIELD + rb"(\x08[\x80-\xff]*[\x00-\x7f])?\x12.(/host:|/device:|Task Env)"
)
_EVENTS = b'"traceEvents"'
_INSTEAD = (
    "has no graph; profile the script itself, or save the RunMetadata of a step, traced with "
    "output_partition_graphs=True, and profile that (run_metadata.pb)"
)

_MODELS = (
    "a training script (.py), a Keras model (.keras, .h5), a SavedModel's folder, a TensorFlow 1 "
    "graph (.meta, .pb, .pbtxt) or a recorded trace"
)

_LOSS = Option(
    "loss",
    TEXT,
    "",
    "Loss to train a saved model with, such as 'mse'; needs --optimizer too. "
    "[default: the model’s own]",
    suggested=(
        "sparse_categorical_crossentropy",
        "categorical_crossentropy",
        "binary_crossentropy",
        "mean_squared_error",
        "mean_absolute_error",
    ),
)
_OPTIMIZER = Option(
    "optimizer",
    TEXT,
    "",
    "Optimiser to train a saved model with, such as 'adam'; needs --loss too. "
    "[default: the model’s own]",
    suggested=("adam", "sgd", "rmsprop", "adamw", "adagrad"),
    titled="Optimiser",
)
_SIGNATURE = Option(
    "signature",
    TEXT,
    "",
    "Function of a saved model that has several. [default: serving_default]",
)
_TRAINING = (("loss", "optimizer"),)
_RUNS = "It runs, unchanged, until its first training steps; those are extracted and profiled."


def _or_inference(option: Option) -> Option:
    about = option.help.partition(" [default")[0]
    return replace(option, help=f"{about} [default: none: inference only]")


_KINDS = (
    ModelKind("script", f"A training script. {_RUNS}", (*PROGRAM, KEEP_DEVICE_SCOPES)),
    ModelKind("module", f"A training module. {_RUNS}", (*PROGRAM, KEEP_DEVICE_SCOPES)),
    ModelKind(
        "keras",
        "A Keras model. It is trained on random batches of the shape it expects.",
        (_LOSS, _OPTIMIZER, BATCH_SIZE),
        _TRAINING,
    ),
    ModelKind(
        "saved-model",
        "A SavedModel. Its signature is profiled or, with a loss, a training step.",
        (_SIGNATURE, _or_inference(_LOSS), _or_inference(_OPTIMIZER), BATCH_SIZE),
        _TRAINING,
    ),
    ModelKind(
        "tf1",
        "A TensorFlow 1 graph. Its training op is profiled or, without one, its last ops.",
        (BATCH_SIZE, KEEP_DEVICE_SCOPES),
    ),
    ModelKind(
        "trace",
        "A recorded trace. It holds the measurements already; nothing runs.",
        is_recorded=True,
        why_no_run="This profile is a recorded trace, which cannot run. "
        "Open the model itself with File › Open a model, then run its plans.",
    ),
)


def recognise(path: Path) -> tuple[Path, str]:
    """Return the path of a model, and its kind.

    Raises
    ------
    FileError
        If TensorFlow cannot open it.
    """
    if path.name in _SAVED_MODEL:
        path = path.parent
    if os.path.isdir(path):
        if any(os.path.exists(path / name) for name in _SAVED_MODEL):
            return path, "saved-model"
        raise FileError(
            f"{path}: there is no saved_model.pb in this folder, so it is not a SavedModel; "
            f"choose the folder with that file, or a file"
        )
    return path, _kind_of_file(path)


def _kind_of_file(path: Path) -> str:
    try:
        with open_to_read(path) as file:
            head = file.read(256)
    except OSError as error:
        raise FileError(f"{path}: cannot read: {error.strerror}") from None
    if _TRACE.match(head):
        return "trace"
    if path.name.endswith(".xplane.pb") or _PLANE.match(head):
        raise FileError(f"{path}: a trace of TensorFlow's profiler, which {_INSTEAD}")
    if _EVENTS in _unpacked(head):
        raise FileError(f"{path}: a timeline to look at, which {_INSTEAD}")
    if path.suffix.lower() not in _SUFFIXES:
        raise FileError(f"{path}: not a model; choose {_MODELS}")
    if not head:
        raise FileError(f"{path}: the file is empty; save it again")
    check_keras_file(path)
    return _SUFFIXES[path.suffix.lower()]


def _unpacked(head: bytes) -> bytes:
    """Return the start of a file, unpacked if it was gzip."""
    try:
        return zlib.decompressobj(wbits=31).decompress(head, len(head))
    except zlib.error:
        return head


def explain_end(code: int, last_lines: str) -> str:
    """Explain why a worker ended without an answer, if TensorFlow is known to end so."""
    if any(word in last_lines for word in OUT_OF_MEMORY):
        return describe_out_of_memory(last_lines)
    if signal_name(code) == "SIGILL":
        return (
            "TensorFlow crashed (SIGILL): it was built for another processor; install a build for "
            "this one"
        )
    less_memory = "use a smaller batch or close other programs"
    return explain_script_end("TensorFlow", code, less_memory)


FRAMEWORK = Framework(
    name="TensorFlow",
    module="tensorflow",
    extra="tensorflow",
    worker=scratch_program("enplace.frameworks.tensorflow.worker:work", "TensorFlow", explain_end),
    runs=True,
    estimates_batches=True,
    has_logical_devices=True,
    server=scratch_program(
        "enplace.frameworks.tensorflow.worker:serve", "TensorFlow server", explain_end
    ),
    applier="enplace.frameworks.tensorflow.apply.apply_plan:apply",
    kinds=_KINDS,
    models=_MODELS,
    apply_options=(ORDER, *PIPELINE_OPTIONS),
    run_options=(ORDER, *PIPELINE_OPTIONS),
    tune_options=(ORDER,),
    about_compiled="The script compiles this step with XLA. Enplace measures and runs it op by op, "
    "even without a plan, so compare with the script's own step time too.",
    about_plain_kernels="CPU ops ran with TensorFlow's plain kernels, with and without the plan, "
    "because oneDNN fuses ops that a plan orders. Your script uses oneDNN and may be faster.",
    narrow_states=NarrowStates(
        16,
        "In TensorFlow, subclass an optimiser of Keras 3, and let its add_variable_from_reference "
        "make variables of bfloat16. Kernels such as ApplyAdam cannot do it.",
        least_numbers=4,  # counters stay as they are
    ),
    suffixes=tuple(_SUFFIXES),
    imports=("tensorflow", "keras", "tf_keras"),
    recognise=recognise,
    exporters=(
        Exporter(
            "python",
            "Python module",
            ".py",
            python_snippet,
            why_not=why_no_snippet,
            mark='^"""Device placement made by Enplace',
        ),
        Exporter(
            "saved-model",
            "SavedModel with devices",
            ".placed",
            why_not=why_no_saved_model,
            save=write_saved_model,
            is_folder=True,
        ),
    ),
    bundled=tuple(
        Path(str(resource_files("enplace_resources"))) / "verify" / f"{name}.py"
        for name in ("mlp", "convolutions", "attention")
    ),
)
