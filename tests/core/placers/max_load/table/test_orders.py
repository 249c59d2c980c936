"""Linear orders along which partitions are searched."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from enplace.machine.op_passes import optimiser_ops
from enplace.machine.pipelines.stages import stages_of
from enplace.placers.max_load.table.dp import partition_along_order
from enplace.placers.max_load.table.orders import (
    find_leading,
    order_by_preference,
    order_depth_first,
    order_tied,
)
from enplace.values.problem import Problem
from problems import cluster_of, plan_of, profile_of


def arrays(*edges):
    source, target = np.array(edges, dtype=np.int64).reshape(-1, 2).T
    return source, target


@st.composite
def orders(draw):
    """Draw edges of a graph whose nodes are numbered in order, and a preferred number for each."""
    n = draw(st.integers(1, 8))
    pairs = [(a, b) for b in range(n) for a in range(b)]
    edges = draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    return n, arrays(*edges), np.array(draw(st.lists(st.integers(0, 9), min_size=n, max_size=n)))


@given(orders())
def test_preferred_numbers_never_violate_edges(drawn):
    n, (source, target), preferred = drawn
    order = order_by_preference(np.arange(n), preferred, source, target)
    assert sorted(order) == list(range(n))
    place = np.argsort(order)
    assert (place[source] < place[target]).all()


@given(orders())
def test_each_branch_is_followed_as_far_as_possible(drawn):
    """The latest node with all its producers comes next; of several, the last by rank."""
    n, (source, target), preferred = drawn
    rank = np.lexsort((np.arange(n), preferred))
    order, ready = [], [node for node in np.argsort(rank).tolist() if node not in target]
    while ready:
        order.append(ready.pop())
        after = sorted(target[source == order[-1]].tolist(), key=rank.__getitem__)
        ready += [node for node in after if set(source[target == node].tolist()) <= set(order)]
    assert order_depth_first(n, source, target, rank).tolist() == order


def test_weights_come_just_before_their_readers():
    # 0, 1, 2: weights; 3 -> 4 -> 5: the chain that reads them.
    source, target = arrays((0, 3), (1, 4), (2, 5), (3, 4), (4, 5))
    order = order_tied(np.arange(6), np.empty((0, 2), dtype=np.int64), source, target)
    assert order.tolist() == [0, 3, 1, 4, 2, 5]


def test_backward_nodes_come_just_after_their_forward_nodes():
    # 0 -> 1 -> 2 forward; 3 -> 4 -> 5 backward; 3 is tied to 0.
    source, target = arrays((0, 1), (1, 2), (3, 4), (4, 5))
    tied = np.array([(0, 3), (1, 4), (2, 5)])
    assert order_tied(np.arange(6), tied, source, target).tolist() == [0, 1, 3, 4, 2, 5]


def test_leading_nodes_depend_only_on_nodes_of_their_kind():
    source, target = arrays((0, 1), (1, 2), (2, 3))
    first = find_leading(np.array([True, True, False, True]), source, target)
    assert first.tolist() == [True, True, False, False]


def test_inputs_on_the_cpu_do_not_separate_ops_of_one_gpu():
    profile = profile_of(
        {"a": 10, "b": 10, "c": 10},
        [("x", "a", 8), ("a", "b", 8), ("y", "b", 8), ("b", "c", 8)],
        cpu={"x": 1, "y": 1},
    )
    problem = Problem(profile, cluster_of(1, cpu_lanes=1, b0_us=0.0, b1_us_per_byte=0.0))
    found = partition_along_order(problem)
    assert found.device.tolist() == [0, 0, 0, 1, 1]
    assert found.load_us == 30


@pytest.fixture
def clipped():
    """Two layers on two GPUs, with gradients clipped by their common norm."""
    times = {
        "v0": 0, "v1": 0, "f0": 10, "f1": 10, "gradients/g1": 10, "gradients/g0": 10,
        "norm": 1, "update/u0": 1, "update/u1": 1,
    }  # fmt: skip
    edges = [
        ("v0", "f0", 8), ("v1", "f1", 8), ("f0", "f1", 8), ("f1", "gradients/g1", 8),
        ("f0", "gradients/g1", 8), ("gradients/g1", "gradients/g0", 8),
        ("gradients/g0", "norm", 8), ("gradients/g1", "norm", 8), ("norm", "update/u0", 8),
        ("norm", "update/u1", 8), ("gradients/g0", "update/u0", 8),
        ("gradients/g1", "update/u1", 8),
    ]  # fmt: skip
    together = {"v0": "0", "update/u0": "0", "v1": "1", "update/u1": "1"}
    profile = profile_of(times, edges, colocation=together)
    return Problem(profile, cluster_of(2, b0_us=0.0, b1_us_per_byte=0.0))


def test_optimiser_ops_do_not_constrain_the_partition(clipped):
    names = np.array(clipped.profile.op_names)
    assert set(names[optimiser_ops(clipped)]) == {"norm", "update/u0", "update/u1"}
    assert partition_along_order(clipped).load_us == 20 + 2 / 8  # a step has eight samples


def test_the_optimiser_adds_no_stages(clipped):
    by_layer = {name: int(name[-1] == "1") for name in clipped.profile.op_names}
    plan = plan_of(clipped, by_layer)
    backward = np.array([name[0] in "gnu" for name in clipped.profile.op_names])
    stages = stages_of(clipped, plan, backward.astype(np.int64))
    assert [(stage.devices, stage.backward) for stage in stages] == [
        ((0,), False), ((1,), False), ((1,), True), ((0,), True),
    ]  # fmt: skip
    assert sum(stage.compute_us[0] for stage in stages) == 40
    assert sum(stage.update_us[0] for stage in stages) == 3
