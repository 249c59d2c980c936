"""The lower bound on the latency of a query, against all placements and subgraphs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.placers.latency.drawn import least_us, small_problems

from enplace.bounds.latency import least_latency_us
from enplace.placers import LATENCY, PlaceOptions, place
from enplace.placers.latency import methods
from enplace.values.problem import Problem
from problems import cluster_of, profile_of
from properties import examples


@examples(20)
@given(small_problems(4), st.sampled_from([1, 2]))
def test_no_query_takes_less(problem, q):
    assert least_latency_us(problem) <= least_us(problem, q) * (1 + 1e-9)


def chains(cpu_us: float) -> Problem:
    """Return four chains of two ops that take 10 us each on one of two GPUs."""
    names = [(f"{chain}0", f"{chain}1") for chain in "abcd"]
    times = {name: 10.0 for pair in names for name in pair}
    profile = profile_of(
        times, [(*pair, 0) for pair in names], cpu=dict.fromkeys(times, cpu_us) if cpu_us else None
    )
    return Problem(profile, cluster_of(2, b0_us=0.0, cpu_lanes=8))


@pytest.mark.parametrize(
    ("cpu_us", "bound_us"),
    [(0.0, 40.0), (100.0, 40.0), (25.0, 35.0), (10.0, 20.0)],
    ids=["no CPU", "a slow CPU", "a CPU that takes one op each", "a fast CPU"],
)
def test_work_counts_where_the_host_is_slow(cpu_us, bound_us):
    assert least_latency_us(chains(cpu_us)) == bound_us


def test_a_search_with_several_subgraphs_has_a_bound(monkeypatch):
    monkeypatch.setattr(methods, "find_best", lambda *_: None)
    found = place(chains(0.0), "latency-ip-q", options=PlaceOptions(LATENCY))
    assert found.value_us == found.bound_us == 40.0
    assert found.plan.proven
