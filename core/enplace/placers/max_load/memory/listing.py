"""All partitions of a graph, where they are few."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from itertools import product

import numpy as np

from enplace.placers.max_load.table.dp_table import NodeCosts
from enplace.placers.max_load.table.ideals import Lattice
from enplace.placers.max_load.table.stages import NodeStage
from enplace.placing.stop import never

FEW_PARTITIONS = 3_000
"""Partitions, and beginnings of partitions, that are few enough to simulate each."""


def list_partitions(
    lattice: Lattice, costs: NodeCosts, limit_us: float, stopped: Callable[[], bool] = never
) -> list[list[NodeStage]] | None:
    """List all partitions whose work on each device is below a limit.

    None if there are many, or if stopped.
    """
    kinds = range(len(costs.devices))
    choices = [(kind, False) for kind in kinds]
    choices += [(kind, True) for kind in kinds if costs.recompute and costs.price[kind] >= 0]
    above = cache(partial(_nodes_above, lattice))
    found: list[list[NodeStage]] = []
    begun: list[tuple[int, list[NodeStage]]] = [(0, [])]
    for _ in range(FEW_PARTITIONS):
        if not begun:
            return found
        if stopped():
            break
        base, stages = begun.pop()
        if base == lattice.n_ideals - 1:
            found.append(stages)
            continue
        left = costs.devices - np.bincount([each.kind for each in stages], minlength=len(kinds))
        for (reached, nodes), (kind, again) in product(above(base).items(), choices):
            us = costs.work_us[kind, nodes, -1].sum() + again * costs.forward_us[kind, nodes].sum()
            fits = costs.memory_bytes[nodes].sum() <= costs.capacity_bytes[kind]
            useful = not again or costs.back_ops[nodes].any()
            if left[kind] and costs.runs[kind, nodes].all() and us < limit_us and fits and useful:
                begun.append((reached, [*stages, NodeStage(nodes, kind, 1, again)]))
    return None


def _nodes_above(lattice: Lattice, base: int) -> dict[int, list[int]]:
    """Return the ideals above one, each with the nodes that it has besides."""
    found: dict[int, list[int]] = {base: []}
    for ideal in range(base, lattice.n_ideals):
        if ideal in found:
            for edge in range(lattice.ptr[ideal], lattice.ptr[ideal + 1]):
                node = int(lattice.added[edge])
                found.setdefault(int(lattice.next_ideal[edge]), [*found[ideal], node])
    del found[base]
    return found
