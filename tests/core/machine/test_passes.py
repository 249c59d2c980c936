"""Values that never fall along an edge, against a readable reference."""

import networkx as nx
import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tests.problems import profiles

from enplace.values.arrays import raise_along_edges


@given(profile=profiles(), seed=st.integers(0, 99))
def test_each_value_becomes_the_largest_of_all_ancestors(profile, seed):
    value = np.random.default_rng(seed).integers(0, 9, profile.n_ops)
    graph = nx.DiGraph(zip(profile.edge_source.tolist(), profile.edge_op.tolist(), strict=True))
    graph.add_nodes_from(range(profile.n_ops))
    expected = [
        max(value[op], *value[list(nx.ancestors(graph, op))], 0) for op in range(profile.n_ops)
    ]
    found, first_edge = value.copy(), profile.edge_ptr[profile.tensor_ptr]
    raise_along_edges(profile.topological_order, first_edge, profile.edge_op, found)
    assert found.tolist() == expected
