"""Lower bounds: below everything that exhaustive search finds, and worth having."""

import itertools

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from tests.problems import cluster_of, clusters, planned_problems, profile_of, profiles

from enplace.plan import Plan
from enplace.problem import Problem
from enplace.simulate import lower_bound_us, simulate


@settings(deadline=None, max_examples=400)
@given(planned=planned_problems())
def test_no_schedule_is_shorter(planned):
    problem, plan = planned
    assert lower_bound_us(problem) <= simulate(problem, plan).makespan_us * (1 + 1e-12)


def every_schedule(problem):
    """Makespans of all placements in all orders."""
    profile = problem.profile
    graph = nx.DiGraph()
    graph.add_nodes_from(range(profile.n_ops))
    graph.add_edges_from(zip(profile.edge_source.tolist(), profile.edge_op.tolist(), strict=True))
    choices = [np.flatnonzero(row).tolist() for row in problem.unit_allowed]
    for units in itertools.product(*choices):
        device = np.array(units)[problem.unit]
        for order in itertools.islice(nx.all_topological_sorts(graph), 24):
            position = np.argsort(np.array(order))
            plan = Plan(device.copy(), position, "x", "strict", "ordered")
            yield simulate(problem, plan).makespan_us


@settings(deadline=None, max_examples=60)
@given(profile=profiles(max_ops=5), cluster=clusters())
def test_exhaustive_search_finds_nothing_shorter(profile, cluster):
    problem = Problem(profile, cluster)
    assert lower_bound_us(problem) <= min(every_schedule(problem)) * (1 + 1e-12)


def test_branches_that_meet_stay_together_or_wait_for_a_transfer():
    """Two ops of 10 meet: one after the other on one device (20), or a transfer of 7 between."""
    profile = profile_of({"a": 10, "b": 10, "c": 1}, [("a", "c", 6), ("b", "c", 6)])
    problem = Problem(profile, cluster_of(2, b0_us=1.0))
    assert lower_bound_us(problem) == 18
    assert min(every_schedule(problem)) == 18


def test_a_long_transfer_leaves_one_device():
    profile = profile_of({"a": 10, "b": 10, "c": 1}, [("a", "c", 60), ("b", "c", 60)])
    assert lower_bound_us(Problem(profile, cluster_of(2))) == 21


def test_what_lies_further_back_counts_too():
    """Two chains of two meet; three ops must be on one device unless something is sent."""
    times = {"a1": 5, "a2": 5, "b1": 5, "b2": 5, "c": 1}
    edges = [("a1", "a2", 40), ("b1", "b2", 40), ("a2", "c", 40), ("b2", "c", 40)]
    assert lower_bound_us(Problem(profile_of(times, edges), cluster_of(2))) == 21


def test_before_and_after_the_wide_part_nothing_can_be_shared():
    """One op, six side by side, one op: the bound counts the ends whole and the middle by half."""
    times = {"first": 10, **{f"m{i}": 4 for i in range(6)}, "last": 10}
    edges = [("first", f"m{i}", 1) for i in range(6)] + [(f"m{i}", "last", 1) for i in range(6)]
    problem = Problem(profile_of(times, edges), cluster_of(2, b0_us=0.0, b1_us_per_byte=0.0))
    assert lower_bound_us(problem) == pytest.approx(32)
