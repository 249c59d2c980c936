"""Latency of one query: the time until the last output is there (Tarnawski et al. 2020, section 4).

Accelerators take a subgraph at a time: all its inputs in, all its ops, all its outputs out.
"""
