"""Latency of one query: the time until the last output is there (Tarnawski et al. 2020, section 4).

Accelerators take a subgraph whole: all its inputs in, all its ops, all its outputs out.
"""

from enplace.latency.evaluate import latency_us, split_into_pieces

__all__ = ["latency_us", "split_into_pieces"]
