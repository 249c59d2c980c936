"""Upward ranks of a placement: the time from each op to the end of the step."""

from __future__ import annotations

import numpy as np

from enplace.compiling import kernel, loop
from enplace.machine.layout import Machine, transfer_us
from enplace.values.arrays import FloatArray, IntArray


@kernel
def placed_rank_us(machine: Machine, device: IntArray) -> FloatArray:  # pragma: no cover - compiled
    """Compute upward ranks under a placement: true times, and only transfers that take place."""
    rank_us = np.zeros(len(device))
    _find_rank_us(machine, device, rank_us)
    return rank_us


@loop
def _find_rank_us(
    m: Machine, device: IntArray, rank_us: FloatArray
) -> None:  # pragma: no cover - compiled
    """Write the rank of each op, consumers first."""
    for at in range(len(device) - 1, -1, -1):
        op = m.topological_order[at]
        home = device[op]
        for tensor in range(m.tensor_ptr[op], m.tensor_ptr[op + 1]):
            for edge in range(m.edge_ptr[tensor], m.edge_ptr[tensor + 1]):
                consumer = m.edge_op[edge]
                cost_us = 0.0
                # Several consumers on a device share a transfer, but each may be on the longest
                # path, so each pays for it.
                if device[consumer] != home:
                    cost_us = transfer_us(m, m.tensor_bytes[tensor], home, device[consumer])
                rank_us[op] = max(rank_us[op], cost_us + rank_us[consumer])
        rank_us[op] += m.time_us[op, home]
