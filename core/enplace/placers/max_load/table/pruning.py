"""What the dynamic programs can skip: bounds on loads, and cells that lead nowhere."""

from __future__ import annotations

import numpy as np

from enplace.machine.op_passes import work_per_sample_us
from enplace.placers.max_load.table.dp_table import NodeCosts, count_cells, sum_below
from enplace.placers.max_load.table.ideals import Lattice
from enplace.values.load_rule import LoadRule
from enplace.values.problem import BoolArray, Problem
from enplace.values.profile import FloatArray, IntArray


def find_capable(costs: NodeCosts, lattice: Lattice, limit_us: FloatArray) -> BoolArray:
    """Whether the remaining devices could do and hold the remaining work; (n_ideals, n_cells).

    Parameters
    ----------
    limit_us : float array, shape (n_passes,)
        Upper limits of the loads.
    """
    n_kinds, n_nodes, n_passes = costs.work_us.shape
    work = costs.work_us.transpose(1, 0, 2).reshape(n_nodes, n_kinds * n_passes)
    # Always the same layout, or the kernel would be compiled once more for each.
    of_node = np.ascontiguousarray(np.column_stack([work, costs.memory_bytes]))
    left = of_node.sum(axis=0) - sum_below(lattice, of_node)
    work_left = left[:, :-1].reshape(-1, n_kinds, n_passes)
    free = costs.devices - used_devices(costs.devices)
    most_bytes = np.minimum(costs.capacity_bytes, _most_bytes(costs, limit_us))
    able: BoolArray = left[:, -1:] <= _times(free, most_bytes)
    # Devices of any kind can replace so many of one kind that they do all the work there is.
    for kind in range(n_kinds):
        worth = _worth(costs, kind)
        for p, most_us in enumerate(limit_us.tolist()):
            devices = _times(free, worth[:, p])
            most = np.full(len(devices), 1e-9)
            np.multiply(devices, most_us * (1 + 1e-9), out=most, where=devices > 0)
            able &= work_left[:, kind, p, None] <= most
    return able


def used_devices(devices: IntArray) -> IntArray:
    """Count the devices of each kind that each cell uses; shape (n_cells, n_kinds)."""
    shape = tuple((devices + 1).tolist())
    return np.stack(np.unravel_index(np.arange(count_cells(devices)), shape), axis=1)


def _times(numbers: IntArray, each: FloatArray) -> FloatArray:
    """Sum over the kinds; nothing of an infinite value is 0."""
    total = np.zeros(numbers.shape)
    np.multiply(numbers, each, out=total, where=numbers > 0)
    found: FloatArray = total.sum(axis=1)
    return found


def _worth(costs: NodeCosts, kind: int) -> FloatArray:
    """Bound the devices of a kind that one of each kind replaces; (n_kinds, n_passes).

    The node that suits a kind best decides. Only what runs on the one kind is work here.
    """
    work_us = costs.work_us[kind]
    both = (costs.runs[kind] & costs.runs)[:, :, None] & (work_us > 0)
    ratio = _ratio(np.broadcast_to(work_us, costs.work_us.shape), costs.work_us)
    worth: FloatArray = np.where(both, ratio, 0.0).max(axis=1, initial=0.0)
    return worth


def _most_bytes(costs: NodeCosts, limit_us: FloatArray) -> FloatArray:
    """Bound the bytes of the nodes that a device of each kind has time for; (n_kinds,)."""
    held = costs.runs & (costs.memory_bytes > 0)
    densest = _ratio(np.broadcast_to(costs.memory_bytes, held.shape), costs.work_us[:, :, -1])
    most = np.where(held, densest, 0.0).max(axis=1, initial=0.0)
    found = np.zeros(len(most))
    np.multiply(most, limit_us[-1], out=found, where=most > 0)
    return found


def _ratio(numerator: FloatArray, denominator: FloatArray) -> FloatArray:
    """Return the elementwise ratio; inf where the denominator is 0."""
    found = np.full(numerator.shape, np.inf)
    np.divide(numerator, denominator, out=found, where=denominator > 0)
    return found


def floor_us(costs: NodeCosts) -> FloatArray:
    """Find a lower bound on the largest load of each pass; shape (n_passes,).

    Either all devices share the work equally, or one device has the largest node.
    """
    work_us = np.where(costs.runs[:, :, None], costs.work_us, np.inf)
    replicas = np.maximum(costs.most_replicas, 1)[:, None, None]
    work_us[costs.devices == 0] = np.inf
    largest_us = (work_us / replicas).min(axis=0).max(axis=0)
    share_us = np.array([_least_share_us(costs, each) for each in np.moveaxis(work_us, 2, 0)])
    floor: FloatArray = np.maximum(share_us, largest_us)
    for kind in range(len(costs.devices)):
        able = np.array([_times(costs.devices[None], each)[0] for each in _worth(costs, kind).T])
        shared_us = np.zeros(len(able))
        np.divide(costs.work_us[kind].sum(axis=0), able, out=shared_us, where=able > 0)
        floor = np.maximum(floor, shared_us)
    return floor


def _least_share_us(costs: NodeCosts, work_us: FloatArray) -> float:
    """Find the equal load of all devices if nodes could be divided.

    All accelerators count as the fastest for each node, and so do all CPUs. CPUs take the nodes
    that suit accelerators least. The more CPUs do, the less remains for accelerators; this is where
    both have the same load.

    Parameters
    ----------
    work_us : float array, shape (n_kinds, n_nodes)
        inf where a node may not run.
    """
    on_gpu = costs.price >= 0
    gpu_us, cpu_us = (work_us[kinds].min(axis=0, initial=np.inf) for kinds in (on_gpu, ~on_gpu))
    n_gpus, n_cpus = int(costs.devices[on_gpu].sum()), int(costs.devices[~on_gpu].sum())
    gpu_runs, cpu_runs = np.isfinite(gpu_us), np.isfinite(cpu_us)
    if not (gpu_runs | cpu_runs).all():
        return np.inf
    if not n_cpus:
        return float(gpu_us.sum() / n_gpus)
    if not n_gpus:
        return float(cpu_us.sum() / n_cpus)
    free = gpu_runs & cpu_runs
    only_gpu_us, only_cpu_us = gpu_us[~cpu_runs].sum(), cpu_us[~gpu_runs].sum()
    suits = np.argsort(-_ratio(gpu_us[free], cpu_us[free]), kind="stable")
    on_cpu_us = only_cpu_us + np.cumsum([0.0, *cpu_us[free][suits]])
    on_gpu_us = only_gpu_us + gpu_us[free].sum() - np.cumsum([0.0, *gpu_us[free][suits]])
    ahead_us = on_cpu_us / n_cpus - on_gpu_us / n_gpus
    equal_us = float(np.interp(0.0, ahead_us, on_cpu_us / n_cpus))
    return max(equal_us, float(on_gpu_us[-1] / n_gpus))


def shared_work_us(problem: Problem, rule: LoadRule) -> float:
    """Bound the largest load from below: all devices equally busy, each op on its fastest one."""
    work_us = work_per_sample_us(problem, rule.microbatches)
    return float(np.nanmin(work_us, axis=1).sum() / problem.cluster.n_devices)
