"""PipeDream's optimiser (Harlap et al. 2018, section 3.2; Narayanan et al., SOSP 2019).

It cuts a path of layers into stages, each on one GPU or replicated on several, so that the slowest
stage takes the least time. Like Tarnawski et al. 2020 (section 6), we turn the graph into a path by
contracting every branching, residual blocks included. Backward ops are with their forward layer
from the start (:mod:`enplace.placers.max_load`). As in their Table 1, the time of a stage is that
of its layers and of all transfers at both its ends.

Stages are replicated if the load rule allows it. The optimiser uses PipeDream's own estimate of the
cost of replicas; the plan's time per sample follows the load rule.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from enplace.machine.pipelines.loads import max_load_us
from enplace.placers.max_load.table.contract import Nodes, contract
from enplace.placers.max_load.table.kinds import join_kinds
from enplace.placers.max_load.table.orders import grant_preferences
from enplace.placing.candidates import make_replicas, unordered
from enplace.placing.options import REPLICA_OPTIONS, PlaceOptions, Progress
from enplace.placing.registry import MEMORY, placer
from enplace.placing.settle import settle
from enplace.text import percent
from enplace.values.arrays import BoolArray, adjacency, inverse, topological_order
from enplace.values.plan import Plan
from enplace.values.problem import THROUGHPUT, Problem
from enplace.values.profile import FloatArray, IntArray

ONE_LAYER = 0.5
"""If one layer has more than this share of the work, a cut of the path helps little."""


@dataclass(frozen=True, eq=False)
class Layers:
    """A path of layers.

    Attributes
    ----------
    compute_us : float array, shape (n_layers,)
        Time of a layer, forward and backward.
    sent_us : float array, shape (n_layers + 1,)
        Time of all transfers before each layer and after the last, forward and backward.
    weights_us : float array, shape (n_layers,)
        Time to send a layer's weights once.
    held_bytes : int array, shape (n_layers,)
        Memory of a layer.
    """

    compute_us: FloatArray
    sent_us: FloatArray
    weights_us: FloatArray
    held_bytes: IntArray


@dataclass(frozen=True)
class LayerStage:
    """Layers ``first`` to ``last``, both included, on a number of GPUs."""

    first: int
    last: int
    replicas: int


@placer(
    "pipedream",
    title="PipeDream's optimiser",
    good=(
        "To compare with PipeDream, and for models that are a chain of layers. Where branches "
        "join late, few places to cut are left, and max-load-dp finds smaller loads."
    ),
    source="PipeDream (SOSP 2019), as in Tarnawski et al. 2020, section 6",
    objectives=(THROUGHPUT,),
    capabilities=(MEMORY,),
    options=REPLICA_OPTIONS,
)
def pipedream(problem: Problem, options: PlaceOptions) -> Plan:
    """Turn the graph into a path and cut it into stages, each on one GPU or on several replicas."""
    options.stop.check()
    nodes = contract(problem, kinds=join_kinds(problem))
    layer, note = find_layers(nodes)
    layers = _layers(nodes, layer)
    n_gpus, capacity = len(problem.cluster.gpus), int(problem.cluster.capacity_bytes.min())
    stages, _ = cut_path(layers, n_gpus, capacity, n_gpus if options.load_rule.replicate else 1)
    options.stop.check()
    counts = np.cumsum([0, *(stage.replicas for stage in stages)])
    gpus = np.array(problem.cluster.gpus)
    stage = np.searchsorted([stage.last for stage in stages], layer[nodes.node])
    device = settle(problem, gpus[counts[stage]])
    groups = [gpus[first:last].tolist() for first, last in pairwise(counts.tolist())]
    replicas = make_replicas(problem, groups, device)
    load_us = max_load_us(problem, device, options.load_rule, replicas)
    plan = replace(
        unordered(problem, device, "pipedream")[0],
        replicas=replicas,
        objective=THROUGHPUT,
        value_us=load_us,
        load_rule=options.load_rule,
        note=note,
        details={"layers": len(layers.compute_us)},
    )
    options.progress(Progress(options.seconds, "a partition", None, plan, load_us))
    return plan


def find_layers(nodes: Nodes) -> tuple[IntArray, str]:
    """Find the layer of each node, and a note on how they were found.

    In a training graph, variables, labels and the optimiser bypass the layers, so the whole graph
    is one branching. There the layers come from the names.
    """
    layer, note = find_path(nodes), ""
    if _largest_share(nodes, layer) > ONE_LAYER and nodes.layer.any():
        order = _topological(nodes)
        named = grant_preferences(order, nodes.layer, nodes.source, nodes.target)
        layer, note = np.unique(named, return_inverse=True)[1], "The layers come from the op names."
    share = _largest_share(nodes, layer)
    if share > ONE_LAYER:
        note = f"One layer has {percent(share)} of the work, so a cut of the path helps little."
    return layer, note


def _largest_share(nodes: Nodes, layer: IntArray) -> float:
    """Return the largest layer's share of all compute time."""
    work_us = _layers(nodes, layer).compute_us
    return float(work_us.max() / max(work_us.sum(), 1e-9))


