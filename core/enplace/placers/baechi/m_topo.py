"""Baechi's m-topo: fill one device after another in topological order."""

import numpy as np

from enplace.coarsen import find_leaders
from enplace.coarsen.grouped import op_memory_bytes
from enplace.compiling import kernel
from enplace.placing.candidates import best_of, unordered
from enplace.placing.capacity import Claims, claim, claims_of, needed_bytes
from enplace.placing.options import PlaceOptions
from enplace.placing.registry import MEMORY, placer
from enplace.placing.repair import relieve
from enplace.placing.settle import natural_position, settle
from enplace.values.plan import Plan
from enplace.values.problem import Problem
from enplace.values.profile import IntArray


@placer(
    "m-topo",
    title="m-topo, Baechi",
    good=(
        "When all that matters is that the model fits: it shares out the memory evenly, in "
        "milliseconds. It does not look at time, and the GPUs mostly wait for each other."
    ),
    source="Baechi (SoCC 2020)",
    capabilities=(MEMORY,),
)
def m_topo(problem: Problem, options: PlaceOptions) -> Plan:
    """Fill the GPUs in turn to an even share of the memory, in Kahn's order, without going back.

    The share is the total of variables and outputs, divided by the number of devices and rounded
    down, plus the largest op's memory; at most the device's own memory. Constants and variables
    count with the op they follow, and colocated ops with the first of them. The last device takes
    the rest. If the simulated step exceeds memory, ops move to devices with free memory.
    """
    device = settle(problem, fill(problem, natural_position(problem)))
    best = best_of(problem, unordered(problem, device, "m-topo"), options)
    return relieve(best, options).plan


def fill(problem: Problem, position: IntArray) -> IntArray:
    """Find the preferred device of each op; shape (n_ops,)."""
    leader, memory = find_leaders(problem, position), op_memory_bytes(problem)
    team_bytes = np.bincount(leader, weights=memory, minlength=len(memory))
    gpus, claims = problem.cluster.gpus, claims_of(problem, leader)
    share = int(memory.sum()) // len(gpus) + int(team_bytes.max())
    # The memory of pinned ops counts towards a device's share.
    capacity = problem.cluster.capacity_bytes
    claims.free_bytes[:] -= np.maximum(capacity - share, 0)
    wish: IntArray = _fill(claims, np.argsort(position), np.array(gpus))
    return wish


@kernel
def _fill(
    claims: Claims, order: IntArray, gpus: IntArray
) -> IntArray:  # pragma: no cover - compiled
    """Give each op to the current GPU; once that is full, the next one is current."""
    wish = np.empty(len(order), dtype=np.int64)
    current = 0
    for op in order:
        full = needed_bytes(claims, op) > claims.free_bytes[gpus[current]]
        if full and current < len(gpus) - 1:
            current += 1
        wish[op] = gpus[current]
        claim(claims, op, gpus[current])
    return wish
