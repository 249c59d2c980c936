"""Celeritas (Xu et al. 2022): Order-Place and Adjusting Placement on the fused graph.

The fused graph comes from :mod:`enplace.coarsen.fusion`. Where section 5.2 and Algorithm 2 leave
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
- The paper leaves the order of ops to TensorFlow; we take the best of a few.
- If the simulated step exceeds memory, ops move to devices with free memory and keep their order.
- An op leaves its cluster if its unit was placed earlier or is not allowed on the cluster's device.
"""

from __future__ import annotations

import numpy as np

from enplace.coarsen import GroupedGraph, cpd_topo, fuse, group_graph, mean_link
from enplace.compiling import helper, kernel
from enplace.placing.capacity import Claims, claim, claims_of, needed_bytes
from enplace.placing.in_order import place_in_order, settle_clusters
from enplace.placing.options import PlaceOptions
from enplace.placing.registry import HETEROGENEOUS, MEMORY, placer
from enplace.placing.slots import all_free_from, empty_slots, free_from, occupy
from enplace.values.arrays import FloatArray, IntArray, csr_offsets
from enplace.values.plan import Plan
from enplace.values.problem import Problem

_SOURCE = "Celeritas (Xu et al. 2022)"


@placer("order-place", title="Order-Place, Celeritas", source=_SOURCE, capabilities=(MEMORY,))
def order_place(problem: Problem, options: PlaceOptions) -> Plan:
    """Fill one GPU to its limit with clusters in CPD-TOPO order, then the next."""
    return place_in_order(problem, "order-place", options)


@placer("celeritas", title="Celeritas", source=_SOURCE, capabilities=(MEMORY, HETEROGENEOUS))
def celeritas(problem: Problem, options: PlaceOptions) -> Plan:
    """Fuse ops, then stay on one device unless another would start a cluster much earlier."""
    group = fuse(problem)
    options.check_cancelled()
    graph = group_graph(problem, group)
    order = cpd_topo(graph, graph.edge_us(*mean_link(problem.cluster)))
    device = adjust(problem, graph, order)
    return settle_clusters(problem, group, order, device, "celeritas", options)


def adjust(problem: Problem, graph: GroupedGraph, order: IntArray) -> IntArray:
    """Place each cluster by Adjusting Placement (Algorithm 2).

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
    return _adjust(
        order,
        gpus,
        np.where(np.isfinite(graph.time_us), graph.time_us, 0.0),
        claims_of(problem, graph.group),
        back_cost,
        csr_offsets(graph.target[by_target], n),
        graph.source[by_target],
        graph.tensors[by_target],
        graph.edge_bytes[by_target],
        cluster.b0_us,
        cluster.b1_us_per_byte,
    )


@kernel
def _adjust(
    order: IntArray,
    gpus: IntArray,
    time_us: FloatArray,
    claims: Claims,
    back_cost_us: FloatArray,
    in_ptr: IntArray,
    in_source: IntArray,
    in_tensors: IntArray,
    in_bytes: IntArray,
    b0_us: FloatArray,
    b1_us_per_byte: FloatArray,
) -> IntArray:  # pragma: no cover - compiled
    n_devices = len(b0_us)
    slots = empty_slots(n_devices)
    device, finish = np.zeros(len(order), dtype=np.int64), np.zeros(len(order))
    last = int(np.int64(-1))  # no constant, or numba would compile _pick for it again
    for node in order:
        first, end = in_ptr[node], in_ptr[node + 1]
        cost = np.zeros((end - first, n_devices))
        for i in range(end - first):
            a, n, size = device[in_source[first + i]], in_tensors[first + i], in_bytes[first + i]
            for d in range(n_devices):
                cost[i, d] = n * b0_us[a, d] + size * b1_us_per_byte[a, d]
        # The paper's estimate: every input sets out at once, however busy the devices are.
        est = np.full(n_devices, np.inf)
        needed = needed_bytes(claims, node)
        for d in gpus:
            if claims.free_bytes[d] >= needed:
                ready = 0.0
                for i in range(end - first):
                    ready = max(ready, finish[in_source[first + i]] + cost[i, d])
                est[d] = free_from(slots, d, ready, time_us[node, d])
        last = _pick(est, gpus, claims.free_bytes, last, back_cost_us[node])
        claim(claims, node, last)
        # On the chosen device, each transfer waits until both ends are free and occupies both, so
        # that what comes later sees it.
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
    return device


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
