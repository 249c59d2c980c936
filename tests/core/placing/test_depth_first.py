"""An order of ops that ends what it has begun."""

import numpy as np
from hypothesis import given
from tests.core.placers.problems import problems

from enplace.machine import simulate
from enplace.placing.depth_first import depth_first_position
from enplace.values.arrays import is_permutation
from enplace.values.plan import Plan
from enplace.values.problem import Problem
from problems import cluster_of, profile_of


@given(problem=problems())
def test_every_op_comes_once_and_behind_its_inputs(problem):
    position, profile = depth_first_position(problem), problem.profile
    assert is_permutation(position)
    assert (position[profile.edge_source] < position[profile.edge_op]).all()


def peak(problem):
    device = np.zeros(problem.profile.n_ops, dtype=np.int64)
    plan = Plan(device, depth_first_position(problem), "hand", policy="strict")
    return simulate(problem, plan).peak_bytes[0]


def test_each_update_ends_before_the_next_begins():
    """All need what all gradients make; each reads two moments that may be made at any time."""
    times, edges = {"x": 1.0, "norm": 1.0}, []
    for i in range(8):
        made = [f"gradient{i}", f"first{i}", f"second{i}", f"update{i}"]
        times |= dict.fromkeys(made, 1.0)
        edges += [("x", made[0], 1), (made[0], "norm", 100), ("norm", made[1], 1)]
        edges += [(made[0], made[1], 100), (made[1], made[2], 100), (made[2], made[3], 100)]
        times[f"decay{i}"] = 1.0
        edges.append((f"decay{i}", made[3], 100))
    problem = Problem(profile_of(times, edges), cluster_of(1, capacity_bytes=10_000))
    assert peak(problem) < 8 * 100 + 400, "no moment waits for others"


def test_a_gradient_of_weights_is_used_before_the_next_layer_is_reached():
    times, edges, before = {"x": 1.0}, [], "x"
    for i in range(8):
        times |= dict.fromkeys((f"back{i}", f"weights{i}", f"update{i}"), 1.0)
        edges += [(before, f"back{i}", 10), (before, f"weights{i}", 10)]
        edges.append((f"weights{i}", f"update{i}", 10))
        before = f"back{i}"
    problem = Problem(profile_of(times, edges), cluster_of(1, capacity_bytes=10_000))
    assert peak(problem) <= 40
