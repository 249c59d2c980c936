"""Contract ops to the nodes that a contiguous partition divides (appendix B).

Forward ops that must share a device become one node, and so do backward ops. A node represents
the forward ops together with the backward ops of the same placement units. Backward nodes without
a forward node get an artificial one, connected as a mirror image of the backward graph. Then
strongly connected nodes are merged, and nodes that cost nothing are merged with their only
neighbour.

The paper merges the latter whatever memory they hold. If the model does not fit on one device, that
can lose the only partition that fits, so then only nodes without memory are merged.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from enplace.coarsen.grouped import op_memory_bytes
from enplace.machine import simulate
from enplace.machine.op_passes import backward_ops, optimiser_ops
from enplace.machine.pipelines.all_reduce import slowest_sync_us
from enplace.names.layers import find_layer_name, named_layers, parts_of
from enplace.placers.max_load.table.hyperedges import Hyperedges, build_hyperedges, find_held
from enplace.placers.max_load.table.kinds import Kinds, find_kinds, prices_of_kinds_us, times_us
from enplace.placing.candidates import unordered
from enplace.text import size
from enplace.values.arrays import adjacency, topological_order
from enplace.values.components import components, strong_components
from enplace.values.limits import MAX_BYTES
from enplace.values.load_rule import USUAL, LoadRule
from enplace.values.problem import BoolArray, Problem
from enplace.values.profile import FloatArray, IntArray

WHAT_STAYS = "weights and what one sample leaves for its way back"

SLACK = 1.25
"""Memory that the GPUs get if they are too small for it, relative to the paper's sum."""


@dataclass(frozen=True, eq=False)
class Nodes:
    """A graph of nodes, each a set of ops that go to one device.

    Attributes
    ----------
    node : int array, shape (n_ops,)
        Node of each op.
    source, target : int array, shape (n_edges,)
        Edges of the forward graph, without cycles, each once.
    kinds : Kinds
        The kinds of devices.
    op_bytes : int array, shape (n_ops,)
        What each op counts towards memory.
    work_us : float array, shape (n_kinds, n_nodes, rule.n_passes)
        Compute time on each kind of device in each pass; inf where an op may not run.
    memory_bytes : int array, shape (n_nodes,)
    forward_us : float array, shape (n_kinds, n_nodes)
        Compute time of its forward ops; 0 where one may not run.
    sync_us : float array, shape (n_nodes,)
        Time to move the weights to another accelerator over the slowest link.
    price : int array, shape (n_kinds,)
        Which price of the hyperedges a kind of device pays; -1 for CPUs, which pay nothing.
    hyperedges : Hyperedges
    held : Hyperedges
        Bytes that a device holds, from
        :func:`~enplace.placers.max_load.table.hyperedges.find_held`.
    tied : int array, shape (n_tied, 2)
        Forward nodes, and backward nodes without forward ops that read their tensors.
    layer : int array, shape (n_nodes,)
        Number of the layer by name; all 0 if the names show no layers.
    """

    node: IntArray
    source: IntArray
    target: IntArray
    kinds: Kinds
    op_bytes: IntArray
    work_us: FloatArray
    memory_bytes: IntArray
    forward_us: FloatArray
    sync_us: FloatArray
    price: IntArray
    hyperedges: Hyperedges
    held: Hyperedges
    tied: IntArray
    layer: IntArray

    @property
    def n_nodes(self) -> int:
        return len(self.memory_bytes)


def contract(
    problem: Problem,
    rule: LoadRule = USUAL,
    kinds: Kinds | None = None,
    op_bytes: IntArray | None = None,
) -> Nodes:
    """Contract a problem's ops to nodes.

    Parameters
    ----------
    kinds : Kinds, optional
        The kinds of devices; those that there are by default.
    op_bytes : int array, shape (n_ops,), optional
        What each op counts towards memory; its variables and outputs by default.
    """
    kinds = find_kinds(problem, rule) if kinds is None else kinds
    op_bytes = op_memory_bytes(problem) if op_bytes is None else op_bytes
    label, edges = _forward_graph(problem, backward_ops(problem))
    label, edges = _strongly_connected(label, edges)
    label, edges = _without_free_nodes(problem, label, edges, rule, kinds, op_bytes)
    return _nodes(problem, label, edges, rule, kinds, op_bytes)


