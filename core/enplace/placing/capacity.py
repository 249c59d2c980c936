"""Free memory of the devices when placement units are placed as wholes.

The first op of a unit to be placed decides for the unit and takes the memory of all its ops at once
(Celeritas, section 6.1, after Baechi). Units that are allowed on only one device take their memory
before anything is placed.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from enplace.coarsen.grouped import op_memory_bytes
from enplace.compiling import kernel
from enplace.values.arrays import BoolArray, IntArray, csr_offsets
from enplace.values.problem import Problem


class Claims(NamedTuple):
    """The memory that nodes (sets of ops) take from the devices they are placed on.

    Attributes
    ----------
    ptr, unit : int arrays, shapes (n_nodes + 1,) and (n,)
        Units that have ops in node ``i``: ``unit[ptr[i] : ptr[i + 1]]``.
    unit_bytes : int array, shape (n_units,)
        Variables and outputs of all ops of a unit, in whichever nodes they are.
    undecided : bool array, shape (n_units,)
        Units that have no device yet; updated as nodes are placed.
    free_bytes : int array, shape (n_devices,)
        Memory of each device that the decided units leave free; updated as nodes are placed.
    """

    ptr: IntArray
    unit: IntArray
    unit_bytes: IntArray
    undecided: BoolArray
    free_bytes: IntArray


def claims_of(problem: Problem, node: IntArray) -> Claims:
    """List the claims of all nodes before anything is placed.

    Parameters
    ----------
    node : int array, shape (n_ops,)
        Node of each op.
    """
    key = np.unique(node * problem.n_units + problem.unit)
    unit_bytes = np.zeros(problem.n_units, dtype=np.int64)
    np.add.at(unit_bytes, problem.unit, op_memory_bytes(problem))
    pinned = problem.unit_allowed.sum(axis=1) == 1
    free = problem.cluster.capacity_bytes.copy()
    np.subtract.at(free, np.argmax(problem.unit_allowed[pinned], axis=1), unit_bytes[pinned])
    return Claims(
        ptr=csr_offsets(key // problem.n_units, int(node.max()) + 1),
        unit=key % problem.n_units,
        unit_bytes=unit_bytes,
        undecided=~pinned,
        free_bytes=free,
    )


@kernel
def needed_bytes(claims: Claims, node: int) -> int:  # pragma: no cover - compiled
    """Return the memory that a node would take from its device."""
    total = 0
    for unit in claims.unit[claims.ptr[node] : claims.ptr[node + 1]]:
        if claims.undecided[unit]:
            total += claims.unit_bytes[unit]
    return total


@kernel
def claim(claims: Claims, node: int, device: int) -> None:  # pragma: no cover - compiled
    """Place a node, along with all of its units that have no device yet."""
    claims.free_bytes[device] -= needed_bytes(claims, node)
    for unit in claims.unit[claims.ptr[node] : claims.ptr[node + 1]]:
        claims.undecided[unit] = False
