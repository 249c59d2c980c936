"""Baechi's m-topo: fill one device after another in topological order."""

import numpy as np

from enplace.coarsen import find_leaders
from enplace.coarsen.grouped import op_memory_bytes
from enplace.placers.registry import PlaceOptions, placer
from enplace.placers.settle import best_of, natural_position, settle, unordered
from enplace.plan import Plan
from enplace.problem import Problem
from enplace.profile import IntArray


@placer("m-topo", title="m-topo, Baechi", source="Baechi (SoCC 2020)", capabilities=("memory",))
def m_topo(problem: Problem, options: PlaceOptions) -> Plan:
    """Fill the GPUs in turn to an even share of the memory, in Kahn's order, never going back.

    The share is the total, variables and outputs, divided by the devices and rounded down, plus the
    largest op's; a device's own memory if that is less. Constants and variables are counted with
    the op they follow. The last device takes what is left.
    """
    device = settle(problem, fill(problem, natural_position(problem)))
    return best_of(problem, unordered(problem, device, "m-topo"), options).plan


def fill(problem: Problem, position: IntArray) -> IntArray:
    """Wished device of each op; shape (n_ops,)."""
    leader, memory = find_leaders(problem, position), op_memory_bytes(problem)
    team_bytes = np.bincount(leader, weights=memory, minlength=len(memory))
    gpus = problem.cluster.gpus
    share = int(memory.sum()) // len(gpus) + team_bytes.max()
    limit = np.minimum(share, problem.cluster.capacity_bytes[gpus])
    wish = np.empty(len(memory), dtype=np.int64)
    current, used = 0, 0.0
    for op in np.argsort(position).tolist():
        if used + team_bytes[op] > limit[current] and current < len(gpus) - 1:
            current, used = current + 1, 0.0
        wish[op] = gpus[current]
        used += team_bytes[op]
    return wish
