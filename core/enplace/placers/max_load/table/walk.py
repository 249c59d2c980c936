"""A depth-first walk up the lattice of ideals, and the transfers of the nodes that it adds.

The dynamic programs use it to look at everything that one device, or one machine, could take beyond
an ideal. Sums are updated node by node, so no list of pairs of ideals is needed.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from enplace.compiling import helper, loop, step
from enplace.placers.max_load.table.hyperedges import Hyperedges
from enplace.placers.max_load.table.ideals import Lattice
from enplace.values.profile import FloatArray, IntArray


class Walk(NamedTuple):
    """The state of a walk: the path of ideals from its base.

    Attributes
    ----------
    ideal, next_edge : int arrays, shape (n_nodes + 1,)
        The ideals on the path, and the lattice edge to follow next from each.
    seen_from : int array, shape (n_ideals,)
        The base of the last walk that reached each ideal; -1 for none.
    """

    ideal: IntArray
    next_edge: IntArray
    seen_from: IntArray


class TransferCosts(NamedTuple):
    """The arrays of :class:`Hyperedges`, for the kernels: the channels at each price in turn.

    Attributes
    ----------
    node_ptr, node_hyperedge : int arrays
        Hyperedges of each node.
    size : int array, shape (n_hyperedges,)
        Number of nodes of each hyperedge.
    touched_us, inside_us, own_us : float arrays
        As in :class:`Hyperedges`; shapes (n_hyperedges, n_prices * n_channels) and (n_nodes,
        n_prices * n_channels).
    """

    node_ptr: IntArray
    node_hyperedge: IntArray
    size: IntArray
    touched_us: FloatArray
    inside_us: FloatArray
    own_us: FloatArray


def build_transfer_costs(hyperedges: Hyperedges, n_nodes: int) -> TransferCosts:
    """Lay out hyperedges by node."""
    node_ptr, node_hyperedge = hyperedges.by_node(n_nodes)
    return TransferCosts(
        node_ptr,
        node_hyperedge,
        np.diff(hyperedges.ptr),
        *map(_side_by_side, (hyperedges.touched_us, hyperedges.inside_us, hyperedges.own_us)),
    )


def _side_by_side(us: FloatArray) -> FloatArray:
    n_prices, n, n_channels = us.shape
    return np.ascontiguousarray(us.transpose(1, 0, 2).reshape(n, n_prices * n_channels))


@helper
def new_walk(lattice: Lattice, n_nodes: int) -> Walk:  # pragma: no cover - compiled
    """Allocate the arrays for walks from any base."""
    return Walk(
        np.zeros(n_nodes + 1, np.int64),
        np.zeros(n_nodes + 1, np.int64),
        np.full(len(lattice.ptr) - 1, -1, np.int64),
    )


@loop
def begin(walk: Walk, lattice: Lattice, base: int) -> None:  # pragma: no cover - compiled
    """Start a walk at an ideal, which is at depth 0."""
    walk.ideal[0], walk.next_edge[0] = base, lattice.ptr[base]


@step
def advance(walk: Walk, lattice: Lattice, depth: int) -> int:  # pragma: no cover - compiled
    """Go up to an ideal not yet seen from this base, or else back down; return the new depth.

    -1 at the end of the walk. :func:`node_between` returns the node that was added or removed.
    """
    base, ideal = walk.ideal[0], walk.ideal[depth]
    while walk.next_edge[depth] < lattice.ptr[ideal + 1]:
        edge = walk.next_edge[depth]
        walk.next_edge[depth] += 1
        reached = lattice.next_ideal[edge]
        if walk.seen_from[reached] != base:
            walk.seen_from[reached] = base
            walk.ideal[depth + 1], walk.next_edge[depth + 1] = reached, lattice.ptr[reached]
            return depth + 1
    return depth - 1


@step
def node_between(
    walk: Walk, lattice: Lattice, one: int, other: int
) -> int:  # pragma: no cover - compiled
    """Return the node by which two neighbouring depths of the path differ."""
    return int(lattice.added[walk.next_edge[min(one, other)] - 1])


@step
def turn_back(walk: Walk, lattice: Lattice, depth: int) -> None:  # pragma: no cover - compiled
    """Keep the walk from going further up from its current ideal."""
    walk.next_edge[depth] = lattice.ptr[walk.ideal[depth] + 1]


@step
def add_transfers(
    costs: TransferCosts, node: int, pins: IntArray, channel_us: FloatArray
) -> None:  # pragma: no cover - compiled
    """Add a node to a set: update its count in each hyperedge and the work of each channel."""
    n_channels = len(channel_us)
    for c in range(n_channels):
        channel_us[c] += costs.own_us[node, c]
    for at in range(costs.node_ptr[node], costs.node_ptr[node + 1]):
        hyperedge = costs.node_hyperedge[at]
        pins[hyperedge] += 1
        if pins[hyperedge] == 1:
            for c in range(n_channels):
                channel_us[c] += costs.touched_us[hyperedge, c]
        if pins[hyperedge] == costs.size[hyperedge]:
            for c in range(n_channels):
                channel_us[c] -= costs.inside_us[hyperedge, c]


@step
def remove_transfers(
    costs: TransferCosts, node: int, pins: IntArray, channel_us: FloatArray
) -> None:  # pragma: no cover - compiled
    """Undo :func:`add_transfers`."""
    n_channels = len(channel_us)
    for c in range(n_channels):
        channel_us[c] -= costs.own_us[node, c]
    for at in range(costs.node_ptr[node], costs.node_ptr[node + 1]):
        hyperedge = costs.node_hyperedge[at]
        if pins[hyperedge] == costs.size[hyperedge]:
            for c in range(n_channels):
                channel_us[c] += costs.inside_us[hyperedge, c]
        pins[hyperedge] -= 1
        if pins[hyperedge] == 0:
            for c in range(n_channels):
                channel_us[c] -= costs.touched_us[hyperedge, c]
