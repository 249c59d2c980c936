"""The excess of a simulated placement over the devices' memory, compiled.

:mod:`enplace.values.memory` computes the same in a readable way; tests compare the two.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from enplace.machine.layout import Machine
from enplace.machine.timing import Timing
from enplace.values.arrays import FloatArray, IntArray


@njit(cache=True, nogil=True)
def excess_bytes(
    machine: Machine, device: IntArray, timing: Timing
) -> int:  # pragma: no cover - compiled
    """Sum over the devices by how much their peaks exceed their memory; 0 if the step fits."""
    if _fits_at_once(machine, device, timing):
        return 0
    peak = _peak_bytes(machine, device, *_list_changes(machine, device, timing))
    return int(np.maximum(peak - machine.capacity_bytes, 0).sum())


@njit(cache=True, nogil=True)
def _fits_at_once(
    machine: Machine, device: IntArray, timing: Timing
) -> bool:  # pragma: no cover - compiled
    """Whether all tensors fit together; then any order fits, and no peak need be computed."""
    held = _persistent_bytes(machine, device)
    temporary = np.zeros(len(held), np.int64)
    for op in range(len(device)):
        d = device[op]
        n_lanes = machine.lane_end[d] - machine.lane_ptr[d]
        temporary[d] = max(temporary[d], machine.temporary_bytes[op] * n_lanes)
    for tensor in range(len(machine.tensor_op)):
        home = device[machine.tensor_op[tensor]]
        for d in range(len(held)):
            if d == home or timing.arrival_us[tensor, d] >= 0.0:
                held[d] += machine.held_bytes[tensor]
    return bool((held + temporary <= machine.capacity_bytes).all())


@njit(cache=True, nogil=True)
def _persistent_bytes(machine: Machine, device: IntArray) -> IntArray:  # pragma: no cover
    total = np.zeros(len(machine.lanes), np.int64)
    for op in range(len(device)):
        total[device[op]] += machine.persistent_bytes[op]
    return total


@njit(cache=True, nogil=True)
def _list_changes(
    machine: Machine, device: IntArray, timing: Timing
) -> tuple[FloatArray, IntArray, IntArray]:  # pragma: no cover - compiled
    """List when memory is taken (positive) and freed (negative), how much, and on which device."""
    n_devices, n_tensors = len(machine.lanes), len(machine.tensor_op)
    most = 2 * (len(device) + n_tensors + (timing.arrival_us >= 0.0).sum())
    when, change = np.empty(most), np.empty(most, np.int64)
    where, n = np.empty(most, np.int64), 0
    end_us = np.empty(n_devices)
    for tensor in range(n_tensors):
        n_bytes = machine.held_bytes[tensor]
        if n_bytes == 0:
            continue
        maker = machine.tensor_op[tensor]
        home = device[maker]
        _find_ends(machine, device, timing, tensor, end_us)
        for d in range(n_devices):
            begin_us = timing.sent_us[tensor, d]
            if d == home:
                begin_us = timing.finish_us[maker] - machine.time_us[maker, home]
            if end_us[d] >= 0.0 and end_us[d] > begin_us:
                when[n], change[n], where[n] = begin_us, n_bytes, d
                when[n + 1], change[n + 1], where[n + 1] = end_us[d], -n_bytes, d
                n += 2
    for op in range(len(device)):
        n_bytes, d = machine.temporary_bytes[op], device[op]
        begin_us = timing.finish_us[op] - machine.time_us[op, d]
        if n_bytes > 0 and timing.finish_us[op] > begin_us:
            when[n], change[n], where[n] = begin_us, n_bytes, d
            when[n + 1], change[n + 1], where[n + 1] = timing.finish_us[op], -n_bytes, d
            n += 2
    return when[:n], change[:n], where[:n]


@njit(cache=True, nogil=True)
def _find_ends(
    machine: Machine, device: IntArray, timing: Timing, tensor: int, end_us: FloatArray
) -> None:  # pragma: no cover - compiled
    """Write until when each device holds a tensor; -1 if it never does."""
    maker = machine.tensor_op[tensor]
    home = device[maker]
    end_us[:] = -1.0
    end_us[home] = timing.finish_us[maker]
    for d in range(len(end_us)):
        if d != home and timing.arrival_us[tensor, d] >= 0.0:
            end_us[d] = timing.arrival_us[tensor, d]
            end_us[home] = max(end_us[home], end_us[d])
    for edge in range(machine.edge_ptr[tensor], machine.edge_ptr[tensor + 1]):
        consumer = machine.edge_op[edge]
        end_us[device[consumer]] = max(end_us[device[consumer]], timing.finish_us[consumer])


@njit(cache=True, nogil=True)
def _peak_bytes(
    machine: Machine, device: IntArray, when: FloatArray, change: IntArray, where: IntArray
) -> IntArray:  # pragma: no cover - compiled
    """Add up the changes over time; changes at one instant count only once all have happened."""
    used = _persistent_bytes(machine, device)
    peak = used.copy()
    order = np.argsort(when)
    for k in range(len(order)):
        i = order[k]
        used[where[i]] += change[i]
        if k + 1 == len(order) or when[order[k + 1]] > when[i]:
            peak = np.maximum(peak, used)
    return peak