def merge_light_ends(
    problem: Problem, rule: LoadRule, nodes: Nodes, most_us: float
) -> tuple[Nodes, Nodes, IntArray]:
    """Merge light inputs with their first reader, and light outputs with their last producer.

    Stacked models have inputs of their own in every copy. Each of them may run at any time before
    it is needed, which multiplies the ideals. Here it runs where it is first needed. With inputs
    that take no time, such as an embedding that two layers share, this loses nothing: the first
    reader's device sends a tensor that it would receive otherwise. With others it loses little: a
    merged node has no input or output that takes more than ``most_us`` to run, or to send.

    Returns
    -------
    Nodes
    Nodes
        With only those inputs merged that take no time, whose memory is left out.
    int array, shape (n_merged,)
        The node of the latter that each merged node would be without inputs and outputs. Edges
        between these are the same, so partitions of either are partitions of the other.
    """
    into, tensors = np.arange(nodes.n_nodes), _readers_of_tensors(problem, nodes)

    def loses_nothing(node: int, first: int) -> bool:
        members = np.flatnonzero(into == node).tolist()
        if not all(member in tensors for member in members):
            return False
        ends = (set(into[readers].tolist()) - {node} for m in members for readers in tensors[m])
        return all(first in each for each in ends if each)

    work_us = np.where(np.isfinite(nodes.work_us), nodes.work_us, 0.0).sum(axis=2)
    every_us = work_us.sum(axis=0)
    _merge_inputs(nodes, nodes.source, nodes.target, into, every_us, 0.0, loses_nothing)
    first, new = np.unique(into, return_inverse=True)
    edges = _tidy(new[np.column_stack([nodes.source, nodes.target])])
    exact = _nodes(problem, new[nodes.node], edges, rule, nodes.kinds, nodes.op_bytes)
    on_gpu_us = work_us[nodes.kinds.is_gpu].max(axis=0, initial=0.0)
    into, weight_us = np.arange(exact.n_nodes), on_gpu_us[first]
    np.maximum.at(weight_us, exact.hyperedges.node, _largest_us(exact.hyperedges))
    for source, target in ((exact.source, exact.target), (exact.target, exact.source)):
        _merge_inputs(exact, source, target, into, weight_us, most_us)
    kept, new = np.unique(into, return_inverse=True)
    edges = _tidy(new[np.column_stack([exact.source, exact.target])])
    merged = _nodes(problem, new[exact.node], edges, rule, nodes.kinds, nodes.op_bytes)
    return merged, replace(exact, memory_bytes=nodes.memory_bytes[first]), kept


def _largest_us(hyperedges: Hyperedges) -> FloatArray:
    """Return the largest cost of the hyperedge of each entry of ``node``."""
    largest: FloatArray = hyperedges.touched_us.max(axis=(0, 2), initial=0.0)[hyperedges.of_pin]
    return largest


def _readers_of_tensors(problem: Problem, nodes: Nodes) -> dict[int, list[IntArray]]:
    """List the nodes that read each tensor of a node, for nodes without backward ops."""
    profile, node = problem.profile, nodes.node
    found: dict[int, list[IntArray]] = {n: [] for n in range(nodes.n_nodes)}
    for tensor, op in enumerate(profile.tensor_op.tolist()):
        readers = profile.edge_op[profile.edge_ptr[tensor] : profile.edge_ptr[tensor + 1]]
        found[int(node[op])].append(np.unique(node[readers]))
    for back in np.unique(node[backward_ops(problem)]).tolist():
        del found[back]
    return found


def _merge_inputs(
    nodes: Nodes,
    source: IntArray,
    target: IntArray,
    into: IntArray,
    work_us: FloatArray,
    most_us: float,
    may: Callable[[int, int], bool] = lambda node, first: True,
) -> None:
    """Write into ``into`` which inputs are merged with which of their readers."""
    ptr, readers = adjacency(source, target, nodes.n_nodes)
    runs: BoolArray = np.isfinite(nodes.work_us.sum(axis=2)).T
    order = topological_order(nodes.n_nodes, ptr, readers).tolist()
    below = [0] * nodes.n_nodes  # each node and all that follow it, as the bits of a number
    for node in reversed(order):
        below[node] = 1 << node
        for reader in readers[ptr[node] : ptr[node + 1]].tolist():
            below[node] |= below[reader]
    waits_for = np.bincount(target, minlength=nodes.n_nodes)
    for node in order:
        own = readers[ptr[node] : ptr[node + 1]]
        if waits_for[node] or into[node] != node or work_us[node] > most_us or not len(own):
            continue
        first = max(own.tolist(), key=lambda reader: below[reader].bit_count())
        every = all(below[first] >> reader & 1 for reader in own.tolist())
        every = every and into[first] == first and bool((runs[node] >= runs[first]).all())
        if every and may(node, first):
            into[into == node] = first
            work_us[first] += work_us[node]
            waits_for[own] -= 1


