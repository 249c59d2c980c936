"""Annealing and integer programs for the largest load, against trying all placements."""

import itertools

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.placers.max_load.drawn import tiny_problems
from tests.core.solvers.warm import warm_solvers

from enplace.coarsen.grouped import op_memory_bytes
from enplace.machine.op_passes import backward_ops
from enplace.machine.pipelines.loads import max_load_us, pass_loads_us
from enplace.placers.max_load.search.anneal import anneal, refine
from enplace.placers.max_load.search.hypergraph import build_hypergraph, held_bytes, loads_us
from enplace.placers.max_load.search.levels import anneal_by_levels
from enplace.placers.max_load.search.throughput_search import search_anywhere, search_contiguous
from enplace.placers.max_load.table.dp import partition_along_order, partition_exactly
from enplace.placing.stop import Stop
from enplace.placing.stopwatch import Stopwatch
from enplace.values.problem import Problem
from problems import cluster_of, on_own_chips, planned_problems, profile_of


def never():
    return False


STOP = Stop(600.0, clock=Stopwatch(lambda: 0.0))
"""A time limit by a clock that stands still."""

DRAWN = tiny_problems(most_gpus=2, slower=(1.0, 1.0, 3.0), pinned=True)


def placements(problem):
    """Yield all placements that respect pins, colocation and memory."""
    need = op_memory_bytes(problem)
    for devices in itertools.product(range(problem.cluster.n_devices), repeat=problem.n_units):
        device = np.array(devices)
        if problem.unit_allowed[np.arange(problem.n_units), device].all():
            device = device[problem.unit]
            held = np.bincount(device, weights=need, minlength=problem.cluster.n_devices)
            if (held <= problem.cluster.capacity_bytes).all():
                yield device


def is_contiguous(problem, device):
    """Check definition 3.1 for the forward and the backward ops of each device."""
    profile, backward = problem.profile, backward_ops(problem)
    for ops in (~backward, backward):
        graph = nx.DiGraph()
        graph.add_nodes_from(np.flatnonzero(ops).tolist())
        inside = ops[profile.edge_source] & ops[profile.edge_op]
        ends = (profile.edge_source[inside].tolist(), profile.edge_op[inside].tolist())
        graph.add_edges_from(zip(*ends, strict=True))
        for here in range(problem.cluster.n_devices):
            mine = set(np.flatnonzero(ops & (device == here)).tolist())
            below = set().union(*(nx.descendants(graph, op) for op in mine))
            above = set().union(*(nx.ancestors(graph, op) for op in mine))
            if not below & above <= mine:
                return False
    return True


def least(problem, wanted):
    return min((max_load_us(problem, d) for d in placements(problem) if wanted(d)), default=np.inf)


def check(problem, found, expected):
    assert found.objective_us == pytest.approx(expected)
    if np.isfinite(expected):
        assert found.proven
        assert max_load_us(problem, found.device) == pytest.approx(expected)
        assert any(np.array_equal(found.device, each) for each in placements(problem))


@given(problem=DRAWN)
@warm_solvers()
def test_no_placement_beats_the_noncontiguous_search(problem):
    check(problem, search_anywhere(problem, STOP), least(problem, lambda _: True))


@given(problem=DRAWN)
@warm_solvers()
def test_no_contiguous_placement_beats_the_contiguous_search(problem):
    found = search_contiguous(problem, STOP)
    check(problem, found, least(problem, lambda device: is_contiguous(problem, device)))
    if np.isfinite(found.objective_us):
        assert is_contiguous(problem, found.device)


@given(planned=planned_problems())
def test_unit_loads_equal_op_loads(planned):
    problem, plan = on_own_chips(planned[0]), planned[1]
    graph = build_hypergraph(problem)
    device = np.zeros(problem.n_units, dtype=np.int64)
    device[problem.unit] = plan.device
    loads = loads_us(graph, device).sum(axis=1)
    np.testing.assert_allclose(loads, pass_loads_us(problem, plan.device).sum(axis=1))


@pytest.mark.parametrize("annealing", [anneal, refine, anneal_by_levels])
@given(problem=DRAWN, seed=st.integers(0, 9))
def test_annealing_stays_within_memory_and_never_gets_worse(annealing, problem, seed):
    graph = build_hypergraph(problem)
    for placement in itertools.islice(placements(problem), 1):
        start = np.zeros(problem.n_units, dtype=np.int64)
        start[problem.unit] = placement
        best = annealing(graph, start, never, seed)
        assert loads_us(graph, best).max() <= loads_us(graph, start).max()
        assert (held_bytes(graph, best) <= graph.capacity_bytes).all()
        assert problem.unit_allowed[np.arange(problem.n_units), best].all()


@pytest.mark.parametrize("annealing", [anneal, anneal_by_levels])
def test_annealing_finds_the_non_contiguous_value_of_table_1(bert, annealing):
    graph = build_hypergraph(bert)
    start = np.zeros(bert.n_units, dtype=np.int64)
    start[bert.unit] = partition_exactly(bert).device
    best = annealing(graph, start, never)
    assert round(max_load_us(bert, best[bert.unit]) / 1000, 2) == pytest.approx(54.21, rel=0.005)


def test_reported_loads_only_improve():
    times = {f"op{i}": 3.0 + i % 5 for i in range(20)}
    edges = [(f"op{i}", f"op{i + 3}", 2) for i in range(17)]
    problem = Problem(profile_of(times, edges), cluster_of(3))
    reported = []
    found = search_anywhere(problem, STOP, report=reported.append)
    loads, bounds = [f.objective_us for f in reported], [f.bound_us for f in reported]
    assert loads == sorted(loads, reverse=True)
    assert bounds == sorted(bounds)
    assert found.objective_us == loads[-1]
    assert found.bound_us <= found.objective_us


def test_a_cancelled_search_returns_its_start_partition(bert):
    found = search_anywhere(bert, Stop(60.0, cancelled=lambda: True))
    assert found.objective_us == pytest.approx(partition_along_order(bert).load_us)
    assert not found.proven
