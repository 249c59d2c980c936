"""Proven lower bounds on the step time."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numba import njit

from enplace.problem import Problem
from enplace.profile import FloatArray, IntArray


@lru_cache(maxsize=8)
def lower_bound_us(problem: Problem) -> float:
    """No schedule of the problem is shorter than this.

    The largest of three: the critical path with every op on its fastest device and no
    communication; the work of any set of ops against the devices that may do it; the longest
    placement unit, whose ops share the lanes of one device.
    """
    time_us = _allowed_time_us(problem)
    unit_us = np.empty((problem.n_units, problem.cluster.n_devices))
    for device, column in enumerate(time_us.T):
        unit_us[:, device] = np.bincount(problem.unit, column, problem.n_units)
    unit_bound = (unit_us / problem.cluster.lanes).min(axis=1).max()
    path_bound = _critical_path_us(problem, time_us.min(axis=1))
    return float(max(path_bound, _work_bound_us(problem, unit_us), unit_bound))


def _allowed_time_us(problem: Problem) -> FloatArray:
    return np.where(problem.unit_allowed[problem.unit], problem.time_us, np.inf)


def _critical_path_us(problem: Problem, time_us: FloatArray) -> float:
    profile = problem.profile
    return float(
        _longest_path(
            profile.topological_order,
            profile.tensor_ptr,
            profile.edge_ptr,
            profile.edge_op,
            time_us,
        )
    )


@njit(cache=True, nogil=True)
def _longest_path(
    order: IntArray,
    tensor_ptr: IntArray,
    edge_ptr: IntArray,
    edge_op: IntArray,
    time_us: FloatArray,
) -> float:  # pragma: no cover - compiled
    ready = np.zeros(len(order))
    longest = 0.0
    for op in order:
        finish = ready[op] + time_us[op]
        longest = max(longest, finish)
        for edge in range(edge_ptr[tensor_ptr[op]], edge_ptr[tensor_ptr[op + 1]]):
            ready[edge_op[edge]] = max(ready[edge_op[edge]], finish)
    return longest


def _work_bound_us(problem: Problem, unit_us: FloatArray) -> float:
    """Weigh each device by its share of a set's speed; the set is busy at least that long.

    For weights y >= 0 with sum(lanes * y) = 1, every schedule takes at least the sum over units of
    min over devices of y * time: each unit adds its time to one device's lanes, and the makespan
    is at least the weighted mean of the lanes' loads. Devices of one chip share their lanes, which
    then weigh as much as the heaviest of them. Units that may leave the set count nothing.
    """
    cluster, allowed = problem.cluster, problem.unit_allowed
    sets, set_of = problem.device_sets
    best = 0.0
    for members in np.vstack([sets, np.ones(cluster.n_devices, dtype=bool)]):
        weight = np.where(members, cluster.speed, 0.0)
        of_lane = np.zeros(cluster.n_devices)
        np.maximum.at(of_lane, cluster.lane_owner, weight)
        weight /= (of_lane * cluster.lanes).sum()
        inside = (sets <= members).all(axis=1)[set_of]
        weighted = np.where(allowed, unit_us, np.inf)[inside][:, members] * weight[members]
        best = max(best, float(weighted.min(axis=1).sum()))
    return best
