"""Chains: ops that can run one after another on one device without loss."""

from __future__ import annotations

import numpy as np

from enplace.compiling import helper, kernel
from enplace.values.components import components
from enplace.values.problem import BoolArray, Problem
from enplace.values.profile import IntArray

MEMORY_SHARE = 0.25
"""Most memory that the ops of a merged chain may hold, as a share of the smallest device's."""


def merge_chains(problem: Problem) -> IntArray:
    """Join each op with its only producer, or its only consumer, if nothing is lost by it.

    An op joins its only producer if the producer has no other consumer, or if the op takes no time;
    an op that takes no time joins its only consumer. Edges enter groups of the first kind only at
    their root, and leave those of the second only there, so contracting either closes no cycle. The
    second kind is found after the first is contracted. Ops join only if they may use the same
    devices, and if the variables of all ops that then share a device are not too large.

    Returns
    -------
    int array, shape (n_ops,)
        Group of each op, numbered from 0 without gaps.
    """
    profile = problem.profile
    works = np.isfinite(problem.time_us) & (problem.time_us > 0)
    idle = ~works.any(axis=1)
    device_set = problem.device_sets[1][problem.unit]
    group = _merge(
        profile.topological_order,
        np.asarray(idle),
        device_set,
        profile.edge_source,
        profile.edge_op.copy(),  # writable, like the other: numba compiles again for read-only ones
    )
    return _split_large(problem, group)


def _split_large(problem: Problem, group: IntArray) -> IntArray:
    """Dissolve groups that hold too much memory, counting all that is colocated with them."""
    n_groups = int(group.max()) + 1
    n = n_groups + problem.n_units
    part = components(n, group, n_groups + problem.unit)
    held_bytes = np.bincount(part[group], weights=problem.profile.persistent_bytes, minlength=n)
    full = (held_bytes > MEMORY_SHARE * problem.cluster.capacity_bytes.min())[part[group]]
    apart = np.where(full, n_groups + np.arange(len(group)), group)
    found: IntArray = np.unique(apart, return_inverse=True)[1]
    return found


@kernel
def _merge(
    order: IntArray, idle: BoolArray, device_set: IntArray, source: IntArray, target: IntArray
) -> IntArray:  # pragma: no cover - compiled
    """Join ops with their only producers, then idle groups with their only consumers."""
    n = len(order)
    everyone = np.arange(n)
    before, after = _only(n, everyone, source, target), _only(n, everyone, target, source)
    root = np.arange(n)
    for op in order:
        producer = before[op]
        if producer < 0 or device_set[producer] != device_set[op]:
            continue
        # The producer's root, not the producer: a whole chain collapses in one pass.
        if idle[op] or after[producer] == op:
            root[op] = root[producer]
    busy = np.zeros(n, np.bool_)
    for op in range(n):
        busy[root[op]] |= not idle[op]
    # A group that takes no time may join its only consumer, seen between the groups of the first
    # pass: edges within them no longer count.
    after = _only(n, root, target, source)
    second = np.arange(n)
    for op in order[::-1]:
        if root[op] != op or busy[op] or after[op] < 0:
            continue
        if device_set[after[op]] == device_set[op]:
            second[op] = second[after[op]]
    number, count = np.full(n, -1), 0
    group = np.empty(n, np.int64)
    for op in range(n):
        top = second[root[op]]
        if number[top] < 0:
            number[top] = count
            count += 1
        group[op] = number[top]
    return group


@helper
def _only(
    n: int, root: IntArray, source: IntArray, target: IntArray
) -> IntArray:  # pragma: no cover - compiled
    """Find the only group with an edge to each group; -1 if there are none or several."""
    found = np.full(n, -1)
    several = np.zeros(n, np.bool_)
    for edge in range(len(source)):
        a, b = root[source[edge]], root[target[edge]]
        if a == b:
            continue
        several[b] |= found[b] >= 0 and found[b] != a
        found[b] = a
    for node in range(n):
        if several[node]:
            found[node] = -1
    return found
