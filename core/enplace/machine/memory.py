"""The excess of a simulated placement over the devices' memory, compiled.

:mod:`enplace.values.memory` computes the same in a readable way; tests compare the two.
"""

from __future__ import annotations

import numpy as np

from enplace.compiling import helper, kernel, loop, step
from enplace.machine.layout import Machine
from enplace.machine.timing import Timing
from enplace.values.arrays import FloatArray, IntArray

MOST_BYTES = np.iinfo(np.int64).max


@kernel
def find_excess(
    machine: Machine, device: IntArray, timing: Timing
) -> int:  # pragma: no cover - compiled
    """Sum over the devices by how much their peaks exceed their memory; 0 if the step fits."""
    n_devices = len(machine.lanes)
    used, peak = np.empty(n_devices, np.int64), np.empty(n_devices, np.int64)
    if _fits_at_once(machine, device, timing, used, peak):
        return 0
    _find_peaks(machine, device, timing, peak, np.empty(n_devices))
    return _sum_excess(machine, peak)


@kernel
def find_peak_ops(
    machine: Machine, device: IntArray, timing: Timing, ops: IntArray
) -> int:  # pragma: no cover - compiled
    """List ops that hold memory where and when most is lacking; return how many.

    An op is listed once for what it makes there and runs itself, and a reader once for each copy
    that it reads.

    Parameters
    ----------
    ops : int array, shape (n_ops + n_tensors + n_edges,), written
    """
    n_devices = len(machine.lanes)
    peak, peak_us = np.empty(n_devices, np.int64), np.empty(n_devices)
    stays_us = _find_peaks(machine, device, timing, peak, peak_us)
    worst = int(np.argmax(peak - machine.capacity_bytes))
    return _list_ops(machine, device, timing, worst, peak_us[worst], stays_us, peak_us, ops)


@helper
def _find_peaks(
    machine: Machine, device: IntArray, timing: Timing, peak: IntArray, peak_us: FloatArray
) -> FloatArray:  # pragma: no cover - compiled
    """Write the most that each device holds, and when; return until when tensors are kept.

    That is for others that lie in their memory; shape (n_tensors, n_devices), or no rows.
    """
    n_devices, most = len(machine.lanes), _most_changes(device, timing)
    when, change = np.empty(most), np.empty(most, np.int64)
    where = np.empty(most, np.int64)
    n_bases = len(machine.tensor_op) if len(machine.sharing) > 0 else 0
    stays_us = np.full((n_bases, n_devices), -1.0)
    n = _list_changes(machine, device, timing, when, change, where, stays_us, peak_us)
    order = np.argsort(when[:n], kind="mergesort")
    used = np.empty(n_devices, np.int64)
    _add_up(machine, device, when, change, where, order, used, peak, peak_us)
    return stays_us


@loop
def _fits_at_once(
    m: Machine, device: IntArray, timing: Timing, held: IntArray, temporary: IntArray
) -> bool:  # pragma: no cover - compiled
    """Whether all tensors fit together; then any order fits, and no peak need be computed."""
    held[:], temporary[:] = 0, 0
    for op in range(len(device)):
        d = device[op]
        n_lanes = m.lane_end[d] - m.lane_ptr[d]
        held[d] += m.persistent_bytes[op]
        temporary[d] = max(temporary[d], m.temporary_bytes[op] * n_lanes)
    for tensor in range(len(m.tensor_op)):
        home = device[m.tensor_op[tensor]]
        for d in range(len(held)):
            if d == home:
                held[d] += m.held_bytes[tensor]
            elif timing.arrival_us[tensor, d] >= 0.0:
                held[d] += m.copy_bytes[tensor]
    fits = True
    for d in range(len(held)):
        fits &= held[d] + temporary[d] <= m.capacity_bytes[d]
    return fits


@loop
def _most_changes(device: IntArray, timing: Timing) -> int:  # pragma: no cover - compiled
    """Return how many changes there may be: two for each op, tensor and copy."""
    n_tensors, n_devices = timing.arrival_us.shape
    count = len(device) + n_tensors
    for tensor in range(n_tensors):
        for d in range(n_devices):
            if timing.arrival_us[tensor, d] >= 0.0:
                count += 1
    return int(2 * count)


