"""Followers, grouped graphs and Optimal Operation Fusion against slow references and invariants."""

import itertools

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.coarsen.reference import tie_slowly
from tests.core.placers.problems import gpus, line, problems

from enplace.coarsen import cpd_topo, find_leaders, fuse, group_graph, mean_link, tie_heavy_edges
from enplace.coarsen import heavy_edges as ties
from enplace.coarsen.fusion import breakpoints, shortest_time_us
from enplace.coarsen.grouped import op_memory_bytes
from enplace.placing.settle import natural_position
from enplace.values.cluster import LinkCost
from enplace.values.problem import Problem


def every_op_alone(problem):
    return group_graph(problem, np.arange(problem.profile.n_ops))


def reference_cpath(graph, cost):
    """Return the longest path through each node, with transfers and work (equations 2 and 3)."""
    work = shortest_time_us(graph)
    dag = nx.DiGraph()
    dag.add_nodes_from(range(graph.n_groups))
    dag.add_weighted_edges_from(zip(graph.source, graph.target, cost, strict=True))
    top, bottom = {}, {}
    order = list(nx.topological_sort(dag))
    for v in order:
        top[v] = max((top[u] + work[u] + dag[u][v]["weight"] for u in dag.pred[v]), default=0.0)
    for v in reversed(order):
        bottom[v] = work[v] + max((bottom[s] + dag[v][s]["weight"] for s in dag[v]), default=0.0)
    return dag, {v: top[v] + bottom[v] for v in dag}


def reference_cpd_topo(graph, cost):
    """Return the order of Algorithm 1 as printed: nodes enter and leave its queue at the head."""
    dag, cpath = reference_cpath(graph, cost)
    queue = sorted((v for v in dag if not dag.in_degree(v)), key=lambda v: (-cpath[v], v))
    order = []
    while queue:
        node = queue.pop(0)
        order.append(node)
        children = sorted(dag[node], key=lambda v: (cpath[v], -v))
        dag.remove_edges_from([(node, child) for child in children])
        for child in children:
            if not dag.in_degree(child):
                queue.insert(0, child)
    return order


def cut_cost(graph, cost, segment_of):
    """Return the cost of the edges between segments, given the segment of each node."""
    return cost[segment_of[graph.source] != segment_of[graph.target]].sum()


@given(problem=problems())
def test_cpd_topo_equals_algorithm_1(problem):
    graph = every_op_alone(problem)
    # With whole numbers, sums are exact, so both sides break ties alike.
    cost = np.round(graph.edge_us(mean_link(problem.cluster)))
    assert cpd_topo(graph, cost).tolist() == reference_cpd_topo(graph, cost)


def test_cpd_topo_finishes_a_branch_before_the_next():
    """Figure 3: a breadth-first order interleaves two branches; CPD-TOPO runs the longer first."""
    problem = Problem(
        line([1.0] * 4 + [2.0] * 4, [(i, i + 1, 8) for i in (0, 1, 2, 4, 5, 6)]), gpus(2)
    )
    graph = every_op_alone(problem)
    assert problem.profile.topological_order.tolist() == [0, 4, 1, 5, 2, 6, 3, 7]
    cost = graph.edge_us(mean_link(problem.cluster))
    assert cpd_topo(graph, cost).tolist() == [4, 5, 6, 7, 0, 1, 2, 3]


@given(
    problem=problems(max_ops=9), reach=st.integers(1, 5), limit=st.sampled_from([800, 3000, 10**9])
)
def test_breakpoints_cost_as_little_as_the_best_of_all_cuts(problem, reach, limit):
    graph = every_op_alone(problem)
    n, cost = graph.n_groups, np.round(graph.edge_us(LinkCost(3.0, 0.5)))
    order = cpd_topo(graph, cost)
    memory = graph.memory_bytes[order]

    def allowed(sizes):
        ends = list(itertools.accumulate(sizes))
        return all(
            size == 1 or (size <= reach and memory[end - size : end].sum() <= limit)
            for size, end in zip(sizes, ends, strict=True)
        )

    def by_node(segments):
        segment_of = np.empty(n, dtype=np.int64)
        segment_of[order] = segments
        return segment_of

    best = np.inf
    for cuts in itertools.product([False, True], repeat=n - 1):
        segments = np.cumsum([0, *cuts])
        if allowed(np.bincount(segments).tolist()):
            best = min(best, cut_cost(graph, cost, by_node(segments)))
    found = breakpoints(graph, cost, order, reach, limit)
    assert allowed(np.bincount(found).tolist())
    assert cut_cost(graph, cost, by_node(found)) == best


