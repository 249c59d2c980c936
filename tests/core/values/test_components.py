"""The connected components of a graph."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from enplace.values.components import components

EDGES = st.lists(st.tuples(st.integers(0, 19), st.integers(0, 19)), max_size=25)


@given(EDGES)
def test_components_are_those_that_scipy_finds(edges):
    source, target = np.array(edges, dtype=np.int64).reshape(-1, 2).T
    graph = coo_array((np.ones(len(edges)), (source, target)), shape=(20, 20))
    expected = connected_components(graph, directed=False)[1]
    assert components(20, source, target).tolist() == expected.tolist()


def test_no_nodes_have_no_components():
    none = np.zeros(0, dtype=np.int64)
    assert components(0, none, none).tolist() == []
