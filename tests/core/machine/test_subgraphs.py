"""How often paths return to a place, against definition 3.1 of the paper."""

import numpy as np
from hypothesis import given

from enplace.machine.op_passes import backward_ops
from enplace.machine.subgraphs import count_returns, find_subgraphs
from enplace.placers.max_load.contiguity import is_contiguous
from enplace.values.problem import Problem
from problems import cluster_of, planned_problems, profile_of
from properties import examples


def test_chains_that_cross_return_nowhere_though_subgraphs_would_wait_for_each_other():
    profile = profile_of(dict.fromkeys("abcd", 1), [("a", "b", 1), ("c", "d", 1)])
    on = np.array([0, 1, 1, 0])
    assert count_returns(profile, on, 2).tolist() == [0, 0, 0, 0]
    assert find_subgraphs(profile, on, 2).max() == 1
    assert is_contiguous(Problem(profile, cluster_of(2)), on)


@examples(20)
@given(planned_problems())
def test_a_placement_is_contiguous_if_no_pass_returns_to_a_device(case):
    problem, plan = case
    place = 2 * plan.device + backward_ops(problem)
    returns = count_returns(problem.profile, place, 2 * problem.cluster.n_devices)
    assert is_contiguous(problem, plan.device) == (not returns.any())
