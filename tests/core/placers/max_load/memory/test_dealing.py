"""Stages dealt out to devices of a kind that differ, against all permutations."""

from itertools import pairwise, permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from enplace.machine.pipelines.loads import max_load_us
from enplace.machine.pipelines.pipeline import simulate_pipeline
from enplace.placers import PlaceOptions, place
from enplace.placers.max_load.table import kinds
from enplace.placing.options import load_values
from enplace.values.load_rule import LoadRule
from enplace.values.problem import Problem
from problems import cluster_of, profile_of

RECOMPUTED = "--recompute trades"


def chain_on(speeds, times, capacity_bytes=10**9, **sizes):
    """Return ops in a row, each of which sends a byte, on GPUs of some speeds."""
    names = [f"f{i}" for i in range(len(times))]
    edges = [(a, b, 1) for a, b in pairwise(names)]
    profile = profile_of(dict(zip(names, times, strict=True)), edges, **sizes)
    n = len(speeds)
    return Problem(profile, cluster_of(n, speeds=speeds, capacity_bytes=capacity_bytes))


@given(
    speeds=st.lists(st.sampled_from([0.5, 1.0, 2.0]), min_size=2, max_size=4),
    times=st.lists(st.integers(1, 30), min_size=2, max_size=6),
)
def test_no_other_way_to_deal_out_the_stages_is_faster(speeds, times):
    problem = chain_on(speeds, times)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kinds, "MOST_CELLS", 1)
        plan = place(problem, "max-load-dpl").plan
    gpus = list(range(len(speeds)))
    others = (max_load_us(problem, np.array(p)[plan.device]) for p in permutations(gpus))
    assert plan.value_us == pytest.approx(min(others))
    if len(set(speeds)) > 1:
        assert plan.note.startswith("devices of a kind differ")


def test_a_stage_stays_where_it_is_pinned():
    problem = chain_on([1.0, 2.0], [10, 20])
    assert place(problem, "max-load-dp").plan.value_us == pytest.approx(12)
    pinned = problem.constrained(pins={1: 0, 0: 1})
    plan = place(pinned, "max-load-dp").plan
    assert plan.device.tolist() == [1, 0]
    assert plan.value_us == pytest.approx(22)


def test_samples_in_flight_count_when_stages_are_dealt_out(monkeypatch):
    """The first GPU is slower; dealt out with samples in flight, the plan still fits."""
    times = {"f0": 8.5, "f1": 5, "f2": 3.5, "gradients/b2": 10, "gradients/b0": 16}
    edges = [("f0", "f1", 10), ("f1", "f2", 1), ("f2", "gradients/b2", 1)]
    edges += [("gradients/b2", "gradients/b0", 1), ("f0", "gradients/b0", 10)]
    profile = profile_of(times, edges, colocation={"f0": "0", "gradients/b0": "0"})
    cluster = cluster_of(3, b0_us=0.5, b1_us_per_byte=0.1, speeds=[1, 2, 2], capacity_bytes=25)
    problem = Problem(profile, cluster)
    values = load_values(LoadRule(recompute=True))
    monkeypatch.setattr(kinds, "MOST_CELLS", 1)
    plan = place(problem, "max-load-dpl", options=PlaceOptions(values=values)).plan
    found = simulate_pipeline(problem, plan, "1f1b", 12)
    assert (found.peak_bytes <= 25).all()
    assert found.time_per_sample_us == pytest.approx(plan.value_us)
    assert RECOMPUTED not in plan.note
    assert plan.note.count("devices of a kind differ") == 1
