"""Write a plan into a graph: a device for every op, and the order as control edges."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise

import numpy as np
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef

from enplace.errors import DeadlockError
from enplace.frameworks.tensorflow.graph import (
    consumers_of,
    data_of,
    has_effect,
    node_of,
    producers_of,
    reached,
    slot_of,
)
from enplace.values.plan import Plan
from enplace.values.problem import Problem
from enplace.values.profile import KINDS, FloatArray, IntArray

VARIABLES = ("VarHandleOp", "VariableV2", "Variable", "AutoReloadVariable")

HOST_ONLY = ("IteratorGetNext", "IteratorGetNextSync", "IteratorGetNextAsOptional", "IteratorV2")
"""Ops that fetch batches."""

_FED = ("Placeholder", "PlaceholderWithDefault", "PlaceholderV2")
_NOT_ORDERED = frozenset({"Const", *_FED, *VARIABLES})
"""Ops that do no work while the step runs, so no other op has to wait for them."""

_SWITCH, _MERGE = ("Switch", "RefSwitch"), ("Merge", "RefMerge")
_SEARCH = 64
"""Most ops searched to find that data already implies an edge."""


def place_graph(
    graph_def: GraphDef,
    device_of: Mapping[str, str],
    order: Sequence[Sequence[str]] | None = None,
    host: str = "/device:CPU:0",
) -> GraphDef:
    """Copy a flat graph with devices, and with the order of each device as control edges.

    Parameters
    ----------
    device_of : mapping of str to str
        TensorFlow's device by op. An op that is absent goes to the host if it fetches batches,
        else to its first placed producer or consumer. Readers and writers of a variable stay
        with the variable.
    order : sequence of sequences of str, optional
        The ops of each device, first to last.
    host : str
        The device where batches arrive.

    Raises
    ------
    DeadlockError
        If the order contradicts the graph; names the ops that would wait for each other.
    """
    placed = deepcopy(graph_def)
    devices = complete_devices(placed, device_of, host)
    for node in placed.node:
        node.device = devices[node.name]
        # The devices decide; a colocation group that disagrees would be an error.
        node.attr.pop("_class", None)
    if order is not None:
        at_home = {name for name, device in devices.items() if device == device_of.get(name)}
        _add_order(placed, [[name for name in names if name in at_home] for names in order])
    return placed


def complete_devices(
    graph_def: GraphDef, device_of: Mapping[str, str], host: str
) -> dict[str, str]:
    """Find a device for every node; see :func:`place_graph`."""
    nodes = {node.name: node for node in graph_def.node}
    consumers = consumers_of(graph_def)
    found: dict[str, str] = {}
    for name in sort_nodes(graph_def):
        node = nodes[name]
        around = [found[n] for n in map(node_of, node.input) if n in found]
        around += [device_of[n] for n in consumers[name] if n in device_of]
        if name in device_of:
            found[name] = device_of[name]
        elif node.op in HOST_ONLY or node.op in _FED or not around:
            found[name] = host
        else:
            found[name] = around[0]
    return found | _ops_of_variables(nodes, found)


def _ops_of_variables(nodes: Mapping[str, NodeDef], devices: Mapping[str, str]) -> dict[str, str]:
    """Find the variable's device for every op that takes its handle or its reference."""
    return {
        name: devices[node_of(tensor)]
        for name, node in nodes.items()
        for tensor in data_of(node)
        if nodes[node_of(tensor)].op in VARIABLES
    }


def count_inputs(graph_def: GraphDef) -> int:
    """Count the data and control edges into all nodes."""
    return sum(len(node.input) for node in graph_def.node)


def ordered_ops(graph_def: GraphDef) -> set[str]:
    """Find the ops that can be ordered: they do work, and run exactly once in every step.

    Nothing outside can wait for an op in a branch of TF1's control flow; a step has none of its
    loops. TensorFlow decides when ops run that do not depend on there being a batch
    (:func:`_without_batch`).
    """
    conditions, without_batch = _conditions(graph_def), _without_batch(graph_def)
    return {
        name
        for name, op in ((node.name, node.op) for node in graph_def.node)
        if op not in _NOT_ORDERED and name not in without_batch and not conditions[name]
    }


def _without_batch(graph_def: GraphDef) -> set[str]:
    """Find ops that change state without a batch, such as step counters, and their producers.

    At the end of the data a step stops when it fetches a batch. TensorFlow has started these ops by
    then; a plan that made them wait would change what they count.
    """
    ops = {node.name: node.op for node in graph_def.node}
    fetches = [name for name, op in ops.items() if op in HOST_ONLY]
    if not fetches:
        return set()
    fed = reached(fetches, consumers_of(graph_def).__getitem__)
    changing = [name for name, op in ops.items() if name not in fed and has_effect(op)]
    return reached(changing, producers_of(graph_def).__getitem__)


