"""What an op costs a device beyond its own time, from the measured step.

On a GPU that is the launch gap of every kernel; on a CPU, what the executor does for every op.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from enplace.machine import simulate
from enplace.readers.recorded import recorded_plan
from enplace.values.cluster import Cluster
from enplace.values.problem import Problem
from enplace.values.profile import KINDS, FloatArray, IntArray, Profile

TYPICAL_GAP_US = 1.5
GAP_LIMITS_US = {"gpu": (0.5, 4.0), "cpu": (0.0, 50.0)}
"""Gaps beyond these say that something else took the time, and are clipped."""

_ROUNDS = 4


def calibrate(
    profile: Profile, n_launches: IntArray, cluster: Cluster, kind: str = "gpu"
) -> Profile:
    """Add a gap per kernel, or per op, so that the simulated step takes as long as the measured.

    Only a step on one GPU tells the launch gap: two logical GPUs disturb each other, there it is
    :data:`TYPICAL_GAP_US`. On a CPU, where tracing makes ops slower than they are, their times are
    scaled down if they alone take longer than the step.

    Parameters
    ----------
    profile : Profile
        With bare times, ``step_time_us`` and ``op_devices`` in ``measured``.
    n_launches : int array, shape (n_ops,)
        Kernels that each op launches in a step; on a CPU 1 for an op that runs, else 0.
    cluster : Cluster
        The devices it was measured on.
    kind : str
        Which of :data:`~enplace.values.profile.KINDS` it ran on.

    Returns
    -------
    Profile
        With gaps in ``time_us``, and the gap in ``measured`` in its field of :data:`FIELDS`.
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


def _without_tracing(profile: Profile, cluster: Cluster) -> Profile:
    """Times scaled down to the step where they alone take longer."""
    longer = _step_us(profile, cluster) / _measured_step_us(profile)
    return profile.with_costs(profile.time_us / longer) if longer > 1 else profile


def _fit(profile: Profile, n_launches: IntArray, cluster: Cluster, kind: str) -> float:
    """Gap at which the simulated step equals the measured one; the step is nearly linear in it."""
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
