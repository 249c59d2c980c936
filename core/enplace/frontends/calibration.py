"""The launch gap: what a kernel costs a stream beyond its own time, from the measured step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from enplace.cluster import Cluster
from enplace.frontends.recorded import recorded_plan
from enplace.problem import Problem
from enplace.profile import KINDS, FloatArray, IntArray, Profile
from enplace.simulate import simulate

TYPICAL_GAP_US = 1.5
LEAST_GAP_US, LARGEST_GAP_US = 0.5, 4.0
"""Gaps beyond these say that something else took the time, and are clipped."""

_ROUNDS = 4


def calibrate(profile: Profile, n_kernels: IntArray, cluster: Cluster) -> Profile:
    """Add a launch gap per kernel so that the simulated step takes as long as the measured one.

    Only a step on one GPU tells the gap: two logical GPUs disturb each other, there it is
    :data:`TYPICAL_GAP_US`.

    Parameters
    ----------
    profile : Profile
        With bare kernel times, ``step_time_us`` and ``op_devices`` in ``measured``.
    n_kernels : int array, shape (n_ops,)
        Kernels that each op launches in a step.
    cluster : Cluster
        The devices it was measured on.

    Returns
    -------
    Profile
        With gaps in ``time_us`` and ``launch_gap_us`` in ``measured``.
    """
    used = {d for d in profile.measured["op_devices"].values() if d.startswith("GPU")}
    gap = (
        _fit(profile, n_kernels, cluster) if len(used) == 1 and n_kernels.any() else TYPICAL_GAP_US
    )
    gap = float(np.clip(gap, LEAST_GAP_US, LARGEST_GAP_US))
    measured = dict(profile.measured) | {"launch_gap_us": gap}
    return replace(profile, time_us=_with_gap(profile, n_kernels, gap), measured=measured)


def _fit(profile: Profile, n_kernels: IntArray, cluster: Cluster) -> float:
    """Gap at which the simulated step equals the measured one; the step is nearly linear in it."""
    gap, total = TYPICAL_GAP_US, int(n_kernels.sum())
    for _ in range(_ROUNDS):
        trial = profile.with_costs(_with_gap(profile, n_kernels, gap))
        step_us = simulate(Problem(trial, cluster), recorded_plan(trial, cluster)).makespan_us
        gap = max(0.0, gap + (profile.measured["step_time_us"] - step_us) / total)
    return gap


def _with_gap(profile: Profile, n_kernels: IntArray, gap_us: float) -> FloatArray:
    time_us = profile.time_us.copy()
    time_us[:, KINDS.index("gpu")] += gap_us * n_kernels
    return time_us
