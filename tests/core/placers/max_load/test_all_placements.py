"""Of small graphs, all placements are tried for the least time per sample."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.placers.latency.drawn import fits, small_problems

from enplace.machine.pipelines.loads import max_load_us
from enplace.placers import THROUGHPUT, PlaceOptions, place
from enplace.placers.max_load.all_placements import find_loads_us
from enplace.placers.max_load.contiguity import is_contiguous
from enplace.values.load_rule import PIPELINES, TRANSFERS, LoadRule
from enplace.values.rivals import ALL, CONTIGUOUS
from properties import examples


def all_placements(problem):
    """Return all placements; shape (n_placements, n_ops)."""
    chosen = itertools.product(range(problem.cluster.n_devices), repeat=problem.n_units)
    return np.array(list(chosen))[:, problem.unit]


@given(small_problems(4), st.sampled_from(TRANSFERS), st.sampled_from(PIPELINES))
def test_loads_are_those_of_one_placement_after_another(problem, transfers, pipeline):
    rule, device = LoadRule(transfers, pipeline), all_placements(problem)
    expected = [max_load_us(problem, each, rule) for each in device]
    np.testing.assert_allclose(find_loads_us(problem, device, rule), expected)


@pytest.mark.parametrize("method", ["max-load-dp", "max-load-ip-noncontiguous"])
def test_the_plan_is_proven_the_best_of_all_that_fit(method):
    @examples(6)
    @given(small_problems(4))
    def holds(problem):
        options = PlaceOptions(objective=THROUGHPUT, values={"in-flight": False})
        plan = place(problem, method, options=options).plan
        rivals = [each for each in all_placements(problem) if fits(problem, each)]
        assert plan.nothing_fits == (not rivals)
        if not rivals:
            return
        contiguous = [each for each in rivals if is_contiguous(problem, each)]
        if method == "max-load-dp" and contiguous:
            rivals = contiguous
        least_us = min(max_load_us(problem, each, LoadRule()) for each in rivals)
        assert plan.proven
        assert plan.rivals == (CONTIGUOUS if rivals is contiguous else ALL)
        assert plan.value_us == plan.bound_us == pytest.approx(least_us)

    holds()
