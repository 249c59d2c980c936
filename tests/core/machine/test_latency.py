"""Latencies by hand; subgraphs against the definition of contiguity."""

import itertools
from dataclasses import replace

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.placers.latency import reference

from enplace.machine.latency import find_pass_subgraphs, latency_us
from enplace.machine.op_passes import backward_ops
from enplace.values.measurement import Measurement
from enplace.values.problem import Problem
from problems import cluster_of, planned_problems, profile_of


def machine(n_gpus):
    """Return GPUs and a CPU whose links take 1 µs per byte and have no latency."""
    return cluster_of(n_gpus, b0_us=0.0, b1_us_per_byte=1.0, cpu_lanes=1)


@pytest.fixture
def diamond():
    """GPU times: a 10 µs, b 20, c 30, d 5. Edges: a sends 3 bytes to b and c, b 2 and c 4 to d."""
    edges = [("a", "b", 3), ("a", "c", 3), ("b", "d", 2), ("c", "d", 4)]
    cpu = {"a": 100, "b": 200, "c": 300, "d": 50}
    return Problem(profile_of({"a": 10, "b": 20, "c": 30, "d": 5}, edges, cpu=cpu), machine(2))


@pytest.mark.parametrize(
    ("device", "expected", "why"),
    [
        ([0, 0, 0, 0], 65, "one subgraph, nothing sent"),
        ([2, 2, 2, 2], 100 + 300 + 50, "the CPU runs b and c at once and sends nothing"),
        ([0, 0, 1, 0], 35 + 37 + 11, "GPU:0 is left for c: a and b are a subgraph, and d another"),
        ([0, 1, 1, 1], 13 + 3 + 55, "a, then the rest in one subgraph"),
        ([2, 0, 1, 2], 100 + (3 + 30 + 4) + 50, "c is the longer of two subgraphs at once"),
    ],
)
def test_the_latency_of_a_diamond_is_as_computed_by_hand(diamond, device, expected, why):
    assert latency_us(diamond, np.array(device)) == expected, why


def test_subgraphs_of_one_accelerator_run_one_after_another():
    """Two independent ops form one subgraph, or two in sequence."""
    problem = Problem(profile_of({"a": 10, "b": 20}), machine(1))
    device = np.array([0, 0])
    assert latency_us(problem, device) == 30
    assert latency_us(problem, device, np.array([0, 1])) == 30
    assert latency_us(problem, device, np.array([1, 0])) == 30


def test_forward_and_backward_ops_never_share_a_subgraph():
    """A subgraph delivers at its end, and c does not wait for the backward op on a's device."""
    profile = profile_of({"a": 10, "c": 5, "gradients/b": 20}, [("a", "c", 1)])
    problem = Problem(profile, machine(2))
    assert latency_us(problem, np.array([0, 1, 0])) == (10 + 1) + 20
    assert find_pass_subgraphs(problem, np.array([0, 1, 0])).tolist() == [0, 0, 0]


def test_subgraphs_in_an_impossible_order_never_finish():
    profile = profile_of({"a": 1, "b": 1, "c": 1}, [("a", "b", 1), ("b", "c", 1)])
    problem = Problem(profile, machine(2))
    device = np.array([0, 1, 0])
    assert latency_us(problem, device, np.array([0, 0, 1])) == (1 + 1) + (1 + 1 + 1) + (1 + 1)
    assert latency_us(problem, device, np.array([1, 0, 0])) == np.inf
    assert latency_us(problem, device, np.array([0, 0, 0])) == np.inf


def test_contiguous_sets_that_wait_for_each_other_are_split():
    edges = [("a1", "b1", 1), ("b2", "a2", 1)]
    profile = profile_of({"a1": 1, "a2": 1, "b1": 1, "b2": 1}, edges)
    problem = Problem(profile, machine(2))
    device = np.array([0, 0, 1, 1])
    assert latency_us(problem, device, np.zeros(4, dtype=int)) == np.inf
    assert np.isfinite(latency_us(problem, device))


@st.composite
def placed(draw):
    """Draw a problem, perhaps with a backward pass, and any placement."""
    problem, plan = draw(planned_problems())
    backward = draw(st.lists(st.integers(0, problem.profile.n_ops - 1), max_size=4))
    profile = replace(problem.profile, measured=Measurement(backward=backward))
    return replace(problem, measured_profile=profile), plan.device


@given(placed=placed())
def test_subgraphs_are_contiguous_and_finish(placed):
    problem, device = placed
    profile, gpus = problem.profile, problem.cluster.gpus
    subgraph = find_pass_subgraphs(problem, device)
    assert np.isfinite(latency_us(problem, device, subgraph))
    graph = nx.DiGraph(zip(profile.edge_source.tolist(), profile.edge_op.tolist(), strict=True))
    graph.add_nodes_from(range(profile.n_ops))
    backward = backward_ops(problem)
    for gpu, of in itertools.product(gpus, (False, True)):
        there = (device == gpu) & (backward == of)
        for number in range(subgraph[there].max(initial=-1) + 1):
            inside = set(np.flatnonzero(there & (subgraph == number)).tolist())
            below = set().union(*(nx.descendants(graph, op) for op in inside))
            above = set().union(*(nx.ancestors(graph, op) for op in inside))
            assert below & above <= inside


@given(planned=planned_problems(), seed=st.integers(0, 9))
def test_the_latency_is_at_least_the_longest_path(planned, seed):
    problem, plan = planned
    fastest = problem.time_us.min(axis=1)
    ahead = np.zeros(problem.profile.n_ops)
    for op in problem.profile.topological_order:
        before = problem.profile.edge_source[problem.profile.edge_op == op]
        ahead[op] = fastest[op] + ahead[before].max(initial=0.0)
    assert latency_us(problem, plan.device) >= ahead.max() - 1e-9


@given(placed=placed(), seed=st.integers(0, 99))
def test_the_fast_evaluator_equals_the_reference(placed, seed):
    problem, device = placed
    subgraph = find_pass_subgraphs(problem, device)
    assert subgraph.tolist() == reference.find_pass_subgraphs(problem, device).tolist()
    other = np.random.default_rng(seed).integers(0, 2, len(subgraph))
    for subgraphs in (subgraph, other):
        expected = reference.latency_us(problem, device, subgraphs)
        assert latency_us(problem, device, subgraphs) == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(6))
def test_the_fast_evaluator_equals_the_reference_on_a_larger_graph(seed):
    rng = np.random.default_rng(seed)
    ends = sorted({tuple(sorted(pair)) for pair in rng.integers(0, 80, (160, 2)).tolist()})
    names = [f"op{i}" for i in range(80)]
    edges = [(names[a], names[b], 4) for a, b in ends if a < b]
    times = dict.fromkeys(names, 3.0)
    problem = Problem(profile_of(times, edges, cpu=times), machine(3))
    device = rng.integers(0, 4, 80)
    subgraph = find_pass_subgraphs(problem, device)
    assert subgraph.tolist() == reference.find_pass_subgraphs(problem, device).tolist()
    assert latency_us(problem, device) == pytest.approx(reference.latency_us(problem, device))
