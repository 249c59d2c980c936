"""Of small graphs, all placements are tried for the least time per sample."""

from __future__ import annotations

import itertools
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.placers.latency.drawn import fits, small_problems

from enplace.machine.pipelines.loads import max_load_us
from enplace.placers import THROUGHPUT, PlaceOptions, place
from enplace.placers.max_load.all_placements import find_best, find_loads_us
from enplace.placers.max_load.contiguity import is_contiguous
from enplace.values.constraints import Constraints
from enplace.values.load_rule import PIPELINES, TRANSFERS, LoadRule
from enplace.values.problem import Problem
from enplace.values.rivals import ALL, CONTIGUOUS
from problems import cluster_of, profile_of
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


@pytest.mark.parametrize(("apart_us", "is_noted"), [(2.0, True), (10.95, False)])
def test_a_contiguous_plan_says_what_a_clearly_faster_split_takes(apart_us, is_noted):
    """The GPU may not run the op in the middle, and the host takes long for those around it."""
    edge_us = apart_us / 2
    profile = profile_of(
        {"a": edge_us, "b": 1.0, "c": edge_us},
        [("a", "b", 0), ("b", "c", 0)],
        cpu={"a": 10.0, "b": 1.0, "c": 10.0},
    )
    constraints = Constraints(forbidden=frozenset({(1, 0)}))
    problem = Problem(profile, cluster_of(1, cpu_lanes=1, b0_us=0.0), constraints)
    plan = place(problem, "max-load-dp").plan
    assert plan.proven
    assert plan.value_us == 11.0
    assert is_noted == ("max-load-ip-noncontiguous finds it" in plan.note)


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


def test_a_known_plan_leaves_few_placements_to_try():
    """11 ops on three unlike GPUs have 177,147 placements, which are too many to list."""
    times_us = {f"op{at}": 1.0 + at * 7 % 5 for at in range(11)}
    edges = [(f"op{at}", f"op{at + 1 + at % 3}", 2 * at) for at in range(8)]
    cluster = cluster_of(3, speeds=[1.0, 0.9, 0.8], b1_us_per_byte=0.05)
    problem, rule = Problem(profile_of(times_us, edges), cluster), LoadRule()
    least_us = find_loads_us(problem, all_placements(problem), rule).min()
    search = partial(find_best, problem, rule, lambda: False, prefers_contiguous=False)
    assert search() is None
    assert search(known_us=1.05 * least_us)[0].value_us == pytest.approx(least_us)
    assert search(known_us=0.9 * least_us) is None
