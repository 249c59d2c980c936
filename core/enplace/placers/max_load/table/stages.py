"""From the table of the dynamic program to stages, and from stages to devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from enplace.placers.max_load.table.dp_table import Table
from enplace.placers.max_load.table.ideals import Lattice
from enplace.values.profile import IntArray

Replicas = tuple[tuple[int, ...], ...]
"""Groups of replicas; the ops of each group are placed on its first device."""


@dataclass(frozen=True)
class NodeStage:
    """The nodes that go to one device of a kind, or to several replicas."""

    nodes: list[int]
    kind: int
    count: int = 1
    recomputes: bool = False


def walk_back(
    table: Table, lattice: Lattice, devices: IntArray, cell: int, top: int = -1, bottom: int = 0
) -> list[NodeStage]:
    """List the stages of a cell from first to last, each the difference of two ideals."""
    stages: list[NodeStage] = []
    ideal, shape = top % lattice.n_ideals, tuple((devices + 1).tolist())
    while ideal != bottom:
        below, before = int(table.from_ideal[ideal, cell]), int(table.from_cell[ideal, cell])
        again, before = divmod(before, table.best_us.shape[1])
        used = np.array(np.unravel_index([before, cell], shape))
        taken = used[:, 1] - used[:, 0]
        kind = int(np.argmax(taken))
        nodes = _nodes_between(lattice, below, ideal)
        stages.append(NodeStage(nodes, kind, int(taken[kind]), recomputes=bool(again)))
        ideal, cell = below, before
    return stages[::-1]


def _nodes_between(lattice: Lattice, below: int, above: int) -> list[int]:
    """List the nodes of one ideal that are not in another, along a path between the two."""
    came: dict[int, tuple[int, int]] = {}
    layer = [below]
    while above not in came:
        following = []
        for ideal in layer:
            for edge in range(lattice.ptr[ideal], lattice.ptr[ideal + 1]):
                reached = int(lattice.next_ideal[edge])
                if reached not in came:
                    came[reached] = (ideal, int(lattice.added[edge]))
                    following.append(reached)
        layer = following
    nodes = []
    while above != below:
        above, node = came[above]
        nodes.append(node)
    return nodes


def assign(
    node: IntArray, parts: Sequence[tuple[list[NodeStage], Sequence[IntArray]]]
) -> tuple[IntArray, Replicas, tuple[int, ...]]:
    """Give each stage the next free devices.

    Returns the device of each op, the replicas, and the devices that recompute.

    Parameters
    ----------
    node : int array, shape (n_ops,)
        Node of each op.
    parts : sequence of (list of NodeStage, sequence of int arrays)
        Stages, and the devices of each kind that they take, in order.
    """
    of_node = np.zeros(int(node.max()) + 1, dtype=np.int64)
    replicas: list[tuple[int, ...]] = []
    recompute: list[int] = []
    for stages, devices in parts:
        used = [0] * len(devices)
        for stage in stages:
            kind, n = stage.kind, stage.count
            group = devices[kind][used[kind] : used[kind] + n]
            used[kind] += n
            of_node[stage.nodes] = group[0]
            if stage.recomputes:
                recompute.append(int(group[0]))
            if n > 1:
                replicas.append(tuple(group.tolist()))
    return of_node[node], tuple(replicas), tuple(recompute)