@loop
def _list_changes(
    m: Machine,
    device: IntArray,
    timing: Timing,
    when: FloatArray,
    change: IntArray,
    where: IntArray,
    stays_us: FloatArray,
    end_us: FloatArray,
) -> int:  # pragma: no cover - compiled
    """List when memory is taken (positive) and freed (negative), how much, and on which device.

    Return the number of changes; ``stays_us``, all -1, and ``end_us`` are scratch, with an entry
    for each device.
    """
    n = 0
    for tensor in m.sharing:
        _find_ends(m, device, timing, tensor, stays_us, end_us)
        base, d = m.tensor_base[tensor], device[m.tensor_op[tensor]]
        stays_us[base, d] = max(stays_us[base, d], end_us[d])
    for tensor in range(len(m.tensor_op)):
        if m.copy_bytes[tensor] == 0:
            continue
        maker = m.tensor_op[tensor]
        home = device[maker]
        _find_ends(m, device, timing, tensor, stays_us, end_us)
        for d in range(len(end_us)):
            begin_us, n_bytes = timing.sent_us[tensor, d], m.copy_bytes[tensor]
            if d == home:
                n_bytes = m.held_bytes[tensor]
                begin_us = timing.finish_us[maker] - m.time_us[maker, home]
            if end_us[d] >= 0.0 and end_us[d] > begin_us:
                when[n], change[n], where[n] = begin_us, n_bytes, d
                when[n + 1], change[n + 1], where[n + 1] = end_us[d], -n_bytes, d
                n += 2
    for op in range(len(device)):
        n_bytes, d = m.temporary_bytes[op], device[op]
        begin_us = timing.finish_us[op] - m.time_us[op, d]
        # An op that takes no time holds its temporary memory for no time either.
        if n_bytes > 0 and timing.finish_us[op] > begin_us:
            when[n], change[n], where[n] = begin_us, n_bytes, d
            when[n + 1], change[n + 1], where[n + 1] = timing.finish_us[op], -n_bytes, d
            n += 2
    return n


@step
def _find_ends(
    m: Machine,
    device: IntArray,
    timing: Timing,
    tensor: int,
    stays_us: FloatArray,
    end_us: FloatArray,
) -> None:  # pragma: no cover - compiled
    """Write until when each device holds a tensor; -1 if it never does."""
    maker = m.tensor_op[tensor]
    home = device[maker]
    end_us[:] = -1.0
    end_us[home] = timing.finish_us[maker]
    for d in range(len(end_us)):
        if d != home and timing.arrival_us[tensor, d] >= 0.0:
            end_us[d] = timing.arrival_us[tensor, d]
            end_us[home] = max(end_us[home], end_us[d])
    for edge in range(m.edge_ptr[tensor], m.edge_ptr[tensor + 1]):
        consumer = m.edge_op[edge]
        end_us[device[consumer]] = max(end_us[device[consumer]], timing.finish_us[consumer])
    for hold in range(m.hold_ptr[tensor], m.hold_ptr[tensor + 1]):
        end_us[home] = max(end_us[home], timing.finish_us[m.hold_op[hold]])
    if len(stays_us) > 0:
        for d in range(len(end_us)):
            end_us[d] = max(end_us[d], stays_us[tensor, d])


@loop
def _add_up(
    m: Machine,
    device: IntArray,
    when: FloatArray,
    change: IntArray,
    where: IntArray,
    order: IntArray,
    used: IntArray,
    peak: IntArray,
    peak_us: FloatArray,
) -> None:  # pragma: no cover - compiled
    """Write the peak of each device, and when it is first reached.

    Changes at one instant count only once all have happened. ``used`` is scratch, with an entry for
    each device.
    """
    used[:], peak_us[:] = 0, 0.0
    for op in range(len(device)):
        used[device[op]] += m.persistent_bytes[op]
    for d in range(len(used)):
        peak[d] = used[d]
    for k in range(len(order)):
        i = order[k]
        used[where[i]] += change[i]
        # Frees and allocations at one instant are in any order, so a sum in between means nothing.
        if k + 1 == len(order) or when[order[k + 1]] > when[i]:
            for d in range(len(used)):
                if used[d] > peak[d]:
                    peak[d], peak_us[d] = used[d], when[i]


@loop
def _sum_excess(m: Machine, peak: IntArray) -> int:  # pragma: no cover - compiled
    """Sum over the devices by how much their peaks exceed their memory."""
    excess = 0
    for d in range(len(peak)):
        over = max(peak[d] - m.capacity_bytes[d], 0)
        excess = min(excess, MOST_BYTES - over) + over  # copies on many devices may be too many
    return excess


@loop
def _list_ops(
    m: Machine,
    device: IntArray,
    timing: Timing,
    worst: int,
    at_us: float,
    stays_us: FloatArray,
    end_us: FloatArray,
    ops: IntArray,
) -> int:  # pragma: no cover - compiled
    """List the ops of :func:`find_peak_ops`; ``end_us`` is scratch, with an entry per device."""
    n = 0
    for op in range(len(device)):
        begin_us = timing.finish_us[op] - m.time_us[op, worst]
        runs = m.temporary_bytes[op] > 0 and begin_us <= at_us < timing.finish_us[op]
        if device[op] == worst and (runs or m.persistent_bytes[op] > 0):
            ops[n] = op
            n += 1
    for tensor in range(len(m.tensor_op)):
        if m.copy_bytes[tensor] == 0:
            continue
        maker = m.tensor_op[tensor]
        _find_ends(m, device, timing, tensor, stays_us, end_us)
        is_made = device[maker] == worst
        if is_made and m.held_bytes[tensor] == 0:
            continue  # it lies in the memory of another
        begin_us = timing.sent_us[tensor, worst]
        if is_made:
            begin_us = timing.finish_us[maker] - m.time_us[maker, worst]
        if not begin_us <= at_us < end_us[worst]:
            continue
        if is_made:
            ops[n] = maker
            n += 1
        else:
            for edge in range(m.edge_ptr[tensor], m.edge_ptr[tensor + 1]):
                if device[m.edge_op[edge]] == worst:
                    ops[n] = m.edge_op[edge]
                    n += 1
    return n
