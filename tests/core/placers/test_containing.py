"""Methods that contain another are never worse: they begin with its answer."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.placers.latency.drawn import small_problems

from enplace.placers import PlaceOptions, place
from enplace.placing.registry import placers
from enplace.values.problem import LATENCY, STEP_TIME, THROUGHPUT
from properties import examples

CONTAINED = [
    ("max-load-dp", "max-load-ip", THROUGHPUT),
    ("max-load-ip", "max-load-ip-noncontiguous", THROUGHPUT),
    ("greedy-latency", "latency-ip", LATENCY),
    ("latency-ip", "latency-ip-q", LATENCY),
    ("m-etf", "enplace", STEP_TIME),
]


def value_us(found):
    """Return the value of a plan; inf if it does not fit."""
    if found.schedule.excess_bytes:
        return np.inf
    return found.schedule.makespan_us if found.plan.value_us is None else found.plan.value_us


@pytest.mark.parametrize(("inner", "outer", "objective"), CONTAINED)
def test_a_method_is_never_worse_than_one_that_it_contains(inner, outer, objective):
    @examples(3)
    @given(problem=small_problems(4), seed=st.integers(0, 9))
    def holds(problem, seed):
        options = PlaceOptions(objective=objective, seed=seed)
        if not all(placers()[each].installed for each in (inner, outer)):
            pytest.skip("a solver is not installed")
        one, other = (place(problem, each, options=options) for each in (inner, outer))
        if value_us(one) < np.inf:
            assert value_us(other) <= value_us(one) * (1 + 1e-9)

    holds()
