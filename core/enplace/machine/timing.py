"""When ops end and tensors arrive, in tables that searches reuse."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from enplace.machine.kernel import run
from enplace.machine.layout import Machine
from enplace.machine.placement import PRIORITY, lay_out
from enplace.values.arrays import FloatArray, IntArray


class Timing(NamedTuple):
    """A simulated placement.

    Attributes
    ----------
    start_us, finish_us : float arrays, shape (n_ops,)
    sent_us, arrival_us : float arrays, shape (n_tensors, n_devices)
        When each tensor leaves for a device and arrives there; the arrival is -1 if not sent.
    """

    start_us: FloatArray
    finish_us: FloatArray
    sent_us: FloatArray
    arrival_us: FloatArray


@njit(cache=True, nogil=True)
def new_timing(machine: Machine) -> Timing:  # pragma: no cover - compiled
    """Make tables in which nothing has been sent."""
    n_ops, shape = len(machine.time_us), (len(machine.tensor_op), len(machine.lanes))
    return Timing(np.zeros(n_ops), np.zeros(n_ops), np.full(shape, -1.0), np.full(shape, -1.0))


@njit(cache=True, nogil=True)
def simulate_priority(
    machine: Machine, device: IntArray, position: IntArray, links: int, timing: Timing
) -> float:  # pragma: no cover - compiled
    """Simulate a placement whose devices take the ready op that comes first in an order.

    Parameters
    ----------
    links : int
        How channels choose: an index into :data:`enplace.values.plan.LINK_POLICIES`.
    timing : Timing, written

    Returns
    -------
    float
        When the last op or transfer ends, in µs.
    """
    placement = lay_out(machine, device, position, PRIORITY, links)
    times = run(machine, placement)
    timing.start_us[:], timing.finish_us[:] = times.start_us, times.finish_us
    timing.arrival_us[:] = -1.0
    makespan = float(times.finish_us.max())
    for transfer in range(len(placement.transfers.tensor)):
        tensor, target = placement.transfers.tensor[transfer], placement.transfers.target[transfer]
        timing.sent_us[tensor, target] = times.sent_start_us[transfer]
        timing.arrival_us[tensor, target] = times.sent_finish_us[transfer]
        makespan = max(makespan, times.sent_finish_us[transfer])
    return makespan
