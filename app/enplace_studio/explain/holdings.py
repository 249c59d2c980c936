"""The contents of a device's memory at a moment."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from enplace.values.memory import MemoryCurve
from enplace.values.schedule import Schedule

LARGEST = 5


@dataclass(frozen=True)
class PeakParts:
    """Memory of a device at its peak; the parts add up to the peak.

    ``activation_bytes`` counts outputs of the device's own ops and their temporary memory.
    """

    peak_us: float
    weights_bytes: int
    activation_bytes: int
    received_bytes: int

    @property
    def peak_bytes(self) -> int:
        return self.weights_bytes + self.activation_bytes + self.received_bytes


def split_at_peak(curve: MemoryCurve) -> PeakParts:
    """Split the peak memory of a device into its parts."""
    peak = int(np.argmax(curve.bytes))
    received = int(curve.sent_bytes[peak])
    rest = int(curve.bytes[peak]) - received - curve.weights_bytes
    return PeakParts(float(curve.time_us[peak]), curve.weights_bytes, rest, received)


@dataclass(frozen=True)
class Holding:
    """One tensor in memory, or an op's weights or temporary memory (``output`` is then None)."""

    op: int
    output: int | None
    bytes: int
    received: bool
    is_weights: bool = False

    @property
    def kind(self) -> str:
        """What it is, in words."""
        if self.output is None:
            return "weights and optimiser" if self.is_weights else "temporary"
        return "received" if self.received else "activation"


def contents_at(schedule: Schedule, device: int, time_us: float) -> list[Holding]:
    """List everything in a device's memory at a moment, the largest first."""
    weights = schedule.problem.profile.persistent_bytes
    there = np.flatnonzero((schedule.plan.device == device) & (weights > 0)).tolist()
    found = [Holding(op, None, int(weights[op]), False, is_weights=True) for op in there]
    found += holdings_at(schedule, device, time_us, limit=None)
    return sorted(found, key=lambda holding: -holding.bytes)


def holdings_at(
    schedule: Schedule, device: int, time_us: float, limit: int | None = LARGEST
) -> list[Holding]:
    """List the largest contents of a device at a moment, without variables."""
    profile, lives = schedule.problem.profile, schedule.lives
    held = (lives.device == device) & (lives.start_us <= time_us) & (time_us < lives.end_us)
    rows = np.flatnonzero(held)
    sizes = lives.sizes(profile)
    rows = rows[np.argsort(-sizes[rows], kind="stable")][:limit]
    found = [
        Holding(
            op=int(profile.tensor_op[lives.tensor[row]]),
            output=int(profile.tensor_output[lives.tensor[row]]),
            bytes=int(sizes[row]),
            received=row >= profile.n_tensors,
        )
        for row in rows.tolist()
    ]
    running = (schedule.op_start_us <= time_us) & (time_us < schedule.op_finish_us)
    found += [
        Holding(op, None, int(profile.temporary_bytes[op]), False)
        for op in np.flatnonzero(running & (schedule.plan.device == device)).tolist()
    ]
    found = [holding for holding in found if holding.bytes > 0]
    return sorted(found, key=lambda holding: -holding.bytes)[:limit]
