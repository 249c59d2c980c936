"""The connected components of a graph."""

import networkx as nx
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from enplace.values.components import components, strong_components

EDGES = st.lists(st.tuples(st.integers(0, 19), st.integers(0, 19)), max_size=25)


@given(EDGES)
def test_components_are_those_that_networkx_finds(edges):
    source, target = np.array(edges, dtype=np.int64).reshape(-1, 2).T
    graph = nx.DiGraph(edges)
    graph.add_nodes_from(range(20))
    for find, found in (
        (components, nx.weakly_connected_components(graph)),
        (strong_components, nx.strongly_connected_components(graph)),
    ):
        number = find(20, source, target)
        groups = [set(np.flatnonzero(number == n).tolist()) for n in range(number.max() + 1)]
        assert groups == sorted(found, key=min)


def test_no_nodes_have_no_components():
    none = np.zeros(0, dtype=np.int64)
    assert components(0, none, none).tolist() == []
    assert strong_components(0, none, none).tolist() == []
