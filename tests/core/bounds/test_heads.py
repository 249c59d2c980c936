"""The compiled search for heads, against the readable one."""

import numpy as np
from hypothesis import given, settings
from tests.core.bounds.reference import find_heads_slowly
from tests.core.placers.problems import problems

from enplace.bounds.heads import earliest_starts
from enplace.bounds.step_time import least_costs


@settings(deadline=None, max_examples=100)
@given(problem=problems(max_ops=8))
def test_heads_equal_the_reference(problem):
    for costs in least_costs(problem):
        np.testing.assert_allclose(earliest_starts(costs), find_heads_slowly(costs), rtol=1e-12)
