"""Baechi's m-sct: small communication times (Hanen and Munier 1995), within memory.

A linear program gives an op a favourite child: the consumer that should follow it on the same
device at once. The schedule is built as in :mod:`enplace.placers.baechi.m_etf`, but a device waits
for the favourite child of its last op if that is ready and can start first there. An urgent op, one
that could start now wherever it may go, pre-empts it. Where Baechi leaves the choice open, this is
what we do:

- A node of the program is an op with its followers; its time is the shortest over the devices, and
  its transfers are over the average link.
- The program is solved for :data:`WINDOW` nodes at a time in topological order, given the decisions
  of the windows before. For smaller graphs it is exactly Baechi's. Everything after a window counts
  as its longest path without transfers.
- With a time limit, the windows that there is no time for get no program: their ops are favourite
  children of none, as in m-etf.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from enplace.coarsen import GroupedGraph, find_leaders, group_graph, mean_link
from enplace.errors import EnplaceError
from enplace.linear import ModelBuilder
from enplace.placers.baechi.m_etf import earliest_first
from enplace.placing.candidates import best_that_fits, by_start_or_rank
from enplace.placing.list_schedule import MEMORY_RULE
from enplace.placing.options import PlaceOptions
from enplace.placing.registry import CHANNELS, HETEROGENEOUS, MEMORY, placer
from enplace.placing.settle import natural_position
from enplace.solvers.milp import solve_milp
from enplace.text import percent
from enplace.values.plan import Plan
from enplace.values.problem import Problem
from enplace.values.profile import FloatArray, IntArray

WINDOW = 2000
"""Most nodes of one linear program."""

THRESHOLD = 0.1
"""An edge with a smaller variable leads to a favourite child, as in Baechi."""

LONGEST_S = 60.0
"""Time limit in seconds for one linear program if none is set; most take about one second."""

PROGRAMS_SHARE = 0.5
"""Share of the time limit after which the programs end; the schedule needs the rest."""


@placer(
    "m-sct",
    title="m-sct, Baechi",
    good=(
        "Where transfers take less time than ops, which the theory behind it assumes: it can "
        "then save transfers that m-etf makes. On our samples it is seldom better than m-etf, "
        "and it takes longer."
    ),
    source="Baechi (SoCC 2020)",
    capabilities=(MEMORY, HETEROGENEOUS, CHANNELS),
    options=(MEMORY_RULE,),
)
def m_sct(problem: Problem, options: PlaceOptions) -> Plan:
    """Start the op that can start first, but wait for a favourite child."""
    favourite, decided = favourite_children(problem, options)

    def candidates(memory_share: float) -> Iterator[Plan]:
        device, start_us = earliest_first(problem, favourite, options, memory_share)
        return by_start_or_rank(problem, device, start_us, "m-sct")

    plan = best_that_fits(problem, candidates, options).plan
    if decided < 1:
        note = f"There was too little time for {percent(1 - decided)} of the linear programs."
        plan = plan.with_notes(plan.note, note)
    return plan


def favourite_children(
    problem: Problem, options: PlaceOptions, window: int = WINDOW
) -> tuple[IntArray, float]:
    """Find the favourite child of each op.

    No op has two favourite children, or is the favourite child of two ops.

    Returns
    -------
    favourite : int array, shape (n_ops,)
        -1 for an op without one.
    decided : float
        The share of the linear programs that there was time for.
    """
    position = natural_position(problem)
    leaders, node = np.unique(position[find_leaders(problem, position)], return_inverse=True)
    graph = group_graph(problem, node.astype(np.int64))
    edge_us = graph.edge_us(mean_link(problem.cluster))
    undecided, decided = _undecided(graph, edge_us, options, window)
    op = problem.profile.topological_order[leaders]
    chosen = undecided < THRESHOLD
    favourite = np.full(problem.profile.n_ops, -1, dtype=np.int64)
    favourite[op[graph.source[chosen]]] = op[graph.target[chosen]]
    return favourite, decided


def _undecided(
    graph: GroupedGraph, edge_us: FloatArray, options: PlaceOptions, window: int
) -> tuple[FloatArray, float]:
    """Solve for the variable x of each edge: 0 for a favourite child, 1 for other targets.

    Stop when the programs' share of the time limit is used up; also return how much is solved.
    """
    time_us = graph.time_us.min(axis=1)
    tail_us = _tails(graph, time_us)
    by_target = np.argsort(graph.target, kind="stable")
    x, end_us = np.ones(len(edge_us)), np.zeros(graph.n_groups)
    for first in range(0, graph.n_groups, window):
        nodes = np.arange(first, min(first + window, graph.n_groups))
        here = np.searchsorted(graph.target[by_target], [nodes[0], nodes[-1] + 1])
        edges = by_target[here[0] : here[1]]
        used = np.bincount(graph.source, weights=1 - x, minlength=graph.n_groups)
        solved = _solve(
            graph, nodes, edges, time_us, edge_us, tail_us, end_us, np.minimum(used, 1.0), options
        )
        if solved is None:
            return x, first / graph.n_groups
        x[edges], end_us[nodes] = solved
    return x, 1.0


def _tails(graph: GroupedGraph, time_us: FloatArray) -> FloatArray:
    """Find the longest path after each node, without transfers; nodes are numbered along edges."""
    tail = np.zeros(graph.n_groups)
    for edge in range(len(graph.source) - 1, -1, -1):
        source, target = graph.source[edge], graph.target[edge]
        tail[source] = max(tail[source], time_us[target] + tail[target])
    return tail


def _solve(
    graph: GroupedGraph,
    nodes: IntArray,
    edges: IntArray,
    time_us: FloatArray,
    edge_us: FloatArray,
    tail_us: FloatArray,
    end_us: FloatArray,
    used: FloatArray,
    options: PlaceOptions,
) -> tuple[FloatArray, FloatArray] | None:
    """Solve Baechi's program for some nodes and the edges that lead to them.

    None if the programs' share of the time limit ends before.

    Parameters
    ----------
    end_us : float array, shape (n_groups,)
        When the nodes of earlier windows end.
    used : float array, shape (n_groups,)
        The share of a favourite child that each node has already been given.

    Returns
    -------
    x, end_us : float arrays, shapes (n_edges,) and (n_nodes,)
    """
    builder = ModelBuilder()
    makespan = builder.variables(1, cost=1.0)
    start = builder.variables(len(nodes))
    x = builder.variables(len(edges), upper=1.0)
    source, target = graph.source[edges], graph.target[edges]
    # A target starts after its source, and after the transfer unless it is the favourite child.
    inside = source >= nodes[0]
    after = start[target - nodes[0]]
    before = start[source[inside] - nodes[0]]
    builder.rows(
        [(1.0, after[inside]), (-edge_us[edges[inside]], x[inside]), (-1.0, before)],
        lower=time_us[source[inside]],
    )
    builder.rows(
        [(1.0, after[~inside]), (-edge_us[edges[~inside]], x[~inside])],
        lower=end_us[source[~inside]],
    )
    builder.rows([(1.0, makespan), (-1.0, start)], lower=(time_us + tail_us)[nodes])
    # A node has at most one favourite child, and is the favourite child of at most one node.
    parents, of_parent, children = np.unique(source, return_inverse=True, return_counts=True)
    builder.sums(len(parents), [(of_parent, 1.0, x)], lower=children - 1 + used[parents])
    _, of_child, edges_in = np.unique(target, return_inverse=True, return_counts=True)
    builder.sums(len(edges_in), [(of_child, 1.0, x)], lower=edges_in - 1)
    left_s = LONGEST_S
    if options.stop.limit_s is not None:
        left_s = options.stop.left_s(PROGRAMS_SHARE)
    answer = solve_milp(
        builder.model(), None, left_s, options.stop.cancelled, report=lambda answer: None
    )
    options.stop.check()
    if answer.status == "stopped" and options.stop.limit_s is not None:
        return None
    if answer.status != "optimal" or answer.values is None:
        raise EnplaceError(
            f"m-sct: the linear program was not solved ({answer.why or answer.status}); "
            f"try another method"
        )
    return answer.values[x], answer.values[start] + time_us[nodes]
