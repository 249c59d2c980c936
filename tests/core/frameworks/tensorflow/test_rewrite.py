"""Plans written into graphs, most of them random; no graph is run."""

from itertools import pairwise

import networkx as nx
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from tensorflow.core.framework.graph_pb2 import GraphDef

from enplace.errors import DeadlockError
from enplace.frameworks.tensorflow.graph import node_of
from enplace.frameworks.tensorflow.rewrite import device_orders, ordered_ops, place_graph
from enplace.values.plan import Plan
from enplace.values.problem import Problem
from problems import cluster_of, profile_of

DEVICES = ["/device:CPU:0", "/device:CPU:1"]


def graph_of(inputs, ops=()):
    """Build a graph from name -> inputs; ``ops`` gives the types that are not Identity."""
    graph = GraphDef()
    for name, tensors in inputs.items():
        graph.node.add(name=name, op=dict(ops).get(name, "Identity"), input=tensors)
    return graph


def inputs_of(graph):
    return {node.name: list(node.input) for node in graph.node}


def devices_of(graph):
    return {node.name: node.device for node in graph.node}


@st.composite
def placed_graphs(draw):
    """Draw a graph, a device for every op, and a valid order for each device."""
    n = draw(st.integers(2, 12))
    names = [f"n{i}" for i in range(n)]
    inputs = {
        name: draw(st.lists(st.sampled_from(names[:i]), max_size=3, unique=True)) if i else []
        for i, name in enumerate(names)
    }
    device_of = {name: draw(st.sampled_from(DEVICES)) for name in names}
    graph = nx.DiGraph([(a, b) for b, tensors in inputs.items() for a in tensors])
    graph.add_nodes_from(names)
    urgency = dict(zip(names, draw(st.permutations(range(n))), strict=True))
    order = list(nx.lexicographical_topological_sort(graph, urgency.__getitem__))
    return graph_of(inputs), device_of, [[n for n in order if device_of[n] == d] for d in DEVICES]


@given(placed_graphs())
def test_every_op_follows_the_one_before_it_and_there_is_no_cycle(drawn):
    graph, device_of, order = drawn
    placed = place_graph(graph, device_of, order)
    whole = nx.DiGraph(
        [(node_of(t), n) for n, tensors in inputs_of(placed).items() for t in tensors]
    )
    whole.add_nodes_from(device_of)
    assert nx.is_directed_acyclic_graph(whole)
    for names in order:
        for first, then in pairwise(names):
            assert nx.has_path(whole, first, then)
    assert devices_of(placed) == device_of


@given(placed_graphs())
def test_only_control_edges_that_data_does_not_imply_are_added(drawn):
    graph, device_of, order = drawn
    placed, before = inputs_of(place_graph(graph, device_of, order)), inputs_of(graph)
    data = nx.DiGraph([(node_of(t), n) for n, tensors in before.items() for t in tensors])
    data.add_nodes_from(before)
    for name, tensors in placed.items():
        n_before = len(before[name])
        assert tensors[:n_before] == before[name]
        for tensor in tensors[n_before:]:
            assert tensor.startswith("^")
            assert not nx.has_path(data, node_of(tensor), name)


@given(placed_graphs())
def test_any_priorities_give_an_order_that_the_graph_allows(drawn):
    graph, device_of, order = drawn
    names = list(device_of)
    problem = Problem(profile_of(dict.fromkeys(names, 1.0)), cluster_of(2))
    device = np.array([DEVICES.index(device_of[n]) for n in names])
    rng = np.random.default_rng(len(names))
    plan = Plan(device, rng.permutation(len(names)), "drawn")
    lists = device_orders(graph, problem, plan, plan.position)
    assert [sorted(found) for found in lists] == [sorted(expected) for expected in order]
    place_graph(graph, device_of, lists)  # raises if they contradict the graph


def test_priorities_are_followed_as_far_as_edges_allow():
    graph = graph_of({"a": [], "b": [], "c": ["a"], "d": []})
    problem = Problem(profile_of(dict.fromkeys("abcd", 1.0)), cluster_of(1))
    position = np.array([3, 1, 0, 2])  # c, b, d, a; but c needs a
    plan = Plan(np.zeros(4, dtype=np.int64), position, "hand")
    assert device_orders(graph, problem, plan, plan.position) == [["b", "d", "a", "c"]]


def test_fifo_plans_and_devices_with_several_lanes_have_no_order():
    graph = graph_of({"a": [], "b": []})
    problem = Problem(profile_of({}, cpu={"a": 1, "b": 1}), cluster_of(0, cpu_lanes=2))
    free, lanes = (
        Plan(np.array([0, 0]), np.array([0, 1]), "hand", policy=policy)
        for policy in ("fifo", "strict")
    )
    assert device_orders(graph, problem, free, free.position) == []
    assert device_orders(graph, problem, lanes, lanes.position) == [[]]


@pytest.mark.parametrize("policy", ["fifo", "priority", "strict"])
def test_the_order_that_a_person_wants_is_kept_between_devices_too(policy):
    graph = graph_of({"a": ["c"], "b": [], "c": [], "d": []})
    profile = profile_of(dict.fromkeys("abcd", 1.0), [("c", "a", 8)])
    free = Problem(profile, cluster_of(2))
    problem = free.constrained(before=[(1, 2), (3, 2)])  # b and d before c
    device = np.array([0, 0, 0, 1])
    plan = Plan(device, np.array([3, 1, 2, 0]), "hand", policy=policy)
    lists = device_orders(graph, problem, plan, plan.position)
    placed = place_graph(graph, {n: DEVICES[d] for n, d in zip("abcd", device, strict=True)}, lists)
    waits = {name: {node_of(t) for t in tensors} for name, tensors in inputs_of(placed).items()}
    assert {"b", "d"} <= waits["c"]


