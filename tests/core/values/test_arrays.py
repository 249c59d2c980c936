"""Helpers on flat arrays, against networkx and by hand."""

from itertools import combinations, permutations

import networkx as nx
import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from enplace.values.arrays import (
    adjacency,
    assign,
    csr_offsets,
    inverse,
    is_permutation,
    longest_rise,
    sum_at,
    topological_order,
    upward_rank,
)


@st.composite
def dags(draw):
    """Draw edges of an acyclic graph with randomly numbered nodes, sorted by source."""
    n = draw(st.integers(1, 8))
    name = np.random.default_rng(draw(st.integers(0, 99))).permutation(n)
    pairs = st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)).filter(lambda e: e[0] < e[1])
    edges = draw(st.sets(pairs, max_size=12)) if n > 1 else set()
    ends = np.array(sorted((name[a], name[b]) for a, b in edges), dtype=np.int64).reshape(-1, 2)
    return n, csr_offsets(ends[:, 0], n), np.ascontiguousarray(ends[:, 1]), ends


def test_the_inverse_of_an_order_gives_positions():
    assert inverse(np.array([2, 0, 1])).tolist() == [1, 2, 0]


@given(cost=st.integers(1, 5).flatmap(lambda n: arrays(float, (n, n), elements=st.integers(-9, 9))))
def test_the_cheapest_assignment_is_found(cost):
    rows = np.arange(len(cost))
    least = min(cost[rows, list(columns)].sum() for columns in permutations(rows))
    assert cost[rows, assign(cost)].sum() == least


def test_offsets_find_the_entries_of_each_owner():
    assert csr_offsets(np.array([0, 0, 2]), 4).tolist() == [0, 2, 2, 3, 3]


def test_edges_are_listed_by_node_in_the_order_in_which_they_were_given():
    offsets, targets = adjacency(np.array([2, 0, 2, 2]), np.array([1, 3, 0, 1]), 4)
    assert (offsets.tolist(), targets.tolist()) == ([0, 1, 1, 4, 4], [3, 1, 0, 1])


@given(dag=dags())
def test_an_order_is_topological_and_ranks_are_the_longest_paths(dag):
    n, out_ptr, target, ends = dag
    order = topological_order(n, out_ptr, target)
    position = inverse(order)
    assert sorted(order.tolist()) == list(range(n))
    assert (position[ends[:, 0]] < position[ends[:, 1]]).all()
    work, cost = np.arange(1.0, n + 1), np.arange(len(target)) / 8
    graph = nx.DiGraph()
    graph.add_nodes_from(range(n), weight=0.0)
    for (source, to), us in zip(ends.tolist(), cost.tolist(), strict=True):
        graph.add_edge(source, to, weight=us + work[to])
    ranks = upward_rank(order, out_ptr, target, work, cost)
    for node in range(n):
        below = graph.subgraph({node} | nx.descendants(graph, node))
        assert ranks[node] == work[node] + nx.dag_longest_path_length(below)


def test_nodes_on_or_after_a_cycle_are_left_out_of_the_order():
    # 0 -> 1, 1 -> 2, 2 -> 1, 2 -> 3
    order = topological_order(4, np.array([0, 1, 2, 4, 4]), np.array([1, 2, 1, 3]))
    assert order.tolist() == [0]


@given(st.permutations(range(7)))
def test_no_rising_subsequence_is_longer(values):
    found = longest_rise(values)
    assert found == sorted(found)
    assert sorted(values[at] for at in found) == [values[at] for at in found]
    subsets = (chosen for n in range(8) for chosen in combinations(values, n))
    assert len(found) == max(len(each) for each in subsets if list(each) == sorted(each))


def test_a_permutation_holds_each_number_once():
    assert is_permutation(np.array([2, 0, 1]))
    assert is_permutation(np.array([], dtype=np.int64))
    for wrong in ([0, 0, 1], [0, 1, 3], [-1, 0, 1]):
        assert not is_permutation(np.array(wrong))


def test_values_are_summed_by_their_place_in_a_table():
    row, column = np.array([0, 1, 0, 0]), np.array([1, 2, 1, 0])
    sums = sum_at(row, column, np.array([1.0, 2.0, 4.0, 8.0]), (3, 3))
    assert sums.tolist() == [[8, 5, 0], [0, 0, 2], [0, 0, 0]]
