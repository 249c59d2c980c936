"""Limits of what a model's file may hold, and of the worker that reads it."""

from __future__ import annotations

from pathlib import Path

from onnx import GraphProto

from enplace.errors import FileError
from enplace.frameworks.limits import limit_worker

MAX_FILE_BYTES = 1 << 31
"""The size of the largest message in protobuf."""

MAX_NODES = 200_000
"""Most nodes, bodies of loops and called functions included."""

MOST_TURNS = 1_000_000
"""Most turns of a loop that count; some exporters write the largest number for "until it ends"."""

MAX_INLINED_BYTES = 128 << 20
"""Most that the nodes may take once functions are inlined: in memory, it is a few times as much."""

GROWTH, CPU_S, EXPORT_CPU_S = 4, 120, 3600
"""Memory, in sizes of the file, and time of the worker. Protobuf takes the file's size twice, but
may take fifty times that of a hostile file, and the library that infers shapes may take any
time."""


def limit_reader(path: str, cpu_s: int = CPU_S) -> None:
    """Let the kernel end this process if it takes far more memory or time than any real file."""
    limit_worker(GROWTH * _size(path), cpu_s)


def _size(path: str) -> int:
    try:
        return min(Path(path).stat().st_size, MAX_FILE_BYTES)
    except OSError:
        return 0


def check_nodes(graph: GraphProto) -> None:
    """Refuse a graph with too many nodes.

    Raises
    ------
    FileError
        If it has.
    """
    if len(graph.node) > MAX_NODES:
        raise FileError(f"has over {MAX_NODES:,} nodes, unlike any real model; do not trust it")
