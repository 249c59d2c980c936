"""Groups as nodes of a graph: the edges between them, and the devices that run them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from enplace.names.groups import Grouping
from enplace.names.ports import Ports
from enplace.values.arrays import BoolArray, sum_at
from enplace.values.profile import FloatArray, IntArray, Profile


@dataclass(frozen=True, eq=False)
class GroupEdges:
    """Edges between groups, one for each ordered pair that exchanges tensors.

    Attributes
    ----------
    source, target : int array, shape (n_edges,)
        Group numbers; ports are numbered after the groups.
    bytes : int array, shape (n_edges,)
        Every tensor counted once for each group that uses it.
    """

    source: IntArray
    target: IntArray
    bytes: IntArray


@lru_cache(maxsize=2)
def group_edges(profile: Profile, grouping: Grouping, ports: Ports | None = None) -> GroupEdges:
    """Find the edges between different groups, and those between groups and ports."""
    pair, size = _pairs(profile, grouping, ports, np.ones(profile.n_edges, dtype=bool))
    source, target = np.divmod(pair, _n_nodes(grouping, ports))
    return GroupEdges(source, target, size)


def crossing(
    profile: Profile,
    grouping: Grouping,
    edges: GroupEdges,
    device: IntArray,
    ports: Ports | None = None,
) -> BoolArray:
    """Find the group edges that carry a tensor between devices; shape (n_edges,)."""
    between = device[profile.edge_source] != device[profile.edge_op]
    pair, _ = _pairs(profile, grouping, ports, between)
    return np.isin(edges.source * _n_nodes(grouping, ports) + edges.target, pair)


def _n_nodes(grouping: Grouping, ports: Ports | None) -> int:
    return grouping.n_groups + (ports.n if ports is not None else 0)


def _pairs(
    profile: Profile, grouping: Grouping, ports: Ports | None, wanted: BoolArray
) -> tuple[IntArray, IntArray]:
    """Find pairs of nodes, as source * n_nodes + target, and the bytes they exchange."""
    giver = taker = grouping.group
    if ports is not None:
        giver, taker = np.maximum(giver, ports.giver), np.maximum(taker, ports.taker)
    source, target = giver[profile.edge_source], taker[profile.edge_op]
    kept = wanted & (source != target) & (source >= 0) & (target >= 0)
    kept &= np.minimum(source, target) < grouping.n_groups  # not from port to port
    n = _n_nodes(grouping, ports)
    sent = np.unique(profile.edge_tensor[kept] * n + target[kept])
    tensor, target = np.divmod(sent, n)
    pair, at = np.unique(giver[profile.tensor_op[tensor]] * n + target, return_inverse=True)
    size = np.bincount(at, weights=profile.tensor_bytes[tensor], minlength=len(pair))
    return pair, size.astype(np.int64)


def device_shares(
    grouping: Grouping, device: IntArray, time_us: FloatArray, n_devices: int
) -> FloatArray:
    """Compute each device's share of a group by time, or by number of ops if it takes no time.

    Parameters
    ----------
    device, time_us : arrays, shape (n_ops,)

    Returns
    -------
    float array, shape (n_groups, n_devices)
    """
    grouped = np.flatnonzero(grouping.group >= 0)
    group, there, shape = grouping.group[grouped], device[grouped], (grouping.n_groups, n_devices)
    share = sum_at(group, there, time_us[grouped], shape)
    counts = sum_at(group, there, np.ones(len(grouped)), shape)
    timeless = share.sum(axis=1) == 0
    share[timeless] = counts[timeless]
    return np.asarray(share / share.sum(axis=1, keepdims=True))
