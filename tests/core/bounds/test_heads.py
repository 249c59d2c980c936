"""The compiled search for heads, against the readable one."""

import numpy as np
from hypothesis import given, settings
from tests.core.bounds.reference import find_heads_slowly
from tests.core.placers.problems import problems

from enplace.bounds.heads import earliest_starts
from enplace.bounds.step_time import least_costs, lower_bound_us


@settings(deadline=None, max_examples=100)
@given(problem=problems(max_ops=8))
def test_heads_equal_the_reference(problem):
    for costs in least_costs(problem):
        found = earliest_starts(costs, np.zeros(1, dtype=bool))
        np.testing.assert_allclose(found, find_heads_slowly(costs), rtol=1e-12)


@given(problem=problems())
def test_a_bound_that_is_stopped_is_weaker(problem):
    whole_us, stopped_us = lower_bound_us(problem), lower_bound_us(problem, np.ones(1, dtype=bool))
    assert 0 <= stopped_us <= whole_us * (1 + 1e-12)
