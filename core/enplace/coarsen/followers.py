"""Followers: constants and variables that belong where they are used.

A graph may have hundreds of ops without inputs that take no time: constants and their shapes,
variables and their reads. Placed individually, each would look equally good on every device, and a
consumer on another device would then wait for a transfer of a few bytes, or of a weight matrix.
"""

from __future__ import annotations

import numpy as np

from enplace.compiling import kernel, step
from enplace.machine.layout import Machine, build_machine
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
    works = np.isfinite(problem.time_us) & (problem.time_us > 0)
    idle = np.asarray(~works.any(axis=1))
    # A copy, as the kernel would be compiled once more for an array that is read-only.
    return _follow(build_machine(problem), np.argsort(position), position.copy(), idle)


@kernel
def _follow(
    machine: Machine, order: IntArray, position: IntArray, idle: BoolArray
) -> IntArray:  # pragma: no cover - compiled
    """Find the leader of each op; see :func:`find_leaders`."""
    out_ptr, edge_op = machine.out_ptr, machine.edge_op
    free, leader = idle.copy(), np.arange(len(order))
    # Producers come first in ``order``, so what is not free marks its consumers in time.
    for op in order:
        if not free[op]:
            for edge in range(out_ptr[op], out_ptr[op + 1]):
                free[edge_op[edge]] = False
    # Backwards, so that the leaders of all consumers are known.
    for op in order[::-1]:
        if not free[op]:
            continue
        best = -1
        for edge in range(out_ptr[op], out_ptr[op + 1]):
            candidate = leader[edge_op[edge]]
            if best < 0 or position[candidate] < position[best]:
                best = candidate
        if best >= 0 and _may_follow(machine, op, best):
            leader[op] = best
    return leader


@step
def _may_follow(machine: Machine, op: int, leader: int) -> bool:  # pragma: no cover - compiled
    """Whether an op is allowed on every device that its leader may use."""
    allowed, unit = machine.allowed, machine.unit
    return not (allowed[unit[leader]] & ~allowed[unit[op]]).any()
