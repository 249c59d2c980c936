"""Training steps with long updates, where a pipeline has room for one sample only."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from enplace.machine import simulate
from enplace.machine.pipelines.loads import max_load_us
from enplace.machine.pipelines.pipeline import fill_pipeline
from enplace.placers import PlaceOptions, place
from enplace.placers.max_load.memory.in_flight import find_fullest, find_pace_us
from enplace.placing.candidates import unordered
from enplace.values.load_rule import LoadRule
from enplace.values.problem import Problem
from problems import cluster_of, profile_of

LAYERS = st.lists(
    st.tuples(*[st.integers(1, 5)] * 2, st.integers(1, 30), st.integers(1, 9)),
    min_size=2,
    max_size=4,
)
"""For each layer: times of its three passes, and bytes that it keeps."""


def training_of(layers, capacity):
    """Return layers in a row with an update each, and a GPU for each of them."""
    names = [(f"f{i}", f"gradients/b{i}", f"update/u{i}") for i in range(len(layers))]
    times = {
        op: us
        for ops, layer in zip(names, layers, strict=True)
        for op, us in zip(ops, layer[:3], strict=True)
    }
    edges = []
    for i, ((ahead, back, update), layer) in enumerate(zip(names, layers, strict=True)):
        edges += [(ahead, back, layer[3]), (back, update, 2)]
        if i:
            edges += [(names[i - 1][0], ahead, layers[i - 1][3]), (back, names[i - 1][1], 2)]
    colocation = {op: ops[0] for ops in names for op in ops}
    persistent = {ops[0]: 5 for ops in names}
    profile = profile_of(times, edges, persistent=persistent, colocation=colocation)
    cluster = cluster_of(len(layers), b0_us=0.0, b1_us_per_byte=0.25, capacity_bytes=capacity)
    return Problem(profile, cluster)


def test_one_sample_in_flight_waits_for_no_update():
    """GPU 1 updates for 30 µs once per step, so the second sample does not wait for that."""
    problem = training_of([(1, 2, 10, 4), (1, 2, 30, 4)], capacity=15)
    options = PlaceOptions(values={"microbatches": 2})
    plan = place(problem, "max-load-dp", options=options).plan
    step_us = simulate(problem, plan).makespan_us
    pipeline = fill_pipeline(problem, plan)
    assert 3 + 30 / 2 <= plan.value_us < step_us
    assert pipeline.time_per_sample_us == pytest.approx(plan.value_us)
    assert max(pipeline.in_flight) == 1
    assert (pipeline.peak_bytes <= 15).all()
    assert pipeline.computing_us(1) == pytest.approx(2 * 3 + 30)


@given(layers=LAYERS, capacity=st.integers(8, 30))
def test_no_pace_is_slower_than_a_step_that_fits(layers, capacity):
    problem, rule = training_of(layers, capacity), LoadRule()
    device = np.repeat(np.arange(len(layers)), 3)
    (plan,) = unordered(problem, device, "")
    step = simulate(problem, plan)
    pace_us = find_pace_us(problem, device, rule)
    if 0 < pace_us < np.inf:
        assert find_fullest(problem, device, rule, pace_us=pace_us) <= 1
        if step.fits:
            assert pace_us <= max(step.makespan_us, max_load_us(problem, device, rule))
