"""The placement that a profile was measured under, as a plan."""

from __future__ import annotations

import numpy as np

from enplace.cluster import Cluster
from enplace.errors import PlanError
from enplace.files.plans import NOWHERE, PlanFile, complete_plan
from enplace.plan import Plan
from enplace.problem import Problem
from enplace.profile import Profile


def recorded_plan(profile: Profile, cluster: Cluster, costs_profile: Profile | None = None) -> Plan:
    """Plan that runs every op on the device that the profile recorded, in TensorFlow's own order.

    Parameters
    ----------
    profile : Profile
        With ``op_devices`` in ``measured``.
    cluster : Cluster
        Must have devices of the recorded names.
    costs_profile : Profile, optional
        Graph to make the plan for, matched by op names, where its costs are more trustworthy; ops
        that were not recorded go beside their neighbours.

    Raises
    ------
    PlanError
        If nothing was recorded or the cluster lacks a recorded device.
    """
    target = costs_profile or profile
    recorded = profile.measured.get("op_devices") or {}
    if not recorded:
        raise PlanError(
            f"profile '{profile.name}' does not say where its ops ran; measure it again"
        )
    if lacking := sorted(set(recorded.values()) - set(cluster.index)):
        raise PlanError(
            f"profile '{profile.name}' ran on {lacking[0]}, which cluster '{cluster.name}' lacks; "
            f"use 'local'"
        )
    device = np.array(
        [cluster.index[recorded[op]] if op in recorded else NOWHERE for op in target.op_names],
        dtype=np.int64,
    )
    position = np.empty(target.n_ops, dtype=np.int64)
    position[target.topological_order] = np.arange(target.n_ops)
    plan = Plan(device, position, method="recorded", policy="fifo", links="fifo")
    missing = [target.op_names[op] for op in np.flatnonzero(device == NOWHERE)]
    if not missing:
        return plan
    file = PlanFile(plan, missing, [], {}, same_graph=False)
    return complete_plan(Problem(target, cluster), file)
