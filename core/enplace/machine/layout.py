"""The machine: a problem as flat arrays, in the one layout that all kernels read."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple, Protocol

import numpy as np

from enplace.compiling import step
from enplace.values.arrays import BoolArray, FloatArray, IntArray, csr_offsets, offsets
from enplace.values.problem import Problem


class Machine(NamedTuple):
    """Graph, costs, placement units and cluster of a problem.

    Most names are those of :class:`Problem`, its profile and its cluster; the others are below.

    Attributes
    ----------
    out_ptr : int array, shape (n_ops + 1,)
        Edges that leave op ``u`` are ``out_ptr[u] : out_ptr[u + 1]``.
    in_ptr, in_tensor : int arrays, shapes (n_ops + 1,) and (n_edges,)
        Op ``v`` consumes the tensors ``in_tensor[in_ptr[v] : in_ptr[v + 1]]``.
    unit_ptr, member : int arrays, shapes (n_units + 1,) and (n_ops,)
        Ops of unit ``u`` are ``member[unit_ptr[u] : unit_ptr[u + 1]]``.
    allowed : bool array, shape (n_units, n_devices)
        Whether a unit is allowed on a device.
    lane_ptr, lane_end : int arrays, shape (n_devices,)
        Lanes are numbered through all devices; a device uses ``lane_ptr[d] : lane_end[d]``, its
        own lanes or the lanes of its chip.
    shares_channels : bool
        Whether some channel carries transfers from several devices.
    waker_ptr, waker : int arrays, shapes (n_channels + 1,) and (n_hops,)
        The first channels of all links that use channel ``c``:
        ``waker[waker_ptr[c] : waker_ptr[c + 1]]``.
    """

    topological_order: IntArray
    time_us: FloatArray
    persistent_bytes: IntArray
    temporary_bytes: IntArray
    tensor_ptr: IntArray
    tensor_op: IntArray
    tensor_bytes: IntArray
    tensor_base: IntArray
    sharing: IntArray
    held_bytes: IntArray
    copy_bytes: IntArray
    edge_ptr: IntArray
    hold_ptr: IntArray
    hold_op: IntArray
    edge_op: IntArray
    out_ptr: IntArray
    in_ptr: IntArray
    in_tensor: IntArray
    unit: IntArray
    unit_ptr: IntArray
    member: IntArray
    allowed: BoolArray
    capacity_bytes: IntArray
    lanes: IntArray
    lane_owner: IntArray
    lane_ptr: IntArray
    lane_end: IntArray
    n_channels: int
    shares_channels: bool
    route_ptr: IntArray
    route: IntArray
    waker_ptr: IntArray
    waker: IntArray
    b0_us: FloatArray
    b1_us_per_byte: FloatArray


@lru_cache(maxsize=4)
def build_machine(problem: Problem) -> Machine:
    """Lay out a problem; the layout is kept, because searches simulate many plans of a problem."""
    profile, cluster = problem.profile, problem.cluster
    member = np.argsort(problem.unit, kind="stable").astype(np.int64)
    lane_ptr = offsets(cluster.lanes)[cluster.lane_owner]
    n_channels = len(cluster.channels)
    n_hops = np.diff(cluster.route_ptr)
    first_hop = cluster.route_ptr[:-1][n_hops > 0]
    by_channel = np.argsort(cluster.route, kind="stable")
    return Machine(
        topological_order=profile.topological_order,
        # Always a copy in rows: numba compiles again for each memory layout.
        time_us=np.array(problem.time_us, order="C"),
        persistent_bytes=profile.persistent_bytes,
        temporary_bytes=profile.temporary_bytes,
        tensor_ptr=profile.tensor_ptr,
        tensor_op=profile.tensor_op,
        tensor_bytes=profile.tensor_bytes,
        tensor_base=profile.tensor_base,
        sharing=profile.sharing,
        held_bytes=profile.held_bytes,
        copy_bytes=profile.copy_bytes,
        edge_ptr=profile.edge_ptr,
        hold_ptr=profile.hold_ptr,
        hold_op=profile.hold_op,
        edge_op=profile.edge_op,
        out_ptr=profile.out_ptr,
        in_ptr=profile.in_ptr,
        in_tensor=profile.edge_tensor[profile.in_edges],
        unit=problem.unit,
        unit_ptr=csr_offsets(problem.unit[member], problem.n_units),
        member=member,
        allowed=problem.unit_allowed,
        capacity_bytes=cluster.capacity_bytes,
        lanes=cluster.lanes,
        lane_owner=cluster.lane_owner,
        lane_ptr=lane_ptr,
        lane_end=lane_ptr + cluster.lanes,
        n_channels=n_channels,
        shares_channels=_shares_channels(problem),
        route_ptr=cluster.route_ptr,
        route=cluster.route,
        waker_ptr=csr_offsets(cluster.route[by_channel], n_channels),
        waker=np.repeat(cluster.route[first_hop], n_hops[n_hops > 0])[by_channel],
        b0_us=cluster.b0_us,
        b1_us_per_byte=cluster.b1_us_per_byte,
    )


def _shares_channels(problem: Problem) -> bool:
    senders = {
        (channel, link.source) for link in problem.cluster.links for channel in link.channels
    }
    return len(senders) > len({channel for channel, _ in senders})


class LinkCosts(Protocol):
    """The transfer costs between each two devices: a machine, or another layout that has them."""

    @property
    def b0_us(self) -> FloatArray: ...
    @property
    def b1_us_per_byte(self) -> FloatArray: ...


@step
def transfer_us(
    costs: LinkCosts, n_bytes: int, source: int, target: int, n_tensors: int = 1
) -> float:  # pragma: no cover - compiled
    """Return the duration of a transfer: :meth:`Cluster.transfer_us` for kernels."""
    b0_us, b1_us_per_byte = costs.b0_us[source, target], costs.b1_us_per_byte[source, target]
    return float(n_tensors * b0_us + b1_us_per_byte * n_bytes)
