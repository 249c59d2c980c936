"""A plan as the simulator reads it: devices, order, and the transfers that follow from them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from enplace.compiling import kernel, loop
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
    """

    ptr: IntArray
    tensor: IntArray
    target: IntArray
    link: IntArray
    duration_us: FloatArray


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


@kernel
def lay_out(
    machine: Machine, device: IntArray, position: IntArray, policy: int, links: int
) -> Placement:  # pragma: no cover - compiled
    """Lay out a placement and an order.

    Parameters
    ----------
    device, position : int arrays, shape (n_ops,)
        The arrays become part of the result.
    """
    n_devices, n_channels, n_tensors, n_edges = _sizes(machine)
    duration_us = np.empty(len(device))
    heap_ptr, device_ptr = np.zeros(n_devices + 1, np.int64), np.zeros(n_devices + 1, np.int64)
    _find_durations(machine, device, duration_us, heap_ptr)
    device_queue = np.empty(len(device) if policy == STRICT else 0, np.int64)
    if policy == STRICT:
        order, filled = np.empty(len(device), np.int64), np.empty(n_devices, np.int64)
        _list_by_device(device, position, order, device_ptr, device_queue, filled)
    ptr, latest = np.zeros(n_tensors + 1, np.int64), np.full(n_devices, -1)
    tensor, target = np.empty(n_edges, np.int64), np.empty(n_edges, np.int64)
    first = np.empty(n_edges, np.int64)
    n = _list_transfers(machine, device, position, ptr, tensor, target, first, latest)
    tensor, target, first = tensor[:n].copy(), target[:n].copy(), first[:n].copy()
    link, transfer_time_us = np.empty(n, np.int64), np.empty(n)
    _cost_transfers(machine, device, tensor, target, link, transfer_time_us)
    ranked = np.zeros(0, np.int64)
    channel_ptr = np.zeros(n_channels + 1, np.int64)
    if links != LINK_FIFO:
        key = np.empty(n)  # as floats, which other kernels sort too: sorting is slow to compile
        for transfer in range(n):
            key[transfer] = first[transfer]
        ranked = np.argsort(key, kind="mergesort")
        _count_by_channel(machine, link, channel_ptr)
    rank, channel_queue = np.empty(len(ranked), np.int64), np.empty(channel_ptr[-1], np.int64)
    if links != LINK_FIFO:
        filled = np.empty(n_channels, np.int64)
        _list_by_channel(machine, link, ranked, rank, channel_ptr, channel_queue, filled)
    return Placement(
        device, position, duration_us, heap_ptr, device_ptr, device_queue,
        Transfers(ptr, tensor, target, link, transfer_time_us),
        rank, ranked, channel_ptr, channel_queue, policy, links,
    )  # fmt: skip


@loop
def _sizes(m: Machine) -> tuple[int, int, int, int]:  # pragma: no cover - compiled
    """Return the numbers of devices, channels, tensors and edges."""
    return len(m.lanes), m.n_channels, len(m.tensor_op), len(m.edge_op)


@loop
def _find_durations(
    m: Machine, device: IntArray, duration_us: FloatArray, heap_ptr: IntArray
) -> None:  # pragma: no cover - compiled
    """Write how long each op takes, and where the heap of each chip begins."""
    for op in range(len(device)):
        duration_us[op] = m.time_us[op, device[op]]
        heap_ptr[m.lane_owner[device[op]] + 1] += 1
    _add_up(heap_ptr)


@loop
def _add_up(counts: IntArray) -> None:  # pragma: no cover - compiled
    """Replace counts by their running sums."""
    for i in range(1, len(counts)):
        counts[i] += counts[i - 1]


@loop
def _list_by_device(
    device: IntArray,
    position: IntArray,
    order: IntArray,
    ptr: IntArray,
    queue: IntArray,
    filled: IntArray,
) -> None:  # pragma: no cover - compiled
    """List the ops of each device by position, as CSR; ``order`` and ``filled`` are scratch."""
    for op in range(len(device)):
        order[position[op]] = op
        ptr[device[op] + 1] += 1
    _add_up(ptr)
    for d in range(len(filled)):
        filled[d] = ptr[d]
    for op in order:
        queue[filled[device[op]]] = op
        filled[device[op]] += 1


@loop
def _list_transfers(
    m: Machine,
    device: IntArray,
    position: IntArray,
    ptr: IntArray,
    tensor_of: IntArray,
    target: IntArray,
    first: IntArray,
    latest: IntArray,
) -> int:  # pragma: no cover - compiled
    """Find every tensor that must be sent, with its destinations; return how many transfers.

    ``latest`` is scratch: the latest transfer to each device, of any tensor.
    """
    count = 0
    for tensor in range(len(m.tensor_op)):
        home = device[m.tensor_op[tensor]]
        for edge in range(m.edge_ptr[tensor], m.edge_ptr[tensor + 1]):
            consumer = m.edge_op[edge]
            to = device[consumer]
            if to == home:
                continue
            # Transfers are numbered by tensor: a smaller number belongs to an earlier tensor.
            if latest[to] < ptr[tensor]:
                latest[to] = count
                tensor_of[count], target[count], first[count] = tensor, to, position[consumer]
                count += 1
            elif position[consumer] < first[latest[to]]:
                first[latest[to]] = position[consumer]
        ptr[tensor + 1] = count
    return count


@loop
def _cost_transfers(
    m: Machine,
    device: IntArray,
    tensor: IntArray,
    target: IntArray,
    link: IntArray,
    duration_us: FloatArray,
) -> None:  # pragma: no cover - compiled
    """Write the link of each transfer, and how long it takes."""
    for transfer in range(len(tensor)):
        made, to = tensor[transfer], target[transfer]
        home = device[m.tensor_op[made]]
        link[transfer] = home * len(m.lanes) + to
        duration_us[transfer] = transfer_us(m, m.tensor_bytes[made], home, to)


@loop
def _count_by_channel(m: Machine, link: IntArray, ptr: IntArray) -> None:  # pragma: no cover
    """Count the transfers of each channel, as CSR offsets."""
    for transfer in range(len(link)):
        for hop in range(m.route_ptr[link[transfer]], m.route_ptr[link[transfer] + 1]):
            ptr[m.route[hop] + 1] += 1
    _add_up(ptr)


@loop
def _list_by_channel(
    m: Machine,
    link: IntArray,
    ranked: IntArray,
    rank: IntArray,
    ptr: IntArray,
    queue: IntArray,
    filled: IntArray,
) -> None:  # pragma: no cover - compiled
    """Number the transfers by rank, and list those of each channel in that order."""
    for channel in range(len(filled)):
        filled[channel] = ptr[channel]
    for at in range(len(ranked)):
        transfer = ranked[at]
        rank[transfer] = at
        for hop in range(m.route_ptr[link[transfer]], m.route_ptr[link[transfer] + 1]):
            queue[filled[m.route[hop]]] = transfer
            filled[m.route[hop]] += 1
