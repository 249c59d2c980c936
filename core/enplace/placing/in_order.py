"""Clusters in CPD-TOPO order on one GPU after another: Order-Place of Celeritas.

It needs the fewest copies of tensors, so other searches fall back to it where memory is tight.
"""

from __future__ import annotations

import numpy as np

from enplace.coarsen import cpd_topo, fuse, group_graph, mean_link
from enplace.placing.candidates import arranged, best_of
from enplace.placing.capacity import Claims, claim, claims_of, needed_bytes
from enplace.placing.options import PlaceOptions
from enplace.placing.repair import relieve
from enplace.placing.settle import position_by, settle
from enplace.values.arrays import IntArray, inverse
from enplace.values.plan import Plan
from enplace.values.problem import Problem


def place_in_order(problem: Problem, method: str, options: PlaceOptions) -> Plan:
    """Fill one GPU to its limit with clusters in CPD-TOPO order, then the next."""
    group = fuse(problem)
    options.check_cancelled()
    graph = group_graph(problem, group)
    order = cpd_topo(graph, graph.edge_us(mean_link(problem.cluster)))
    device = fill_in_order(claims_of(problem, group), order, np.array(problem.cluster.gpus))
    return settle_clusters(problem, group, order, device, method, options)


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


def settle_clusters(
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
