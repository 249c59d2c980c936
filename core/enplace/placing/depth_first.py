"""An order of ops that ends what it has begun, so that little is held at once.

The ends of the graph, such as updates, are reached one after the other, those first that are least
deep; an op runs just before the first that needs it. What has become possible and frees as much as
it makes runs at once, and what leads to an end soon before what leads far: so the gradient of a
layer's weights is made, and used unless more must come before, ahead of that of the layer below.
"""

from __future__ import annotations

import numpy as np

from enplace.placing.settle import position_by
from enplace.values.arrays import IntArray, inverse, upward_rank
from enplace.values.problem import Problem
from enplace.values.profile import Profile

FEW = 32
"""Most ops that may be missing for one that runs at once: they run before it."""


def depth_first_position(problem: Problem) -> IntArray:
    """Return the position of each op in an order that ends what it has begun; shape (n_ops,)."""
    profile, time_us = problem.profile, problem.time_us.min(axis=1)
    n_ops, order = profile.n_ops, profile.topological_order
    free = np.zeros(profile.n_edges)
    until_us = upward_rank(
        order[::-1], profile.in_ptr, profile.edge_source[profile.in_edges], time_us, free
    )
    since_us = upward_rank(order, profile.out_ptr, profile.edge_op, time_us, free)
    depth, height = (position_by(problem, us).tolist() for us in (until_us, since_us))
    inputs: list[list[int]] = [[] for _ in range(n_ops)]
    readers: list[list[int]] = [[] for _ in range(n_ops)]
    for source, op in dict.fromkeys(
        zip(profile.edge_source.tolist(), profile.edge_op.tolist(), strict=True)
    ):
        inputs[op].append(source)
        readers[source].append(op)
    frees = _frees_enough(profile)
    missing = [set(each) for each in inputs]
    for op in range(n_ops):
        inputs[op].sort(key=depth.__getitem__)
        readers[op].sort(key=height.__getitem__)
    is_end = np.diff(profile.out_ptr) == 0
    done = [False] * n_ops
    found: list[int] = []
    for end in sorted(np.flatnonzero(is_end).tolist(), key=depth.__getitem__):
        left = [(end, True)]
        while left:
            op, is_needed = left.pop()
            if done[op] or not (is_needed or _misses_few(op, missing)):
                continue
            if missing[op]:
                first = [(source, True) for source in inputs[op] if source in missing[op]]
                left += [(op, True), *reversed(first)]
                continue
            done[op] = True
            found.append(op)
            for reader in reversed(readers[op]):
                missing[reader].discard(op)
                if frees[reader]:
                    left.append((reader, False))
    return inverse(np.array(found, dtype=np.int64))


def _frees_enough(profile: Profile) -> list[bool]:
    """Say of each op whether it may free as much as it makes, if it is the last to read."""
    held, root = profile.held_bytes, profile.tensor_root
    pairs = np.unique(np.stack([profile.edge_op, root[profile.edge_tensor]]), axis=1)
    read = np.bincount(pairs[0], held[pairs[1]], profile.n_ops)
    made = np.bincount(profile.tensor_op, held, profile.n_ops)
    found: list[bool] = (read >= made).tolist()
    return found


def _misses_few(op: int, missing: list[set[int]]) -> bool:
    """Whether few ops must run before an op can."""
    found, left = {op}, [op]
    while left and len(found) <= FEW:
        more = missing[left.pop()]
        if len(more) > FEW:
            return False
        left += more - found
        found |= more
    return len(found) <= FEW
