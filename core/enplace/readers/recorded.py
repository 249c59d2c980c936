"""The placement that a profile was measured with, as a plan; and costs from another profile."""

from __future__ import annotations

import numpy as np

from enplace.errors import PlanError
from enplace.values.arrays import inverse
from enplace.values.cluster import Cluster
from enplace.values.plan import Plan
from enplace.values.profile import Profile


def recorded_plan(profile: Profile, cluster: Cluster) -> Plan:
    """Make the plan that runs every op on its recorded device, in the framework's order.

    Parameters
    ----------
    profile : Profile
        With ``op_devices`` in ``measured``.
    cluster : Cluster
        Must have devices of the recorded names.

    Raises
    ------
    PlanError
        If nothing was recorded, or a recorded device is not in the cluster.
    """
    recorded = profile.measured.op_devices
    for op in profile.op_names:
        if op not in recorded:
            raise PlanError(
                f"profile '{profile.name}' does not record where op '{op}' runs; place it"
            )
    if unknown := sorted(set(recorded.values()) - set(cluster.index)):
        raise PlanError(
            f"profile '{profile.name}' has ops on {unknown[0]}, which cluster '{cluster.name}' "
            f"does not have; choose one that has it, or for a measured profile 'local'"
        )
    device = np.array([cluster.index[recorded[op]] for op in profile.op_names], dtype=np.int64)
    position = inverse(profile.topological_order)
    return Plan(device, position, method="recorded", policy="fifo", links="fifo")


def with_costs_of(profile: Profile, other: Profile) -> Profile:
    """Replace compute times by those that another profile measured for ops of the same name.

    An op keeps its own times if the other profile does not have it, or ran it on another kind of
    device.
    """
    time_us = profile.time_us.copy()
    for op, name in enumerate(profile.op_names):
        if name in other.index:
            theirs = other.time_us[other.index[name]]
            time_us[op] = np.where(np.isnan(theirs), time_us[op], theirs)
    return profile.with_costs(time_us)
