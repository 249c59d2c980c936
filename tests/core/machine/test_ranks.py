"""Upward ranks of a placement, against a readable reference."""

import numpy as np
from hypothesis import given
from tests.problems import planned_problems

from enplace.machine.layout import build_machine
from enplace.machine.ranks import placed_rank_us


def rank_slowly(problem, device):
    """Find the longest path from each op to the end, along ops and the transfers between them."""
    profile, rank_us = problem.profile, np.zeros(problem.profile.n_ops)
    for op in reversed(profile.topological_order.tolist()):
        after_us = [0.0]
        for edge in np.flatnonzero(profile.edge_source == op):
            consumer, n_bytes = (
                profile.edge_op[edge],
                profile.tensor_bytes[profile.edge_tensor[edge]],
            )
            sent_us = 0.0
            if device[consumer] != device[op]:
                sent_us = problem.cluster.transfer_us(n_bytes, device[op], device[consumer])
            after_us.append(sent_us + rank_us[consumer])
        rank_us[op] = max(after_us) + problem.time_us[op, device[op]]
    return rank_us


@given(planned=planned_problems())
def test_ranks_equal_those_of_the_reference(planned):
    problem, plan = planned
    device = np.array(plan.device)
    found = placed_rank_us(build_machine(problem), device)
    assert found.tolist() == rank_slowly(problem, device).tolist()
