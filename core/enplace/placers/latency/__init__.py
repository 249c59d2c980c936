"""Latency of one query: the time until the last output is ready (Tarnawski et al. 2020, section 4).

An accelerator runs one subgraph at a time: it receives all inputs, runs all ops, sends all outputs.
"""
