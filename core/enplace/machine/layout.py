"""From problem and plan to the flat arrays of the event loop."""

from __future__ import annotations

import numpy as np
from numba import njit

from enplace.machine.kernel import LINK_FIFO, Machine
from enplace.values.plan import LINK_POLICIES, POLICIES, Plan
from enplace.values.problem import Problem
from enplace.values.profile import FloatArray, IntArray

_NONE = np.zeros(0, dtype=np.int64)


def build_machine(problem: Problem, plan: Plan) -> Machine:
    """Lay out graph, plan and cluster for :func:`enplace.machine.kernel.run`."""
    profile, cluster = problem.profile, problem.cluster
    k = cluster.n_devices
    device = plan.device.astype(np.int64)
    ptr, tensor, target, first = list_transfers(
        device, plan.position, k, profile.tensor_op, profile.edge_ptr, profile.edge_op
    )
    link = device[profile.tensor_op[tensor]] * k + target
    links = LINK_POLICIES.index(plan.links)
    ranked = rank = queue = _NONE
    channel_ptr = np.zeros(len(cluster.channels) + 1, dtype=np.int64)
    if links != LINK_FIFO:
        ranked = np.lexsort((np.arange(len(tensor)), first)).astype(np.int64)
        rank = np.empty(len(tensor), dtype=np.int64)
        rank[ranked] = np.arange(len(tensor))
        channel_ptr, queue = _channel_queues(problem, link, ranked)
    order = np.argsort(device * len(device) + plan.position)
    return Machine(
        device=device,
        position=plan.position.astype(np.int64),
        duration_us=problem.time_us[np.arange(len(device)), device],
        in_degree=np.diff(profile.in_ptr),
        lanes=cluster.lanes,
        owner=cluster.lane_owner,
        heap_ptr=_offsets(cluster.lane_owner[device], k),
        tensor_ptr=profile.tensor_ptr,
        edge_ptr=profile.edge_ptr,
        edge_op=profile.edge_op,
        transfer_ptr=ptr,
        transfer_tensor=tensor,
        transfer_to=target,
        transfer_us=_transfer_us(problem, tensor, link),
        transfer_link=link,
        route_ptr=cluster.route_ptr,
        route=cluster.route,
        device_ptr=_offsets(device, k),
        device_queue=order.astype(np.int64),
        transfer_rank=rank,
        ranked_transfer=ranked,
        channel_ptr=channel_ptr,
        channel_queue=queue,
        policy=POLICIES.index(plan.policy),
        links=links,
    )


def _offsets(where: IntArray, n: int) -> IntArray:
    """Where the share of each of ``n`` devices begins in an array of all ops; shape (n + 1,)."""
    return np.concatenate([[0], np.cumsum(np.bincount(where, minlength=n))])


def _transfer_us(problem: Problem, tensor: IntArray, link: IntArray) -> FloatArray:
    """Duration of transfers: b0 + b1 * bytes."""
    b0, b1 = problem.cluster.b0_us.ravel(), problem.cluster.b1_us_per_byte.ravel()
    return b0[link] + b1[link] * problem.profile.tensor_bytes[tensor]


@njit(cache=True, nogil=True)
def list_transfers(
    device: IntArray,
    position: IntArray,
    n_devices: int,
    tensor_op: IntArray,
    edge_ptr: IntArray,
    edge_op: IntArray,
) -> tuple[IntArray, IntArray, IntArray, IntArray]:  # pragma: no cover - compiled
    """Find every (tensor, destination) that has to be sent.

    Returns
    -------
    ptr : shape (n_tensors + 1,)
        Transfers of tensor ``t`` are ``ptr[t] : ptr[t + 1]``, in the order of their first
        consumers.
    tensor, target, first_position : shape (n_transfers,)
        What is sent where, and the smallest position of a consumer there.
    """
    n_tensors = len(tensor_op)
    ptr = np.zeros(n_tensors + 1, dtype=np.int64)
    tensor_of = np.empty(len(edge_op), dtype=np.int64)
    target = np.empty(len(edge_op), dtype=np.int64)
    first = np.empty(len(edge_op), dtype=np.int64)
    slot = np.full(n_devices, -1, dtype=np.int64)
    count = 0
    for tensor in range(n_tensors):
        home = device[tensor_op[tensor]]
        for edge in range(edge_ptr[tensor], edge_ptr[tensor + 1]):
            consumer = edge_op[edge]
            to = device[consumer]
            if to == home:
                continue
            if slot[to] < ptr[tensor]:
                slot[to] = count
                tensor_of[count], target[count] = tensor, to
                first[count] = position[consumer]
                count += 1
            elif position[consumer] < first[slot[to]]:
                first[slot[to]] = position[consumer]
        ptr[tensor + 1] = count
    return ptr, tensor_of[:count].copy(), target[:count].copy(), first[:count].copy()


def _channel_queues(
    problem: Problem, link: IntArray, ranked: IntArray
) -> tuple[IntArray, IntArray]:
    """Transfers of each channel in rank order, with the channels' offsets."""
    route_ptr, route = problem.cluster.route_ptr, problem.cluster.route
    hops = np.diff(route_ptr)[link[ranked]]
    transfer = np.repeat(ranked, hops)
    hop = np.arange(len(transfer)) - np.repeat(np.cumsum(hops) - hops, hops)
    channel = route[route_ptr[link[transfer]] + hop]
    order = np.argsort(channel, kind="stable")
    n_channels = len(problem.cluster.channels)
    ptr = np.searchsorted(channel[order], np.arange(n_channels + 1)).astype(np.int64)
    return ptr, transfer[order].astype(np.int64)