def test_a_fifo_plan_still_orders_a_cpu_with_one_lane():
    graph = graph_of({"a": [], "b": [], "c": []})
    profile = profile_of({"b": 1, "c": 1}, cpu={"a": 1, "b": 1})
    problem = Problem(profile, cluster_of(1, cpu_lanes=1))
    on = {"a": 1, "b": 1, "c": 0}
    device = np.array([on[name] for name in profile.op_names])
    plan = Plan(device, np.argsort(list(profile.op_names)), "hand", policy="fifo")
    assert device_orders(graph, problem, plan, plan.position) == [[], ["a", "b"]]


def test_an_order_that_contradicts_the_graph_is_refused_by_op_name():
    graph = graph_of({"a": [], "b": ["a"], "c": ["b"]})
    device_of = dict.fromkeys("abc", DEVICES[0])
    with pytest.raises(DeadlockError, match=r"contradicts the graph: .*'a'"):
        place_graph(graph, device_of, [["b", "a", "c"]])


def test_contradictory_orders_of_two_devices_are_refused():
    graph = graph_of({"a": [], "b": ["c"], "c": [], "d": ["a"]})
    device_of = {"a": DEVICES[0], "b": DEVICES[0], "c": DEVICES[1], "d": DEVICES[1]}
    with pytest.raises(DeadlockError):
        place_graph(graph, device_of, [["b", "a"], ["d", "c"]])


def test_ops_that_do_no_work_are_not_ordered():
    types = {"x": "Placeholder", "k": "Const", "v": "VarHandleOp"}
    assert ordered_ops(graph_of({"x": [], "k": [], "v": [], "a": ["x"]}, types)) == {"a"}


def test_ops_inside_tf1_branches_are_not_ordered():
    inner = {"s2": ["t", "q"], "u": ["s2"], "w": ["s2:1"], "m2": ["u", "w"]}
    outer = {"p": [], "q": [], "d": [], "s": ["d", "p"], "f": ["s"], "t": ["s:1"]}
    inputs = {**outer, **inner, "m": ["f", "m2"], "after": ["m"]}
    types = {"s": "Switch", "s2": "Switch", "m": "Merge", "m2": "Merge"}
    always = {"p", "q", "d", "s", "m", "after"}
    assert ordered_ops(graph_of(inputs, types)) == always


def test_ops_missing_from_the_plan_join_their_inputs_or_consumers():
    types = {"it": "Placeholder", "next": "IteratorGetNext", "v": "VarHandleOp", "k": "Const"}
    inputs = {
        "it": [],
        "next": ["it"],
        "a": ["next"],
        "new": ["a"],
        "newer": ["new"],
        "k": [],
        "used": ["k"],
        "v": [],
        "read": ["v", "^a"],
    }
    graph = graph_of(inputs, types)
    placed = place_graph(graph, {"a": DEVICES[1], "used": DEVICES[1], "v": DEVICES[0]})
    assert devices_of(placed) == {
        "it": DEVICES[0],
        "next": DEVICES[0],
        "a": DEVICES[1],
        "new": DEVICES[1],
        "newer": DEVICES[1],
        "k": DEVICES[1],
        "used": DEVICES[1],
        "v": DEVICES[0],
        "read": DEVICES[0],
    }


def test_readers_on_the_device_of_their_variable_are_not_ordered():
    graph = graph_of({"v": [], "read": ["v"], "a": [], "b": []}, {"v": "VarHandleOp"})
    device_of = {"v": DEVICES[0], "read": DEVICES[1], "a": DEVICES[1], "b": DEVICES[1]}
    placed = place_graph(graph, device_of, [["v"], ["a", "read", "b"]])
    assert devices_of(placed)["read"] == DEVICES[0]
    assert inputs_of(placed)["b"] == ["^a"]


def test_placing_does_not_change_the_given_graph():
    graph = graph_of({"a": [], "b": []})
    before = graph.SerializeToString(deterministic=True)
    place_graph(graph, dict.fromkeys("ab", DEVICES[0]), [["a", "b"]])
    assert graph.SerializeToString(deterministic=True) == before


def test_ops_that_need_no_batch_do_not_wait_for_one():
    """A step counter still counts at the end of the data, with or without a plan."""
    graph = tf.Graph()
    with graph.as_default():
        data = tf.data.Dataset.range(3).map(lambda i: tf.fill((2,), tf.cast(i, tf.float32)))
        batch = tf.compat.v1.data.make_one_shot_iterator(data).get_next()
        count, weight = (
            tf.compat.v1.get_variable(name, (), use_resource=True) for name in ("count", "weight")
        )
        step = tf.add(1.0, 1.0, name="two")
        tf.raw_ops.AssignAddVariableOp(resource=count.handle, value=step, name="counted")
        loss = tf.reduce_sum(batch * weight, name="loss")
        tf.raw_ops.AssignSubVariableOp(resource=weight.handle, value=loss, name="learned")
    can = ordered_ops(graph.as_graph_def())
    assert {"loss", "learned"} <= can
    assert not {"counted", "two"} & can
    without = tf.compat.v1.graph_util.extract_sub_graph(graph.as_graph_def(), ["counted"])
    assert {"counted", "two"} <= ordered_ops(without)
