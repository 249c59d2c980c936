"""Descents on the largest load, against trying every reassignment."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from enplace.machine.pipelines.loads import max_load_us
from enplace.placers.max_load.search.descent import descend, draw_placement, score
from enplace.placers.max_load.search.hypergraph import build_hypergraph
from enplace.values.load_rule import PIPELINES, TRANSFERS, LoadRule
from enplace.values.problem import Problem
from problems import cluster_of, on_own_chips, planned_problems, profile_of


def never():
    return False


def reassignments(graph, device):
    """Yield all allowed placements that differ in one unit."""
    for unit, target in itertools.product(range(graph.n_units), range(graph.n_devices)):
        if target != device[unit] and np.isfinite(graph.unit_us[unit, target, 0]):
            other = device.copy()
            other[unit] = target
            yield other


@st.composite
def starts(draw):
    """Draw a hypergraph, its problem and a start placement."""
    problem = on_own_chips(draw(planned_problems())[0])
    rule = LoadRule(draw(st.sampled_from(TRANSFERS)), draw(st.sampled_from(PIPELINES)))
    graph = build_hypergraph(problem, rule)
    return problem, graph, draw_placement(graph, np.random.default_rng(draw(st.integers(0, 9))))


@given(start=starts())
def test_every_step_is_the_best_reassignment(start):
    _, graph, device = start
    answers = itertools.chain([False], itertools.repeat(True))
    after = descend(graph, device, lambda: next(answers))
    best = min([score(graph, device), *(score(graph, o) for o in reassignments(graph, device))])
    assert score(graph, after) == pytest.approx(best)


@given(start=starts())
def test_a_descent_ends_where_no_reassignment_helps(start):
    problem, graph, device = start
    end = descend(graph, device, never)
    excess, load_us = score(graph, end)
    assert (excess, load_us) <= score(graph, device)
    assert load_us == pytest.approx(max_load_us(problem, end[problem.unit], graph.rule))
    for other in reassignments(graph, end):
        assert score(graph, other) >= (excess, load_us * (1 - 1e-6))


def test_a_descent_reduces_excess_memory_before_load():
    """All three ops are fast on the first device, which has memory for one of them."""
    profile = profile_of(dict.fromkeys("abc", 5.0), [], persistent=dict.fromkeys("abc", 100))
    graph = build_hypergraph(Problem(profile, cluster_of(3, capacity_bytes=150)))
    end = descend(graph, np.zeros(3, dtype=np.int64), never)
    assert sorted(end.tolist()) == [0, 1, 2]