def _conditions(graph_def: GraphDef) -> dict[str, set[tuple[str, int]]]:
    """Find the predicates, and their outcomes, under which each node runs; none if always."""
    nodes = {node.name: node for node in graph_def.node}
    found: dict[str, set[tuple[str, int]]] = {}
    for name in sort_nodes(graph_def):
        under: set[tuple[str, int]] = set()
        for tensor in nodes[name].input:
            source = nodes[node_of(tensor)]
            under |= found.get(source.name, set())
            if source.op in _SWITCH and tensor[0] != "^":
                under.add((source.input[1], slot_of(tensor)))
        if nodes[name].op in _MERGE:
            under = {(of, outcome) for of, outcome in under if (of, 1 - outcome) not in under}
        found[name] = under
    return found


def device_orders(
    graph_def: GraphDef, problem: Problem, plan: Plan, rank: FloatArray | IntArray
) -> list[list[str]]:
    """Order the ops of each device; empty where the plan fixes no order. Then come wanted pairs.

    Only the order of a ``strict`` plan is binding. In other plans, positions are priorities, which
    matter only once an op's inputs are there. With policy ``fifo`` GPUs need no order: they run
    one op at a time anyway. A CPU of one lane does so only if it is given an order. A CPU that
    runs several ops at once gets none, because control edges can only make one op end before
    another starts.

    Parameters
    ----------
    rank : array, shape (n_ops,)
        Smaller is earlier; ties by position.
    """
    kind, lanes = problem.cluster.kind, problem.cluster.lanes
    before = [[problem.profile.op_names[op] for op in pair] for pair in problem.before]
    has_order = (lanes == 1) & ((kind == KINDS.index("cpu")) | (plan.policy != "fifo"))
    if not has_order.any() and plan.policy == "fifo":
        return before
    names = problem.profile.op_names
    order = [names[op] for op in np.lexsort((plan.position, rank)).tolist()]
    if plan.policy != "strict":
        order = _follow(graph_def, order, before)
    device = dict(zip(names, plan.device.tolist(), strict=True))
    lists: list[list[str]] = [[] for _ in range(problem.cluster.n_devices)]
    for name in order:
        if has_order[device[name]]:
            lists[device[name]].append(name)
    return [*lists, *before]


def _follow(
    graph_def: GraphDef, names: Sequence[str], before: Sequence[Sequence[str]]
) -> list[str]:
    """Sort names topologically; of those that are ready, the first in ``names`` comes first."""
    rank = {name: i for i, name in enumerate(names)}
    sorter = TopologicalSorter(producers_of(graph_def))
    for first, then in before:
        sorter.add(then, first)
    sorter.prepare()
    ready: list[tuple[int, str]] = []
    order = []
    while sorter.is_active():
        for name in sorter.get_ready():
            heapq.heappush(ready, (rank.get(name, -1), name))
        _, name = heapq.heappop(ready)
        order.append(name)
        sorter.done(name)
    return [name for name in order if name in rank]


def _add_order(placed: GraphDef, order: Iterable[Sequence[str]]) -> None:
    """Make each op wait for the one before it, unless data already does so."""
    nodes = {node.name: node for node in placed.node}
    can = ordered_ops(placed)
    pairs = [pair for names in order for pair in pairwise([n for n in names if n in can])]
    rank = {name: i for i, name in enumerate(sort_nodes(placed, pairs))}
    before = producers_of(placed)
    for first, then in pairs:
        if not _implied(first, then, before, rank):
            nodes[then].input.append(f"^{first}")
        before[then].append(first)


def sort_nodes(graph_def: GraphDef, pairs: Iterable[tuple[str, str]] = ()) -> list[str]:
    """Sort the nodes topologically, with the first of each pair before the second."""
    before = producers_of(graph_def)
    for first, then in pairs:
        before[then].append(first)
    try:
        return list(TopologicalSorter(before).static_order())
    except CycleError as error:
        raise DeadlockError(_describe(error.args[1])) from None


def _describe(cycle: Sequence[str]) -> str:
    shown = [f"'{name}'" for name in cycle[:4]] + ["..."] * (len(cycle) > 5)
    return (
        f"the plan's order contradicts the graph: {', '.join(shown)} and '{cycle[-1]}' again would "
        f"wait for each other; make a new plan, or run without the order"
    )


def _implied(
    first: str, then: str, before: Mapping[str, Sequence[str]], rank: Mapping[str, int]
) -> bool:
    """Return whether a short search proves that one op ends before another starts."""
    waiting, seen = [then], {then}
    while waiting and len(seen) < _SEARCH:
        for name in before[waiting.pop()]:
            if name == first:
                return True
            if rank[name] > rank[first] and name not in seen:
                seen.add(name)
                waiting.append(name)
    return False
