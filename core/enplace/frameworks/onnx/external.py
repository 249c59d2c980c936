"""Files beside a model that hold its weights ("external data"): where they are, and what they hold.

A model names them, so a name may lead anywhere: only files inside of the model's folder are read,
and those to which Hugging Face's cache links from there.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from onnx import GraphProto, TensorProto

from enplace.frameworks.onnx.functions import bodies_of
from enplace.frameworks.onnx.tensors import tensor_of

MOST_NUMBERS, MOST_FLOATS = 1000, 16
"""Larger tensors are no shapes, and no factors by which images are resized."""

_MOST_BYTES = 16 << 20
"""Most that is read of all data files together."""

_WHOLE = (TensorProto.BOOL, TensorProto.INT32, TensorProto.INT64)


def is_external(tensor: TensorProto) -> bool:
    """Whether the values of a tensor lie in another file."""
    return tensor.data_location == TensorProto.EXTERNAL


def location(tensor: TensorProto) -> str:
    """Return the name of the file that holds a tensor; empty if it says none."""
    return next((each.value for each in tensor.external_data if each.key == "location"), "")


def span(tensor: TensorProto) -> tuple[int, int]:
    """Return where in its file a tensor begins, and how many bytes it takes.

    Raises
    ------
    ValueError
        If the model says something else than numbers.
    """
    said = {each.key: each.value for each in tensor.external_data}
    n_bytes = tensor_of(tensor).n_bytes
    offset, length = int(said.get("offset") or 0), int(said.get("length") or n_bytes)
    if offset < 0 or length < n_bytes:
        raise ValueError(tensor.name)
    return offset, n_bytes


def find_file(folder: Path, name: str) -> Path | None:
    """Return a data file in a model's folder; None if it is missing, elsewhere, or no file."""
    if not name or os.path.isabs(name) or "\0" in name:
        return None
    root = os.path.realpath(folder)
    path = os.path.realpath(os.path.join(root, name))
    try:
        is_inside = os.path.commonpath([root, path]) == root or _is_blob(root, path)
        return Path(path) if is_inside and stat.S_ISREG(os.stat(path).st_mode) else None
    except (OSError, ValueError):
        return None


def _is_blob(root: str, path: str) -> bool:
    """Whether a file of Hugging Face's cache holds what its folder of a revision links to.

    All files are in ``blobs``, and ``snapshots/REVISION`` beside it has links to them.
    """
    parts = Path(root).parts
    if "snapshots" not in parts[:-1]:
        return False
    at = len(parts) - 1 - parts[::-1].index("snapshots")
    return Path(path).parent == Path(*parts[:at], "blobs")


def all_tensors(graph: GraphProto) -> Iterator[TensorProto]:
    """Iterate over the tensors that lie in a graph and its bodies."""
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
        for body in bodies_of(node):
            yield from all_tensors(body)


def read_constants(graph: GraphProto, folder: Path) -> dict[str, str]:
    """Fill in the small tensors from which shapes are computed, as far as their files are there.

    Returns
    -------
    dict of str to str
        The tensors that could not be read, and the files that they are said to be in.
    """
    missing, left = dict[str, str](), _MOST_BYTES
    files: dict[str, Path | None] = {}
    for tensor in all_tensors(graph):
        if not (is_external(tensor) and _is_small(tensor)):
            continue
        name = location(tensor)
        if name not in files:
            files[name] = find_file(folder, name)
        content = _read(files[name], tensor) if left > 0 else None
        if content is None:
            missing[tensor.name] = name
            continue
        left -= len(content)
        tensor.raw_data = content
        tensor.ClearField("external_data")
        tensor.ClearField("data_location")
    return missing


def _is_small(tensor: TensorProto) -> bool:
    n_values = tensor_of(tensor).n_values
    if tensor.data_type in _WHOLE:
        return n_values <= MOST_NUMBERS
    return tensor.data_type == TensorProto.FLOAT and n_values <= MOST_FLOATS


def _read(path: Path | None, tensor: TensorProto) -> bytes | None:
    if path is None:
        return None
    try:
        offset, n_bytes = span(tensor)
        with open(path, "rb") as file:
            file.seek(offset)
            content = file.read(n_bytes)
    except (OSError, OverflowError, ValueError):
        return None
    return content if len(content) == n_bytes else None
