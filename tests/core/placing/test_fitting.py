"""What is tried for plans that exceed memory."""

from itertools import pairwise

from benchmarks.planted import planted
from enplace.placers import place
from enplace.values.problem import Problem
from problems import cluster_of, profile_of


def test_a_quick_methods_plan_is_mended_where_memory_only_just_suffices():
    case = planted(300, 4, 3.0, spare=0.05, transfer_us=30.0, seed=1)
    found = place(case.problem, "celeritas")
    assert found.schedule.fits
    assert "were moved to fit" in found.plan.note
    assert found.schedule.makespan_us < 1.15 * case.best_us


def test_a_proof_that_nothing_fits_has_a_name():
    """Each op reads and makes 60 bytes at a time, on devices of 100."""
    names = [f"op_{i}" for i in range(40)]
    chain = profile_of(dict.fromkeys(names, 10.0), [(a, b, 60) for a, b in pairwise(names)])
    plan = place(Problem(chain, cluster_of(2, capacity_bytes=100)), "heft").plan
    assert plan.nothing_fits
    assert "proven by packing" in plan.note
