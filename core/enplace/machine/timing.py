"""When ops end and tensors arrive, in tables that searches reuse."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from enplace.compiling import kernel, loop
from enplace.machine.kernel import Times, run
from enplace.machine.layout import Machine
from enplace.machine.placement import Placement, lay_out
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


def new_timing(machine: Machine) -> Timing:
    """Make tables in which nothing has been sent."""
    n_ops, shape = len(machine.time_us), (len(machine.tensor_op), len(machine.lanes))
    return Timing(np.zeros(n_ops), np.zeros(n_ops), np.full(shape, -1.0), np.full(shape, -1.0))


@kernel
def simulate_order(
    machine: Machine,
    device: IntArray,
    position: IntArray,
    policy: int,
    links: int,
    timing: Timing,
) -> float:  # pragma: no cover - compiled
    """Simulate a placement in an order.

    Parameters
    ----------
    policy, links : int
        How devices and channels choose: indices into :data:`enplace.values.plan.POLICIES` and
        :data:`~enplace.values.plan.LINK_POLICIES`.
    timing : Timing, written

    Returns
    -------
    float
        When the last op or transfer ends, in µs.
    """
    placement = lay_out(machine, device, position, policy, links)
    return _record(placement, run(machine, placement), timing)


@loop
def _record(p: Placement, times: Times, timing: Timing) -> float:  # pragma: no cover - compiled
    """Write the times of a simulation into a timing; return when the last op or transfer ends."""
    makespan = 0.0
    for op in range(len(times.start_us)):
        timing.start_us[op], timing.finish_us[op] = times.start_us[op], times.finish_us[op]
        makespan = max(makespan, times.finish_us[op])
    timing.arrival_us[:] = -1.0
    for transfer in range(len(p.transfers.tensor)):
        tensor, target = p.transfers.tensor[transfer], p.transfers.target[transfer]
        timing.sent_us[tensor, target] = times.sent_start_us[transfer]
        timing.arrival_us[tensor, target] = times.sent_finish_us[transfer]
        makespan = max(makespan, times.sent_finish_us[transfer])
    return makespan