def _forward_graph(problem: Problem, backward: BoolArray) -> tuple[IntArray, IntArray]:
    """Find the label of each op, and edges between labels, shape (n_edges, 2).

    The optimiser's ops follow their unit and add no edges. The forward and the backward ops of a
    unit share a label, so an orphaned backward node and its artificial forward image have one label
    from the start.
    """
    profile = problem.profile
    label = problem.unit.astype(np.int64)
    has_forward = np.zeros(problem.n_units, dtype=bool)
    has_forward[label[~backward]] = True
    on_path = ~optimiser_ops(problem)
    edge = on_path[profile.edge_source] & on_path[profile.edge_op]
    a, b = profile.edge_source[edge], profile.edge_op[edge]
    forward = ~backward[a] & ~backward[b]
    edges = [np.stack([label[a[forward]], label[b[forward]]], axis=1)]
    both = backward[a] & backward[b]
    orphaned = both & ~(has_forward[label[a]] & has_forward[label[b]])
    edges.append(np.stack([label[b[orphaned]], label[a[orphaned]]], axis=1))
    return label, _tidy(np.concatenate(edges))


def _tidy(edges: IntArray) -> IntArray:
    """Keep each edge once, and drop edges from a node to itself."""
    found: IntArray = np.unique(edges[edges[:, 0] != edges[:, 1]].reshape(-1, 2), axis=0)
    return found


def _relabel(label: IntArray, edges: IntArray, new: IntArray) -> tuple[IntArray, IntArray]:
    return new[label], _tidy(new[edges])


def _strongly_connected(label: IntArray, edges: IntArray) -> tuple[IntArray, IntArray]:
    n = int(label.max()) + 1
    return _relabel(label, edges, strong_components(n, edges[:, 0], edges[:, 1]))


def _without_free_nodes(
    problem: Problem,
    label: IntArray,
    edges: IntArray,
    rule: LoadRule,
    kinds: Kinds,
    op_bytes: IntArray,
) -> tuple[IntArray, IntArray]:
    """Merge nodes that cost nothing with their one neighbour, wherever it goes.

    They take no time, hold no relevant memory and no weights that replicas would all-reduce,
    exchange tensors with no other node in either pass, and are allowed wherever the neighbour is.
    """
    profile = problem.profile
    fits_anywhere = op_bytes.sum() <= min(problem.cluster.capacity_bytes)
    memory_bytes = np.zeros_like(op_bytes) if fits_anywhere else op_bytes
    reduced_us = slowest_sync_us(problem, rule.two_level) * rule.replicate
    each_us = times_us(problem, kinds, rule)
    runs = np.isfinite(each_us)
    work_us = np.where(np.isfinite(problem.time_us), problem.time_us, 0.0).max(axis=1)
    while True:
        n = int(label.max()) + 1
        free = np.bincount(label, weights=work_us, minlength=n) == 0
        free &= np.bincount(label, weights=memory_bytes + reduced_us, minlength=n) == 0
        free &= np.bincount(edges.ravel(), minlength=n) == 1
        ends = np.column_stack([label[profile.edge_source], label[profile.edge_op]])
        free &= np.bincount(_tidy(np.sort(ends, axis=1)).ravel(), minlength=n) == 1
        may = np.ones((n, runs.shape[1]), dtype=bool)
        np.logical_and.at(may, label, runs)
        a, b = edges.T
        into_b, into_a = (free[v] & (may[v] >= may[u]).all(axis=1) for v, u in ((a, b), (b, a)))
        merged = edges[into_a | into_b]
        if not len(merged):
            return label, edges
        label, edges = _relabel(label, edges, components(n, merged[:, 0], merged[:, 1]))


def _nodes(
    problem: Problem,
    label: IntArray,
    edges: IntArray,
    rule: LoadRule,
    kinds: Kinds,
    op_bytes: IntArray,
) -> Nodes:
    n = int(label.max()) + 1
    memory = np.zeros(n, dtype=np.int64)
    np.add.at(memory, label, op_bytes)
    each_us, backward = times_us(problem, kinds, rule).T, backward_ops(problem)
    passes = np.minimum(backward, rule.n_passes - 1)
    work_us = np.zeros((len(each_us), n, rule.n_passes))
    every = np.arange(len(each_us))[:, None]
    np.add.at(work_us, (every, label, passes), each_us)
    forward_us = np.zeros((len(each_us), n))
    ahead_us = np.where(backward | ~np.isfinite(each_us), 0.0, each_us)
    np.add.at(forward_us, (every, label), ahead_us)
    weights_us = slowest_sync_us(problem, rule.two_level)
    sync = np.bincount(label, weights=weights_us, minlength=n).astype(np.float64)
    prices_us, price = prices_of_kinds_us(problem, kinds)
    return Nodes(
        label,
        edges[:, 0],
        edges[:, 1],
        kinds,
        op_bytes,
        work_us,
        memory,
        forward_us,
        sync,
        price,
        build_hyperedges(problem, label, prices_us, rule),
        find_held(problem, label, rule),
        _tied(problem, label),
        _layer(problem, label),
    )


