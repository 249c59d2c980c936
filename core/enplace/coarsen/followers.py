"""Followers: constants and variables that belong where they are used.

A TensorFlow graph has hundreds of ops without inputs that take no time: Const, Shape of a constant,
VariableV2 and its read. Placed individually, each would look equally good on every device, and a
consumer on another device would then wait for a transfer of a few bytes, or of a weight matrix.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from enplace.values.problem import BoolArray, Problem
from enplace.values.profile import IntArray


def find_leaders(problem: Problem, position: IntArray) -> IntArray:
    """Find the op that each op should be placed with.

    An op is *free* if it takes no time on any device and all its producers are free. A free op
    follows the leader of its consumers that comes first in ``position``, if the free op is allowed
    on every device that the leader may use; all other ops lead themselves. A leader then comes
    first among all ops that use its followers, so contracting every leader with its followers keeps
    the graph acyclic: ``position`` of the leaders is a topological order of the result.

    Parameters
    ----------
    position : int array, shape (n_ops,)
        A topological order of the ops.

    Returns
    -------
    int array, shape (n_ops,)
        ``leader[op]``, which is ``op`` itself unless it follows.
    """
    profile = problem.profile
    allowed = problem.unit_allowed[problem.unit]
    works = np.isfinite(problem.time_us) & (problem.time_us > 0)
    leader = np.arange(profile.n_ops, dtype=np.int64)
    _follow(
        np.argsort(position),
        position,
        np.asarray(~works.any(axis=1)),
        allowed,
        profile.tensor_ptr,
        profile.edge_ptr,
        profile.edge_op,
        leader,
    )
    return leader


@njit(cache=True, nogil=True)
def _follow(
    order: IntArray,
    position: IntArray,
    idle: BoolArray,
    allowed: BoolArray,
    tensor_ptr: IntArray,
    edge_ptr: IntArray,
    edge_op: IntArray,
    leader: IntArray,
) -> None:  # pragma: no cover - compiled
    # Producers come first in ``order``, so what is not free marks its consumers in time.
    free = idle.copy()
    for op in order:
        if not free[op]:
            for edge in range(edge_ptr[tensor_ptr[op]], edge_ptr[tensor_ptr[op + 1]]):
                free[edge_op[edge]] = False
    # Backwards, so that the leaders of all consumers are known.
    for op in order[::-1]:
        if not free[op]:
            continue
        best = -1
        for edge in range(edge_ptr[tensor_ptr[op]], edge_ptr[tensor_ptr[op + 1]]):
            candidate = leader[edge_op[edge]]
            if best < 0 or position[candidate] < position[best]:
                best = candidate
        if best >= 0 and not (allowed[best] & ~allowed[op]).any():
            leader[op] = best
