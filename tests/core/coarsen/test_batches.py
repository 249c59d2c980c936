"""Batch merging: the guarantees of the theorem, and a case that its printed form misses."""

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.coarsen.reference import (
    fill_slowly,
    find_levels_slowly,
    heights_slowly,
    match_slowly,
)
from tests.core.placers.problems import gpus, line, problems

from enplace.coarsen import batches, contract, merge_batches
from enplace.coarsen.batches import MEMORY_SHARE
from enplace.values.problem import Problem


def contracted(problem, vertex):
    """Return the graph of merged vertices."""
    graph = nx.DiGraph()
    graph.add_nodes_from(vertex.tolist())
    profile = problem.profile
    for a, b in zip(vertex[profile.edge_source], vertex[profile.edge_op], strict=True):
        if a != b:
            graph.add_edge(int(a), int(b))
    return graph


@given(problem=problems(), target=st.integers(1, 8), critical=st.booleans())
def test_merging_leaves_no_cycle_and_loses_no_op(problem, target, critical):
    vertex = merge_batches(problem, target, critical=critical)
    assert sorted(set(vertex.tolist())) == list(range(vertex.max() + 1))
    assert nx.is_directed_acyclic_graph(contracted(problem, vertex))


@given(problem=problems(), target=st.integers(1, 8), critical=st.booleans())
def test_merging_equals_the_reference(problem, target, critical):
    vertex = merge_batches(problem, target, critical=critical)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batches, "_matching", match_slowly)
        patch.setattr(batches, "_fill", fill_slowly)
        patch.setattr(batches, "_heights", heights_slowly)
        patch.setattr(batches, "_find_levels", find_levels_slowly)
        assert merge_batches(problem, target, critical=critical).tolist() == vertex.tolist()


@given(problem=problems(), target=st.integers(1, 8), critical=st.booleans())
def test_merged_ops_have_the_same_allowed_devices(problem, target, critical):
    vertex = merge_batches(problem, target, critical=critical)
    allowed = problem.unit_allowed[problem.unit]
    for number in range(vertex.max() + 1):
        assert len(np.unique(allowed[vertex == number], axis=0)) == 1


@given(problem=problems(), target=st.integers(1, 8), seed=st.integers(0, 9))
def test_ops_on_different_devices_of_a_placement_stay_apart(problem, target, seed):
    drawn = np.random.default_rng(seed).integers(0, problem.cluster.n_devices, problem.n_units)
    device = drawn[problem.unit]
    vertex = merge_batches(problem, target, critical=True, device=device)
    assert all(len(set(device[vertex == number])) == 1 for number in range(vertex.max() + 1))
    assert nx.is_directed_acyclic_graph(contracted(problem, vertex))


@st.composite
def random_graphs(draw):
    n = draw(st.integers(2, 30))
    pairs = [(a, b) for a in range(n) for b in range(a + 1, n)]
    edges = draw(st.lists(st.sampled_from(pairs), max_size=3 * n, unique=True))
    costs = [draw(st.floats(0.1, 9.0)) for _ in range(n)]
    sizes = [draw(st.integers(0, 100)) for _ in range(n)]
    return line(costs, [(a, b, sizes[a]) for a, b in edges])


@given(profile=random_graphs(), target=st.integers(1, 10), critical=st.booleans())
def test_the_target_is_reached_if_memory_and_devices_allow_it(profile, target, critical):
    vertex = merge_batches(Problem(profile, gpus(2)), target, critical=critical)
    assert vertex.max() + 1 <= target
    assert nx.is_directed_acyclic_graph(contracted(Problem(profile, gpus(2)), vertex))


def test_merges_that_are_safe_only_separately_make_no_cycle():
    """Two pairs with edges in both directions: merging both at once would make a cycle.

    The printed theorem allows it.
    """
    edges = [(0, 2, 9), (1, 3, 9), (0, 3, 1), (1, 2, 1)]
    problem = Problem(line([1.0] * 4, [(a, b, 5) for a, b, _ in edges]), gpus(2))
    vertex = merge_batches(problem, 2)
    assert vertex.max() + 1 <= 2
    assert nx.is_directed_acyclic_graph(contracted(problem, vertex))


@given(problem=problems(12), critical=st.booleans())
def test_a_problem_can_still_be_placed_after_merging(problem, critical):
    """Contracting raises no error."""
    contract(problem, merge_batches(problem, 2, critical=critical))


def test_a_vertex_stays_within_its_share_of_memory():
    profile = line([1.0] * 8, [(i, i + 1, 1) for i in range(7)], persistent=[100] * 8)
    problem = Problem(profile, gpus(2, capacity=1200))
    vertex = merge_batches(problem, 1)
    held = np.bincount(vertex, profile.persistent_bytes)
    assert held.max() <= MEMORY_SHARE * 1200


def test_ops_without_edges_are_merged_too():
    problem = Problem(line([1.0] * 40, []), gpus(2))
    assert merge_batches(problem, 5).max() + 1 <= 5


def test_colocated_ops_are_merged_first_unless_that_makes_a_cycle():
    edges = [(0, 1, 4), (1, 2, 4), (2, 3, 4)]
    apart = line([1.0] * 4, edges, colocation=["v", "", "", "v"])
    adjacent = line([1.0] * 4, edges, colocation=["", "v", "v", ""])
    assert len(set(merge_batches(Problem(apart, gpus(2)), 4).tolist())) == 4
    vertex = merge_batches(Problem(adjacent, gpus(2)), 4)
    assert vertex[1] == vertex[2]


def test_the_critical_variant_keeps_branches_apart():
    """Eight equal branches must stay parallel."""
    n = 8
    edges = [(0, i, 4) for i in range(1, n + 1)] + [(i, n + 1, 4) for i in range(1, n + 1)]
    problem = Problem(line([1.0] + [10.0] * n + [1.0], edges), gpus(2))
    vertex = merge_batches(problem, 4, critical=True)
    work = np.bincount(vertex, problem.time_us[:, 0])
    assert work.max() <= 0.6 * work.sum()


@pytest.mark.parametrize("critical", [False, True])
def test_a_graph_that_is_small_enough_is_left_alone(critical):
    problem = Problem(line([1.0, 1.0], [(0, 1, 4)]), gpus(2))
    assert merge_batches(problem, 2, critical=critical).tolist() == [0, 1]