def find_path(nodes: Nodes) -> IntArray:
    """Find the layer of each node along the path.

    A layer begins with each node that precedes or follows every other node and that no edge skips.
    A branching thus belongs to the node where its branches part, even if one branch is a single
    edge, as in a residual block. Edges from an input, such as a mask that every layer reads, skip
    nothing.
    """
    order = _topological(nodes).tolist()
    before, after = _reached(nodes, order), _reached(nodes, order[::-1])
    alone = (np.add(before, after) == nodes.n_nodes - 1)[order]
    begins = alone & ~_skipped(nodes, inverse(np.array(order)))
    layer = np.zeros(nodes.n_nodes, dtype=np.int64)
    layer[order] = np.maximum(np.cumsum(begins) - 1, 0)
    return layer


def _skipped(nodes: Nodes, place: IntArray) -> BoolArray:
    """Whether an edge skips each place of an order; (n_nodes,)."""
    inner = np.isin(nodes.source, nodes.target)
    change = np.zeros(nodes.n_nodes + 1, dtype=np.int64)
    np.add.at(change, place[nodes.source[inner]] + 1, 1)
    np.add.at(change, place[nodes.target[inner]], -1)
    skipped: BoolArray = np.cumsum(change)[:-1] > 0
    return skipped


def _topological(nodes: Nodes) -> IntArray:
    return topological_order(nodes.n_nodes, *adjacency(nodes.source, nodes.target, nodes.n_nodes))


def _reached(nodes: Nodes, order: list[int]) -> list[int]:
    """Count the earlier nodes in the order that are connected to each node by edges either way."""
    rank = {node: i for i, node in enumerate(order)}
    near: dict[int, list[int]] = {node: [] for node in order}
    for a, b in zip(nodes.source.tolist(), nodes.target.tolist(), strict=True):
        first, then = sorted((a, b), key=rank.__getitem__)
        near[then].append(first)
    sets: dict[int, int] = {}  # each set as the bits of a number
    for node in order:
        sets[node] = 0
        for other in near[node]:
            sets[node] |= sets[other] | 1 << other
    return [sets[node].bit_count() for node in range(nodes.n_nodes)]


def _layers(nodes: Nodes, layer: IntArray) -> Layers:
    n = int(layer.max()) + 1
    # Nodes that no GPU can run go elsewhere and cost no stage any time.
    both_us = nodes.work_us[0].sum(axis=1)
    time_us = np.where(np.isfinite(both_us), both_us, 0.0)
    compute_us = np.bincount(layer, weights=time_us, minlength=n)
    sent_us = np.zeros(n + 1)
    hyperedges = nodes.hyperedges
    for i, cost_us in enumerate(hyperedges.touched_us[0, :, 0].tolist()):
        ends = layer[hyperedges.node[hyperedges.ptr[i] : hyperedges.ptr[i + 1]]]
        sent_us[ends.min() + 1 : ends.max() + 1] += cost_us
    held = np.zeros(n, dtype=np.int64)
    np.add.at(held, layer, nodes.memory_bytes)
    weights_us = np.bincount(layer, weights=nodes.sync_us, minlength=n)
    return Layers(compute_us.astype(np.float64), sent_us, weights_us.astype(np.float64), held)


def cut_path(
    layers: Layers, n_gpus: int, capacity_bytes: int, most_replicas: int
) -> tuple[list[LayerStage], float]:
    """Find the stages whose slowest is fastest, and its time per sample.

    PipeDream's recurrence: A(j, m), the best for the layers before j on m GPUs, is the minimum over
    i and r of max(A(i, m - r), time of the layers i to j on r GPUs). Replicas share the samples and
    exchange their gradients at the same time. Stages exceed memory only if there is no other way.
    """
    n = len(layers.compute_us)
    compute, weights, held = (
        np.concatenate([[0], np.cumsum(values)])
        for values in (layers.compute_us, layers.weights_us, layers.held_bytes)
    )
    best = np.full((n_gpus + 1, n + 1), np.inf)
    best[0, 0] = 0.0
    choice = np.zeros((n_gpus + 1, n + 1, 2), dtype=np.int64)
    for m in range(1, n_gpus + 1):
        for j in range(1, n + 1):
            for r in range(1, min(m, most_replicas) + 1):
                busy_us = compute[j] - compute[:j] + layers.sent_us[:j] + layers.sent_us[j]
                synced_us = 4 * (r - 1) / r * (weights[j] - weights[:j])
                time_us = np.maximum(busy_us, synced_us) / r
                time_us[held[j] - held[:j] > capacity_bytes] = np.inf
                found = np.maximum(best[m - r, :j], time_us)
                i = int(np.argmin(found))
                if found[i] < best[m, j]:
                    best[m, j], choice[m, j] = found[i], (i, r)
    m = int(np.argmin(best[:, n]))
    if np.isinf(best[m, n]):
        return cut_path(layers, n_gpus, int(held[-1]), most_replicas)
    stages, j = list[LayerStage](), n
    slowest_us = float(best[m, n])
    while j > 0:
        i, r = choice[m, j].tolist()
        stages.append(LayerStage(i, j - 1, r))
        m, j = m - r, i
    return stages[::-1], slowest_us
