"""The load of each device under a placement (Tarnawski et al. 2020, section 3).

The load of an accelerator is its compute time, plus the time to bring in every tensor that it
consumes but does not make, once each, plus the time to send out every tensor that it makes and
others consume, once each. A CPU computes only: tensors lie in its memory.
"""

from __future__ import annotations

import numpy as np

from enplace.problem import Problem
from enplace.profile import CONTROL, FloatArray, IntArray


def send_us(problem: Problem) -> FloatArray:
    """Time to move each tensor between an accelerator and the host's memory; shape (n_tensors,).

    On a machine without a CPU, from one accelerator to the next.
    """
    cluster, profile = problem.cluster, problem.profile
    ends = cluster.cpus or cluster.gpus[1:]
    if not (ends and cluster.gpus):
        return np.zeros(profile.n_tensors)
    a, b = cluster.gpus[0], ends[0]
    cost_us = cluster.b0_us[a, b] + cluster.b1_us_per_byte[a, b] * profile.tensor_bytes
    return np.where(profile.tensor_output == CONTROL, 0.0, cost_us)


def device_loads_us(problem: Problem, device: IntArray) -> FloatArray:
    """Load of each device; shape (n_devices,).

    Parameters
    ----------
    device : int array, shape (n_ops,)
        Where each op is; it need not be contiguous.
    """
    profile, n_devices = problem.profile, problem.cluster.n_devices
    load = np.zeros(n_devices)
    np.add.at(load, device, problem.time_us[np.arange(profile.n_ops), device])
    home = device[profile.tensor_op]
    tensor = profile.edge_tensor
    reader = device[profile.edge_op]
    crossing = home[tensor] != reader
    cost, is_gpu = send_us(problem), np.zeros(n_devices, dtype=bool)
    is_gpu[problem.cluster.gpus] = True
    out = np.unique(tensor[crossing & is_gpu[home[tensor]]])
    np.add.at(load, home[out], cost[out])
    brought = crossing & is_gpu[reader]
    pairs = np.unique(tensor[brought] * n_devices + reader[brought])
    np.add.at(load, pairs % n_devices, cost[pairs // n_devices])
    return load


def max_load_us(problem: Problem, device: IntArray) -> float:
    """Time per sample of a pipeline: the load of the busiest device."""
    return float(device_loads_us(problem, device).max())
