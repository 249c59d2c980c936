"""Deal out the stages of a partition to devices of a kind that differ."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace

import numpy as np

from enplace.coarsen.grouped import op_memory_bytes
from enplace.machine.pipelines.loads import max_load_us, pass_loads_us
from enplace.placers.max_load.memory.in_flight import held_by_stages, samples_matter
from enplace.placers.max_load.memory.partition_at_pace import slow_down
from enplace.placers.max_load.table.caveats import UNLIKE_DEVICES, find_unlike
from enplace.placers.max_load.table.dp import Partition
from enplace.values.arrays import assign
from enplace.values.load_rule import LoadRule
from enplace.values.problem import Problem
from enplace.values.profile import FloatArray, IntArray


def deal_out(problem: Problem, found: Partition, rule: LoadRule) -> Partition:
    """Exchange devices of a kind so that the largest load is least, if it fits and is faster.

    The dynamic programs cut stages as if all devices of a kind were like the slowest, with the
    least memory.
    """
    if found.replicas or find_unlike(problem, rule) != UNLIKE_DEVICES:
        return found
    name = np.arange(problem.cluster.n_devices)
    for devices in (problem.cluster.gpus, problem.cluster.cpus):
        name[devices] = _match(_loads_us(problem, found, rule, devices), np.array(devices))
    device, recompute = name[found.device], tuple(name[list(found.recompute)].tolist())
    before_us, load_us = (
        max_load_us(problem, placed, rule, (), again)
        for placed, again in ((found.device, found.recompute), (device, recompute))
    )
    before = replace(found, load_us=max(before_us, found.pace_us))
    dealt = replace(found, device=device, recompute=recompute, load_us=load_us, pace_us=0.0)
    if samples_matter(problem, rule):
        return slow_down(problem, dealt, rule, below=before)
    return dealt if load_us < before.load_us else found


def _loads_us(problem: Problem, found: Partition, rule: LoadRule, devices: list[int]) -> FloatArray:
    """Find the load of what each device has on each of them; inf where it may not go or fit."""
    n, cluster = len(devices), problem.cluster
    us = np.full((n, n), np.inf)
    counted = held_by_stages(problem, rule)
    counted = op_memory_bytes(problem) if counted is None else counted
    held = np.bincount(found.device, counted, cluster.n_devices)
    most = np.maximum(cluster.capacity_bytes, (held > cluster.capacity_bytes) * held)
    for shift in range(n):
        name = np.arange(cluster.n_devices)
        name[devices] = np.roll(devices, -shift)
        recompute = name[list(found.recompute)].tolist()
        loads_us = pass_loads_us(problem, name[found.device], rule, (), recompute).sum(axis=1)
        for i, d in enumerate(devices):
            allowed = problem.unit_allowed[problem.unit[found.device == d], name[d]].all()
            if allowed and held[d] <= most[name[d]]:
                us[i, (i + shift) % n] = loads_us[name[d]]
    return us


def _match(us: FloatArray, devices: IntArray) -> IntArray:
    """Return which device each gives its work to so that the largest load is least."""

    def match(limit_us: float) -> IntArray:
        return assign(np.where(us <= limit_us, us, len(us) * limit_us + 1.0))

    def is_below(limit_us: float) -> bool:
        return bool((us[np.arange(len(us)), match(limit_us)] <= limit_us).all())

    limits_us = np.unique(us[np.isfinite(us)]).tolist()
    at = bisect_left(limits_us, True, key=is_below)
    return devices if at == len(limits_us) else devices[match(limits_us[at])]
