"""A plan as the simulator reads it: devices, order, and the transfers that follow from them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from enplace.machine.layout import Machine, transfer_us
from enplace.values.arrays import FloatArray, IntArray

PRIORITY, STRICT, FIFO = range(3)
"""Indices into :data:`enplace.values.plan.POLICIES`."""

LINK_FIFO, LINK_PRIORITY, LINK_ORDERED = range(3)
"""Indices into :data:`enplace.values.plan.LINK_POLICIES`."""


class Transfers(NamedTuple):
    """Every tensor with every device that it must be sent to.

    Attributes
    ----------
    ptr : int array, shape (n_tensors + 1,)
        Transfers of tensor ``t`` are ``ptr[t] : ptr[t + 1]``, in the order of their first
        consumers.
    tensor, target, link : int arrays, shape (n_transfers,)
        The tensor, its destination, and the pair of devices: source * n_devices + target.
    duration_us : float array, shape (n_transfers,)
    first_position : int array, shape (n_transfers,)
        The smallest position of a consumer on the target.
    """

    ptr: IntArray
    tensor: IntArray
    target: IntArray
    link: IntArray
    duration_us: FloatArray
    first_position: IntArray


class Placement(NamedTuple):
    """A plan laid out for the simulator.

    Attributes
    ----------
    device, position, duration_us : arrays, shape (n_ops,)
        The device of each op, its place in the order, and its time on that device.
    heap_ptr : int array, shape (n_devices + 1,)
        Ready ops of a chip wait in a heap that begins at ``heap_ptr[lane owner]``.
    device_ptr, device_queue : int arrays
        Ops of each device by position; empty unless devices follow their lists strictly.
    transfers : Transfers
    rank, ranked : int arrays, shape (n_transfers,)
        Order of the transfers by the position of their first consumer, and its inverse; empty
        if channels serve first come, first served.
    channel_ptr, channel_queue : int arrays
        Transfers of each channel by rank; also empty then.
    policy, links : int
        How devices and channels choose what comes next.
    """

    device: IntArray
    position: IntArray
    duration_us: FloatArray
    heap_ptr: IntArray
    device_ptr: IntArray
    device_queue: IntArray
    transfers: Transfers
    rank: IntArray
    ranked: IntArray
    channel_ptr: IntArray
    channel_queue: IntArray
    policy: int
    links: int


@njit(cache=True, nogil=True)
def lay_out(
    machine: Machine, device: IntArray, position: IntArray, policy: int, links: int
) -> Placement:  # pragma: no cover - compiled
    """Lay out a placement and an order.

    Parameters
    ----------
    device, position : int arrays, shape (n_ops,)
        The arrays become part of the result.
    """
    n_ops, n_devices = len(device), len(machine.lanes)
    duration_us = np.empty(n_ops)
    heap_ptr = np.zeros(n_devices + 1, np.int64)
    for op in range(n_ops):
        duration_us[op] = machine.time_us[op, device[op]]
        heap_ptr[machine.lane_owner[device[op]] + 1] += 1
    device_ptr, device_queue = np.zeros(n_devices + 1, np.int64), np.zeros(0, np.int64)
    if policy == STRICT:
        device_ptr, device_queue = _list_by_device(device, position, n_devices)
    transfers = _list_transfers(machine, device, position)
    rank = ranked = channel_queue = np.zeros(0, np.int64)
    channel_ptr = np.zeros(machine.n_channels + 1, np.int64)
    if links != LINK_FIFO:
        ranked = np.argsort(transfers.first_position, kind="mergesort")
        rank = np.empty(len(ranked), np.int64)
        for i in range(len(ranked)):
            rank[ranked[i]] = i
        channel_ptr, channel_queue = _list_by_channel(machine, transfers.link, ranked)
    return Placement(
        device, position, duration_us, np.cumsum(heap_ptr), device_ptr, device_queue,
        transfers, rank, ranked, channel_ptr, channel_queue, policy, links,
    )  # fmt: skip


@njit(cache=True, nogil=True)
def _list_by_device(
    device: IntArray, position: IntArray, n_devices: int
) -> tuple[IntArray, IntArray]:  # pragma: no cover - compiled
    """List the ops of each device by position, as CSR."""
    order, ptr = np.empty(len(device), np.int64), np.zeros(n_devices + 1, np.int64)
    for op in range(len(device)):
        order[position[op]] = op
        ptr[device[op] + 1] += 1
    ptr = np.cumsum(ptr)
    queue, filled = np.empty(len(device), np.int64), ptr.copy()
    for following in order:
        queue[filled[device[following]]] = following
        filled[device[following]] += 1
    return ptr, queue


@njit(cache=True, nogil=True)
def _list_transfers(
    machine: Machine, device: IntArray, position: IntArray
) -> Transfers:  # pragma: no cover - compiled
    """Find every tensor that must be sent, with its destinations."""
    n_devices, n_edges = len(machine.lanes), len(machine.edge_op)
    ptr = np.zeros(len(machine.tensor_op) + 1, np.int64)
    tensor_of, target = np.empty(n_edges, np.int64), np.empty(n_edges, np.int64)
    first = np.empty(n_edges, np.int64)
    latest = np.full(n_devices, -1)  # the latest transfer to each device, of any tensor
    count = 0
    for tensor in range(len(machine.tensor_op)):
        home = device[machine.tensor_op[tensor]]
        for edge in range(machine.edge_ptr[tensor], machine.edge_ptr[tensor + 1]):
            consumer = machine.edge_op[edge]
            to = device[consumer]
            if to == home:
                continue
            if latest[to] < ptr[tensor]:
                latest[to] = count
                tensor_of[count], target[count], first[count] = tensor, to, position[consumer]
                count += 1
            elif position[consumer] < first[latest[to]]:
                first[latest[to]] = position[consumer]
        ptr[tensor + 1] = count
    link, duration_us = np.empty(count, np.int64), np.empty(count)
    for transfer in range(count):
        made, goal = tensor_of[transfer], target[transfer]
        home = device[machine.tensor_op[made]]
        link[transfer] = home * n_devices + goal
        duration_us[transfer] = transfer_us(machine, machine.tensor_bytes[made], home, goal)
    return Transfers(
        ptr, tensor_of[:count].copy(), target[:count].copy(), link, duration_us,
        first[:count].copy(),
    )  # fmt: skip


@njit(cache=True, nogil=True)
def _list_by_channel(
    machine: Machine, link: IntArray, ranked: IntArray
) -> tuple[IntArray, IntArray]:  # pragma: no cover - compiled
    """List the transfers of each channel in rank order, as CSR."""
    ptr = np.zeros(machine.n_channels + 1, np.int64)
    for transfer in ranked:
        for hop in range(machine.route_ptr[link[transfer]], machine.route_ptr[link[transfer] + 1]):
            ptr[machine.route[hop] + 1] += 1
    ptr = np.cumsum(ptr)
    queue, filled = np.empty(ptr[-1], np.int64), ptr.copy()
    for transfer in ranked:
        for hop in range(machine.route_ptr[link[transfer]], machine.route_ptr[link[transfer] + 1]):
            queue[filled[machine.route[hop]]] = transfer
            filled[machine.route[hop]] += 1
    return ptr, queue
