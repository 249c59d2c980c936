"""Upward ranks of a placement: the time from each op to the end of the step."""

from __future__ import annotations

import numpy as np
from numba import njit

from enplace.machine.layout import Machine, transfer_us
from enplace.values.arrays import FloatArray, IntArray, upward_rank


@njit(cache=True, nogil=True)
def placed_rank_us(machine: Machine, device: IntArray) -> FloatArray:  # pragma: no cover - compiled
    """Compute upward ranks under a placement: true times, and only transfers that take place."""
    work_us, cost_us = np.empty(len(device)), np.zeros(len(machine.edge_op))
    for op in range(len(device)):
        home = device[op]
        work_us[op] = machine.time_us[op, home]
        for tensor in range(machine.tensor_ptr[op], machine.tensor_ptr[op + 1]):
            for edge in range(machine.edge_ptr[tensor], machine.edge_ptr[tensor + 1]):
                to = device[machine.edge_op[edge]]
                if to != home:
                    cost_us[edge] = transfer_us(machine, machine.tensor_bytes[tensor], home, to)
    return upward_rank(
        machine.topological_order, machine.out_ptr, machine.edge_op, work_us, cost_us
    )  # fmt: skip
