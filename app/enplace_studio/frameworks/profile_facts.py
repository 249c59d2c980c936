"""Texts on how a profile was measured."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from enplace.errors import EnplaceError
from enplace.frameworks.registry import framework_of
from enplace.machine import simulate
from enplace.readers import recorded_plan
from enplace.text import count, ms, percent, size
from enplace.values.measurement import Evaluation
from enplace.values.problem import Problem
from enplace.values.profile import FloatArray, Profile


@dataclass(frozen=True, eq=False)
class Deviations:
    """How much ops vary from step to step.

    Attributes
    ----------
    deviation : float array, shape (n,)
        Standard deviation over mean of each op that was timed often enough, ascending.
    time_us : float array, shape (n,)
        Their compute times.
    """

    deviation: FloatArray
    time_us: FloatArray

    def curve(self, weights: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the deviations, and the share of the weights at or below each."""
        share = np.cumsum(weights) / max(float(weights.sum()), 1e-12)
        return np.append(0.0, self.deviation), np.append(0.0, share)

    def within(self, weights: FloatArray, share: float) -> float:
        """Return the deviation that covers this share of the weights."""
        xs, shares = self.curve(weights)
        return float(xs[min(int(np.searchsorted(shares, share)), len(xs) - 1)])


def deviations(profile: Profile) -> Deviations | None:
    """Find how much the ops vary between steps; None if that was not measured."""
    pairs = [
        (float(value), float(np.nanmin(profile.time_us[profile.index[name]])))
        for name, value in profile.measured.op_deviation.items()
        if name in profile.index
    ]
    values = np.array([pair for pair in sorted(pairs) if np.isfinite(pair).all()])
    return Deviations(values[:, 0], values[:, 1]) if len(values) else None


def simulated_step_us(profile: Profile) -> float | None:
    """Simulate the step of the placement that the profile was measured under."""
    cluster = profile.measured.cluster
    if cluster is None:
        return None
    try:
        return simulate(Problem(profile, cluster), recorded_plan(profile, cluster)).makespan_us
    except EnplaceError:
        return None


def _evaluation_facts(found: Evaluation) -> list[tuple[str, str]]:
    """List the errors in the estimate of a large batch (Celeritas, Table 5)."""
    sizes = ", ".join(f"{size:,}" for size in found.batch_sizes)
    return [
        (f"a step of batch {found.batch_size:,}", ms(found.step_time_us)),
        (f"memory error, from batches {sizes}", percent(found.memory.mean)),
        ("op time error", percent(found.time.mean)),
    ]


def step_facts(profile: Profile, simulated_us: float | None) -> list[tuple[str, str]]:
    """List labels and values: measured and simulated step, calibration, number of steps."""
    measured = profile.measured
    facts = []
    if step_us := measured.step_time_us:
        facts.append(("measured step", ms(step_us)))
        if simulated_us is not None:
            off = percent(simulated_us / step_us - 1, signed=True)
            facts.append(("simulated, as it was placed", f"{ms(simulated_us)}, {off}"))
    if measured.evaluation is not None:
        facts += _evaluation_facts(measured.evaluation)
    for gap_us, name in (
        (measured.launch_gap_us, "launch gap of a kernel"),
        (measured.op_overhead_us, "overhead of an op"),
    ):
        if gap_us is not None:
            facts.append((f"{name}, calibrated", f"{gap_us:.2f} µs"))
    for number, name in ((measured.steps, "traced steps"), (measured.warm_ups, "warm-ups")):
        if number is not None:
            facts.append((name, f"{number:,}"))
    if measured.framework_version:
        facts.append((framework_of(profile).name, measured.framework_version))
    return facts


def held_facts(profile: Profile) -> list[tuple[str, str]]:
    """List labels and values: where it was measured, what it needs there, and how many ops."""
    measured = profile.measured
    facts = []
    if gpu := measured.estimated or measured.gpu:
        facts.append(("estimated for" if measured.estimated else "measured on", gpu))
    if peak := max(measured.peak_bytes.values(), default=0):
        facts.append(("peak memory, measured", size(peak)))
    facts.append(("ops", f"{profile.n_ops:,}"))
    return facts


def times_by_type(profile: Profile, most: int) -> list[tuple[str, str]]:
    """List the types of ops that take most time, each with its time, share and number of ops."""
    times_us = np.nanmin(np.where(np.isfinite(profile.time_us), profile.time_us, np.inf), axis=1)
    times_us = np.where(np.isfinite(times_us), times_us, 0.0)
    types, kind = np.unique(profile.op_types, return_inverse=True)
    sums_us, n_ops = np.bincount(kind, times_us), np.bincount(kind)
    first = [at for at in np.argsort(-sums_us, kind="stable")[:most].tolist() if sums_us[at] > 0]
    return [
        (
            str(types[at]),
            f"{ms(sums_us[at])}, {percent(sums_us[at] / sums_us.sum())}, "
            f"{count(int(n_ops[at]), 'op')}",
        )
        for at in first
    ]
