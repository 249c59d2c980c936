"""Leaders of free ops, against a readable reference."""

import numpy as np
from hypothesis import given
from tests.core.placers.problems import problems

from enplace.coarsen import find_leaders
from enplace.placing.settle import natural_position


def lead_slowly(problem, position):
    """Follow the definition of a free op and of its leader, op by op."""
    profile, allowed = problem.profile, problem.unit_allowed[problem.unit]
    works = np.isfinite(problem.time_us) & (problem.time_us > 0)
    edges = list(zip(profile.edge_source.tolist(), profile.edge_op.tolist(), strict=True))
    by_position = np.argsort(position).tolist()
    free = {}
    for op in by_position:
        free[op] = not works[op].any() and all(free[a] for a, b in edges if b == op)
    leader = {}
    for op in reversed(by_position):
        leaders = [leader[b] for a, b in edges if a == op]
        first = min(leaders, key=lambda other: position[other], default=op)
        follows = free[op] and (allowed[first] <= allowed[op]).all()
        leader[op] = first if follows else op
    return [leader[op] for op in range(profile.n_ops)]


@given(problem=problems())
def test_leaders_equal_those_of_the_reference(problem):
    position = natural_position(problem)
    assert find_leaders(problem, position).tolist() == lead_slowly(problem, position)
