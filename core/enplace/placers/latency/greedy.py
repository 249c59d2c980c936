"""The greedy baseline of section 7: fill one accelerator after another, in order."""

from __future__ import annotations

import numpy as np

from enplace.placers.latency.groups import Groups
from enplace.values.profile import FloatArray, IntArray


def greedy_places(groups: Groups) -> IntArray:
    """Find a place for each group, shape (n_groups,): as many as fit, along a topological order.

    A group that no remaining accelerator can take goes to the CPUs. A group that would lead from
    there back to an accelerator goes to the next one, so that every accelerator stays contiguous.
    """
    before: list[list[int]] = [[] for _ in range(groups.n_ops)]
    for a, b in zip(groups.source.tolist(), groups.target.tolist(), strict=True):
        before[b].append(a)
    place = np.full(groups.n_groups, -1, dtype=np.int64)
    free_bytes = groups.capacity_bytes.copy()
    gpu, returns = 0, [False] * groups.n_ops
    for op, group in enumerate(groups.group.tolist()):
        returns[op] = any(returns[a] for a in before[op])
        if place[group] < 0:
            chosen = _choose(groups, group, free_bytes, gpu + returns[op])
            if gpu < chosen < groups.cpu and groups.allowed[group, chosen]:
                gpu, returns = chosen, [False] * groups.n_ops
            elif not groups.allowed[group, chosen]:
                # No CPU either: memory is exceeded, but by as little as possible.
                chosen = int(np.argmax(np.where(groups.allowed[group], free_bytes, -np.inf)))
            place[group] = chosen
            free_bytes[chosen] -= groups.group_bytes[group]
        if place[group] != gpu:
            returns[op] |= any(place[groups.group[a]] == gpu for a in before[op])
    return place


def _choose(groups: Groups, group: int, free_bytes: FloatArray, first: int) -> int:
    """Choose the first accelerator, from a given one on, that can take a group; else the CPUs."""
    need_bytes = groups.group_bytes[group]
    for gpu in range(first, groups.cpu):
        if groups.allowed[group, gpu] and need_bytes <= free_bytes[gpu]:
            return gpu
    return groups.cpu