def _layer(problem: Problem, label: IntArray) -> IntArray:
    """Find each node's layer: its first forward op's, else its last other op's; (n_nodes,).

    The optimiser's ops count only if there are no others.
    """
    profile, n = problem.profile, int(label.max()) + 1
    layer_names = [find_layer_name(parts) for parts in parts_of(profile)]
    work_us = np.where(np.isfinite(problem.time_us), problem.time_us, 0.0).max(axis=1)
    of_op = named_layers(profile, layer_names, work_us)
    layer = np.zeros(n, dtype=np.int64)
    if of_op is None:
        return layer
    forward, optimiser = ~backward_ops(problem), optimiser_ops(problem)
    np.maximum.at(layer, label[optimiser], of_op[optimiser])
    layer[label[~optimiser]] = 0
    np.maximum.at(layer, label[~optimiser], of_op[~optimiser])
    layer[label[forward]] = int(of_op.max())
    np.minimum.at(layer, label[forward], of_op[forward])
    return layer


def _tied(problem: Problem, label: IntArray) -> IntArray:
    """Pair forward nodes with orphaned backward nodes that read their tensors; (n_tied, 2)."""
    profile, backward = problem.profile, backward_ops(problem)
    orphaned = np.ones(int(label.max()) + 1, dtype=bool)
    orphaned[label[~backward]] = False
    source, reader = label[profile.edge_source], label[profile.edge_op]
    read = ~orphaned[source] & orphaned[reader]
    return _tidy(np.column_stack([source[read], reader[read]]))


def find_static_excess(problem: Problem, device: IntArray) -> int:
    """Sum by how much a placement exceeds the devices' memory, all ops counted at once.

    This is the paper's measure; the excess of a schedule is :attr:`Schedule.excess_bytes`.
    """
    held = np.zeros(problem.cluster.n_devices, dtype=np.int64)
    np.add.at(held, device, op_memory_bytes(problem))
    return int(np.maximum(held - problem.cluster.capacity_bytes, 0).sum())


def find_step_excess(problem: Problem, device: IntArray) -> int:
    """Sum by how much a step of a placement exceeds the devices' memory."""
    (plan,) = unordered(problem, device, "")
    return simulate(problem, plan).excess_bytes


def with_larger_gpus(problem: Problem, op_bytes: IntArray | None = None) -> tuple[Problem, str]:
    """Give a problem larger GPUs if what all ops count exceeds the memory of all of them.

    By the paper's sum, a step may need less, because not all tensors are in memory at once. So
    there may well be a good partition, and its schedule shows whether it fits.

    Parameters
    ----------
    op_bytes : int array, shape (n_ops,), optional
        What each op counts towards memory; its variables and outputs by default.

    Returns
    -------
    tuple[Problem, str]
        The problem, and a note; the same problem and "" if a partition may fit.
    """
    cluster = problem.cluster
    on_cpu = np.any(problem.unit_allowed[:, cluster.cpus], axis=1)
    what = "weights and outputs of all ops" if op_bytes is None else WHAT_STAYS
    op_bytes = op_memory_bytes(problem) if op_bytes is None else op_bytes
    need_bytes = int(op_bytes[~on_cpu[problem.unit]].sum())
    gpu_bytes = int(cluster.capacity_bytes[cluster.gpus].sum(dtype=np.float64))
    if need_bytes <= gpu_bytes:
        return problem, ""
    factor = SLACK * need_bytes / gpu_bytes
    devices = tuple(
        replace(device, capacity_bytes=min(MAX_BYTES, int(factor * device.capacity_bytes)))
        for device in cluster.devices
    )
    note = (
        f"{what} sum to {size(need_bytes)}, more than all GPUs have: "
        f"divided as if each had {factor:.1f} times its memory; the step's peak shows if it fits"
    )
    return replace(problem, cluster=replace(cluster, devices=devices)), note
