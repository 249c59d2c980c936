"""The compiled search for heads, against the readable one."""

import numpy as np
from hypothesis import given
from tests.core.bounds.reference import find_heads_slowly
from tests.core.placers.problems import problems

from enplace.bounds.heads import earliest_starts
from enplace.bounds.step_time import least_costs, lower_bound_us
from enplace.values.problem import Problem
from problems import cluster_of, profile_of


@given(problem=problems(max_ops=8))
def test_heads_equal_the_reference(problem):
    for costs in least_costs(problem):
        found = earliest_starts(costs, np.zeros(1, dtype=bool))
        np.testing.assert_allclose(found, find_heads_slowly(costs), rtol=1e-12)


@given(problem=problems())
def test_a_bound_that_is_stopped_is_weaker(problem):
    whole_us, stopped_us = lower_bound_us(problem), lower_bound_us(problem, np.ones(1, dtype=bool))
    assert 0 <= stopped_us <= whole_us * (1 + 1e-12)


def test_a_bound_that_is_stopped_still_follows_paths():
    """Two branches between two ops, the longer of 30; apart they cost 8 twice, together 50."""
    times = {"a": 10, "b": 20, "c": 30, "d": 40}
    edges = [("a", "b", 0), ("b", "d", 0), ("a", "c", 0), ("c", "d", 0)]
    problem = Problem(profile_of(times, edges), cluster_of(2, b0_us=8.0))
    assert lower_bound_us(problem) == 10 + 20 + 2 * 8 + 40
    assert lower_bound_us(problem, np.ones(1, dtype=bool)) == 10 + 30 + 40
