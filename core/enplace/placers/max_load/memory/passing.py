"""Room for what only one pass needs of a sample, while its ops run.

The dynamic programs add up what the ops of a stage hold: variables, and what is kept for the
backward pass. What else exists for a while depends on the order of the ops. Only the most at any
time matters, so it cannot be added up, and room is set aside for it beforehand: devices get a
little less memory, and the few ops at which more exists than at others count for more. Only what is
then found is simulated, and whatever a search proves is proven without this.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from enplace.errors import DoesNotFitError
from enplace.machine.op_passes import backward_ops, holds_of_samples, once_per_step
from enplace.machine.pipelines.memory import added_by_stages, counts_whole_nodes, kept_tensors
from enplace.values.arrays import inverse
from enplace.values.plan import position_by_itself
from enplace.values.problem import Problem
from enplace.values.profile import IntArray


def allow_for_passing(problem: Problem) -> Problem:
    """Return a problem whose ops and devices leave room for what one pass needs for a while.

    At most as many units as there are GPUs count for more than the rest, which share one allowance
    on each device, so that little memory is set aside in all.
    """
    profile, cluster = problem.profile, problem.cluster
    if counts_whole_nodes(profile) or not backward_ops(problem).any():
        return problem
    need = find_passing(problem)
    of_unit = np.zeros(problem.n_units, dtype=np.int64)
    np.maximum.at(of_unit, problem.unit, need)
    most, n = np.sort(of_unit)[::-1], len(cluster.gpus)
    usual = int(most[n]) if n < len(most) else 0
    leader = np.unique(problem.unit, return_index=True)[1]
    persistent = profile.persistent_bytes.copy()
    persistent[leader] += np.maximum(of_unit - usual, 0)
    devices = tuple(
        replace(device, capacity_bytes=max(1, device.capacity_bytes - usual))
        for device in cluster.devices
    )
    try:
        return replace(
            problem,
            measured_profile=replace(problem.measured_profile, persistent_bytes=persistent),
            cluster=replace(cluster, devices=devices),
        )
    except DoesNotFitError:  # not even the variables of one op
        return problem


def find_passing(problem: Problem) -> IntArray:
    """Find the bytes that exist beside each op for one pass only; (n_ops,).

    It is as if one device ran the forward pass and then the backward pass, without a plan's order.
    """
    profile = problem.profile
    order = np.lexsort((position_by_itself(profile), backward_ops(problem)))
    step = inverse(order)
    added = added_by_stages(problem)
    passes = (profile.held_bytes > 0) & (~once_per_step(profile) | added)
    passes &= ~kept_tensors(problem)
    begin = step[profile.tensor_op]
    end = begin.copy()
    edge = np.flatnonzero(~added[profile.edge_tensor])
    np.maximum.at(end, profile.edge_tensor[edge], step[profile.edge_op[edge]])
    hold = holds_of_samples(profile)
    np.maximum.at(end, profile.hold_tensor[hold], step[profile.hold_op[hold]])
    np.maximum.at(end, profile.tensor_root, end.copy())
    change = np.zeros(profile.n_ops + 1, dtype=np.int64)
    np.add.at(change, begin[passes], profile.held_bytes[passes])
    np.add.at(change, end[passes] + 1, -profile.held_bytes[passes])
    found: IntArray = np.cumsum(change[:-1])[step] + profile.temporary_bytes
    return found
