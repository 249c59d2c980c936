"""Limits of what a model's file may hold, and of the worker that reads it."""

from __future__ import annotations

import sys
from pathlib import Path

from onnx import GraphProto

from enplace.errors import FileError

MAX_FILE_BYTES = 1 << 31
"""The size of the largest message in protobuf."""

MAX_NODES = 200_000
"""Most nodes, bodies of loops and called functions included."""

MOST_TURNS = 1_000_000
"""Most turns of a loop that count; some exporters write the largest number for "until it ends"."""

MAX_INLINED_BYTES = 128 << 20
"""Most that the nodes may take once functions are inlined: in memory, it is a few times as much."""

SPARE_BYTES, GROWTH, CPU_S, EXPORT_CPU_S = 1 << 30, 4, 120, 3600
"""Memory and time of the worker. Protobuf takes the file's size twice, but may take fifty times
that of a hostile file, and the library that infers shapes may take any time."""


def limit_worker(path: str, cpu_s: int = CPU_S) -> None:
    """Let the kernel end this process if it takes far more memory or time than any real file.

    Only Linux can.
    """
    if sys.platform != "linux":
        return
    import resource

    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + SPARE_BYTES + GROWTH * _size(path)
    for kind, limit in ((resource.RLIMIT_AS, most), (resource.RLIMIT_CPU, cpu_s)):
        own = [each for each in resource.getrlimit(kind) if each != resource.RLIM_INFINITY]
        least = min([limit, *own])  # a lower limit cannot be raised, or is meant
        resource.setrlimit(kind, (least, least))


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
