"""The greedy baseline of section 7: accelerators are filled one after the other, in order."""

from __future__ import annotations

import numpy as np

from enplace.placers.latency.groups import Groups
from enplace.values.profile import IntArray


def greedy_places(groups: Groups) -> IntArray:
    """Place of each group, shape (n_groups,): along one topological order, as many as fit.

    What no accelerator left can take goes to the CPUs. What would come back from there to an
    accelerator goes to the next one, so that every accelerator stays contiguous.
    """
    before: list[list[int]] = [[] for _ in range(groups.n_ops)]
    for a, b in zip(groups.source.tolist(), groups.target.tolist(), strict=True):
        before[b].append(a)
    place = np.full(groups.n_groups, -1, dtype=np.int64)
    room = groups.capacity_bytes.copy()
    gpu, comes_back = 0, [False] * groups.n_ops
    for op, group in enumerate(groups.group.tolist()):
        comes_back[op] = any(comes_back[a] for a in before[op])
        if place[group] < 0:
            need = groups.group_bytes[group]
            chosen = next(
                (
                    g
                    for g in range(gpu + comes_back[op], groups.cpu)
                    if groups.allowed[group, g] and need <= room[g]
                ),
                groups.cpu,
            )
            if not groups.allowed[group, chosen]:
                chosen = int(np.argmax(np.where(groups.allowed[group], room, -np.inf)))
            elif gpu < chosen < groups.cpu:
                gpu, comes_back = chosen, [False] * groups.n_ops
            place[group] = chosen
            room[chosen] -= need
        if place[group] != gpu:
            comes_back[op] |= any(place[groups.group[a]] == gpu for a in before[op])
    return place
