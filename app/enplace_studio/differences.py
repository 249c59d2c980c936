"""How two schedules of one graph differ. No Qt."""

from __future__ import annotations

import numpy as np

from enplace.machine import CriticalPath
from enplace.values.profile import CONTROL, IntArray
from enplace.values.schedule import Schedule


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


def sent_bytes(schedule: Schedule) -> int:
    """Sum the bytes sent between devices in a step."""
    return int(schedule.transfer_bytes.sum())


def sent_tensors(schedule: Schedule) -> IntArray:
    """List the tensors that leave their device, in ascending order."""
    sent = np.unique(schedule.transfer_tensor)
    return sent[schedule.problem.profile.tensor_output[sent] != CONTROL]
