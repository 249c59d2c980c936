"""What the dynamic programs can skip: bounds on loads, and cells that lead nowhere."""

from __future__ import annotations

import numpy as np

from enplace.placers.max_load.table.dp_table import NodeCosts, count_cells, sum_below
from enplace.placers.max_load.table.ideals import Lattice
from enplace.values.problem import BoolArray, Problem
from enplace.values.profile import FloatArray


def find_capable(costs: NodeCosts, lattice: Lattice, limit_us: FloatArray) -> BoolArray:
    """Whether the remaining devices could do and hold the remaining work; (n_ideals, n_cells).

    Parameters
    ----------
    limit_us : float array, shape (n_passes,)
        Upper limits of the loads.
    """
    of_node = np.column_stack([costs.gpu_us, costs.memory_bytes])
    left = of_node.sum(axis=0) - sum_below(lattice, of_node)
    worth, cpu_bytes = _cpu_worth(costs), _cpu_bytes(costs, limit_us)
    able = np.ones((lattice.n_ideals, count_cells(costs.devices)), dtype=bool)
    for cell in range(able.shape[1]):
        gpus, cpus = costs.devices - divmod(cell, costs.devices[1] + 1)
        free_bytes = gpus * costs.capacity_bytes + (cpus * cpu_bytes if cpus else 0.0)
        able[:, cell] = left[:, -1] <= free_bytes
        for p, most_us in enumerate(limit_us.tolist()):
            devices = gpus + (cpus * worth[p] if cpus else 0.0)
            able[:, cell] &= left[:, p] <= (devices * most_us * (1 + 1e-9) if devices else 1e-9)
    return able


def _cpu_worth(costs: NodeCosts) -> FloatArray:
    """Bound the accelerators that one CPU replaces in each pass, by the node that suits it best."""
    both = (costs.gpu_runs & costs.cpu_runs)[:, None] & (costs.gpu_us > 0)
    ratio = _ratio(costs.gpu_us, costs.cpu_us)
    worth: FloatArray = np.where(both, ratio, 0.0).max(axis=0, initial=0.0)
    return worth


def _cpu_bytes(costs: NodeCosts, limit_us: FloatArray) -> float:
    """Bound the bytes of the nodes that one CPU has time for."""
    held = costs.cpu_runs & (costs.memory_bytes > 0)
    densest = _ratio(costs.memory_bytes[held], costs.cpu_us[held, -1]).max(initial=0.0)
    return float(densest * limit_us[-1]) if densest else 0.0


def _ratio(numerator: FloatArray, denominator: FloatArray) -> FloatArray:
    """Return the elementwise ratio; inf where the denominator is 0."""
    found = np.full(numerator.shape, np.inf)
    np.divide(numerator, denominator, out=found, where=denominator > 0)
    return found


def floor_us(costs: NodeCosts) -> FloatArray:
    """Find a lower bound on the largest load of each pass; shape (n_passes,).

    Either all devices share the work equally, or one device has the largest node.
    """
    columns = zip(costs.gpu_us.T, costs.cpu_us.T, strict=True)
    share = np.array([_least_share_us(costs, gpu_us, cpu_us) for gpu_us, cpu_us in columns])
    gpu_us = np.where(costs.gpu_runs[:, None], costs.gpu_us, np.inf)
    cpu_us = np.where(costs.cpu_runs[:, None], costs.cpu_us, np.inf)
    gpus, cpus = np.maximum(costs.most_replicas, 1).tolist()
    floor: FloatArray = np.maximum(share, np.minimum(gpu_us / gpus, cpu_us / cpus).max(axis=0))
    return floor


def _least_share_us(costs: NodeCosts, gpu_us: FloatArray, cpu_us: FloatArray) -> float:
    """Find the equal load of all devices if nodes could be divided.

    CPUs take the nodes that suit accelerators least. The more CPUs do, the less remains for
    accelerators; this is where both have the same load.
    """
    n_gpus, n_cpus = costs.devices.tolist()
    free = costs.gpu_runs & costs.cpu_runs
    only_gpu_us, only_cpu_us = gpu_us[~costs.cpu_runs].sum(), cpu_us[~costs.gpu_runs].sum()
    if not n_cpus:
        return float(gpu_us.sum() / n_gpus)
    if not n_gpus:
        return float(cpu_us.sum() / n_cpus)
    suits = np.argsort(-_ratio(gpu_us[free], cpu_us[free]), kind="stable")
    on_cpu_us = only_cpu_us + np.cumsum([0.0, *cpu_us[free][suits]])
    on_gpu_us = only_gpu_us + gpu_us[free].sum() - np.cumsum([0.0, *gpu_us[free][suits]])
    ahead_us = on_cpu_us / n_cpus - on_gpu_us / n_gpus
    equal_us = float(np.interp(0.0, ahead_us, on_cpu_us / n_cpus))
    return max(equal_us, float(on_gpu_us[-1] / n_gpus))


def shared_work_us(problem: Problem) -> float:
    """Bound the largest load from below: all devices equally busy, each op on its fastest one."""
    return float(np.nanmin(problem.time_us, axis=1).sum() / problem.cluster.n_devices)
