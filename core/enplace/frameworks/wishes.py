"""Options that several frameworks may declare: of programs, of applied plans and of runs."""

from __future__ import annotations

from enplace.option import MAX_SIZE, SIZES, SWITCH, WHOLE, WORDS, Option
from enplace.values.load_rule import PIPELINES

BATCH = "{batch}"
"""Stands for the batch size in a script's arguments."""

ARGUMENTS = Option(
    "arguments",
    WORDS,
    "",
    "An argument for the script; repeat it: --arg --batch --arg 16.",
    suggested=("--batch 32 --layers 2",),
    flag="arg",
)
BATCH_SIZE = Option(
    "batch-size",
    WHOLE,
    0,
    f"Batch size for a saved model, or the value of {BATCH} in --arg. [default: the model’s own]",
    least=1,
    most=MAX_SIZE,
)
KEEP_DEVICE_SCOPES = Option(
    "keep-device-scopes",
    SWITCH,
    False,
    "Pin ops to the devices on which the model's own code puts them, as with tf.device.",
)
GRAPH_BATCH_SIZE = Option(
    "batch-size",
    WHOLE,
    0,
    "Of an ONNX model or a .pt2: its batch, if the file leaves it open. [default: 1 for ONNX; the "
    "one that a .pt2 was exported with]",
    least=1,
    most=MAX_SIZE,
)
GRAPH_SIZES = Option(
    "sizes",
    SIZES,
    "",
    "Of an ONNX model or a .pt2: another size that the file leaves open, such as seq_len=128.",
    suggested=("seq_len=128, if the file leaves others open",),
    titled="Other sizes",
    flag="size",
)
CUT_BATCH = Option(
    "cut-batch",
    WHOLE,
    0,
    "Of a PyTorch script: cut each batch into N micro-batches, as a pipeline does, and record the "
    "step of one. [default: record the whole batch]",
    least=2,
    most=1024,
    titled="Micro-batches of a batch",
)
PROGRAM = (ARGUMENTS, BATCH_SIZE)
"""Fields of a program in Python."""

ORDER = Option(
    "order", SWITCH, True, "Follow the plan's order of the ops on a device, not the framework's."
)
PIPELINE = Option(
    "pipeline",
    ("inference", *PIPELINES),
    "",
    "Run the step as a pipeline of micro-batches, in this order.",
)
MICROBATCHES = Option(
    "microbatches",
    WHOLE,
    8,
    "Cut each batch into N micro-batches.",
    least=2,
    most=1024,
)
OWN_STATISTICS = Option(
    "own-statistics",
    SWITCH,
    False,
    "Let each micro-batch take its own means and sums in batch normalisation and the like.",
)
PIPELINE_OPTIONS = (PIPELINE, MICROBATCHES, OWN_STATISTICS)
