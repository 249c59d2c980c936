"""HEFT against the example in its paper and a slow reference."""

import numpy as np
from hypothesis import assume, given
from tests.core.placers.problems import GIB, gpus, line, problems
from tests.core.placers.reference import ListScheduler

from enplace.machine import simulate
from enplace.placers import PlaceOptions, place
from enplace.placers.heft import list_schedule
from enplace.placing.settle import mean_rank_us, position_by
from enplace.values.problem import Problem
from enplace.values.profile import make_profile

TIMES = [
    (14, 16, 9), (13, 19, 18), (11, 13, 19), (13, 8, 17), (12, 13, 10),
    (13, 16, 9), (7, 15, 11), (5, 11, 14), (18, 12, 20), (21, 7, 16),
]  # fmt: skip
EDGES = [
    (1, 2, 18), (1, 3, 12), (1, 4, 9), (1, 5, 11), (1, 6, 14), (2, 8, 19), (2, 9, 16), (3, 7, 23),
    (4, 8, 27), (4, 9, 23), (5, 9, 13), (6, 8, 15), (7, 10, 17), (8, 10, 11), (9, 10, 13),
]  # fmt: skip


def papers_example():
    """Return figure 2 of Topcuoglu et al.: ten tasks, three processors, edge costs as bytes."""
    profile = make_profile(
        "Topcuoglu",
        op_names=[f"n{i}" for i in range(1, 11)],
        op_types=["Task"] * 10,
        scopes=[""] * 10,
        time_us=np.array([(min(row), np.nan) for row in TIMES], dtype=float),
        persistent_bytes=[0] * 10,
        temporary_bytes=[0] * 10,
        colocation=[""] * 10,
        edge_source=[e[0] - 1 for e in EDGES],
        edge_output=[e[1] for e in EDGES],
        edge_op=[e[1] - 1 for e in EDGES],
        edge_bytes=[e[2] for e in EDGES],
    )
    problem = Problem(profile, gpus(3, b0=0.0, b1=1.0))
    # A profile cannot hold arbitrary times per op and device; the ranks read only this table.
    problem.__dict__["time_us"] = np.array(TIMES, dtype=float)
    return problem


def test_upward_ranks_match_the_papers_example():
    expected = [108, 77, 80, 80, 69, 63.333, 42.667, 35.667, 44.333, 14.667]
    assert np.allclose(mean_rank_us(papers_example()), expected, atol=1e-3)


@given(problem=problems())
def test_the_kernel_equals_the_reference(problem):
    assume(problem.cluster.capacity_bytes.min() >= GIB)
    rank = mean_rank_us(problem)
    device, start = list_schedule(problem, rank, problem.unit, PlaceOptions())
    expected_device, expected_start = ListScheduler(problem, position_by(problem, -rank)).run()
    assert device.tolist() == expected_device
    assert start.tolist() == expected_start


def test_an_op_with_very_many_inputs_takes_them_as_in_the_reference():
    """All end at times of their own, so the order of the inputs is the same however sorted."""
    n = 150
    costs = [*(1.0 + (i * 71 % n) + i / 7919 for i in range(n)), 1.0]
    problem = Problem(line(costs, [(i, n, 1 + i % 7) for i in range(n)]), gpus(3, b1=0.5))
    rank = mean_rank_us(problem)
    device, start = list_schedule(problem, rank, problem.unit, PlaceOptions())
    expected_device, expected_start = ListScheduler(problem, position_by(problem, -rank)).run()
    assert device.tolist() == expected_device
    assert start.tolist() == expected_start


def test_a_faster_gpu_gets_more_of_independent_work():
    problem = Problem(line([10.0] * 30, []), gpus(2, speeds=[1.0, 2.0]))
    plan = place(problem, "heft").plan
    assert np.bincount(plan.device).tolist() == [10, 20]
    assert simulate(problem, plan).makespan_us == 100


def test_work_moves_only_if_that_outweighs_the_transfer():
    edges = [(0, 1, 4), (0, 2, 4), (1, 3, 4), (2, 3, 4)]
    costs = [2.0, 5.0, 5.0, 2.0]
    near = place(Problem(line(costs, edges), gpus(2, b0=1.0)), "heft").plan
    far = place(Problem(line(costs, edges), gpus(2, b0=6.0)), "heft").plan
    assert len(set(near.device.tolist())) == 2
    assert len(set(far.device.tolist())) == 1


def test_memory_forces_ops_onto_a_second_gpu():
    costs, edges = [5.0] * 4, [(i, i + 1, 4) for i in range(3)]
    profile = line(costs, edges, persistent=[400] * 4)
    roomy = Problem(profile, gpus(2, b0=50.0))
    tight = Problem(profile, gpus(2, b0=50.0, capacity=1000))
    assert len(set(place(roomy, "heft").plan.device.tolist())) == 1
    assert simulate(tight, place(tight, "heft").plan).fits
