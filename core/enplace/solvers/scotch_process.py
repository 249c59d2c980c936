"""Scotch's command-line program in a worker, which writes and reads its files.

The job has the arrays of a weighted graph (see :class:`enplace.placers.partition.Weighted`) and the
allowed ``imbalance``. The answer has the array ``part``, shape (n_nodes,), and the ``status``
``done``; or the status ``failed`` and ``why``.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from enplace.linear import IntArray
from enplace.processes.main import Connection
from enplace.processes.wire import DONE, Message

SCOTCH, GET_SCOTCH = "scotch_gmap", "apt install scotch"
"""The program's name in Debian, where another package has gmap; and how to get it."""


def solve(connection: Connection) -> Message:
    """Partition the graph in the first message."""
    job = connection.receive()
    folder = Path(tempfile.gettempdir())
    source, target, mapping = (folder / name for name in ("grf", "tgt", "map"))
    source.write_text("\n".join(_lines(job.arrays)) + "\n")
    shares = np.maximum(np.round(1000 * job.arrays["share"]), 1).astype(int)
    target.write_text(f"cmpltw {len(shares)} {' '.join(map(str, shares))}\n")
    words = [SCOTCH, f"-b{job.details['imbalance']}", str(source), str(target), str(mapping)]
    # With several threads, the result differs from run to run.
    alone = {**os.environ, "SCOTCH_PTHREAD_NUMBER": "1"}
    done = subprocess.run(words, capture_output=True, text=True, env=alone)
    if done.returncode or not mapping.exists():
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        return Message(DONE, {"status": "failed", "why": f"{SCOTCH} failed ({lines[-1]})"})
    part = _read_parts(mapping.read_text(), len(job.arrays["node_weight"]))
    return Message(DONE, {"status": "done"}, {"part": part})


def _lines(graph: Mapping[str, np.ndarray]) -> Iterator[str]:
    """Write Scotch's text format: a head, then each node's weight, degree and weighted edges."""
    ptr, neighbour, edge_weight = graph["ptr"], graph["neighbour"], graph["edge_weight"]
    yield "0"
    yield f"{len(ptr) - 1} {len(neighbour)}"
    yield "0 011"  # Numbers start from 0; there are no labels, but edge and node weights.
    for node, weight in enumerate(graph["node_weight"].tolist()):
        first, end = ptr[node], ptr[node + 1]
        pairs = np.stack([edge_weight[first:end], neighbour[first:end]], axis=1)
        yield f"{weight} {end - first} {' '.join(map(str, pairs.ravel().tolist()))}"


def _read_parts(mapping: str, n_nodes: int) -> IntArray:
    """Read the part of each node from lines of a node and its part, after their number."""
    rows = np.array(mapping.split()[1:], dtype=np.int64).reshape(-1, 2)
    part = np.empty(n_nodes, dtype=np.int64)
    part[rows[:, 0]] = rows[:, 1]
    return part
