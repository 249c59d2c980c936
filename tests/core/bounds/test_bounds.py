"""Lower bounds hold against exhaustive search, and are tight enough to be useful."""

import itertools
from dataclasses import replace

import networkx as nx
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.core.machine.schedule_faults import find_faults
from tests.problems import cluster_of, clusters, planned_problems, profile_of, profiles

from enplace.bounds.step_time import lower_bound_us
from enplace.errors import DoesNotFitError
from enplace.machine import simulate
from enplace.values.cluster import Cluster, Device, Link
from enplace.values.plan import Plan
from enplace.values.problem import Problem
from enplace.values.result import Result
from properties import examples


@given(planned=planned_problems())
def test_no_random_schedule_beats_the_bound(planned):
    problem, plan = planned
    assert lower_bound_us(problem) <= simulate(problem, plan).makespan_us * (1 + 1e-12)


@given(planned=planned_problems())
def test_the_bound_of_a_huge_graph_holds_and_is_no_better(planned):
    problem = planned[0]
    bound_us = lower_bound_us(problem)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("enplace.bounds.step_time.MOST_OPS_WITH_HEADS", 0)
        quick_us = lower_bound_us(problem)
    assert 0 <= quick_us <= bound_us * (1 + 1e-12)


def every_schedule(problem):
    """Yield the makespans of all placements in all orders."""
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
            yield simulate(problem, plan)


def shortest_us(problem):
    """Return the step time of the shortest schedule that fits, or inf if none does."""
    return min((s.makespan_us for s in every_schedule(problem) if s.fits), default=np.inf)


@examples(10)
@given(profile=profiles(max_ops=4), cluster=clusters())
def test_no_schedule_at_all_beats_the_bound(profile, cluster):
    problem = Problem(profile, cluster)
    assert lower_bound_us(problem) <= shortest_us(problem) * (1 + 1e-12)


@examples(8)
@given(profile=profiles(max_ops=4), cluster=clusters(), data=st.data())
def test_no_schedule_that_fits_tight_memory_beats_the_bound(profile, cluster, data):
    capacities = st.sampled_from([30, 60, 90, 120, 200])
    cluster = replace(
        cluster,
        devices=tuple(replace(d, capacity_bytes=data.draw(capacities)) for d in cluster.devices),
    )
    try:
        problem = Problem(profile, cluster)
    except DoesNotFitError:
        assume(False)
    assert np.isfinite(lower_bound_us(problem))
    assert lower_bound_us(problem) <= shortest_us(problem) * (1 + 1e-12)


def test_long_ops_share_devices():
    """Two of the three longest ops share a device: 9 + 8, although all work is only 2 * 14."""
    problem = Problem(profile_of({"a": 10, "b": 9, "c": 8, "d": 1}, []), cluster_of(2))
    assert lower_bound_us(problem) == shortest_us(problem) == 17
    equal = Problem(profile_of({str(i): 10 for i in range(50)}, []), cluster_of(4))
    assert lower_bound_us(equal) == 130


def test_a_join_pays_for_one_device_or_for_a_transfer():
    """Two ops of 10 join: they share a device (20), or one of them sends for 7."""
    profile = profile_of({"a": 10, "b": 10, "c": 1}, [("a", "c", 6), ("b", "c", 6)])
    problem = Problem(profile, cluster_of(2, b0_us=1.0))
    assert lower_bound_us(problem) == 18
    assert shortest_us(problem) == 18


def test_long_transfers_keep_a_join_on_one_device():
    profile = profile_of({"a": 10, "b": 10, "c": 1}, [("a", "c", 60), ("b", "c", 60)])
    assert lower_bound_us(Problem(profile, cluster_of(2))) == 21


def test_a_join_counts_whole_branches():
    """Two chains of two join: four ops of 5 share a device unless a tensor is sent."""
    times = {"a1": 5, "a2": 5, "b1": 5, "b2": 5, "c": 1}
    edges = [("a1", "a2", 40), ("b1", "b2", 40), ("a2", "c", 40), ("b2", "c", 40)]
    assert lower_bound_us(Problem(profile_of(times, edges), cluster_of(2))) == 21


