"""Latency of one query: the time until the last output is there (Tarnawski et al. 2020, section 4).

Accelerators take a subgraph whole: all its inputs in, all its ops, all its outputs out.
"""

from enplace.machine.latency import latency_us, split_into_pieces
from enplace.placers.latency.search import (
    PROVEN_GAP,
    Found,
    best_latency,
    greedy_split,
)
from enplace.solvers.background import Limits

__all__ = [
    "PROVEN_GAP",
    "Found",
    "Limits",
    "best_latency",
    "greedy_split",
    "latency_us",
    "split_into_pieces",
]
