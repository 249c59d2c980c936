"""An order that keeps memory within bounds as it goes."""

import numpy as np
from hypothesis import given

from enplace.machine import simulate
from enplace.machine.layout import build_machine
from enplace.placing.fitting import thrifty_position
from enplace.placing.moves.thrifty import thrifty_start_us
from enplace.placing.settle import by_placed_rank
from enplace.values.plan import Plan
from enplace.values.problem import Problem
from problems import cluster_of, planned_problems, profile_of


def strands(n):
    """Return strands whose first ops hold much until the second ones have read it."""
    times, edges = {"begin": 1.0}, []
    for i in range(n):
        # Later strands have longer ends, so that ranks start all of them first.
        times |= {f"make_{i}": 10.0 - i, f"use_{i}": 10.0}
        edges += [("begin", f"make_{i}", 1), (f"make_{i}", f"use_{i}", 100)]
    return profile_of(times, edges)


def test_what_frees_memory_goes_before_what_has_no_room():
    problem = Problem(strands(4), cluster_of(1, capacity_bytes=210))
    device = np.zeros(problem.profile.n_ops, dtype=np.int64)

    def peak(position):
        return int(simulate(problem, Plan(device, position, "hand")).peak_bytes[0])

    assert peak(by_placed_rank(problem, device)) > 210
    assert peak(thrifty_position(problem, device)) <= 210


@given(planned=planned_problems())
def test_every_op_starts_after_those_that_it_needs(planned):
    problem, plan = planned
    device = np.array(plan.device)
    rank_us = np.arange(problem.profile.n_ops, dtype=float)
    start_us = thrifty_start_us(build_machine(problem), device, rank_us, 1.0)
    profile = problem.profile
    made_us = start_us + problem.time_us[np.arange(profile.n_ops), device]
    assert (start_us[profile.edge_op] >= made_us[profile.edge_source] - 1e-6).all()
    position = thrifty_position(problem, device)
    assert sorted(position.tolist()) == list(range(profile.n_ops))