def test_ops_before_and_after_parallel_work_count_in_full():
    """One op, six parallel ops, one op: two devices can share only the parallel ones."""
    times = {"first": 10, **{f"m{i}": 4 for i in range(6)}, "last": 10}
    edges = [("first", f"m{i}", 1) for i in range(6)] + [(f"m{i}", "last", 1) for i in range(6)]
    problem = Problem(profile_of(times, edges), cluster_of(2, b0_us=0.0, b1_us_per_byte=0.0))
    assert lower_bound_us(problem) == pytest.approx(32)


def test_colocated_ops_come_together():
    """A chain that pays 8 wherever it is cut; an op of 5 has time to go elsewhere and back."""
    times = {"a": 10, "b": 30, "side": 5, "end": 10}
    edges = [("a", "b", 0), ("b", "end", 0), ("a", "side", 0), ("side", "end", 0)]
    cluster = cluster_of(2, b0_us=8.0)
    free = Problem(profile_of(times, edges), cluster)
    assert lower_bound_us(free) == shortest_us(free) == 50
    bound = Problem(profile_of(times, edges, colocation={"side": "x", "end": "x"}), cluster)
    assert lower_bound_us(bound) == shortest_us(bound) == 55


def test_an_op_between_ops_of_one_device_pays_for_two_transfers():
    """A chain of four ops of 10, and an op of 6 beside its middle: 6 + 2 * 8 there, or 6 more."""
    profile = profile_of(
        {"a": 10, "b": 10, "c": 10, "side": 6, "end": 10},
        [("a", "b", 0), ("b", "c", 0), ("c", "end", 0), ("a", "side", 0), ("side", "end", 0)],
    )
    problem = Problem(profile, cluster_of(2, b0_us=8.0))
    assert lower_bound_us(problem) == shortest_us(problem) == 42


def test_ops_that_cannot_share_a_device_pay_for_a_transfer():
    """A chain whose middle op fits with neither end: two transfers of 1 + 3."""
    problem = Problem(
        profile_of(
            {"a": 10, "b": 10, "c": 10},
            [("a", "b", 3), ("b", "c", 3)],
            persistent={"a": 40, "b": 60, "c": 40},
        ),
        cluster_of(2, capacity_bytes=90),
    )
    assert lower_bound_us(problem) == pytest.approx(38)
    assert shortest_us(problem) == 38


def test_temporary_memory_can_force_ops_apart():
    """The variables of both ops would fit one device, but not with the temporary memory of b."""
    profile = profile_of(
        {"a": 10, "b": 10}, [("a", "b", 3)], persistent={"a": 40, "b": 40}, temporary={"b": 20}
    )
    assert lower_bound_us(Problem(profile, cluster_of(2, capacity_bytes=90))) == pytest.approx(24)
    assert lower_bound_us(Problem(profile, cluster_of(2, capacity_bytes=110))) == pytest.approx(20)


def test_a_cpu_op_that_feeds_a_gpu_op_pays_for_the_transfer():
    profile = profile_of({"a": 10}, [("input", "a", 3)], cpu={"input": 10})
    problem = Problem(profile, cluster_of(1, cpu_lanes=1))
    assert lower_bound_us(problem) == shortest_us(problem) == 24


def test_a_full_fast_device_leaves_work_to_the_slow_one():
    """Four ops of 10 without edges; the fast device runs one in 2.5 and cannot hold another.

    Total work over total speed (8), the longest op (2.5) and the longest path all miss that three
    ops must run on the slow device.
    """
    devices = (Device("GPU:0", "gpu", 19, speed=4.0), Device("GPU:1", "gpu", 100))
    links = tuple(Link(a, 1 - a, 1.0, 1.0, (a,)) for a in (0, 1))
    cluster = Cluster("unlike", devices, ("there", "back"), links)
    names = ("a", "b", "c", "d")
    profile = profile_of(dict.fromkeys(names, 10), persistent=dict.fromkeys(names, 10))
    problem = Problem(profile, cluster)
    assert shortest_us(problem) == 30
    # The linear program places fractions: nine tenths of a second op still fit on the fast device.
    assert lower_bound_us(problem) == pytest.approx(21)