@given(problem=problems(), reach=st.integers(1, 8))
def test_fusion_is_an_acyclic_partition_that_conserves_time_and_bytes(problem, reach):
    profile = problem.profile
    group = fuse(problem, reach=reach)
    assert sorted(set(group.tolist())) == list(range(group.max() + 1))
    assert (group[profile.edge_source] <= group[profile.edge_op]).all()
    leader = find_leaders(problem, natural_position(problem))
    assert np.array_equal(group, group[leader])
    assert max(len(np.unique(leader[group == g])) for g in range(group.max() + 1)) <= reach

    graph = group_graph(problem, group)
    runs = np.isfinite(problem.time_us)
    assert np.isclose(
        np.where(np.isfinite(graph.time_us), graph.time_us, 0).sum(), problem.time_us[runs].sum()
    )
    assert graph.memory_bytes.sum() == op_memory_bytes(problem).sum()
    crossing = {
        (tensor, group[op])
        for tensor, op in zip(profile.edge_tensor.tolist(), profile.edge_op.tolist(), strict=True)
        if group[op] != group[profile.tensor_op[tensor]]
    }
    assert graph.tensors.sum() == len(crossing)
    assert graph.edge_bytes.sum() == sum(int(profile.tensor_bytes[t]) for t, _ in crossing)


@given(problem=problems())
def test_a_leader_comes_before_other_consumers_of_its_followers(problem):
    profile, position = problem.profile, natural_position(problem)
    leader = find_leaders(problem, position)
    assert np.array_equal(leader[leader], leader)
    source, target = leader[profile.edge_source], leader[profile.edge_op]
    apart = source != target
    assert (position[source[apart]] < position[target[apart]]).all()
    followers = np.flatnonzero(leader != np.arange(profile.n_ops))
    assert not (problem.time_us[followers] > 0)[np.isfinite(problem.time_us[followers])].any()


def test_a_chain_of_constants_joins_its_first_real_consumer():
    edges = [(0, 1, 4), (1, 3, 4), (2, 3, 4), (1, 4, 4)]
    problem = Problem(line([0.0, 0.0, 5.0, 5.0, 5.0], edges), gpus(2))
    leader = find_leaders(problem, natural_position(problem))
    assert leader.tolist() == [3, 3, 2, 3, 4]


@given(problem=problems(), ratio=st.sampled_from([0.0, 1.0]), share=st.floats(0, 1))
def test_ties_join_whole_units_up_to_a_limit(problem, ratio, share):
    tied = tie_heavy_edges(problem, ratio, share)
    work = problem.time_us.min(axis=1)
    allowed = problem.unit_allowed[problem.unit]
    for group in range(tied.max() + 1):
        members = tied == group
        units = np.unique(problem.unit[members])
        assert np.isin(problem.unit, units)[members].all()
        assert members.sum() == np.isin(problem.unit, units).sum()
        assert (allowed[members] == allowed[members][0]).all()
        if len(units) > 1:
            assert work[members].sum() <= share * work.sum() * (1 + 1e-9)


@given(
    problem=problems(), ratio=st.sampled_from([0.0, 1.0]), share=st.sampled_from([0.3, 0.6, 1.0])
)
def test_ties_equal_the_reference(problem, ratio, share):
    tied = tie_heavy_edges(problem, ratio, share)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ties, "_join", tie_slowly)
        reference = tie_heavy_edges(problem, ratio, share)
    pairs = set(zip(tied.tolist(), reference.tolist(), strict=True))
    assert len(pairs) == len(set(tied.tolist())) == len(set(reference.tolist()))


def test_a_heavy_tensor_ties_its_ends():
    problem = Problem(line([1.0] * 3, [(0, 1, 10**6), (1, 2, 4)]), gpus(2, b0=1.0, b1=0.001))
    assert tie_heavy_edges(problem, 1.0, 1.0).tolist() == [0, 0, 1]
    assert tie_heavy_edges(problem, 1.0, 0.5).tolist() == [0, 1, 2]
