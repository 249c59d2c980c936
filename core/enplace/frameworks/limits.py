"""Limits of a worker that reads a model's file, which may be hostile."""

from __future__ import annotations

import sys
from pathlib import Path

SPARE_BYTES = 1 << 30
"""Memory that any file may take, above what the worker has as it begins."""


def limit_worker(more_bytes: int, cpu_s: int) -> None:
    """Let the kernel end this process if it takes far more memory or time than any real file.

    Only Linux can.

    Parameters
    ----------
    more_bytes : int
        Memory that this file may take, besides :data:`SPARE_BYTES`.
    cpu_s : int
        Processor time, in seconds.
    """
    if sys.platform != "linux":
        return
    import resource

    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + SPARE_BYTES + more_bytes
    for kind, limit in ((resource.RLIMIT_AS, most), (resource.RLIMIT_CPU, cpu_s)):
        own = [each for each in resource.getrlimit(kind) if each != resource.RLIM_INFINITY]
        least = min([limit, *own])  # a lower limit cannot be raised, or is meant
        resource.setrlimit(kind, (least, least))