def test_a_schedule_that_exceeds_memory_may_beat_the_bound():
    profile = profile_of({"a": 10, "b": 10}, [("a", "b", 9)], persistent={"a": 40, "b": 60})
    problem = Problem(profile, cluster_of(2, capacity_bytes=90))
    together = simulate(problem, Plan(np.array([0, 0]), np.array([0, 1]), "x"))
    assert (together.makespan_us, lower_bound_us(problem)) == (20, 30)
    assert Result(together, 30.0).gap is None
    assert find_faults(together) == []


@pytest.mark.parametrize(("b0_us", "at_least_us"), [(0.0, 80.0), (4.0, 88.0), (100.0, 130.0)])
def test_rows_of_parallel_ops_add_up(b0_us, at_least_us):
    """Two rows of five parallel ops, between three single ops: a row runs on one GPU or on two."""
    times, edges = {}, []
    for row in range(3):
        times[f"one{row}"] = 10.0
        for i in range(5 * (row > 0)):
            times[f"many{row}{i}"] = 10.0
            edges += [(f"one{row - 1}", f"many{row}{i}", 0), (f"many{row}{i}", f"one{row}", 0)]
    problem = Problem(profile_of(times, edges), cluster_of(2, b0_us=b0_us, b1_us_per_byte=0.0))
    assert lower_bound_us(problem) == at_least_us
    away = [int(b0_us < 50 and name in {"many10", "many11", "many20", "many21"}) for name in times]
    plan = Plan(np.array(away), np.arange(len(times)), "x", "priority", "fifo")
    assert at_least_us <= simulate(problem, plan).makespan_us


@pytest.mark.parametrize(("shared", "at_least_us"), [(False, 48), (True, 52)])
def test_gpus_that_share_a_channel_wait_for_each_other(shared, at_least_us):
    """One op, six parallel ops, one op, on three GPUs; each transfer takes 6.

    With channels of their own, GPUs 1 and 2 each lose 12 to transfers. On a shared channel GPU 2
    loses 24: two transfers must end before it starts, and two follow the first of the last ops.
    """
    times = {"first": 10, **{f"m{i}": 10 for i in range(6)}, "last": 10}
    edges = [("first", f"m{i}", 0) for i in range(6)] + [(f"m{i}", "last", 0) for i in range(6)]
    problem = Problem(profile_of(times, edges), cluster_of(3, b0_us=6.0, shared=shared))
    assert lower_bound_us(problem) == at_least_us
    plan = Plan(np.array([0, 0, 0, 0, 1, 1, 2, 0]), np.arange(8), "x", "priority", "priority")
    assert simulate(problem, plan).makespan_us == (54 if shared else 52)


def test_ops_with_large_inputs_stay_with_their_data():
    """Four chains of two: the first ops read 100 bytes, the second ops none.

    A second op can move for two transfers of 1. The first ops, 10 each, cannot: the bound is 10
    before them, 40 on one device, 1 for the last second op, and 10 after.
    """
    chains = [("big", f"a{i}", 100) for i in range(4)] + [(f"a{i}", f"b{i}", 0) for i in range(4)]
    times = {"big": 10, **{f"a{i}": 10 for i in range(4)}, **{f"b{i}": 1 for i in range(4)}}
    edges = chains + [(f"b{i}", "last", 0) for i in range(4)]
    problem = Problem(profile_of({**times, "last": 10}, edges), cluster_of(2, b0_us=1.0))
    assert lower_bound_us(problem) == 10 + 40 + 1 + 10
