"""Celeritas (Xu et al. 2022): Order-Place and Adjusting Placement on the fused graph.

Ops are fused first (:mod:`enplace.coarsen.fusion`). Where section 5.2 and Algorithm 2 leave
the choice open, this is what we do:

- An op's memory is its variables and outputs, as in equation 6. A cluster also takes the memory of
  all ops that are colocated with one of its own (section 6.1).
- ``back_cost`` (equation 8) uses the average link, because the successors are not placed yet; all
  other transfers use the link between the two devices.
- A transfer is a task on the sending and on the receiving device (section 6.1). It takes the first
  slot that is free on both, after its cluster has ended.
- If no device has enough memory, the text and Algorithm 2 disagree. We follow the text, which takes
  the "lowest memory usage", and measure it as the most free memory.
- In line 15 of Algorithm 2 the device of the previous cluster may be full while others are not.
  Then, as in the text, the cluster goes to the device with enough memory and the earliest start.
- The first cluster has no previous device; it goes to the first of those where it starts earliest.
- CPUs are not candidates if there is a GPU; ops that need a CPU are placed on one individually.
- The paper leaves the order of ops to the framework; we take the best of a few.
- If the simulated step exceeds memory, ops move to devices with free memory and keep their order.
- An op leaves its cluster if its unit was placed earlier or is not allowed on the cluster's device.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from enplace.coarsen import GroupedGraph, cpd_topo, fuse, group_graph, mean_link
from enplace.compiling import helper, kernel, step
from enplace.machine.layout import transfer_us
from enplace.placing.candidates import arranged, best_of
from enplace.placing.capacity import Claims, claim, claims_of, needed_bytes
from enplace.placing.options import PlaceOptions
from enplace.placing.registry import HETEROGENEOUS, MEMORY, placer
from enplace.placing.repair import relieve
from enplace.placing.settle import position_by, settle
from enplace.placing.slots import Slots, all_free_from, empty_slots, free_from, occupy
from enplace.values.arrays import BoolArray, FloatArray, IntArray, csr_offsets, inverse
from enplace.values.plan import Plan
from enplace.values.problem import Problem

_SOURCE = "Celeritas (Xu et al. 2022)"


@placer(
    "order-place",
    title="Order-Place, Celeritas",
    good=(
        "When you want to use as few GPUs as possible: it begins another only when one is full. "
        "It is fast on graphs of any size, and sends little."
    ),
    source=_SOURCE,
    capabilities=(MEMORY,),
)
def order_place(problem: Problem, options: PlaceOptions) -> Plan:
    """Fill one GPU to its limit with clusters in CPD-TOPO order, then the next.

    That order follows the critical path depth first, so neighbours in it mostly share a GPU. Ops
    are fused into clusters along it, at most 200 in each.
    """
    graph, order = _fuse(problem, options)
    device = fill_in_order(claims_of(problem, graph.group), order, np.array(problem.cluster.gpus))
    return _settle(problem, graph.group, order, device, "order-place", options)


@placer(
    "celeritas",
    title="Celeritas",
    good=(
        "On huge graphs, where it takes a fraction of a second, and where links are slow: it "
        "leaves a device only for a much earlier start, so it sends little. On most of our "
        "samples, heft gains more from a second GPU."
    ),
    source=_SOURCE,
    capabilities=(MEMORY, HETEROGENEOUS),
)
def celeritas(problem: Problem, options: PlaceOptions) -> Plan:
    """Fuse ops, then stay on one device unless another would start a cluster much earlier.

    Clusters are taken in the same order as by ``order-place``. Each goes to the device of the one
    before it, unless another would start it earlier by more than it takes to send its outputs.
    """
    graph, order = _fuse(problem, options)
    device = adjust(problem, graph, order, options)
    return _settle(problem, graph.group, order, device, "celeritas", options)


def _fuse(problem: Problem, options: PlaceOptions) -> tuple[GroupedGraph, IntArray]:
    """Fuse ops into clusters; return their graph, and the clusters in CPD-TOPO order."""
    group = fuse(problem)
    options.stop.check()
    graph = group_graph(problem, group)
    return graph, cpd_topo(graph, graph.edge_us(mean_link(problem.cluster)))


def _settle(
    problem: Problem,
    group: IntArray,
    order: IntArray,
    device: IntArray,
    method: str,
    options: PlaceOptions,
) -> Plan:
    """Turn an order and the devices of clusters into the best plan of the ops.

    Parameters
    ----------
    group : int array, shape (n_ops,)
        Cluster of each op.
    order, device : int arrays, shape (n_clusters,)
    """
    position = position_by(problem, inverse(order)[group].astype(np.float64))
    placed = settle(problem, device[group], position)
    best = best_of(problem, arranged(problem, placed, position, method), options)
    return relieve(best, options).plan


def fill_in_order(claims: Claims, order: IntArray, gpus: IntArray) -> IntArray:
    """Find the device of each cluster; a device that was full once gets no further cluster.

    Once the last device is full too, each cluster goes to the device with the most free memory.
    """
    current = 0
    device = np.empty(len(order), dtype=np.int64)
    for cluster in order.tolist():
        size = needed_bytes(claims, cluster)
        while current < len(gpus) and size > claims.free_bytes[gpus[current]]:
            current += 1
        freest = gpus[np.argmax(claims.free_bytes[gpus])]
        device[cluster] = gpus[current] if current < len(gpus) else freest
        claim(claims, cluster, device[cluster])
    return device


def adjust(
    problem: Problem, graph: GroupedGraph, order: IntArray, options: PlaceOptions
) -> IntArray:
    """Place each cluster by Adjusting Placement (Algorithm 2).

    Returns
    -------
    int array, shape (n_groups,)
        Device of each cluster.

    Raises
    ------
    CancelledError
        If cancelled.
    """
    cluster = problem.cluster
    back_cost_us = np.zeros(graph.n_groups)
    np.maximum.at(back_cost_us, graph.source, graph.edge_us(mean_link(cluster)))
    by_target = np.argsort(graph.target, kind="stable")
    clusters = _Clusters(
        gpus=np.array(cluster.gpus),
        time_us=np.where(np.isfinite(graph.time_us), graph.time_us, 0.0),
        back_cost_us=back_cost_us,
        in_ptr=csr_offsets(graph.target[by_target], graph.n_groups),
        source=graph.source[by_target],
        tensors=graph.tensors[by_target],
        edge_bytes=graph.edge_bytes[by_target],
        b0_us=cluster.b0_us,
        b1_us_per_byte=cluster.b1_us_per_byte,
    )
    claims = claims_of(problem, graph.group)
    return options.stop.interrupt_if_cancelled(lambda flag: _adjust(clusters, claims, order, flag))


class _Clusters(NamedTuple):
    """The fused graph, with the edges into each cluster of ops, and the costs of the devices.

    Attributes
    ----------
    gpus : int array
        The candidates.
    time_us : float array, shape (n_clusters, n_devices)
        0 where a cluster cannot run.
    back_cost_us : float array, shape (n_clusters,)
        The longest transfer from each cluster over the mean link.
    in_ptr : int array, shape (n_clusters + 1,)
        Edges into cluster ``i`` are ``in_ptr[i] : in_ptr[i + 1]``.
    source, tensors, edge_bytes : int arrays, shape (n_edges,)
    b0_us, b1_us_per_byte : float arrays, shape (n_devices, n_devices)
    """

    gpus: IntArray
    time_us: FloatArray
    back_cost_us: FloatArray
    in_ptr: IntArray
    source: IntArray
    tensors: IntArray
    edge_bytes: IntArray
    b0_us: FloatArray
    b1_us_per_byte: FloatArray


class _Placed(NamedTuple):
    """The device of each cluster that has been placed, and when it ends; shape (n_clusters,)."""

    device: IntArray
    finish_us: FloatArray


@kernel
def _adjust(
    clusters: _Clusters, claims: Claims, order: IntArray, stop: BoolArray
) -> IntArray:  # pragma: no cover - compiled
    """Place the clusters in an order until ``stop[0]`` is set; return the device of each."""
    slots = empty_slots(len(clusters.b0_us))
    placed = _Placed(np.zeros(len(order), dtype=np.int64), np.zeros(len(order)))
    last = int(np.int64(-1))  # no constant, or numba would compile _pick for it again
    for node in order:
        if stop[0]:
            break
        est_us = _estimate_starts(clusters, claims, slots, placed, node)
        last = _pick(est_us, clusters.gpus, claims.free_bytes, last, clusters.back_cost_us[node])
        claim(claims, node, last)
        placed.device[node] = last
        slots, ready_us = _send_inputs(clusters, slots, placed, node)
        start_us = free_from(slots, last, ready_us, clusters.time_us[node, last])
        placed.finish_us[node] = start_us + clusters.time_us[node, last]
        slots = occupy(slots, last, start_us, placed.finish_us[node])
    return placed.device


@helper
def _estimate_starts(
    clusters: _Clusters, claims: Claims, slots: Slots, placed: _Placed, node: int
) -> FloatArray:  # pragma: no cover - compiled
    """Estimate when a cluster could start on each device; inf where it does not fit.

    As in the paper, every input is sent at once, however busy the devices are.
    """
    est_us = np.full(len(clusters.b0_us), np.inf)
    needed = needed_bytes(claims, node)
    for d in clusters.gpus:
        if claims.free_bytes[d] >= needed:
            ready_us = 0.0
            for edge in range(clusters.in_ptr[node], clusters.in_ptr[node + 1]):
                sent_us = placed.finish_us[clusters.source[edge]]
                ready_us = max(ready_us, sent_us + _edge_us(clusters, placed, edge, d))
            est_us[d] = free_from(slots, d, ready_us, clusters.time_us[node, d])
    return est_us


@step
def _edge_us(
    clusters: _Clusters, placed: _Placed, edge: int, to: int
) -> float:  # pragma: no cover - compiled
    """Return how long it takes to send the tensors of an edge to a device."""
    home, n_tensors = placed.device[clusters.source[edge]], clusters.tensors[edge]
    return transfer_us(clusters, clusters.edge_bytes[edge], home, to, n_tensors)


@helper
def _send_inputs(
    clusters: _Clusters, slots: Slots, placed: _Placed, node: int
) -> tuple[Slots, float]:  # pragma: no cover - compiled
    """Send the inputs of a placed cluster; return when the last one arrives.

    Unlike in the estimate, each transfer waits until both ends are free and occupies both, so that
    later ones take it into account.
    """
    ready_us, to = 0.0, placed.device[node]
    for edge in range(clusters.in_ptr[node], clusters.in_ptr[node + 1]):
        home = placed.device[clusters.source[edge]]
        sent_us = placed.finish_us[clusters.source[edge]]
        if home != to:
            duration_us = _edge_us(clusters, placed, edge, to)
            start_us = all_free_from(slots, np.array([home, to]), sent_us, duration_us)
            sent_us = start_us + duration_us
            slots = occupy(slots, home, start_us, sent_us)
            slots = occupy(slots, to, start_us, sent_us)
        ready_us = max(ready_us, sent_us)
    return slots, ready_us


@helper
def _pick(
    est_us: FloatArray, gpus: IntArray, free_bytes: IntArray, last: int, back_cost_us: float
) -> int:  # pragma: no cover - compiled
    """Stay on the device unless another gains more than back_cost (Algorithm 2, lines 11 to 18)."""
    earliest = int(np.argmin(est_us))
    if np.isinf(est_us[earliest]):
        # It fits nowhere. Take the GPU with the most memory left; the result may exceed it.
        emptiest = gpus[0]
        for gpu in gpus:
            if free_bytes[gpu] > free_bytes[emptiest]:
                emptiest = gpu
        return int(emptiest)
    if last < 0 or est_us[last] - est_us[earliest] > back_cost_us:
        return earliest
    return last
