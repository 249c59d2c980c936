"""TensorFlow's errors in one line: they begin with where the error happened.

This module works without TensorFlow.
"""

from __future__ import annotations

import re
from math import prod

from enplace.processes.redirect import why_refused
from enplace.text import UNPRINTABLE, shortened, size

OUT_OF_MEMORY = (
    "ResourceExhausted",
    "RESOURCE_EXHAUSTED",
    "OUT_OF_MEMORY",
    "OOM when allocating",
    "std::bad_alloc",
    "MemoryError",
    "STATUS_ALLOC_FAILED",
    "CUBLAS_STATUS_NOT_INITIALIZED",
    "CUDNN_STATUS_NOT_INITIALIZED",
    "without BLAS support",
    "No DNN in stream executor",
    "cuDNN failed to initialize",
)
"""Texts of errors where memory is full; the last ones where a library gets none for its handle."""

_ALLOCATED = re.compile(
    r"OOM when allocating tensor with shape\s*\[(?P<shape>[\d,]*)\] and type (?P<type>\w+)"
    r"(?: on \S*device:(?P<device>\w+:\d+))?"
)
_NODE = re.compile(r"\{\{node ([^}\s]+)\}\}")
_VALUE_BYTES = {"half": 2, "bfloat16": 2, "float": 4, "int32": 4, "double": 8, "int64": 8}

_HEADING = re.compile(
    r"Graph execution error:|Detected at node|Node: |File \"|<stack traces|in user code:|"
    r"\d+ root error\(s\) found|Exception encountered when calling|Arguments received by|•"
)
"""Lines that do not state the error."""

_MARK = re.compile(r"\x1b\[\d*m|\{\{function_node [^}]*\}\} ?| ?\[Op:\w+\](?: name:)?[ ]*$", re.M)
"""Text that is not for people: codes for bold letters, TensorFlow's internal names."""


def first_line(error: BaseException) -> str:
    """Find the first line that is neither a heading nor part of a listing; empty if there is none.

    AutoGraph lists lines of the user's code first, and the error last. Names from the model may
    hold characters that control a terminal; these become spaces.
    """
    if refused := why_refused(error):
        return refused
    lines = [line.strip() for line in _MARK.sub("", str(error)).strip().splitlines()]
    if lines and lines[0].startswith("in user code"):
        lines.reverse()
    found = next((line for line in lines if line and not _HEADING.match(line)), "")
    return UNPRINTABLE.sub(" ", found)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error of TensorFlow's means that memory is full, whoever noticed it."""
    kind = type(error).__name__
    return any(word in kind or word in str(error) for word in OUT_OF_MEMORY)


def is_nondeterministic(error: BaseException) -> bool:
    """Return whether an op refuses to run because it has no deterministic kernel."""
    return "determinis" in str(error).lower()


def describe_out_of_memory(text: str) -> str:
    """Say in one line which op got no memory for what, as far as TensorFlow's text tells."""
    node, asked = _NODE.search(text), _ALLOCATED.search(text)
    op = f" in op '{shortened(node[1])}'" if node else ""
    tensor = f" ({_describe_tensor(asked)})" if asked else ""
    fix = "use a smaller batch, or more or larger devices"
    return UNPRINTABLE.sub(" ", f"TensorFlow ran out of memory{op}{tensor}; {fix}")


def _describe_tensor(asked: re.Match[str]) -> str:
    """Describe the tensor for which there was no memory."""
    lengths = [int(length) for length in asked["shape"].split(",") if length]
    value_bytes = _VALUE_BYTES.get(asked["type"])
    amount = size(prod(lengths) * value_bytes) if value_bytes else asked["type"]
    where = f" on {asked['device']}" if asked["device"] else ""
    return f"for a tensor of {amount}, {' × '.join(map(str, lengths))}{where}"
