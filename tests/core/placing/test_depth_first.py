"""An order of ops that ends what it has begun."""

import numpy as np
from hypothesis import given
from tests.core.placers.problems import problems

from enplace.machine import simulate
from enplace.placers import PlaceOptions, place
from enplace.placers.enplace.starts import depth_first_plans
from enplace.placing.depth_first import depth_first_position
from enplace.values.arrays import is_permutation
from enplace.values.plan import Plan
from enplace.values.problem import Problem
from problems import cluster_of, profile_of

ROUND = PlaceOptions(values={"rounds": 1})


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


def layers():
    """Return the backward pass of some layers, and an update of the weights of each."""
    times, edges, before = {"x": 1.0}, [], "x"
    for i in range(8):
        times |= dict.fromkeys((f"back{i}", f"weights{i}", f"update{i}"), 1.0)
        edges += [(before, f"back{i}", 10), (before, f"weights{i}", 10)]
        edges.append((f"weights{i}", f"update{i}", 10))
        before = f"back{i}"
    return profile_of(times, edges)


def test_a_gradient_of_weights_is_used_before_the_next_layer_is_reached():
    assert peak(Problem(layers(), cluster_of(1, capacity_bytes=10_000))) <= 40


def test_two_gpus_are_never_slower_than_one_of_them():
    one, two = (Problem(layers(), cluster_of(n, capacity_bytes=40, b0_us=100.0)) for n in (1, 2))
    found = [place(each, "enplace-recompute", options=ROUND).schedule for each in (one, two)]
    assert all(each.fits for each in found)
    assert found[1].makespan_us <= found[0].makespan_us


def test_orders_that_end_what_they_began_are_tried_on_one_gpu_and_in_blocks():
    problem = Problem(layers(), cluster_of(2, capacity_bytes=40))
    found = list(depth_first_plans(problem, lambda: False))
    assert found[0].fits
    assert len(set(found[0].plan.device.tolist())) == 1
    assert any(len(set(each.plan.device.tolist())) == 2 for each in found)
