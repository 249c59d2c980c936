"""Celeritas (Xu et al. 2022): Order-Place and Adjusting Placement on the fused graph.

The fused graph comes from :mod:`enplace.coarsen.fusion`. Where section 5.2 and Algorithm 2 leave
room, this is what we do:

- A cluster's memory is the sum of its ops' variables and outputs, as in equation 6.
- ``back_cost`` (equation 8) uses the average link, because the successors are not placed yet; all
  other transfers use the link between the two devices.
- A transfer is a task on the sending and on the receiving device (section 6.1). It takes the first
  slot that both have free, after its cluster has ended.
- If no device has room, the text and Algorithm 2 disagree; we take the text's "lowest memory
  usage", measured as most memory left.
- In line 15 of Algorithm 2 the device of the previous cluster may be full while others are not;
  then, as the text says, the device with room and the earliest start takes the cluster.
- The first cluster has no previous device; it goes to the first of those where it starts first.
- CPUs are no candidates while there is a GPU; ops that need one go there on their own.
- The paper leaves the order of ops to TensorFlow; we take the best of a few.
- Ops whose unit was decided earlier, or may not be where their cluster goes, leave their cluster.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from enplace.coarsen import GroupedGraph, cpd_topo, fuse, group_graph, mean_link
from enplace.placers.registry import PlaceOptions, placer
from enplace.placers.settle import arranged, best_of, position_by, settle
from enplace.placers.slots import all_free_from, empty_slots, free_from, occupy
from enplace.plan import Plan
from enplace.problem import Problem
from enplace.profile import FloatArray, IntArray

_SOURCE = "Celeritas (Xu et al. 2022)"


@placer("order-place", title="Order-Place, Celeritas", source=_SOURCE, capabilities=("memory",))
def order_place(problem: Problem, options: PlaceOptions) -> Plan:
    """Fill one GPU to its limit with clusters in CPD-TOPO order, then the next."""
    group = fuse(problem)
    options.check_cancelled()
    graph = group_graph(problem, group)
    order = cpd_topo(graph, graph.edge_us(*mean_link(problem.cluster)))
    gpus = np.array(problem.cluster.gpus)
    capacity = problem.cluster.capacity_bytes[gpus]
    device = gpus[fill_in_order(graph.memory_bytes[order], capacity)]
    return _finish(problem, group, order, device, "order-place", options)


@placer("celeritas", title="Celeritas", source=_SOURCE, capabilities=("memory", "heterogeneous"))
def celeritas(problem: Problem, options: PlaceOptions) -> Plan:
    """Fuse ops, then keep to one device unless another would start a cluster much earlier."""
    group = fuse(problem)
    options.check_cancelled()
    graph = group_graph(problem, group)
    order = cpd_topo(graph, graph.edge_us(*mean_link(problem.cluster)))
    device = adjust(problem, graph, order)
    return _finish(problem, group, order, device[order], "celeritas", options)


def _finish(
    problem: Problem,
    group: IntArray,
    order: IntArray,
    device: IntArray,
    method: str,
    options: PlaceOptions,
) -> Plan:
    """Carry the clusters' devices, given in cluster order, over to the ops."""
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    position = position_by(problem, rank[group].astype(np.float64))
    placed = settle(problem, device[rank[group]], position)
    return best_of(problem, arranged(problem, placed, position, method), options).plan


def fill_in_order(memory_bytes: IntArray, capacity_bytes: IntArray) -> IntArray:
    """Number of the device for each cluster in turn; the fullest is left behind for good.

    Once the last device is full too, the one with the most memory left takes the next cluster.
    """
    room, current = capacity_bytes.astype(np.int64), 0
    device = np.empty(len(memory_bytes), dtype=np.int64)
    for i, size in enumerate(memory_bytes.tolist()):
        while current < len(room) and size > room[current]:
            current += 1
        device[i] = current if current < len(room) else int(np.argmax(room))
        room[device[i]] -= size
    return device


def adjust(problem: Problem, graph: GroupedGraph, order: IntArray) -> IntArray:
    """Adjusting Placement (Algorithm 2).

    Returns
    -------
    int array, shape (n_groups,)
        Device of each cluster.
    """
    cluster = problem.cluster
    n, gpus = graph.n_groups, np.array(cluster.gpus)
    back_cost = np.zeros(n)
    np.maximum.at(back_cost, graph.source, graph.edge_us(*mean_link(cluster)))
    by_target = np.argsort(graph.target, kind="stable")
    at = np.ix_(gpus, gpus)
    chosen = _adjust(
        order,
        np.where(np.isfinite(graph.time_us[:, gpus]), graph.time_us[:, gpus], 0.0),
        graph.memory_bytes,
        back_cost,
        np.searchsorted(graph.target[by_target], np.arange(n + 1)),
        graph.source[by_target],
        graph.tensors[by_target],
        graph.edge_bytes[by_target],
        cluster.b0_us[at],
        cluster.b1_us_per_byte[at],
        cluster.capacity_bytes[gpus],
    )
    return gpus[chosen]


@njit(cache=True, nogil=True)
def _adjust(
    order: IntArray,
    time_us: FloatArray,
    memory_bytes: IntArray,
    back_cost_us: FloatArray,
    in_ptr: IntArray,
    in_source: IntArray,
    in_tensors: IntArray,
    in_bytes: IntArray,
    b0_us: FloatArray,
    b1_us_per_byte: FloatArray,
    capacity_bytes: IntArray,
) -> IntArray:  # pragma: no cover - compiled
    n_devices = len(capacity_bytes)
    slots, room = empty_slots(n_devices), capacity_bytes.copy()
    device, finish = np.zeros(len(order), dtype=np.int64), np.zeros(len(order))
    last = -1
    for node in order:
        first, end = in_ptr[node], in_ptr[node + 1]
        cost = np.zeros((end - first, n_devices))
        for i in range(end - first):
            a = device[in_source[first + i]]
            cost[i] = in_tensors[first + i] * b0_us[a] + in_bytes[first + i] * b1_us_per_byte[a]
        est = np.full(n_devices, np.inf)
        for d in range(n_devices):
            if room[d] >= memory_bytes[node]:
                ready = 0.0
                for i in range(end - first):
                    ready = max(ready, finish[in_source[first + i]] + cost[i, d])
                est[d] = free_from(slots, d, ready, time_us[node, d])
        last = _pick(est, room, last, back_cost_us[node])
        ready = 0.0
        for i in range(end - first):
            sender, sent = device[in_source[first + i]], finish[in_source[first + i]]
            if sender != last:
                ends = np.array([sender, last])
                start = all_free_from(slots, ends, sent, cost[i, last])
                sent = start + cost[i, last]
                slots = occupy(slots, sender, start, sent)
                slots = occupy(slots, last, start, sent)
            ready = max(ready, sent)
        start = free_from(slots, last, ready, time_us[node, last])
        finish[node] = start + time_us[node, last]
        slots = occupy(slots, last, start, finish[node])
        device[node] = last
        room[last] -= memory_bytes[node]
    return device


@njit(cache=True, nogil=True)
def _pick(
    est_us: FloatArray, room_bytes: IntArray, last: int, back_cost_us: float
) -> int:  # pragma: no cover - compiled
    """Lines 11 to 18 of Algorithm 2: stay unless another device wins more than back_cost."""
    earliest = int(np.argmin(est_us))
    if np.isinf(est_us[earliest]):
        return int(np.argmax(room_bytes))
    if last < 0 or est_us[last] - est_us[earliest] > back_cost_us:
        return earliest
    return last
