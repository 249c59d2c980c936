"""Profiles as graphs of networkx, and back."""

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from tests.problems import profile_of, profiles

import enplace as ep


def chain() -> nx.DiGraph:
    graph = nx.DiGraph()
    graph.add_node("net/a", gpu_us=10, type="MatMul", persistent_bytes=100)
    graph.add_node("net/b", gpu_us=20.5, cpu_us=40, colocation="pair")
    graph.add_edge("net/a", "net/b", bytes=64)
    return graph


@given(profiles())
def test_a_profile_survives_the_way_there_and_back(profile):
    again = ep.from_networkx(ep.to_networkx(profile))
    assert again.name == profile.name
    assert again.fingerprint == profile.fingerprint
    assert again.scopes == profile.scopes
    assert again.colocation == profile.colocation
    for name in ("time_us", "persistent_bytes", "temporary_bytes", "tensor_bytes"):
        np.testing.assert_array_equal(getattr(again, name), getattr(profile, name))


def test_costs_are_attributes():
    profile = profile_of(
        {"a": 1.0, "b": 2.0}, [("a", "b", 8)], control=[("a", "b")], persistent={"a": 5}
    )
    graph = ep.to_networkx(profile)
    assert type(graph) is nx.DiGraph
    assert graph.nodes["a"]["gpu_us"] == 1.0
    assert "cpu_us" not in graph.nodes["a"]
    assert graph.nodes["a"]["persistent_bytes"] == 5
    assert graph.edges["a", "b"] == {"bytes": 8, "outputs": {-1: 0, 0: 8}}
    assert nx.dag_longest_path(graph, weight="bytes") == ["a", "b"]


def test_a_graph_becomes_a_profile_with_the_usual_defaults():
    profile = ep.from_networkx(chain(), name="small")
    assert profile.name == "small"
    assert profile.op_names == ("net/a", "net/b")
    assert profile.scopes == ("net", "net")
    assert profile.colocation == ("", "pair")
    assert profile.persistent_bytes.tolist() == [100, 0]
    np.testing.assert_array_equal(profile.time_us, [[10, np.nan], [20.5, 40]])
    assert profile.tensor_bytes.tolist() == [64]
    assert ep.place(profile, "h200-2-nvlink", "single").step_time_us == pytest.approx(30.5)


def test_numbers_of_numpy_nodes_of_any_kind_and_other_attributes_are_fine():
    graph = nx.DiGraph(name="numbers")
    graph.add_node(1, gpu_us=np.float32(2), persistent_bytes=np.int64(7), colour="red")
    graph.add_node((2, 3), gpu_us=np.int32(3))
    graph.add_edge(1, (2, 3), bytes=np.int64(1 << 61))
    profile = ep.from_networkx(graph)
    assert profile.op_names == ("1", "(2, 3)")
    assert profile.tensor_bytes.tolist() == [1 << 61]


def test_edges_may_only_order_ops_or_carry_several_outputs():
    graph = chain()
    graph.add_node("c", gpu_us=1)
    graph.add_edge("net/a", "c", control=True)
    graph.add_edge("net/b", "c", outputs={0: 8, 2: 16})
    profile = ep.from_networkx(graph)
    assert profile.tensor_output.tolist() == [-1, 0, 0, 2]
    assert profile.tensor_bytes.tolist() == [0, 64, 8, 16]


def set_node(**attributes):
    return lambda graph: graph.nodes["net/b"].update(attributes)


def set_edge(**attributes):
    return lambda graph: graph.edges["net/a", "net/b"].update(attributes)


EDGE = "edge 'net/a' -> 'net/b'"


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda g: g.add_node("c"), "node 'c' has no 'gpu_us' or 'cpu_us'; give it its compute"),
        (lambda g: g.add_edge("net/a", "c", bytes=64), "node 'c' has no 'gpu_us' or 'cpu_us'"),
        (set_node(gpu_us="fast"), "node 'net/b': 'gpu_us' must be a number from 0 to .*'fast'"),
        (set_node(gpu_us=-1), "node 'net/b': 'gpu_us' must be a number from 0"),
        (set_node(cpu_us=float("nan")), "node 'net/b': 'cpu_us' must be a number .* not nan"),
        (set_node(persistent_bytes=1.5), "node 'net/b': 'persistent_bytes' must be a whole number"),
        (set_node(temporary_bytes=True), "node 'net/b': 'temporary_bytes' must be a number"),
        (set_node(type=3), "node 'net/b': 'type' must be a text, not 3"),
        (set_edge(bytes=None), f"{EDGE} has no 'bytes'; add it"),
        (set_edge(bytes="64"), f"{EDGE}: 'bytes' must be a number"),
        (set_edge(outputs=[64]), f"{EDGE}: 'outputs' must be a dict"),
        (set_edge(outputs={-2: 64}), f"{EDGE}: 'outputs' must be a dict"),
        (set_edge(outputs={1: None}), f"{EDGE}, outputs has no '1'; add it"),
        (set_edge(outputs={1: 65}), f"{EDGE}: 'bytes' is 64, but its 'outputs' hold 65"),
        (lambda g: g.add_edge("net/b", "net/a", bytes=1), "has a cycle: net/b -> net/a -> net/b"),
    ],
)
def test_what_is_missing_or_wrong_is_refused_in_one_line(change, complaint):
    graph = chain()
    change(graph)
    with pytest.raises(ep.EnplaceError, match=complaint) as caught:
        ep.from_networkx(graph)
    assert "\n" not in str(caught.value)


def test_a_name_is_a_string():
    with pytest.raises(ep.EnplaceError, match=r"^name is 5; use a string$"):
        ep.from_networkx(chain(), name=5)


def test_edges_of_one_output_have_the_same_bytes():
    graph = chain()
    graph.add_node("c", gpu_us=1)
    graph.add_edge("net/a", "c", bytes=1)
    with pytest.raises(ep.EnplaceError, match="op 'net/a', output 0: its edges give"):
        ep.from_networkx(graph)


def test_a_graph_without_direction_and_one_without_nodes_are_refused():
    with pytest.raises(ep.EnplaceError, match=r"give a networkx\.DiGraph"):
        ep.from_networkx(nx.Graph(chain()))
    with pytest.raises(ep.EnplaceError, match="has no ops"):
        ep.from_networkx(nx.DiGraph())
