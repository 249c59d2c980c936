"""Predict fully sharded data parallelism: every card has a share of each weight, and of the batch.

- Memory of a card, after Zhao et al. 2023 (PyTorch FSDP, VLDB 16, section 3.2): its share of the
  parameters, gradients and states of the optimiser, and the largest unsharded block: its weights
  while it computes, and its gradients until they are scattered. The activations of its samples
  are added, as in a step with these alone.
- Time: the step with its samples, where each updates its share of the weights. Before a block
  computes, in each pass, its weights are gathered; after its backward pass, its gradients are
  summed and scattered. Each is a pass around a ring, n - 1 rounds with an nth of the bytes
  (Rajbhandari et al. 2020, ZeRO, section 7: three times the weights in all, where data parallelism
  sends two). We let no pass overlap with computing, as for data parallelism; in reality some do.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from enplace.frameworks.torch.device_map import PARAMETERS, block_of
from enplace.names.passes import named_backward, split_pass
from enplace.placers.batch_shares import ReplicaSteps, count_turns
from enplace.placers.data_parallel import MANY, ring_us, why_no_shares
from enplace.placing.prices import rounds_price_us
from enplace.text import count, ms
from enplace.values.arrays import where_op
from enplace.values.op_kinds import OpKind
from enplace.values.problem import Problem
from enplace.values.profile import CONTROL, IntArray, Profile
from enplace.values.result import Alternative
from enplace.values.splits.graph import launch_us

NAME = "FSDP"


def predict_fsdp(problem: Problem, cancelled: Callable[[], bool]) -> Alternative | None:
    """Predict a step with a share of every block on every card; None if kinds do not tell it.

    Also None for one card, for a model without parameters, and if cancelled.
    """
    cluster, profile = problem.cluster, problem.measured_profile
    gpus, n = cluster.gpus, len(cluster.gpus)
    blocks = block_bytes(profile)
    if n < 2 or not blocks or why_no_shares(problem):
        return None
    is_trained = bool(named_backward(profile).any())
    parts_of_all = profile.measured.batch_size or MANY
    parts = -(-parts_of_all // n)
    shard = _sharded(profile, n)
    steps = ReplicaSteps(shard, cluster, parts_of_all, cancelled)
    unsharded = (1 + is_trained) * max(blocks.values())
    peak_bytes = np.zeros(cluster.n_devices, dtype=np.int64)
    turns, step_us = count_turns(cluster, [(gpu,) for gpu in gpus]), 0.0
    for gpu in gpus:
        found = steps.find((gpu,), parts)
        if found is None and steps.have_room((gpu,)):
            return None  # cancelled
        held = int(shard.persistent_bytes.sum()) if found is None else int(found.peak_bytes[0])
        peak_bytes[gpu] = held + unsharded
        us = math.nan if found is None else found.makespan_us
        step_us = float(np.maximum(step_us, turns[(gpu,)] * us))
    passes = 3 if is_trained else 1
    sends_us = sum(
        passes / 2 * ring_us(cluster, [tuple(gpus)], -(-size // n)) for size in blocks.values()
    )
    sent = passes * (n - 1) * sum(blocks.values())
    price_us = rounds_price_us(problem, gpus, passes * (n - 1) * len(blocks))
    about = (
        f"Of its time, {ms(sends_us)} gather and scatter {count(len(blocks), 'block')}; what of "
        f"that overlaps with computing takes no time."
    )
    step_us += sends_us
    return Alternative(NAME, cluster, step_us, peak_bytes, sent, about, price_us=price_us)


def block_bytes(profile: Profile) -> Mapping[str, int]:
    """Return the bytes of the weights of each block, in the order of the model, by its scope.

    A weight that several blocks share counts for the first of them.
    """
    held, blocks = weight_bytes(profile), defaultdict[str, int](int)
    for op in dict.fromkeys(profile.measured.config.get(PARAMETERS, {}).values()):
        number = profile.index[op]
        blocks[block_of(split_pass(profile.scopes[number])[1])] += int(held[number])
    return {block: size for block, size in blocks.items() if size}


def weight_bytes(profile: Profile) -> IntArray:
    """Return the bytes of each op's weight, without gradient and state; shape (n_ops,).

    They are those of the gradient that its update reads; all that it holds if there is none.
    """
    found = profile.persistent_bytes.copy()
    is_variable = profile.of_kind(OpKind.VARIABLE)
    gradient = np.zeros(profile.n_ops, dtype=np.int64)  # of each update
    into = profile.of_kind(OpKind.UPDATE)[profile.edge_op] & ~is_variable[profile.edge_source]
    np.maximum.at(gradient, profile.edge_op[into], profile.tensor_bytes[profile.edge_tensor[into]])
    of = is_variable[profile.edge_source] & (gradient[profile.edge_op] > 0)
    np.minimum.at(found, profile.edge_source[of], gradient[profile.edge_op[of]])
    return np.where(is_variable, found, 0)


def _sharded(profile: Profile, n: int) -> Profile:
    """Return the profile of a card that has an nth of every weight, gradient and state."""
    is_update = profile.of_kind(OpKind.UPDATE)
    takes = is_update | profile.of_kind(OpKind.VARIABLE)  # old gradients, too
    into = takes[profile.edge_op] & (profile.tensor_output[profile.edge_tensor] != CONTROL)
    size = profile.tensor_bytes.copy()
    gradients = np.unique(profile.edge_tensor[into])
    size[gradients] = -(-size[gradients] // n)
    launch = np.minimum(profile.time_us, launch_us(profile))
    time_us = where_op(is_update, launch + (profile.time_us - launch) / n, profile.time_us)
    held = -(-profile.persistent_bytes // n)
    return replace(profile, persistent_bytes=held, time_us=time_us, tensor_bytes=size)
