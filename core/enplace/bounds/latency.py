"""A lower bound on the latency of a query, with any number of subgraphs (Tarnawski et al. 2020).

Every op of a path ends before the next begins, or both are in one subgraph, which takes as long as
all of its ops. So no query takes less than the longest path of least op times. Accelerators run one
subgraph after another, so the busiest one works at least as long as all do on average. CPUs have
cores for all ops at once, but in a query that takes less than the longest path through an op on a
CPU, that op is on an accelerator.
"""

from __future__ import annotations

import numpy as np

from enplace.values.arrays import FloatArray
from enplace.values.problem import Problem


def least_latency_us(problem: Problem) -> float:
    """Return a time that no query takes less than, whatever its placement and its subgraphs."""
    cluster = problem.cluster
    time_us = np.where(problem.unit_allowed[problem.unit], problem.time_us, np.inf)
    gpu_us = time_us[:, cluster.gpus].min(axis=1, initial=np.inf)
    cpu_us = time_us[:, cluster.cpus].min(axis=1, initial=np.inf)
    others_us = _longest_beside_us(problem, np.minimum(gpu_us, cpu_us))
    path_us = float((others_us + np.minimum(gpu_us, cpu_us)).max())
    through_us = others_us + cpu_us  # the longest path through an op on a CPU
    order = np.argsort(-through_us, kind="stable")
    # If the first ops of this order are on accelerators, the next one need not be.
    busy_us = np.concatenate([[0.0], np.cumsum(gpu_us[order])]) / max(1, len(cluster.gpus))
    next_us = np.concatenate([through_us[order], [0.0]])
    return max(path_us, float(np.maximum(busy_us, next_us).min()))


def _longest_beside_us(problem: Problem, least_us: FloatArray) -> FloatArray:
    """Return the longest path through each op without its own time; shape (n_ops,)."""
    profile = problem.profile
    order, out_ptr = profile.topological_order, profile.out_ptr
    before, after = np.zeros(profile.n_ops), np.zeros(profile.n_ops)
    for op in order.tolist():
        for end in profile.edge_op[out_ptr[op] : out_ptr[op + 1]].tolist():
            before[end] = max(before[end], before[op] + least_us[op])
    for op in order[::-1].tolist():
        ends = profile.edge_op[out_ptr[op] : out_ptr[op + 1]]
        after[op] = (after[ends] + least_us[ends]).max(initial=0.0)
    longest: FloatArray = before + after
    return longest
