"""How two schedules of one graph differ. No Qt."""

from __future__ import annotations

import numpy as np

from enplace.machine import CriticalPath
from enplace.values.plan import find_reordered
from enplace.values.profile import CONTROL, IntArray
from enplace.values.schedule import Schedule

_OUTPUT_BITS = 32


def path_parts(path: CriticalPath) -> dict[str, float]:
    """Return what a step time is made of, by name, in microseconds; the parts add up to it."""
    return {
        "compute": path.compute_us,
        "transfers": path.transfer_us,
        "waiting": path.waiting_us,
    }


def moved_ops(first: Schedule, second: Schedule) -> IntArray | None:
    """Return the ops that two plans place differently; None if they cannot be compared."""
    one, other = first.problem, second.problem
    if one.splits != other.splits or one.cluster.devices != other.cluster.devices:
        return None
    return np.flatnonzero(first.plan.device != second.plan.device)


def reordered_ops(first: Schedule, second: Schedule) -> IntArray:
    """Find the fewest ops that, moved within their device, give the one order from the other."""
    one, other = first.plan, second.plan
    device = np.where(one.device == other.device, one.device, -1)
    return find_reordered(device, one.position, other.position)


def sent_bytes(schedule: Schedule) -> int:
    """Sum the bytes sent between devices in a step."""
    return int(schedule.transfer_bytes.sum())


def sent_outputs(schedule: Schedule) -> IntArray:
    """List the outputs that leave their device, in ascending order, as :func:`op_of` reads them.

    Numbers of tensors would not do: graphs with other orders number them differently.
    """
    sent, profile = np.unique(schedule.transfer_tensor), schedule.problem.profile
    sent = sent[profile.tensor_output[sent] != CONTROL]
    return (profile.tensor_op[sent] << _OUTPUT_BITS) + profile.tensor_output[sent]


def op_of(output: IntArray) -> IntArray:
    """Return the ops that make some outputs of :func:`sent_outputs`."""
    return output >> _OUTPUT_BITS
