"""Calibration: find the cost of an op beyond its own time, from the measured step.

On a GPU this is the launch gap of every kernel; on a CPU, the executor's work for every op.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from enplace.machine import simulate
from enplace.readers.recorded import recorded_plan
from enplace.text import ms
from enplace.values.cluster import Cluster
from enplace.values.measurement import Measurement
from enplace.values.problem import Problem
from enplace.values.profile import KINDS, FloatArray, IntArray, Profile

TYPICAL_GAP_US = 1.5
GAP_LIMITS_US = {"gpu": (0.5, np.inf), "cpu": (0.0, 50.0)}
"""A gap outside this range has another cause, so it is clipped."""

_USUAL_GAP_US = 4.0
"""Kernels that are launched in time follow one another at most this far apart."""

_ROUNDS = 4


def calibrate(
    profile: Profile, n_launches: IntArray, cluster: Cluster, kind: str = "gpu"
) -> Profile:
    """Add a gap per kernel, or per op, so that the simulated step takes as long as measured.

    The launch gap can only be found from a step on one GPU. Two logical GPUs disturb each other, so
    they get :data:`TYPICAL_GAP_US`. On a CPU, tracing slows ops down: if they alone take longer
    than the step, their times are scaled down first.

    Parameters
    ----------
    profile : Profile
        Its times have no gaps; ``measured`` has ``step_time_us`` and ``op_devices``.
    n_launches : int array, shape (n_ops,)
        Kernels that each op launches in a step; on a CPU 1 for an op that runs, else 0.
    cluster : Cluster
        The devices that it was measured on.
    kind : str
        The one of :data:`~enplace.values.profile.KINDS` that it ran on.

    Returns
    -------
    Profile
        ``time_us`` includes the gaps, and ``measured`` has the gap.
    """
    if kind == "cpu":
        profile = _without_tracing(profile, cluster)
    used = {d for d in profile.measured.op_devices.values() if d.startswith("GPU")}
    gap = TYPICAL_GAP_US
    if n_launches.any() and (kind == "cpu" or len(used) == 1):
        gap = _fit(profile, n_launches, cluster, kind)
    gap = float(np.clip(gap, *GAP_LIMITS_US[kind]))
    measured = (
        replace(profile.measured, launch_gap_us=gap)
        if kind == "gpu"
        else replace(profile.measured, op_overhead_us=gap)
    )
    return replace(profile, time_us=_with_gap(profile, n_launches, gap, kind), measured=measured)


def about_gap(measured: Measurement) -> str:
    """Say what the fitted gap of each kernel or op tells about the step; empty if it is usual."""
    if measured.op_overhead_us is not None:
        return _about_overhead(measured.op_overhead_us)
    gap_us = measured.launch_gap_us
    if gap_us is None or GAP_LIMITS_US["gpu"][0] < gap_us <= _USUAL_GAP_US:
        return ""
    if gap_us > _USUAL_GAP_US:
        return (
            f"The GPU waits {ms(gap_us)} before each kernel, usually at most {ms(_USUAL_GAP_US)}: "
            f"the step is bound by what launches the kernels, so a plan that moves kernels gains "
            f"little. Larger batches, or fewer and larger ops, help."
        )
    return (
        "The kernels alone take longer than the measured step, as if some ran at the same time, so "
        "predictions may be too long."
    )


def _about_overhead(overhead_us: float) -> str:
    most_us = GAP_LIMITS_US["cpu"][1]
    if overhead_us < most_us:
        return ""
    return (
        f"The measured step takes longer than its ops, even with {ms(most_us)} more for each: the "
        f"machine was busy with something else, or the step waits for its data. Predictions count "
        f"the ops alone. Profile again when the machine is idle."
    )


def _without_tracing(profile: Profile, cluster: Cluster) -> Profile:
    """Scale times down to the measured step if the ops alone take longer."""
    longer = _step_us(profile, cluster) / _measured_step_us(profile)
    return profile.with_costs(profile.time_us / longer) if longer > 1 else profile


def _fit(profile: Profile, n_launches: IntArray, cluster: Cluster, kind: str) -> float:
    """Find the gap at which the simulated step equals the measured one; it is nearly linear."""
    gap, total = TYPICAL_GAP_US, int(n_launches.sum())
    for _ in range(_ROUNDS):
        trial = profile.with_costs(_with_gap(profile, n_launches, gap, kind))
        gap = max(0.0, gap + (_measured_step_us(profile) - _step_us(trial, cluster)) / total)
    return gap


def _measured_step_us(profile: Profile) -> float:
    assert profile.measured.step_time_us is not None
    return profile.measured.step_time_us


def _step_us(profile: Profile, cluster: Cluster) -> float:
    return simulate(Problem(profile, cluster), recorded_plan(profile, cluster)).makespan_us


def _with_gap(profile: Profile, n_launches: IntArray, gap_us: float, kind: str) -> FloatArray:
    time_us = profile.time_us.copy()
    time_us[:, KINDS.index(kind)] += gap_us * n_launches
    return time_us
